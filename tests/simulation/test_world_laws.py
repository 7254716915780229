"""Laws of the simulated world, whatever scales it: nothing is lost, money is the integral of what ran, the seed decides
everything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_fleet.simulator import traces
from inference_fleet.simulator.request import Outcome, Request
from inference_fleet.simulator.results import Result
from inference_fleet.simulator.scenario import Faults, Reclaim, Scenario, Slow, StockOut, Window
from inference_fleet.simulator.view import Phase, ScalerView
from inference_fleet.simulator.world import World
from tests.unit.simulator.small import NOISY_TRUTH, poisson, scenario, variant

FAST = replace(NOISY_TRUTH, start_median_seconds=30.0)


class Scripted:
    """Sets what a list says, one item a decision, then stays."""

    interval_seconds = 15.0
    scrape_seconds: float | None = None

    def __init__(self, plan: list[dict[str, int]]) -> None:
        self.plan = plan
        self.views: list[tuple[float, ScalerView]] = []

    def decide(self, view: ScalerView, now: float) -> Mapping[str, int]:
        self.views.append((now, view))
        number = len(self.views) - 1
        return self.plan[min(number, len(self.plan) - 1)] if self.plan else {}


def run(
    given_scenario: Scenario, traffic: list[traces.Arrival], plan: list[dict[str, int]]
) -> tuple[Result, list[Request]]:
    ended: list[Request] = []
    world = World(given_scenario, traces.requests(traffic), lambda: Scripted(plan), ended.append)
    return world.run(), ended


PLANS = st.lists(st.fixed_dictionaries({"a": st.integers(0, 5), "b": st.integers(0, 3)}), min_size=1, max_size=25)
FAULTS = st.builds(
    Faults,
    scrape_loss=st.sampled_from([0.0, 0.2, 1.0]),
    outages=st.sampled_from([(), (Window(60, 200),)]),
    frozen=st.sampled_from([(), (Window(100, 300),)]),
    stock_outs=st.sampled_from([(), (StockOut(Window(30, 250), "a", 1), StockOut(Window(0, 400), "b", 0))]),
    reclaims=st.sampled_from([(), (Reclaim(90, "b"), Reclaim(200, "a", 1))]),
    slow_starts=st.sampled_from([(), (Slow(Window(0, 300), 3.0),)]),
    load_failure=st.sampled_from([0.0, 0.5]),
    restarts=st.sampled_from([(), (123.0,)]),
)


def two(faults: Faults, seed: int) -> Scenario:
    return scenario(
        variant(FAST, "a", stock=4),
        variant(FAST, "b", spot=True, price_per_hour=Decimal("1.37"), initial=1),
        duration=420.0,
        faults=faults,
        seed=seed,
        drain_seconds=20.0,
        notice_seconds=10.0,
        hold_seconds=40.0,
    )


@settings(deadline=None, max_examples=60)
@given(PLANS, FAULTS, st.integers(1, 1000), st.sampled_from([0.5, 3.0, 12.0]))
def test_every_request_ends_once_whatever_happens(
    plan: list[dict[str, int]], faults: Faults, seed: int, rate: float
) -> None:
    traffic = poisson(rate, 400.0, seed)
    result, ended = run(two(faults, seed), traffic, plan)
    assert result.arrivals == len(traffic)
    assert len({r.number for r in ended}) == len(ended) == result.arrivals - result.open_requests
    assert len(result.book.arrival) == len(ended) == sum(result.book.outcomes.values())
    assert result.book.output_tokens == sum(r.output for r in ended if r.outcome is Outcome.COMPLETED)
    for request in ended:
        if request.outcome is Outcome.COMPLETED:
            assert request.arrival < request.first_token_at <= request.finished_at
        elif request.outcome is Outcome.KILLED:
            assert request.first_token_at >= 0
        else:
            assert request.first_token_at < 0


@settings(deadline=None, max_examples=60)
@given(PLANS, FAULTS, st.integers(1, 1000))
def test_the_bill_is_the_integral_of_what_held_devices(plan: list[dict[str, int]], faults: Faults, seed: int) -> None:
    result, _ = run(two(faults, seed), poisson(3.0, 400.0, seed), plan)
    integral = Decimal(0)
    end = result.scenario.duration
    ends = [*(at for at, _ in result.rates[1:]), end]
    for (at, rate), until in zip(result.rates, ends, strict=True):
        integral += rate * Decimal(max(0.0, min(until, end) - at)) / 3600
    assert abs(result.money - integral) < Decimal("0.00001")
    hours = sum(b.end - b.start for b in result.bills) * 2 / 3600
    assert sum(b.device_hours for b in result.bills) == pytest.approx(hours)
    assert all(b.start <= b.end <= end for b in result.bills)


@settings(deadline=None, max_examples=40)
@given(PLANS, FAULTS, st.integers(1, 1000))
def test_stock_is_never_exceeded_by_new_replicas(plan: list[dict[str, int]], faults: Faults, seed: int) -> None:
    result, _ = run(two(faults, seed), poisson(1.0, 400.0, seed), plan)
    edges = sorted({b.start for b in result.bills if b.variant == "a"})
    for at in edges:
        assert sum(1 for b in result.bills if b.variant == "a" and b.start <= at < b.end) <= 4


@settings(deadline=None, max_examples=15)
@given(PLANS, FAULTS, st.integers(1, 1000))
def test_the_same_seed_gives_the_same_world(plan: list[dict[str, int]], faults: Faults, seed: int) -> None:
    first, second = (run(two(faults, seed), poisson(3.0, 400.0, seed), plan)[0] for _ in range(2))
    assert first.summary() == second.summary()
    assert first.book.ttft == second.book.ttft
    assert first.counts == second.counts
    other = run(two(faults, seed + 1), poisson(3.0, 400.0, seed), plan)[0]
    assert first.book.ttft != other.book.ttft or first.arrivals == 0


@settings(deadline=None, max_examples=30)
@given(PLANS, st.integers(1, 1000))
def test_scaling_down_with_time_to_drain_kills_nothing(plan: list[dict[str, int]], seed: int) -> None:
    quiet = replace(two(Faults(), seed), drain_seconds=600.0, hold_seconds=1e6, tail_seconds=1e5)
    result, _ = run(quiet, poisson(3.0, 400.0, seed), [{"a": max(1, p["a"]), "b": p["b"]} for p in plan])
    assert result.book.outcomes[Outcome.KILLED] == result.book.outcomes[Outcome.EXPIRED] == result.open_requests == 0
    assert result.book.outcomes[Outcome.COMPLETED] == result.arrivals


def test_littles_law_holds_in_steady_state() -> None:
    """The mean number inside is the rate times the mean time inside; the number is read by scrapes, the times by the clients."""
    scripted = Scripted([])
    ended: list[Request] = []
    traffic = poisson(6.0, 3600.0, 5)
    world = World(scenario(duration=3600.0), traces.requests(traffic), lambda: scripted, ended.append)
    world.run()
    samples = {s.at: s for _, view in scripted.views for s in view.gateway if s.at > 300}
    inside = sum(s.in_flight for s in samples.values()) / len(samples)
    steady = [r for r in ended if r.arrival > 300]
    spent = sum(r.finished_at - r.arrival for r in steady) / len(steady)
    assert inside == pytest.approx(len(steady) / 3300 * spent, rel=0.05)


def test_coarse_steps_agree_with_single_iterations() -> None:
    """With noise, under load: means within 2 %, tails within 5 %, attainment within half a point."""
    figures = []
    for coarse in (True, False):
        given_scenario = scenario(duration=1800.0, coarse=coarse, seed=3)
        result, ended = run(given_scenario, poisson(9.0, 1800.0, 7), [])
        figures.append(
            (result.summary(), sum(r.ttft for r in ended) / len(ended), sum(r.tpot for r in ended) / len(ended))
        )
    (coarse_summary, coarse_ttft, coarse_tpot), (fine_summary, fine_ttft, fine_tpot) = figures
    assert coarse_ttft == pytest.approx(fine_ttft, rel=0.02)
    assert coarse_tpot == pytest.approx(fine_tpot, rel=0.02)
    assert coarse_summary.ttft_p99 == pytest.approx(fine_summary.ttft_p99, rel=0.05)
    assert coarse_summary.tpot_p99 == pytest.approx(fine_summary.tpot_p99, rel=0.05)
    assert coarse_summary.attainment_percent == pytest.approx(fine_summary.attainment_percent, abs=0.5)


def test_a_replica_takes_its_time_and_is_billed_for_it() -> None:
    result, _ = run(scenario(variant(FAST, initial=1), duration=300.0), [], [{"a": 3}])
    starts = [b for b in result.bills if b.start > 0]
    assert [b.start for b in starts] == [15.0, 15.0]
    assert all(b.end == 300.0 for b in starts)
    assert result.counts[-1] == (15.0, {"a": 3})


def test_start_up_times_are_lognormal_around_their_median() -> None:
    truth = replace(NOISY_TRUTH, start_median_seconds=100.0, start_sigma=0.3)
    world = World(scenario(variant(truth, initial=0), duration=900.0), [], lambda: Scripted([{"a": 400}]))
    world.run()
    seconds = sorted(world.fleet.start_seconds)
    assert len(seconds) == 400
    assert seconds[200] == pytest.approx(100.0, rel=0.06)
    logs = [math.log(s) for s in seconds]
    mean = sum(logs) / 400
    assert math.sqrt(sum((x - mean) ** 2 for x in logs) / 399) == pytest.approx(0.3, rel=0.12)


def test_nothing_ready_is_held_then_served_or_given_up() -> None:
    waiting = scenario(variant(FAST, initial=0), duration=300.0, hold_seconds=120.0)
    result, ended = run(waiting, [traces.Arrival(1.0, 100, 5)], [{"a": 1}])
    assert ended[0].outcome is Outcome.COMPLETED
    assert ended[0].ttft > 30
    result, ended = run(waiting, [traces.Arrival(1.0, 100, 5)], [{"a": 0}])
    assert ended[0].outcome is Outcome.EXPIRED
    assert result.attainment == 0.0


def test_a_reclaimed_pool_loses_streams_and_moves_the_rest() -> None:
    faults = Faults(reclaims=[Reclaim(60.0, "a")], stock_outs=[StockOut(Window(60, 1000), "a", 0)])
    fleet = scenario(
        variant(FAST, "a", spot=True), variant(FAST, "b", initial=1), duration=300.0, faults=faults, notice_seconds=1.0
    )
    traffic = [traces.Arrival(59.0 + i / 100, 600, 2000) for i in range(60)]
    result, ended = run(fleet, traffic, [])
    killed = [r for r in ended if r.outcome is Outcome.KILLED]
    moved = [r for r in ended if r.retries]
    assert killed
    assert all(r.first_token_at < 62 for r in killed)
    assert all(r.variant == "b" and r.outcome is Outcome.COMPLETED for r in moved)
    assert result.counts[-1][1] == {"a": 2, "b": 1}, "the Deployment asks for replacements, which stay pending"


def test_what_a_scaler_sees_is_late_and_may_be_missing() -> None:
    scripted = Scripted([])
    lossy = scenario(duration=1200.0, faults=Faults(scrape_loss=0.3, outages=[Window(300, 600)]))
    World(lossy, traces.requests(poisson(2.0, 1200.0, 1)), lambda: scripted).run()
    for now, view in scripted.views:
        assert all(sample.at <= now for sample in view.gateway)
        for pod in view.variants["a"].pods:
            assert pod.phase is Phase.READY
            assert all(sample.at <= now for sample in pod.samples)
    _, last = scripted.views[-1]
    times = [s.at for s in last.gateway]
    assert not [t for t in times if 302 < t < 600]
    expected = 900 / 15 * 0.7
    assert 0.7 * expected < len(times) < 1.3 * expected


def test_frozen_gauges_keep_their_last_value() -> None:
    scripted = Scripted([])
    frozen = scenario(duration=600.0, faults=Faults(frozen=[Window(200, 600)]))
    World(frozen, traces.requests(poisson(4.0, 600.0, 1)), lambda: scripted).run()
    samples = scripted.views[-1][1].variants["a"].pods[0].samples
    late = [s for s in samples if s.at > 220]
    assert len(late) > 10
    assert len({(s.running, s.waiting, s.generation_tokens) for s in late}) == 1


def test_load_failures_are_tried_again_on_the_same_bill() -> None:
    failing = scenario(variant(FAST, initial=0), duration=2000.0, faults=Faults(load_failure=0.6), seed=4)
    world = World(failing, [], lambda: Scripted([{"a": 10}]))
    result = world.run()
    assert sum(r.restarts for r in world.fleet.replicas) > 3
    assert len(result.bills) == 10
    assert all(b.start == 15.0 and b.end == 2000.0 for b in result.bills)


def test_a_restart_forgets() -> None:
    made: list[Scripted] = []

    def factory() -> Scripted:
        made.append(Scripted([]))
        return made[-1]

    World(scenario(faults=Faults(restarts=[301.0])), [], factory).run()
    assert len(made) == 2
    assert made[0].views[-1][0] <= 301 < made[1].views[0][0]


def test_time_above_the_budget_counts_pending_and_draining() -> None:
    tight = scenario(variant(FAST, initial=1, stock=1), duration=300.0, budget_per_hour=Decimal("4.00"))
    result, _ = run(tight, [], [{"a": 1}, {"a": 2}, {"a": 1}])
    assert result.summary().over_budget_seconds == 15.0, "a replica without a device is a commitment already"


def test_what_happens_before_the_warm_up_ends_is_not_scored() -> None:
    traffic = poisson(3.0, 600.0, 1)
    plain, ended = run(scenario(), traffic, [])
    warmed, same = run(scenario(warm_up=200.0), traffic, [])
    late = [r for r in ended if r.arrival >= 200]
    assert [r.finished_at for r in ended] == [r.finished_at for r in same], "nothing else changes"
    assert warmed.arrivals == len(warmed.book.arrival) == len(late)
    assert warmed.book.output_tokens == sum(r.output for r in late)
    assert round(warmed.money * 3, 9) == round(plain.money * 2, 9)
    assert warmed.summary().average_replicas == 2.0


def test_a_request_that_never_ends_counts_against_the_window_in_which_it_came() -> None:
    """Far too much for one replica, and no time afterwards: what is left unanswered is missed, not forgotten."""
    swamped = scenario(variant(initial=1), duration=900.0, tail_seconds=1.0)
    result, ended = run(swamped, poisson(40.0, 900.0, 1), [])
    assert result.open_requests > 1000
    assert result.arrivals == len(ended) + result.open_requests
    assert sum(n for n, _ in result.attainment_by_window().values()) == result.arrivals
    assert result.summary().worst_five_minutes_percent == 0.0
    assert result.attainment == sum(good for _, good in result.attainment_by_window().values()) / result.arrivals
