"""The work queue: keys, de-duplicated, delayed, backed off, never given to two workers at once.

`WorkQueue` is the pure part: every call takes the time, nothing sleeps, nothing awaits. `QueueDriver` is the thin asynchronous
shell that workers wait on.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

FIRST_BACK_OFF_SECONDS = 0.5
LARGEST_BACK_OFF_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Taken:
    """A key handed to a worker, and since when it had been waiting past its due time (seconds)."""

    key: str
    waited_seconds: float


class WorkQueue:
    """Keys with due times. All times are seconds of one monotonic clock that the caller owns.

    A key waits at most once: adding it again can only bring it forward. A key that is being worked on and is added meanwhile
    comes back once it is done. Among keys that are due, a higher priority goes first, then the one due longest.
    """

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._priority: dict[str, int] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._ready: list[tuple[int, float, int, str]] = []
        self._ready_keys: set[str] = set()
        self._active: set[str] = set()
        self._again: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        self._order = count()

    def add(self, key: str, now: float, delay: float = 0.0, priority: int | None = None) -> None:
        """Make a key due `delay` seconds from now, or earlier if it already is."""
        if priority is not None:
            self._priority[key] = priority
        due = max(now + max(0.0, delay), self._not_before.get(key, now))
        if key in self._active:
            self._again[key] = min(due, self._again.get(key, due))
            return
        if key in self._ready_keys:
            return
        known = self._due.get(key)
        if known is not None and known <= due:
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, next(self._order), key))

    def _promote(self, now: float) -> None:
        while self._heap and self._heap[0][0] <= now:
            due, order, key = heapq.heappop(self._heap)
            if self._due.get(key) != due:
                continue  # brought forward since: this entry is stale
            del self._due[key]
            self._ready_keys.add(key)
            heapq.heappush(self._ready, (-self._priority.get(key, 0), due, order, key))

    def take(self, now: float) -> Taken | None:
        """The next due key, now held by the caller until `done`; None when nothing is due."""
        self._promote(now)
        if not self._ready:
            return None
        _, due, _, key = heapq.heappop(self._ready)
        self._ready_keys.discard(key)
        self._active.add(key)
        return Taken(key=key, waited_seconds=max(0.0, now - due))

    def done(self, key: str, now: float) -> None:
        """The pass over a key went well: its back-off starts over, and it returns if it was added meanwhile."""
        self._failures.pop(key, None)
        self._not_before.pop(key, None)
        self._release(key, now)

    def failed(self, key: str, now: float, at_least: float = 0.0, at_most: float = LARGEST_BACK_OFF_SECONDS) -> float:
        """The pass over a key failed: it returns after an exponential back-off, whose seconds are the answer.

        Within `at_least` nothing brings it forward: the server has said how long to stay away.
        What was added meanwhile waits out the back-off too: a failing object that keeps changing must not become a tight loop.
        """
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = max(at_least, min(at_most, FIRST_BACK_OFF_SECONDS * 2.0 ** min(failures, 20)))
        self._again.pop(key, None)
        self._release(key, now)
        self._not_before[key] = now + at_least
        self.add(key, now, delay)
        return delay

    def _release(self, key: str, now: float) -> None:
        self._active.discard(key)
        again = self._again.pop(key, None)
        if again is not None:
            self.add(key, now, again - now)

    def forget(self, key: str) -> None:
        """Drop what is remembered of a key whose object is gone; a pass under way ends as it will."""
        self._priority.pop(key, None)
        self._failures.pop(key, None)
        self._not_before.pop(key, None)

    def next_due(self) -> float | None:
        """When the next waiting key is due; None when none waits."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        if self._ready:
            return self._ready[0][1]
        return self._heap[0][0] if self._heap else None

    def depth(self, now: float) -> int:
        """How many keys are due and not yet taken."""
        self._promote(now)
        return len(self._ready)

    def age(self, now: float) -> float:
        """For how many seconds the longest-waiting due key has been due; 0 when none is."""
        self._promote(now)
        return max((now - due for _, due, _, _ in self._ready), default=0.0)

    def active(self) -> frozenset[str]:
        """The keys being worked on."""
        return frozenset(self._active)


class QueueDriver:
    """Lets workers await a `WorkQueue`. Belongs to one event loop."""

    def __init__(self, queue: WorkQueue, clock: Callable[[], float]) -> None:
        self.queue = queue
        self._clock = clock
        self._changed = asyncio.Event()
        self._closed = False

    def add(self, key: str, delay: float = 0.0, priority: int | None = None) -> None:
        """Queue a key; wakes a worker when it is due."""
        self.queue.add(key, self._clock(), delay, priority)
        self._changed.set()

    def done(self, key: str) -> None:
        """See `WorkQueue.done`."""
        self.queue.done(key, self._clock())
        self._changed.set()

    def failed(self, key: str, at_least: float = 0.0, at_most: float = LARGEST_BACK_OFF_SECONDS) -> float:
        """See `WorkQueue.failed`."""
        delay = self.queue.failed(key, self._clock(), at_least, at_most)
        self._changed.set()
        return delay

    def close(self) -> None:
        """No further key is handed out; workers that wait get None."""
        self._closed = True
        self._changed.set()

    @property
    def closed(self) -> bool:
        """Whether the queue hands nothing out any more."""
        return self._closed

    async def take(self) -> Taken | None:
        """Wait for a due key; None once the queue is closed."""
        while not self._closed:
            taken = self.queue.take(self._clock())
            if taken is not None:
                self._changed.set()  # the next worker looks whether another is due
                return taken
            self._changed.clear()
            due = self.queue.next_due()
            timeout = None if due is None else max(0.0, due - self._clock())
            try:
                await asyncio.wait_for(self._changed.wait(), timeout)
            except TimeoutError:
                pass
        self._changed.set()
        return None
