"""A list and then a watch, over and over: the state of a set of objects as events on a queue cannot tell it.

Every watch ends after about a minute and is followed by a new list that replaces everything known, so that an event that
was lost on the way (a DELETED above all) is mended soon, and an expired resourceVersion (410) is nothing special.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol

import orjson

log = logging.getLogger(__name__)

PAGE_SIZE = "500"
FIRST_BACKOFF_SECONDS = 1.0

SHORT_SECONDS = 1.0
"""A list and watch that are over sooner than this ended for a reason: a second one in a row is not followed at once."""


class ApiFailed(Exception):
    """The API server did not answer, or refused. `status` is HTTP's, 0 without an answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api(Protocol):
    """Reads from the API server."""

    async def get(self, path: str, query: Mapping[str, str]) -> bytes:
        """The body of a GET. Raises ApiFailed."""

    def lines(self, path: str, query: Mapping[str, str], silence_seconds: float) -> AsyncIterator[bytes]:
        """The lines of a GET that goes on; a silence longer than `silence_seconds` is a failure. Raises ApiFailed."""


class Sink(Protocol):
    """Where the objects go."""

    def replace(self, objects: list[dict[str, Any]]) -> None: ...

    def upsert(self, object_: dict[str, Any]) -> None: ...

    def remove(self, object_: dict[str, Any]) -> None: ...

    def failed(self, error: Exception) -> None: ...


class ListWatch:
    """Keeps `sink` in step with the objects at `path` that `selector` selects.

    `retry_seconds` is the longest wait between two tries of a server that is away.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        selector: Mapping[str, str],
        sink: Sink,
        *,
        relist_seconds: int,
        retry_seconds: float,
        random: Callable[[], float],
        sleep: Callable[[float], Any] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._path = path
        self._selector = selector
        self._sink = sink
        self._relist_seconds = relist_seconds
        self._retry_seconds = retry_seconds
        self._random = random
        self._sleep = sleep
        self._clock = clock

    async def run(self) -> None:
        """Never returns. While the API server cannot be reached the sink keeps what it has."""
        first = min(FIRST_BACKOFF_SECONDS, self._retry_seconds)
        backoff = first
        short_before = False
        while True:
            began = self._clock()
            try:
                version = await self._list()
                backoff = first
                await self._watch(version)
            except ApiFailed as error:
                if error.status != 410:
                    self._sink.failed(error)
                    log.warning("watch of %s: %s; trying again", self._path, error)
                    await self._sleep(backoff * (0.5 + self._random()))
                    backoff = min(backoff * 2, self._retry_seconds)
                    continue
            short = self._clock() - began < SHORT_SECONDS
            if short and short_before:
                # Something between here and the API server ends every watch: lists must not become a load.
                await self._sleep(first * (0.5 + self._random()))
            short_before = short

    async def _list(self) -> str:
        """Lists everything; the resourceVersion to watch from."""
        objects: list[dict[str, Any]] = []
        query = {**self._selector, "limit": PAGE_SIZE}
        while True:
            page = _object(await self._api.get(self._path, query))
            objects.extend(page.get("items") or [])
            metadata = page.get("metadata") or {}
            token = metadata.get("continue")
            if not token:
                self._sink.replace(objects)
                return str(metadata.get("resourceVersion", ""))
            query["continue"] = token

    async def _watch(self, version: str) -> None:
        """Follows the changes until the server ends the watch. Raises ApiFailed."""
        # The replicas of a gateway are started together: their lists need not be.
        seconds = max(int(self._relist_seconds * (0.75 + self._random() / 2)), 1)
        query = {
            **self._selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
        }
        async for line in self._api.lines(self._path, query, seconds + 10):
            event = _object(line)
            kind, object_ = event.get("type"), event.get("object")
            if not isinstance(object_, dict):
                raise ApiFailed(0, "a watch event without an object")
            if kind == "ERROR":
                raise ApiFailed(int(object_.get("code") or 0), str(object_.get("message")))
            if kind == "DELETED":
                self._sink.remove(object_)
            elif kind in ("ADDED", "MODIFIED"):
                self._sink.upsert(object_)
            # A BOOKMARK says that nothing changed: the next watch begins with a list and needs no version.


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise ApiFailed(0, "an answer that is not JSON") from None
    if not isinstance(value, dict):
        raise ApiFailed(0, "an answer that is not an object")
    return value
