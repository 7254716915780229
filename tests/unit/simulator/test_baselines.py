"""The baselines do what they are published to do: their arithmetic against the published rules, by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_fleet.simulator.baselines.clairvoyant import BIN_SECONDS, levels, needs, work
from inference_fleet.simulator.baselines.hpa import (
    Behaviour,
    KedaWaiting,
    Limiter,
    Policy,
    by_pods,
    on_concurrency,
    on_gpu_use,
)
from inference_fleet.simulator.baselines.llmd import LlmdSlo
from inference_fleet.simulator.baselines.published import KnativeKpa, LoadPlanner, WvaV1
from inference_fleet.simulator.baselines.signals import arrival_rate, histogram_quantile
from inference_fleet.simulator.baselines.static import Declared
from inference_fleet.simulator.scenario import Objectives
from inference_fleet.simulator.traces import Arrival
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
from tests.unit.simulator.small import QUIET_TRUTH, variant


def engine_sample(at: float, **values: float) -> EngineSample:
    base = EngineSample(at, 0, 0, 0.0, 0, 0, 0.0, 0, 0, 0, 0, 0, 0)
    return replace(base, **values)  # type: ignore[arg-type]


def pod(number: int, samples: Sequence[EngineSample], phase: Phase = Phase.READY) -> PodView:
    return PodView(f"a-{number}", "a", phase, 0.0, 0.0, 0, tuple(samples))


def gateway_sample(
    at: float, arrivals: int = 0, in_flight: int = 0, ttft: float = 0.1, tpot: float = 0.01
) -> GatewaySample:
    """All requests so far had these times."""
    counts = [[0] * (len(edges) + 1) for edges in (TTFT_EDGES, TPOT_EDGES)]
    for found, edges, value in zip(counts, (TTFT_EDGES, TPOT_EDGES), (ttft, tpot), strict=True):
        found[next((i for i, e in enumerate(edges) if value <= e), len(edges))] = arrivals
    return GatewaySample(at, arrivals, 0, 0, in_flight, 0, arrivals * 500, 0, 0, 0, tuple(counts[0]), tuple(counts[1]))


def view(
    pods: Sequence[PodView], gateway: Sequence[GatewaySample] = (), minimum: int = 1, maximum: int = 20
) -> ScalerView:
    only = VariantView("a", Decimal(1), 1, False, minimum, maximum, 10_000, 64, 1024, len(pods), tuple(pods))
    return ScalerView({"a": only}, tuple(gateway), Objectives(3.0, 0.1), None, ())


# --- HPA -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "unready", "missing", "wanted"),
    [
        ([10, 10], 0, 0, 2),
        ([10.9, 10.9], 0, 0, 2),
        ([15, 15], 0, 0, 3),
        ([4, 4], 0, 0, 1),
        ([20, 20], 2, 0, 4),
        ([30, 30], 2, 0, 6),
        ([4, 4], 0, 1, 2),
        ([], 0, 2, 2),
    ],
)
def test_hpa_counts_replicas_as_kubernetes_does(values: list[float], unready: int, missing: int, wanted: int) -> None:
    current = len(values) + unready + missing
    assert by_pods(values, unready, missing, current, 10.0) == wanted


def test_hpa_default_behaviour_doubles_at_once_and_waits_five_minutes_to_shrink() -> None:
    limiter = Limiter()
    assert limiter.apply(2, 20, 1, 50, 0.0) == 6
    assert limiter.apply(6, 20, 1, 50, 5.0) == 6, "the period's allowance is used up"
    assert limiter.apply(6, 20, 1, 50, 15.0) == 12
    count = limiter.apply(12, 3, 1, 50, 30.0)
    assert count == 12
    assert limiter.apply(12, 3, 1, 50, 300.0) == 12
    assert limiter.apply(12, 3, 1, 50, 331.0) == 3


@given(
    st.lists(st.tuples(st.integers(0, 40), st.sampled_from([5.0, 15.0, 60.0])), min_size=1, max_size=60),
    st.integers(1, 5),
    st.integers(5, 30),
)
def test_a_limiter_keeps_its_bounds_and_its_pace(wishes: list[tuple[int, float]], minimum: int, maximum: int) -> None:
    behaviour = Behaviour((Policy(60, percent=100), Policy(60, pods=4)), 30.0, (Policy(120, pods=1),), 180.0)
    limiter = Limiter(behaviour)
    current, now = minimum, 0.0
    history = [(0.0, current)]
    for wanted, gap in wishes:
        now += gap
        current = limiter.apply(current, wanted, minimum, maximum, now)
        assert minimum <= current <= maximum
        history.append((now, current))
    downs = [t for (_, a), (t, b) in itertools.pairwise(history) if b < a]
    assert all(b - a >= 120 for a, b in itertools.pairwise(downs))
    assert all(a - b <= 1 for (_, a), (_, b) in itertools.pairwise(history))


def test_hpa_on_concurrency_and_on_gpu_use() -> None:
    busy = [
        pod(i, [engine_sample(0.0, busy_seconds=0.0), engine_sample(15.0, busy_seconds=15.0, running=20, waiting=4)])
        for i in range(2)
    ]
    assert on_concurrency(12.0).decide(view(busy), 20.0) == {"a": 4}
    assert on_gpu_use(0.5).decide(view(busy), 20.0) == {"a": 4}
    assert on_gpu_use(0.5).decide(view(busy), 1000.0) == {"a": 2}, "no figures: it stays"


def test_keda_on_waiting() -> None:
    pods = [pod(i, [engine_sample(10.0, waiting=12)]) for i in range(2)]
    assert KedaWaiting(5.0).decide(view(pods), 15.0) == {"a": 5}
    assert KedaWaiting(5.0).decide(view([pod(0, [])]), 15.0) == {"a": 1}


# --- llm-d ---------------------------------------------------------------------------------------------------------------------


def llmd_after(ttft: float, tpot: float, pods: Sequence[PodView], traffic: bool = True) -> int:
    """What it first asks for that differs from what there is, within five minutes."""
    scaler = LlmdSlo()
    for i in range(1, 21):
        now = 15.0 * i
        times = range(max(0, round(now) - 80), round(now), 5) if traffic else ()
        seen = [gateway_sample(float(t), t, ttft=ttft, tpot=tpot) for t in times]
        wanted = scaler.decide(view(pods, seen, 3, 8), now)["a"]
        if wanted != len(pods):
            return wanted
    return len(pods)


READY5 = [pod(i, []) for i in range(5)]


def test_llmd_holds_in_its_band_and_follows_its_formula() -> None:
    assert llmd_after(1.4, 0.01, READY5) == 5, "P90 in (1, 1.5] is 1.45 s: .483 of 3 s, inside the band"
    expected = 5 + math.ceil(5 * (min(2.9 / 3, 2.0) / 0.55 - 1))
    assert llmd_after(2.9, 0.01, READY5) == min(8, expected)
    assert llmd_after(60.0, 0.01, READY5) == 8, "clamped to 2: at most the bound"
    assert llmd_after(0.1, 0.01, READY5) == 4, "one at a time"
    assert llmd_after(0.1, 0.095, READY5) == 8, "P90 TPOT alone: .0975 s of .1 s"


def test_llmd_credits_pods_that_are_warming() -> None:
    warming = [*(pod(i, []) for i in range(3)), *(pod(i, [], Phase.LOADING) for i in (3, 4))]
    assert llmd_after(2.9, 0.01, warming) == 5 + math.ceil(5 * (0.9833 * 3 / 5 / 0.55 - 1))


def test_llmd_reads_nothing_as_idle() -> None:
    assert llmd_after(9.0, 9.0, READY5, traffic=False) == 4


# --- Others --------------------------------------------------------------------------------------------------------------------


def test_kpa_panics_within_seconds_and_does_not_shrink_while_it_does() -> None:
    scaler = KnativeKpa(10.0)
    calm = [gateway_sample(float(t), in_flight=20) for t in range(0, 60, 2)]
    ready = [pod(i, []) for i in range(2)]
    assert scaler.decide(view(ready, calm), 60.0) == {"a": 2}
    burst = [*calm, *(gateway_sample(float(t), in_flight=100) for t in (60, 62, 64))]
    assert scaler.decide(view(ready, burst), 65.0) == {"a": 10}
    gone = [*burst, *(gateway_sample(float(t), in_flight=1) for t in range(66, 90, 2))]
    assert scaler.decide(view([pod(i, []) for i in range(10)], gone), 90.0) == {"a": 10}


@pytest.mark.parametrize(
    ("kv", "waiting", "count", "wanted"),
    [(0.85, 0, 2, 3), (0.3, 6, 2, 3), (0.75, 0, 2, 3), (0.3, 3, 2, 3), (0.1, 0, 2, 1), (0.5, 0, 2, 2), (0.1, 0, 1, 1)],
)
def test_wva_moves_by_one(kv: float, waiting: int, count: int, wanted: int) -> None:
    pods = [pod(i, [engine_sample(10.0, kv_usage=kv, waiting=waiting)]) for i in range(count)]
    assert WvaV1().decide(view(pods), 20.0) == {"a": wanted}


def test_wva_waits_for_what_is_coming() -> None:
    pods = [pod(0, [engine_sample(10.0, kv_usage=0.95)]), pod(1, [], Phase.LOADING)]
    assert WvaV1().decide(view(pods), 20.0) == {"a": 2}


@pytest.mark.parametrize(("running", "tokens", "wanted"), [(40, 200, 3), (4, 200, 1), (14, 200, 2)])
def test_the_load_planner_moves_by_one_on_predicted_latency(running: int, tokens: int, wanted: int) -> None:
    """Seconds a token are sequences over tokens a second: .2, .02 and .07 against .1, the last doubled by consolidation."""
    pods = [
        pod(
            i,
            [
                engine_sample(t, running=running, generation_tokens=int(t * tokens), prompt_tokens=int(t * 2000))
                for t in (0, 10, 20)
            ],
        )
        for i in range(2)
    ]
    gateway = [gateway_sample(float(t), t * 4) for t in range(0, 25, 5)]
    assert LoadPlanner().decide(view(pods, gateway), 20.0) == {"a": wanted}


def test_declared_is_the_minimum() -> None:
    assert Declared().decide(view([], minimum=3), 0.0) == {"a": 3}


# --- Signals and foresight --------------------------------------------------------------------------------------------------------


def test_quantiles_are_promqls() -> None:
    assert histogram_quantile(0.9, (1.0, 2.0, 4.0), [0, 10, 0, 0]) == pytest.approx(1.9)
    assert histogram_quantile(0.5, (1.0, 2.0, 4.0), [10, 10, 0, 0]) == 1.0
    assert histogram_quantile(0.9, (1.0, 2.0, 4.0), [0, 0, 0, 5]) == 4.0
    assert math.isnan(histogram_quantile(0.9, (1.0, 2.0), [0, 0, 0]))


def test_rates_need_two_samples() -> None:
    seen = [gateway_sample(0.0, 10), gateway_sample(10.0, 30)]
    assert arrival_rate(view([], seen), 12.0, 60.0) == 2.0
    assert math.isnan(arrival_rate(view([], seen[:1]), 12.0, 60.0))


NEEDS = st.lists(st.integers(0, 6), min_size=1, max_size=80)


@given(NEEDS, st.sampled_from([20.0, 60.0, 120.0]))
def test_a_schedule_covers_every_need_and_no_other_is_cheaper_by_level(found: list[int], start: float) -> None:
    spans = levels(found, start)
    for index, need in enumerate(found):
        at = (index + 0.5) * BIN_SECONDS
        on = sum(1 for level in spans if any(begin <= at < end for begin, end in level))
        assert on >= need
    for level in spans:
        for (_, end), (begin, _) in itertools.pairwise(level):
            assert begin >= end, "spans do not overlap: the gap was longer than a start-up"


@given(NEEDS)
def test_a_schedule_without_start_up_is_the_need_itself(found: list[int]) -> None:
    billed = sum(end - begin for level in levels(found, 0.0) for begin, end in level)
    assert billed == pytest.approx(sum(found) * BIN_SECONDS)


def test_needs_follow_the_work() -> None:
    aim = Objectives(2.0, 0.1)
    one = work(Arrival(0.0, 500, 100), QUIET_TRUTH, aim)
    trace = [Arrival(i * one, 500, 100) for i in range(round(600 / one))]
    chosen = variant(QUIET_TRUTH, minimum=1)
    assert set(needs(trace, chosen, aim, 600.0, 1.05)[4:-4]) <= {1, 2}
    assert set(needs(trace, chosen, aim, 600.0, 0.26)[4:-4]) == {4}
    assert work(Arrival(0.0, 5000, 100), QUIET_TRUTH, aim) > 3 * one
