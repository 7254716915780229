"""Waiting until nothing is in flight, on a clock that does not tick by itself."""

from __future__ import annotations

from collections.abc import Callable

from inference_fleet.draft.drained import Outcome, wait_until_drained


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now


def outcome(active: Callable[[float], float | None], minimum: float, maximum: float) -> Outcome:
    """`active` gives the requests in flight by seconds since the start."""
    clock = Clock()
    return wait_until_drained(lambda: active(clock.now - 50.0), minimum, maximum, clock.sleep, clock.monotonic)


def test_an_idle_engine_waits_the_minimum_and_is_read_twice() -> None:
    assert outcome(lambda _: 0, 5, 600) == Outcome(True, 7)


def test_it_waits_for_what_runs() -> None:
    assert outcome(lambda now: 1 if now < 60 else 0, 5, 600) == Outcome(True, 63)


def test_a_request_between_two_readings_begins_the_wait_anew() -> None:
    assert outcome(lambda now: 1 if 6 < now < 8 else 0, 5, 600) == Outcome(True, 11)


def test_it_ends_at_the_maximum() -> None:
    assert outcome(lambda _: 3, 5, 30) == Outcome(False, 30)


def test_an_engine_that_does_not_say_is_not_idle() -> None:
    assert outcome(lambda _: None, 5, 30) == Outcome(False, 30)


def test_a_minimum_above_the_maximum() -> None:
    assert outcome(lambda _: 0, 50, 30) == Outcome(False, 30)
