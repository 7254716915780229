"""Scalers beside each other: candidates for each, tuned on one slice of traffic, scored on another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from inference_fleet.simulator import traces
from inference_fleet.simulator.baselines.clairvoyant import Clairvoyant, needs
from inference_fleet.simulator.baselines.hpa import KedaWaiting, on_concurrency, on_gpu_use
from inference_fleet.simulator.baselines.llmd import Constants, LlmdSlo
from inference_fleet.simulator.baselines.published import KnativeKpa, LoadPlanner, WvaV1
from inference_fleet.simulator.baselines.static import Declared, Static
from inference_fleet.simulator.results import Result
from inference_fleet.simulator.scaler import ScalerFactory
from inference_fleet.simulator.scenario import Scenario
from inference_fleet.simulator.traces import Arrival
from inference_fleet.simulator.world import World

TARGET = 0.99
"""Attainment that a tuned scaler must reach."""
SMOOTHING = (60.0, 300.0)
LEAST_BUSY, MOST_BUSY, BISECTIONS = 0.2, 6.0, 7
"""How much work the bound of foresight gives a replica, in units of the rough one of `clairvoyant.work`: bisected."""
CONCURRENCY = (4.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One setting of one scaler. `first`: replicas at the start, None: as the scenario says."""

    setting: str
    make: ScalerFactory
    first: Mapping[str, int] | None = None


def run(scenario: Scenario, trace: Sequence[Arrival], candidate: Candidate) -> Result:
    """One run."""
    if candidate.first is not None:
        first = candidate.first
        scenario = replace(
            scenario, variants=tuple(replace(v, initial=first.get(v.name, v.initial)) for v in scenario.variants)
        )
    return World(scenario, traces.requests(trace), candidate.make).run()


def best(results: Sequence[tuple[Candidate, Result]], target: float = TARGET) -> tuple[Candidate, Result]:
    """The cheapest that reaches the target, else the one that comes nearest; the first of equals."""
    reaching = [pair for pair in results if pair[1].attainment >= target]
    if reaching:
        return min(reaching, key=lambda pair: pair[1].money)
    return max(results, key=lambda pair: (pair[1].attainment, -pair[1].money))


def tuned(scenario: Scenario, trace: Sequence[Arrival], candidates: Sequence[Candidate]) -> Candidate:
    """The best of them on this traffic. One candidate needs no run."""
    if len(candidates) == 1:
        return candidates[0]
    return best([(candidate, run(scenario, trace, candidate)) for candidate in candidates])[0]


def static_peak(scenario: Scenario, trace: Sequence[Arrival], target: float = TARGET) -> int:
    """The fewest replicas of the first variant that reach the target when they never change."""
    low, high = 1, scenario.variants[0].maximum
    while low < high:
        middle = (low + high) // 2
        if run(scenario, trace, fixed(scenario, middle)).attainment >= target:
            high = middle
        else:
            low = middle + 1
    return low


def static_mean(scenario: Scenario, trace: Sequence[Arrival], peak: int) -> int:
    """What the mean rate needs if `peak` replicas are what the busiest five minutes need."""
    counts: dict[int, int] = {}
    for arrival in trace:
        counts[int(arrival.at // 300)] = counts.get(int(arrival.at // 300), 0) + 1
    mean = len(trace) / (scenario.duration / 300)
    return max(1, math.ceil(peak * mean / max(counts.values(), default=1)))


def fixed(scenario: Scenario, replicas: int) -> Candidate:
    """That many of the first variant."""
    only = {scenario.variants[0].name: replicas}
    return Candidate(str(replicas), partial(Static, only), only)


def foresight(
    scenario: Scenario,
    trace: Sequence[Arrival],
    target: float = TARGET,
    also: Sequence[int] = (),
    smoothing: Sequence[float] = SMOOTHING,
    bisections: int = BISECTIONS,
) -> tuple[Candidate, Result]:
    """The cheapest schedule found for this very traffic that reaches the target; `also`: constant numbers tried besides."""
    variant = scenario.variants[0]
    tried = [(candidate, run(scenario, trace, candidate)) for candidate in (fixed(scenario, n) for n in also)]
    for smooth in smoothing:
        low, high = LEAST_BUSY, MOST_BUSY
        for _ in range(bisections):
            share = math.sqrt(low * high)
            found = needs(trace, variant, scenario.objectives, scenario.duration, share, smooth)
            first = {variant.name: Clairvoyant(variant, found).first}
            candidate = Candidate(f"busy {share:.3g} over {smooth:g} s", partial(Clairvoyant, variant, found), first)
            tried.append((candidate, run(scenario, trace, candidate)))
            if tried[-1][1].attainment >= target:
                low = share
            else:
                high = share
    return best(tried, target)


def candidates() -> dict[str, list[Candidate]]:
    """Every baseline that reacts, with the settings that are tried for it."""
    return {
        "hpa-concurrency": [Candidate(f"{t:g}", partial(on_concurrency, t)) for t in CONCURRENCY],
        "hpa-gpu": [Candidate(f"{t:g}", partial(on_gpu_use, t)) for t in (0.5, 0.6, 0.7, 0.8, 0.9)],
        "knative-kpa": [Candidate(f"{t:g}", partial(KnativeKpa, t)) for t in CONCURRENCY],
        "keda-waiting": [Candidate(f"{t:g}", partial(KedaWaiting, t)) for t in (1.0, 2.0, 5.0, 10.0)],
        "llmd-slo": [
            Candidate(f"{up:g}/{down:g}", partial(LlmdSlo, Constants(up=up, down=down)))
            for up, down in ((0.55, 0.40), (0.45, 0.30), (0.35, 0.20), (0.70, 0.55), (0.85, 0.70))
        ],
        "wva-v1": [Candidate(f"{kv:g}", partial(WvaV1, kv)) for kv in (0.8, 0.6, 0.4, 0.3, 0.2)],
        "load-planner": [Candidate(f"{share:g}", partial(LoadPlanner, share)) for share in (0.8, 0.6, 0.4)],
    }


def named(name: str, scenario: Scenario, trace: Sequence[Arrival]) -> Sequence[Candidate]:
    """The candidates of any scaler by its name, `declared`, `static-peak`, `static-mean` and `clairvoyant` included. KeyError:
    unknown."""
    if name == "declared":
        return [Candidate("replicas.min", Declared, {v.name: v.minimum for v in scenario.variants})]
    if name in ("static-peak", "static-mean"):
        peak = static_peak(scenario, trace)
        return [fixed(scenario, peak if name == "static-peak" else static_mean(scenario, trace, peak))]
    if name == "clairvoyant":
        return [foresight(scenario, trace)[0]]
    return candidates()[name]


NAMES = ("declared", "static-peak", "static-mean", *candidates(), "clairvoyant")
