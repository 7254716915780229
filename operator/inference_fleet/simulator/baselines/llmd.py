"""llm-d's SLO-aware loop: recording rules, a KEDA formula, an HPA behaviour.

Source: llm-d, guides/workload-autoscaling (README.slo-aware.md) and docs/architecture/advanced/autoscaling/slo-aware-keda.md
(2026). The published run used predicted latencies where the predictor was warm; this is its documented fallback, the histograms
of actual ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from inference_fleet.simulator.baselines.hpa import Behaviour, Limiter, Policy
from inference_fleet.simulator.baselines.signals import only_variant, quantiles
from inference_fleet.simulator.view import ScalerView

BEHAVIOUR = Behaviour(
    up=(Policy(60, percent=100), Policy(60, pods=4)),
    up_window=30.0,
    down=(Policy(120, pods=1),),
    down_window=180.0,
)


@dataclass(frozen=True, slots=True)
class Constants:
    """As published."""

    up: float = 0.55
    down: float = 0.40
    clamp: float = 2.0
    smoothing_seconds: float = 45.0
    rate_seconds: float = 60.0
    quantile: float = 0.9


class LlmdSlo:
    """The signal is recorded every 15 s, as is the decision; the gateway is scraped every 5 s, as in the published run."""

    interval_seconds = 15.0
    scrape_seconds: float | None = 5.0

    def __init__(self, constants: Constants = Constants()) -> None:
        """Nothing recorded."""
        self._constants = constants
        self._recorded: list[tuple[float, float]] = []
        self._limiter = Limiter(BEHAVIOUR)

    def decide(self, view: ScalerView, now: float) -> Mapping[str, int]:
        """One evaluation."""
        c = self._constants
        variant = only_variant(view)
        ttft, tpot = quantiles(view, now, c.rate_seconds, c.quantile)
        worst = max(_share(ttft, view.objectives.ttft), _share(tpot, view.objectives.tpot))
        self._recorded = [(t, s) for t, s in self._recorded if now - t < c.smoothing_seconds]
        self._recorded.append((now, min(worst, c.clamp)))
        s = sum(value for _, value in self._recorded) / len(self._recorded)
        n, ready = variant.held, variant.ready
        credit = ready / n if 0 < ready < n else 1.0
        wanted = n
        if s > c.up:
            wanted = n + math.ceil(n * (s * credit / c.up - 1))
        elif s < c.down:
            wanted = n - math.floor(n * (1 - s / c.down))
        return {variant.name: self._limiter.apply(n, wanted, variant.minimum, variant.maximum, now)}


def _share(value: float, bound: float | None) -> float:
    """No traffic, no figure: zero."""
    return 0.0 if bound is None or math.isnan(value) else value / bound
