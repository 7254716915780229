"""Scalers that look at nothing: a fixed number of replicas, and what a policy declares today."""

from __future__ import annotations

from collections.abc import Mapping

from inference_fleet.simulator.view import ScalerView


class Static:
    """The same number always. `static-peak` and `static-mean` differ in where the number comes from."""

    interval_seconds = 60.0
    scrape_seconds: float | None = None

    def __init__(self, replicas: Mapping[str, int]) -> None:
        """Replicas by variant."""
        self._replicas = dict(replicas)

    def decide(self, view: ScalerView, now: float) -> Mapping[str, int]:
        """What it was given."""
        return self._replicas


class Declared:
    """What the operator does without an autoscaler: `replicas.min` of the policy, on its first choice of accelerator."""

    interval_seconds = 15.0
    scrape_seconds: float | None = None

    def decide(self, view: ScalerView, now: float) -> Mapping[str, int]:
        """The variants' declared minimum."""
        return {name: variant.minimum for name, variant in view.variants.items()}
