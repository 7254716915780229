"""Progress of a long transfer, as log lines that neither flood nor fall silent."""

from __future__ import annotations

from collections.abc import Callable

from inference_fleet.api.quantities import format_bytes

SHORTEST_SECONDS = 5.0
LONGEST_SECONDS = 60.0
STEP_PERCENT = 10


class Progress:
    """Writes a line at the start, when a further 10 % or 60 seconds have passed (never within 5 seconds), and at the end."""

    def __init__(
        self, name: str, total: int, done: int, log: Callable[[str], None], monotonic: Callable[[], float]
    ) -> None:
        self._name, self._total, self._log, self._monotonic = name, total, log, monotonic
        self._started, self._first = monotonic(), done
        self._last_time, self._last_percent = self._started, self._percent(done)
        rest = f", {format_bytes(done)} of it already here" if done else ""
        log(f"{name}: {format_bytes(total)}{rest}")

    def at(self, done: int) -> None:
        """`done` bytes are here."""
        now, percent = self._monotonic(), self._percent(done)
        waited = now - self._last_time
        if waited < SHORTEST_SECONDS or (percent < self._last_percent + STEP_PERCENT and waited < LONGEST_SECONDS):
            return
        self._last_time, self._last_percent = now, percent
        self._log(f"{self._name}: {percent}%, {format_bytes(done)} of {format_bytes(self._total)}{self._rate(done)}")

    def end(self, done: int) -> None:
        """All is here and verified."""
        elapsed = self._monotonic() - self._started
        self._log(f"{self._name}: complete and verified after {elapsed:.1f} s{self._rate(done)}")

    def _percent(self, done: int) -> int:
        return 100 * done // self._total if self._total else 100

    def _rate(self, done: int) -> str:
        elapsed = self._monotonic() - self._started
        return f", {format_bytes(int((done - self._first) / elapsed))}/s" if elapsed > 0 and done > self._first else ""
