"""One engine alone: what goes in comes out, memory is never overdrawn, and jumping over iterations changes nothing."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_fleet.simulator.engine import Engine
from inference_fleet.simulator.request import Request
from inference_fleet.simulator.truth import EngineTruth, SpeculationTruth
from tests.unit.simulator.small import QUIET_TRUTH, TIMES, drive

LOADS = st.lists(st.tuples(st.floats(0, 20), st.integers(1, 4000), st.integers(1, 400)), min_size=1, max_size=60)
SMALL = replace(QUIET_TRUTH, kv_capacity_tokens=6000, max_sequences=8)


def requests(load: list[tuple[float, int, int]]) -> list[Request]:
    return [Request(i, at, prompt, output) for i, (at, prompt, output) in enumerate(load)]


def test_one_request_takes_what_its_iterations_take() -> None:
    engine = Engine(QUIET_TRUTH, Random(1))
    (request,) = drive(engine, [Request(0, 5.0, 600, 3)])
    first = TIMES.seconds(512, 512 * 256, 0, 0) + TIMES.seconds(88, 88 * (512 + 44), 0, 0)
    assert request.ttft == pytest.approx(first)
    rest = TIMES.seconds(0, 0, 1, 600) + TIMES.seconds(0, 0, 1, 601)
    assert request.finished_at - request.first_token_at == pytest.approx(rest)
    assert request.tpot == pytest.approx(rest / 2)
    assert engine.iterations == 4


@settings(deadline=None, max_examples=150)
@given(LOADS)
def test_every_request_ends_with_all_its_tokens(load: list[tuple[float, int, int]]) -> None:
    engine = Engine(SMALL, Random(1))
    ended = drive(engine, requests(load))
    assert sorted(r.number for r in ended) == list(range(len(load)))
    assert engine.generated_tokens == sum(output for _, _, output in load)
    assert engine.computed_prompt_tokens >= sum(prompt for _, prompt, _ in load)
    assert (engine.computed_prompt_tokens > sum(prompt for _, prompt, _ in load)) == (engine.preemptions > 0)
    assert engine.kv_used == 0
    assert all(r.arrival < r.first_token_at <= r.finished_at for r in ended)


@settings(deadline=None, max_examples=150)
@given(LOADS, st.sampled_from([1, 3]))
def test_memory_and_slots_are_never_overdrawn(load: list[tuple[float, int, int]], hashes: int) -> None:
    def check(engine: Engine) -> None:
        assert engine.kv_used <= engine.truth.kv_capacity_tokens + 1e-6
        assert engine.kv_used + engine.cache.idle_tokens <= engine.truth.kv_capacity_tokens + 512
        assert engine.running <= engine.truth.max_sequences
        assert 0 <= engine.decoding <= engine.running

    given_requests = requests(load)
    for request in given_requests:
        request.hashes = tuple(request.number % hashes * 100 + i for i in range(request.prompt // 512))
    drive(Engine(SMALL, Random(1)), given_requests, check)


@settings(deadline=None, max_examples=100)
@given(LOADS)
def test_jumping_over_iterations_gives_the_times_of_single_ones(load: list[tuple[float, int, int]]) -> None:
    times = []
    for coarse in (True, False):
        ended = drive(Engine(SMALL, Random(1), coarse), requests(load))
        times.append({r.number: (r.first_token_at, r.finished_at, r.preemptions) for r in ended})
    for number, (first, finished, preemptions) in times[0].items():
        assert times[1][number][0] == pytest.approx(first, abs=1e-6)
        assert times[1][number][1] == pytest.approx(finished, abs=1e-6)
        assert times[1][number][2] == preemptions


def test_jumping_needs_far_fewer_events() -> None:
    counted = []
    for coarse in (True, False):
        events = 0

        def count(engine: Engine) -> None:
            nonlocal events
            events += 1

        drive(Engine(QUIET_TRUTH, Random(1), coarse), [Request(i, i * 0.5, 300, 300) for i in range(40)], count)
        counted.append(events)
    assert counted[0] * 5 < counted[1]


def test_the_youngest_is_put_back_when_memory_runs_out() -> None:
    engine = Engine(replace(QUIET_TRUTH, kv_capacity_tokens=3000), Random(1))
    old, young = Request(0, 0.0, 1200, 500), Request(1, 0.1, 1200, 500)
    ended = drive(engine, [old, young])
    assert [r.number for r in ended] == [0, 1]
    assert (old.preemptions, young.preemptions) == (0, 1)
    assert engine.computed_prompt_tokens > 2400 + 100, "what was lost is computed again, made tokens included"


def test_a_known_prefix_is_not_computed_again_and_held_once() -> None:
    engine = Engine(QUIET_TRUTH, Random(1))
    hashes = (1, 2, 3)
    cold, warm = Request(0, 0.0, 1600, 5, hashes), Request(1, 10.0, 1600, 5, hashes)
    drive(engine, [cold, warm])
    assert (cold.cached, warm.cached) == (0, 1536)
    assert engine.computed_prompt_tokens == 1600 + 64
    assert (engine.cache.queries, engine.cache.hits) == (3200, 1536)
    assert warm.ttft < cold.ttft / 2


def test_idle_prefixes_give_way_to_running_sequences() -> None:
    engine = Engine(replace(QUIET_TRUTH, kv_capacity_tokens=4096), Random(1))
    drive(engine, [Request(0, 0.0, 2000, 5, (1, 2, 3)), Request(1, 10.0, 3500, 5)])
    assert engine.cache.idle_tokens <= 4096 - 3500


def test_a_request_longer_than_the_memory_is_told_apart() -> None:
    engine = Engine(SMALL, Random(1))
    assert engine.fits(Request(0, 0.0, 5000, 900))
    assert not engine.fits(Request(0, 0.0, 5000, 1000))


@pytest.mark.parametrize(("acceptance", "faster"), [(0.8, True), (0.1, False)])
def test_speculation_pays_by_acceptance(acceptance: float, faster: bool) -> None:
    spec = SpeculationTruth(depth=4, acceptance=acceptance, draft_seconds=0.003)
    spent = []
    for truth in (QUIET_TRUTH, replace(QUIET_TRUTH, speculation=spec)):
        engine = Engine(truth, Random(1))
        drive(engine, [Request(i, 0.0, 100, 400) for i in range(8)])
        spent.append(engine.busy_seconds)
    assert (spent[1] < spent[0]) is faster


def test_speculation_pays_less_in_a_large_batch() -> None:
    spec = SpeculationTruth(depth=4, acceptance=0.7, draft_seconds=0.002)

    def gain(batch: int) -> float:
        spent = []
        for truth in (QUIET_TRUTH, replace(QUIET_TRUTH, speculation=spec)):
            engine = Engine(truth, Random(1))
            drive(engine, [Request(i, 0.0, 16, 200) for i in range(batch)])
            spent.append(engine.busy_seconds)
        return spent[0] / spent[1]

    assert gain(1) > gain(32)


def test_accepted_tokens_are_as_many_as_the_acceptance_says() -> None:
    spec = SpeculationTruth(depth=3, acceptance=0.6, draft_seconds=0.002)
    engine = Engine(replace(QUIET_TRUTH, speculation=spec), Random(1))
    drive(engine, [Request(i, 0.0, 16, 300) for i in range(60)])
    expected = 0.6 + 0.6**2 + 0.6**3
    assert engine.accepted / engine.drafts == pytest.approx(expected, rel=0.05)
    assert engine.generated_tokens == pytest.approx(60 * 300, abs=400)


def test_noise_has_the_mean_of_one() -> None:
    loud = EngineTruth("loud", TIMES, 20_000, 32, 512)
    spent = []
    for seed in range(40):
        engine = Engine(loud, Random(seed))
        drive(engine, [Request(i, i * 0.5, 300, 100) for i in range(40)])
        spent.append(engine.busy_seconds)
    quiet = Engine(QUIET_TRUTH, Random(1))
    drive(quiet, [Request(i, i * 0.5, 300, 100) for i in range(40)])
    assert sum(spent) / len(spent) == pytest.approx(quiet.busy_seconds, rel=0.03)
