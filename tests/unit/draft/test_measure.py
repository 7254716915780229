"""What speculation achieves, folded from readings: resets, gaps, missing figures, concurrency."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_fleet.draft.engine_metrics import Snapshot
from inference_fleet.draft.measure import Measurement, Pace, bucket_of, fold


def reading(at: float, tokens: float = 0, drafts: float = 0, running: float = 1, **other: object) -> Snapshot:
    """Four tokens guessed a draft, half of them right."""
    snapshot = Snapshot(
        at=at, running=running, waiting=0, generation_tokens=tokens, drafts=drafts, draft_tokens=4 * drafts,
        accepted_tokens=2 * drafts, accepted_per_position=(1.0 * drafts, 0.75 * drafts, 0.25 * drafts, 0.0),
    )  # fmt: skip
    return replace(snapshot, **other)  # type: ignore[arg-type]


def all_of(*readings: Snapshot) -> Measurement:
    measured = Measurement()
    for one in readings:
        measured = fold(measured, one)
    return measured


def test_nothing_is_known_at_first() -> None:
    measured = Measurement()
    assert (measured.acceptance, measured.mean_accepted_length, measured.drafting) == (None, None, None)
    assert measured.acceptance_per_position == () and measured.tokens_per_second == {}


def test_an_engine_that_has_done_nothing_has_no_acceptance() -> None:
    measured = all_of(reading(0), reading(2))
    assert measured.drafts == 0 and measured.acceptance is None and measured.mean_accepted_length is None


def test_acceptance() -> None:
    measured = all_of(reading(0), reading(2, tokens=300, drafts=100))
    assert measured.acceptance == 0.5
    assert measured.mean_accepted_length == 2
    assert measured.acceptance_per_position == (1.0, 0.75, 0.25, 0.0)


def test_an_engine_that_restarts_adds_to_what_was() -> None:
    measured = all_of(reading(0, 300, 100), reading(2, 30, 10), reading(4, 60, 20))
    assert (measured.drafts, measured.draft_tokens, measured.accepted_tokens) == (120, 480, 240)
    assert measured.acceptance_per_position == (1.0, 0.75, 0.25, 0.0)
    assert measured.generation_tokens == 360


def test_a_restart_is_seen_in_any_counter() -> None:
    before = reading(0, 300, 100)
    after = reading(2, 400, 90)  # generated more, drafted less: a new engine that was quick
    assert all_of(before, after).generation_tokens == 700


def test_a_reading_without_figures_changes_no_figure() -> None:
    known = all_of(reading(0), reading(2, 300, 100))
    assert replace(fold(known, Snapshot(at=4)), last=None) == replace(known, last=None)


def test_figures_that_were_never_shown_stay_unknown() -> None:
    measured = all_of(*(Snapshot(at=at, running=1, waiting=0, generation_tokens=100 * at) for at in range(5)))
    assert measured.drafts is None and measured.acceptance is None and measured.drafting is None


@pytest.mark.parametrize(
    ("readings", "drafting"),
    [
        ([reading(0), reading(2, tokens=63)], None),
        ([reading(0), reading(2, tokens=64)], False),
        ([reading(0), reading(2, tokens=40), reading(4, tokens=80)], False),
        ([reading(0), reading(2, tokens=300, drafts=100)], True),
        ([reading(0), reading(2, tokens=300, drafts=100), reading(4, tokens=363, drafts=100)], True),
        ([reading(0), reading(2, tokens=300, drafts=100), reading(4, tokens=364, drafts=100)], False),
        ([reading(0), reading(2, tokens=64), reading(4, tokens=70, drafts=1)], True),
        ([reading(0, tokens=1000)], False),
        ([reading(0, tokens=1000, drafts=10)], True),
    ],
)
def test_an_engine_that_generates_without_drafting_is_told(readings: list[Snapshot], drafting: bool | None) -> None:
    assert all_of(*readings).drafting is drafting


@pytest.mark.parametrize(
    ("running", "bucket"),
    [(0, None), (0.4, None), (1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (9, 16), (10**9, 4096), (math.nan, None)],
)
def test_buckets(running: float, bucket: int | None) -> None:
    assert bucket_of(running) == bucket


def test_tokens_per_second_by_concurrency() -> None:
    alone = [reading(2 * step, tokens=60 * step, drafts=step) for step in range(11)]
    shared = [reading(20 + 2 * step, tokens=600 + 160 * step, drafts=10 + step, running=3) for step in range(1, 11)]
    assert all_of(*alone, *shared).tokens_per_second == {1: 30.0, 4: 80.0}


def test_a_bucket_that_saw_little_is_not_reported() -> None:
    assert all_of(*(reading(2 * step, tokens=60 * step) for step in range(5))).tokens_per_second == {}


def test_an_interval_in_which_concurrency_changed_counts_for_neither() -> None:
    measured = all_of(*(reading(2 * step, tokens=60 * step, running=1 + 3 * (step % 2)) for step in range(50)))
    assert measured.paces == {}


def test_a_long_gap_counts_for_nothing() -> None:
    assert all_of(reading(0), reading(31, tokens=3000)).paces == {}


def test_the_reading_after_a_restart_opens_no_interval() -> None:
    assert all_of(reading(0, 300, 100), reading(2, 30, 10)).paces == {}


def test_late_counters_are_bridged_by_steps() -> None:
    """llama.cpp: the tokens of a request (250, by 100 steps) are counted at its end, its steps as they happen."""
    readings = [
        reading(
            2 * step, tokens=250 * (step // 10), drafts=100 * (step // 10), steps=10.0 * step, slot_steps=10.0 * step
        )
        for step in range(41)
    ]
    measured = all_of(*readings)
    assert measured.tokens_per_second == {1: 12.5}
    assert all_of(*readings[:6]).tokens_per_second == {}


def test_a_rounded_gauge_neither_adds_up_nor_looks_like_a_restart() -> None:
    readings = [
        reading(
            2 * step, tokens=10.0 * step, steps=1e8 + step, slot_steps=4e8 + 10 * step + (-300 if step % 2 else 300)
        )
        for step in range(21)
    ]
    measured = all_of(*readings)
    assert measured.generation_tokens == 200
    assert measured.slot_steps == pytest.approx(4e8 + 200 + 300)


def test_old_pace_fades() -> None:
    pace = Pace()
    for _ in range(1000):
        pace = pace.add(2, 20)
    for _ in range(1000):
        pace = pace.add(2, 60)
    assert pace.seconds <= 900 and pace.work / pace.seconds == pytest.approx(30, rel=0.15)


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=1, max_size=40))
def test_totals_are_the_sum_of_all_lives_of_the_engine(steps: list[tuple[int, bool]]) -> None:
    """Each step drafts some; a restart loses nothing that had been read. (A restart that overtakes its past is not visible.)"""
    measured, counted, total = Measurement(), 0, 0
    for number, (drafts, restart) in enumerate(steps):
        if restart and counted > 0 and drafts < counted:
            counted = 0
        counted += drafts
        total += drafts
        measured = fold(measured, reading(2.0 * number, tokens=3 * counted, drafts=counted))
    assert measured.drafts == total
    assert measured.accepted_tokens == 2 * total
