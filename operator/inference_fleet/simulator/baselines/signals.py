"""What Prometheus would make of the samples: rates over a window, quantiles of histograms, means over pods."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from inference_fleet.simulator.view import (
    TPOT_EDGES,
    TTFT_EDGES,
    EngineSample,
    GatewaySample,
    Phase,
    PodView,
    ScalerView,
    VariantView,
)

STALE_SECONDS = 300.0
"""Prometheus' look-back: an instant query finds no older sample."""


def only_variant(view: ScalerView) -> VariantView:
    """The baselines below scale one Deployment; given several they scale the first and leave the rest."""
    return next(iter(view.variants.values()))


def window(samples: Sequence[GatewaySample], now: float, seconds: float) -> Sequence[GatewaySample]:
    """The samples that a range selector would see."""
    return [s for s in samples if now - seconds < s.at <= now]


def quantiles(view: ScalerView, now: float, seconds: float, share: float) -> tuple[float, float]:
    """`histogram_quantile(share, rate(…[seconds]))` of TTFT and TPOT; NaN without two samples or without traffic."""
    seen = window(view.gateway, now, seconds)
    if len(seen) < 2:
        return math.nan, math.nan
    first, last = seen[0], seen[-1]
    return (
        histogram_quantile(share, TTFT_EDGES, [b - a for a, b in zip(first.ttft, last.ttft, strict=True)]),
        histogram_quantile(share, TPOT_EDGES, [b - a for a, b in zip(first.tpot, last.tpot, strict=True)]),
    )


def histogram_quantile(share: float, edges: Sequence[float], counts: Sequence[float]) -> float:
    """As PromQL: linear within a bucket, the last finite edge for what is beyond it."""
    total = sum(counts)
    if total <= 0:
        return math.nan
    rank = share * total
    passed = 0.0
    for index, count in enumerate(counts):
        if passed + count >= rank:
            if index == len(edges):
                return float(edges[-1])
            low = edges[index - 1] if index else 0.0
            return low + (edges[index] - low) * ((rank - passed) / count if count else 1.0)
        passed += count
    return float(edges[-1])


def arrival_rate(view: ScalerView, now: float, seconds: float) -> float:
    """Requests a second that arrived; NaN without two samples."""
    seen = window(view.gateway, now, seconds)
    if len(seen) < 2 or seen[-1].at <= seen[0].at:
        return math.nan
    return (seen[-1].arrivals - seen[0].arrivals) / (seen[-1].at - seen[0].at)


def latest(pod: PodView, now: float) -> EngineSample | None:
    """A pod's last scrape that Prometheus would still answer with."""
    return pod.samples[-1] if pod.samples and now - pod.samples[-1].at < STALE_SECONDS else None


def over_ready(variant: VariantView, now: float, read: Callable[[EngineSample], float]) -> list[float]:
    """A gauge of every ready pod that has one."""
    found = [latest(pod, now) for pod in variant.pods if pod.phase is Phase.READY]
    return [read(sample) for sample in found if sample is not None]


def pod_rate(pod: PodView, now: float, seconds: float, read: Callable[[EngineSample], float]) -> float | None:
    """A counter's rate of one pod over a window."""
    seen = [s for s in pod.samples if now - seconds < s.at <= now]
    if len(seen) < 2:
        return None
    return max(0.0, read(seen[-1]) - read(seen[0])) / (seen[-1].at - seen[0].at)
