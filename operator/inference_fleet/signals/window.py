"""Counters over a window of time: what they grew by, across restarts of the process that counts.

All times are seconds of one clock. A counter that falls was reset: what it shows then has been counted since.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Edges = Mapping[float, float]
"""Upper edge of a histogram bucket (infinity included) → count up to it."""


@dataclass(slots=True)
class CounterHistory:
    """One counter's samples, oldest first. One sample from before the window is kept: growth is counted from it."""

    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, at: float, value: float, keep_seconds: float) -> None:
        """Note a sample; what is older than `keep_seconds` goes, but for the newest of those."""
        if self.times and at <= self.times[-1]:
            return
        self.times.append(at)
        self.values.append(value)
        first = max(0, bisect_right(self.times, at - keep_seconds) - 1)
        if first:
            del self.times[:first]
            del self.values[:first]

    def increase(self, since: float, until: float, born: float | None = None) -> float:
        """Growth between two times. `born`: when the process began to count; if that is inside the window, all counts."""
        total = 0.0
        previous: float | None = 0.0 if born is not None and born >= since else None
        for at, value in zip(self.times, self.values, strict=True):
            if at > until:
                break
            if previous is not None and at > since:
                total += value - previous if value >= previous else value
            previous = value
        return total


def quantile(growth: Edges, percentile: int) -> float | None:
    """The percentile of what a histogram's buckets grew by, linear within a bucket; None where nothing was counted.

    What lies beyond the last finite edge is answered as that edge: it is at least so much. Source: the rule of Prometheus'
    `histogram_quantile`.
    """
    edges = sorted(growth)
    total = growth[edges[-1]] if edges else 0.0
    if total <= 0:
        return None
    rank = total * percentile / 100
    lower_edge = lower_count = 0.0
    for edge in edges:
        count = growth[edge]
        if count >= rank:
            if edge == float("inf"):
                return lower_edge
            width = count - lower_count
            share = (rank - lower_count) / width if width > 0 else 1.0
            return lower_edge + (edge - lower_edge) * share
        lower_edge, lower_count = edge, count
    return lower_edge


def summed(parts: Iterable[Edges]) -> dict[float, float]:
    """Histograms with equal edges, added."""
    total: dict[float, float] = {}
    for part in parts:
        for edge, count in part.items():
            total[edge] = total.get(edge, 0.0) + count
    return total


def oldest_age(times: Sequence[float], now: float) -> float | None:
    """Age of the oldest of some samples; None where there is none."""
    return now - min(times) if times else None
