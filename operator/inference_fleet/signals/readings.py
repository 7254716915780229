"""What was measured of one policy, as a pass takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from inference_fleet.plan.observation import SpeculationView, TrafficView


@dataclass(frozen=True, slots=True)
class Measured:
    """The last measurements; absent where nothing could be read."""

    traffic: TrafficView = field(default_factory=TrafficView)
    revisions: Mapping[str, str | None] = field(default_factory=dict)
    """Gateway pod → routes revision it shows; None: it could not be read."""
    speculation: Mapping[str, SpeculationView] = field(default_factory=dict)
    """Variant → what its draft sidecars measured together."""


@dataclass(frozen=True, slots=True)
class Target:
    """A pod to read. `born`: when it began to count, on the readers' clock."""

    pod: str
    uid: str
    address: str
    variant: str = ""
    born: float | None = None

    def url(self, port: int, path: str) -> str:
        """Where it serves; an IPv6 address goes in brackets."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{port}{path}"
