"""How a measurement is shown: `/speculation` in JSON for the operator, `/metrics` for Prometheus. Unknown is absent or NaN."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from inference_fleet.draft.measure import Measurement


def to_document(engine: str, depth: int | None, measured: Measurement, now: float) -> dict[str, Any]:
    """The JSON of `/speculation`. `now` is on the readings' clock."""
    known: dict[str, Any] = {
        "engine": engine,
        "depth": depth if depth is not None else len(measured.accepted_per_position) or None,
        "drafts": _whole(measured.drafts),
        "draftTokens": _whole(measured.draft_tokens),
        "acceptedTokens": _whole(measured.accepted_tokens),
        "acceptedPerPosition": [int(count) for count in measured.accepted_per_position] or None,
        "acceptance": _rounded(measured.acceptance),
        "meanAcceptedLength": _rounded(measured.mean_accepted_length),
        "drafting": measured.drafting,
        "tokensPerSecond": [
            {"concurrency": bucket, "tokensPerSecond": _rounded(rate), "seconds": round(measured.paces[bucket].seconds)}
            for bucket, rate in measured.tokens_per_second.items()
        ],
        "ageSeconds": round(now - measured.last.at, 1) if measured.last is not None else None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _whole(count: float | None) -> int | None:
    return None if count is None else int(count)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


class SpeculationCollector(Collector):
    """Turns the latest measurement into metrics at each scrape."""

    def __init__(self, measured: Callable[[], Measurement], depth: int | None) -> None:
        self._measured = measured
        self._depth = depth

    def collect(self) -> Iterable[Metric]:
        """Counters that were never read have no sample; ratios without anything to divide are NaN."""
        measured = self._measured()
        counters = (
            ("drafts", "Times that tokens were guessed", measured.drafts),
            ("draft_tokens", "Tokens guessed by the draft", measured.draft_tokens),
            ("accepted_tokens", "Guessed tokens that the target confirmed", measured.accepted_tokens),
        )
        for name, text, value in counters:
            counter = CounterMetricFamily(f"inference_fleet_speculation_{name}", text)
            if value is not None:
                counter.add_metric([], value)
            yield counter
        gauges = (
            ("acceptance_ratio", "Accepted over drafted tokens since the sidecar started, 0 to 1", measured.acceptance),
            ("depth", "Tokens guessed at most at a time", self._depth),
            (
                "drafting",
                "1: the engine drafts; 0: it generates and does not draft; NaN: not known",
                None if measured.drafting is None else int(measured.drafting),
            ),
        )
        for name, text, figure in gauges:
            value = math.nan if figure is None else figure
            yield GaugeMetricFamily(f"inference_fleet_speculation_{name}", text, value=value)
        positions = GaugeMetricFamily(
            "inference_fleet_speculation_position_acceptance_ratio",
            "Share of drafts whose guess at this position stood",
            labels=["position"],
        )
        for place, share in enumerate(measured.acceptance_per_position):
            positions.add_metric([str(place)], share)
        yield positions
        pace = GaugeMetricFamily(
            "inference_fleet_speculation_tokens_per_second",
            "Tokens a second while this many requests ran (upper end of the bucket)",
            labels=["concurrency"],
        )
        for bucket, rate in measured.tokens_per_second.items():
            pace.add_metric([str(bucket)], rate)
        yield pace


def registry_of(measured: Callable[[], Measurement], depth: int | None) -> CollectorRegistry:
    """A registry of its own, with nothing of the process in it."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SpeculationCollector(measured, depth))
    return registry
