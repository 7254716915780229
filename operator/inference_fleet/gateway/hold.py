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
    """Counts the requests that are held, and bounds them and their bodies, which stay in memory.

    `report` is told a model's number when it changes.
    """

    def __init__(self, most: int, most_bytes: int, report: Callable[[str, int], None]) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._report = report
        self._held: dict[str, int] = {}
        self._bytes = 0

    def has_room(self, body_bytes: int) -> bool:
        return sum(self._held.values()) < self._most and self._bytes + body_bytes <= self._most_bytes

    def enter(self, model: str, body_bytes: int) -> None:
        self._bytes += body_bytes
        self._held[model] = self._held.get(model, 0) + 1
        self._report(model, self._held[model])

    def leave(self, model: str, body_bytes: int) -> None:
        self._bytes -= body_bytes
        left = self._held[model] - 1
        if left:
            self._held[model] = left
        else:
            del self._held[model]
        self._report(model, left)
