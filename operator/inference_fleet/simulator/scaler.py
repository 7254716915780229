"""What decides how many replicas there are: the interface of baselines and of the operator's own planner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from inference_fleet.simulator.view import ScalerView


class Scaler(Protocol):
    """Decides from what can be seen. May keep state; must not read a clock or draw chance of its own."""

    @property
    def interval_seconds(self) -> float:
        """How often it is asked."""
        ...

    @property
    def scrape_seconds(self) -> float | None:
        """How often its own signals are read; None: as the scenario says."""
        ...

    def decide(self, view: ScalerView, now: float) -> Mapping[str, int]:
        """Replicas by variant. A variant that is left out stays as it is. `now`: seconds since the start."""
        ...


@runtime_checkable
class Weighing(Protocol):
    """A scaler that also publishes shares of new requests, for each ready replica of a variant."""

    def weights(self) -> Mapping[str, float]:
        """The shares that go with the last decision."""
        ...


ScalerFactory = Callable[[], Scaler]
"""Makes a scaler that remembers nothing."""
