"""What a real loop could see, and when it could see it: the argument of every scaler. Nothing here is true now, only when it
was read.

Counters are totals since the process began. A sample that was lost is absent; a loop must look at `at`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from inference_fleet.simulator.scenario import Objectives

TTFT_EDGES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 15, 30, 60, 120, 300, 600)
"""Upper edges of the histogram of TTFT, seconds, as the gateway's own; one bucket more for what is beyond."""
TPOT_EDGES = (0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2)
"""Upper edges of the histogram of TPOT, seconds, as the gateway's own; one bucket more for what is beyond."""


class Phase(StrEnum):
    """Where a replica is in its life, as the API server shows it."""

    PENDING = "Pending"
    """No device yet: not billed."""
    LOADING = "Loading"
    READY = "Ready"
    DRAINING = "Draining"
    GONE = "Gone"


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One scrape of an engine."""

    at: float
    """When it was read."""
    running: int
    waiting: int
    kv_usage: float
    """0 to 1."""
    prompt_tokens: int
    """Counter: prompt tokens computed."""
    generation_tokens: int
    """Counter."""
    busy_seconds: float
    """Counter: seconds with any kernel running, as a GPU's utilisation counts them."""
    preemptions: int
    prefix_queries: int
    prefix_hits: int
    drafts: int
    draft_tokens: int
    accepted_tokens: int


@dataclass(frozen=True, slots=True)
class PodView:
    """A replica as the API server and the last scrapes show it."""

    name: str
    variant: str
    phase: Phase
    since: float
    """When it entered the phase."""
    created: float
    restarts: int
    samples: Sequence[EngineSample]
    """Oldest first; empty until it is ready."""


@dataclass(frozen=True, slots=True)
class GatewaySample:
    """One scrape of the gateway. All but the gauges are counters."""

    at: float
    arrivals: int
    completed: int
    failed: int
    in_flight: int
    """Gauge: everything that has arrived and not ended, held requests included."""
    held: int
    """Gauge: requests without any ready engine."""
    prompt_tokens: int
    """Of arrivals."""
    completion_tokens: int
    """Of requests that ended."""
    within: int
    """Requests that met all objectives."""
    judged: int
    """Requests that ended, in any way."""
    ttft: tuple[int, ...]
    """Counts by bucket (not cumulative), edges TTFT_EDGES."""
    tpot: tuple[int, ...]
    """Counts by bucket (not cumulative), edges TPOT_EDGES."""


@dataclass(frozen=True, slots=True)
class VariantView:
    """One variant: what is declared and what runs."""

    name: str
    price_per_hour: Decimal
    devices: int
    spot: bool
    minimum: int
    maximum: int
    kv_capacity_tokens: int
    """As the engine prints it at its start."""
    max_sequences: int
    max_batched_tokens: int
    desired: int
    """What was last asked for."""
    pods: Sequence[PodView]
    """Everything that is not gone, draining ones included."""

    @property
    def ready(self) -> int:
        """Replicas that take requests."""
        return sum(1 for pod in self.pods if pod.phase is Phase.READY)

    @property
    def coming(self) -> int:
        """Replicas that will."""
        return sum(1 for pod in self.pods if pod.phase in (Phase.PENDING, Phase.LOADING))

    @property
    def held(self) -> int:
        """Replicas that are not on their way out."""
        return self.ready + self.coming


@dataclass(frozen=True, slots=True)
class ScalerView:
    """Everything that a scaler may know."""

    variants: Mapping[str, VariantView]
    gateway: Sequence[GatewaySample]
    """Oldest first."""
    objectives: Objectives
    budget_per_hour: Decimal | None
    start_seconds: Sequence[float]
    """Start-ups seen so far, oldest first, of all variants: from scheduled to ready."""
