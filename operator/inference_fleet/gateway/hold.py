"""Requests that wait for a ready engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


class Changes:
    """Wakes everybody who waits for the endpoints or the routes to change."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Returns at the next change, or after `seconds`."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await future
        finally:
            self._waiting.discard(future)


class Waiting:
    """Counts the requests that are held, and bounds them: a held request keeps its body in memory."""

    def __init__(self, limit: int, report: Callable[[str, int], None]) -> None:
        self._limit = limit
        self._report = report
        self._held: dict[str, int] = {}

    @property
    def is_full(self) -> bool:
        return sum(self._held.values()) >= self._limit

    def enter(self, model: str) -> None:
        self._held[model] = self._held.get(model, 0) + 1
        self._report(model, self._held[model])

    def leave(self, model: str) -> None:
        left = self._held[model] - 1
        if left:
            self._held[model] = left
        else:
            del self._held[model]
        self._report(model, left)
