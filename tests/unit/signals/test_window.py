"""Counters over a window: restarts, gaps, newcomers; percentiles from buckets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_fleet.signals.exposition import parse
from inference_fleet.signals.window import CounterHistory, quantile


def history(*samples: tuple[float, float]) -> CounterHistory:
    found = CounterHistory()
    for at, value in samples:
        found.add(at, value, 1e9)
    return found


def test_growth_is_counted_from_the_last_sample_before_the_window() -> None:
    it = history((0, 10), (50, 20), (90, 26), (110, 30))
    assert it.increase(60, 120) == 10
    assert it.increase(60, 100) == 6


def test_a_restart_is_neither_negative_nor_huge() -> None:
    assert history((0, 1000), (15, 1010), (30, 4), (45, 9)).increase(0, 60) == 10 + 4 + 5


def test_one_sample_says_nothing_of_growth_unless_the_process_is_younger_than_the_window() -> None:
    assert history((50, 700)).increase(0, 60) == 0
    assert history((50, 7)).increase(0, 60, born=10) == 7
    assert history((50, 700)).increase(0, 60, born=-500) == 0


def test_samples_that_left_the_window_are_forgotten_but_for_one() -> None:
    it = CounterHistory()
    for at in range(1000):
        it.add(float(at), float(at), 60)
    assert len(it.times) <= 62
    assert it.increase(939, 999) == 60


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30), st.integers(0, 29))
def test_growth_is_what_was_added_wherever_the_process_restarted(added: list[int], restart: int) -> None:
    it, value, total = CounterHistory(), 0.0, 0
    it.add(0, 0, 1e9)
    for position, count in enumerate(added):
        if position == restart:
            value = 0.0
        value += count
        total += count
        it.add(float(position + 1), value, 1e9)
    grown = it.increase(0, len(added))
    # What was counted between the last sample and a restart is lost; nothing is ever invented.
    assert 0 <= grown <= total
    if restart >= len(added) or restart == 0:
        assert grown == total


INF = float("inf")


@pytest.mark.parametrize(
    ("edges", "percentile", "expected"),
    [
        ({0.1: 0, 0.2: 100, INF: 100}, 50, 0.15),
        ({0.1: 100, 0.2: 100, INF: 100}, 95, 0.095),
        ({0.1: 10, 0.2: 10, INF: 100}, 95, 0.2),
        ({0.1: 0, INF: 0}, 95, None),
        ({}, 95, None),
    ],
)
def test_percentiles_by_prometheus_rule(edges: dict[float, float], percentile: int, expected: float | None) -> None:
    found = quantile(edges, percentile)
    assert found == (pytest.approx(expected) if expected is not None else None)


def test_what_is_not_a_number_was_not_measured() -> None:
    samples = parse('a{x="1"} NaN\na{x="2"} +Inf\na{x="3"} 4\n')
    assert samples.by_label("a", "x") == {"3": 4.0}
    assert samples.by_label("absent", "x") == {}
