"""Waiting until an engine has nothing in flight, by its own metrics: what must precede its end, which would cut its streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inference_fleet.draft.engine_metrics import read_snapshot
from inference_fleet.engines.contract import Metrics
from inference_fleet.facts.failure import SourceFailure
from inference_fleet.facts.web import Web

POLL_SECONDS = 2.0
QUIET_READINGS = 2
"""A request that has just arrived is in no counter yet."""
MAX_METRICS_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the wait ended: `quiet`, or after the longest time."""

    quiet: bool
    seconds: float


def in_flight(web: Web, url: str, names: Metrics) -> float | None:
    """Requests running and waiting; None where the engine does not say. An engine that does not answer may still be at work."""
    try:
        snapshot = read_snapshot(names, web.get(url).content(MAX_METRICS_BYTES).decode("utf-8", "replace"), 0.0)
    except (SourceFailure, ValueError):
        return None
    if snapshot.running is None or snapshot.waiting is None:
        return None
    return snapshot.running + snapshot.waiting


def wait_until_drained(
    active: Callable[[], float | None],
    minimum_seconds: float,
    maximum_seconds: float,
    sleep: Callable[[float], None],
    monotonic: Callable[[], float],
) -> Outcome:
    """Wait at least `minimum_seconds` (gateways must first learn that this pod is leaving), at most `maximum_seconds`."""
    begun = monotonic()
    sleep(min(minimum_seconds, maximum_seconds))
    quiet = 0
    while monotonic() - begun < maximum_seconds:
        quiet = quiet + 1 if active() == 0 else 0
        if quiet >= QUIET_READINGS:
            return Outcome(True, monotonic() - begun)
        sleep(max(0.0, min(POLL_SECONDS, begun + maximum_seconds - monotonic())))
    return Outcome(False, monotonic() - begun)
