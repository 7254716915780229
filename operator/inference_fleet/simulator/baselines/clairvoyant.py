"""What foresight alone could save: a schedule made from the whole trace, for one variant, level by level.

The need at a time is the work that arrives around it over what a replica does, rounded up. Level k is needed while the need is at
least k; a gap no longer than a start-up is kept (starting again would be billed as long), so every level is optimal by itself,
and with it the sum. Starts come early by a start-up that is rarely exceeded (P90). How much work a replica does is searched on
the very trace that is scored, until the schedule just holds the attainment asked for: it is the cheapest that foresight found,
not a proof.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from inference_fleet.simulator.scenario import Objectives, Variant
from inference_fleet.simulator.traces import Arrival
from inference_fleet.simulator.truth import EngineTruth
from inference_fleet.simulator.view import ScalerView

BIN_SECONDS = 15.0
NORMAL_P90 = 1.2816


def work(arrival: Arrival, truth: EngineTruth, objectives: Objectives) -> float:
    """Seconds of a replica that a request is worth, at the batch that the TPOT bound allows at most half of. Prefixes are not
    counted."""
    times = truth.times
    context = arrival.prompt + arrival.output / 2
    batch = 1
    limit = (objectives.tpot if objectives.tpot is not None else 0.1) / 2
    most = max(1, min(truth.max_sequences, int(truth.kv_capacity_tokens / context)))
    while batch * 2 <= most and times.seconds(0, 0, batch * 2, batch * 2 * context) < limit:
        batch *= 2
    decode = times.seconds(0, 0, batch, batch * context) / batch
    chunks = math.ceil(arrival.prompt / truth.max_batched_tokens)
    chunk = arrival.prompt / chunks
    prefill = chunks * (times.seconds(chunk, chunk * arrival.prompt / 2, 0, 0) - times.alpha)
    return prefill + arrival.output * decode


def needs(
    trace: Iterable[Arrival],
    variant: Variant,
    objectives: Objectives,
    duration: float,
    share: float,
    smooth_seconds: float = 60.0,
) -> list[int]:
    """Replicas needed in each bin: the work of `smooth_seconds` around it, each replica busy for `share` of the time."""
    bins = [0.0] * max(1, math.ceil(duration / BIN_SECONDS))
    for arrival in trace:
        if arrival.at < duration:
            bins[int(arrival.at / BIN_SECONDS)] += work(arrival, variant.truth, objectives)
    found = []
    half = max(1, round(smooth_seconds / BIN_SECONDS / 2))
    for index in range(len(bins)):
        around = bins[max(0, index - half) : index + half]
        busy = sum(around) / (len(around) * BIN_SECONDS)
        found.append(max(variant.minimum, min(variant.maximum, math.ceil(busy / share))))
    return found


def levels(found: Sequence[int], start_seconds: float) -> list[list[tuple[float, float]]]:
    """For each level the spans, from the start of loading to the end, in which it is on. Pure arithmetic."""
    spans: list[list[tuple[float, float]]] = []
    for level in range(1, max(found, default=0) + 1):
        on: list[tuple[float, float]] = []
        for index, need in enumerate(found):
            if need < level:
                continue
            begin, end = index * BIN_SECONDS, (index + 1) * BIN_SECONDS
            if on and begin - on[-1][1] <= start_seconds:
                on[-1] = (on[-1][0], end)
            else:
                on.append((begin - start_seconds if index else begin, end))
        spans.append(on)
    return spans


class Clairvoyant:
    """Follows a schedule."""

    interval_seconds = 5.0
    scrape_seconds: float | None = None

    def __init__(self, variant: Variant, found: Sequence[int]) -> None:
        """`found`: replicas needed in each bin."""
        truth = variant.truth
        start = truth.start_median_seconds * math.exp(NORMAL_P90 * truth.start_sigma)
        self._variant = variant.name
        self._minimum = variant.minimum
        self._levels = levels(found, start)

    @property
    def first(self) -> int:
        """Replicas that should be ready when the trace begins."""
        return max(self._minimum, self._count(0.0))

    def _count(self, now: float) -> int:
        return sum(1 for spans in self._levels if any(begin <= now < end for begin, end in spans))

    def decide(self, view: ScalerView, now: float) -> Mapping[str, int]:
        """The schedule."""
        return {self._variant: max(self._minimum, self._count(now))}
