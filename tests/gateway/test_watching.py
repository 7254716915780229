"""A list and a watch keep a set of objects in step, whatever the API server does. Scripted, no sockets."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from inference_fleet.gateway.watching import ApiFailed, ListWatch


class Ended(Exception):
    """The script is over."""


def thing(name: str, version: int = 1) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


def listed(*names: str, version: int = 1, more: str = "") -> dict[str, Any]:
    metadata = {"resourceVersion": str(version), **({"continue": more} if more else {})}
    return {"metadata": metadata, "items": [thing(name) for name in names]}


def event(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "object": thing(name)}


GONE = {"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}}


class Script:
    """An API server that answers step by step: a list, a watch's lines, or a failure."""

    def __init__(self, *steps: dict[str, Any] | list[Any] | ApiFailed, seconds_each: int = 60) -> None:
        self.seconds_each = seconds_each
        self.steps = list(steps)
        self.queries: list[Mapping[str, str]] = []
        self.names: set[str] = set()
        self.failures: list[int] = []
        self.slept: list[float] = []
        self.seen: list[set[str]] = []

    def next(self, query: Mapping[str, str]) -> Any:
        if not self.steps:
            raise Ended
        self.queries.append(query)
        step = self.steps.pop(0)
        if isinstance(step, ApiFailed):
            raise step
        return step

    async def get(self, path: str, query: Mapping[str, str]) -> bytes:
        return json.dumps(self.next(query)).encode()

    async def lines(self, path: str, query: Mapping[str, str], silence_seconds: float) -> AsyncIterator[bytes]:
        assert silence_seconds > int(query["timeoutSeconds"])
        for line in self.next(query):
            if isinstance(line, ApiFailed):
                raise line
            yield line if isinstance(line, bytes) else json.dumps(line).encode()

    def note(self) -> None:
        self.seen.append(set(self.names))

    def replace(self, objects: list[dict[str, Any]]) -> None:
        self.names = {one["metadata"]["name"] for one in objects}
        self.note()

    def upsert(self, object_: dict[str, Any]) -> None:
        self.names.add(object_["metadata"]["name"])
        self.note()

    def remove(self, object_: dict[str, Any]) -> None:
        self.names.discard(object_["metadata"]["name"])
        self.note()

    def failed(self, error: Exception) -> None:
        self.failures.append(getattr(error, "status", -1))

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def run(self) -> Script:
        watch = ListWatch(
            self,
            "/things",
            {"labelSelector": "a=b"},
            self,
            relist_seconds=60,
            retry_seconds=30,
            random=lambda: 0.5,
            sleep=self.sleep,
            clock=itertools.count(0, self.seconds_each).__next__,
        )
        with pytest.raises(Ended):
            await watch.run()
        return self


async def test_events_follow_a_list_and_a_list_follows_every_watch() -> None:
    script = await Script(
        listed("a", version=7), [event("ADDED", "b"), event("MODIFIED", "a"), event("DELETED", "a")], listed("b"), []
    ).run()
    assert script.seen == [{"a"}, {"a", "b"}, {"a", "b"}, {"b"}, {"b"}]
    assert script.queries[0] == {"labelSelector": "a=b", "limit": "500"}
    assert script.queries[1]["resourceVersion"] == "7"
    assert script.queries[1]["labelSelector"] == "a=b"
    assert script.queries[1]["timeoutSeconds"] == "60"
    assert script.slept == []


async def test_a_lost_deletion_is_mended_by_the_next_list() -> None:
    script = await Script(listed("a", "b"), [], listed("b"), []).run()
    assert script.names == {"b"}


async def test_pages_are_one_list() -> None:
    script = await Script(listed("a", more="token"), listed("b", version=9), []).run()
    assert script.seen == [{"a", "b"}]
    assert script.queries[1]["continue"] == "token"
    assert script.queries[2]["resourceVersion"] == "9"


@pytest.mark.parametrize("step", [[GONE], ApiFailed(410, "gone")])
async def test_an_expired_version_is_listed_anew_at_once(step: Any) -> None:
    script = await Script(listed("a"), step, listed("b"), []).run()
    assert script.names == {"b"}
    assert (script.slept, script.failures) == ([], [])


@pytest.mark.parametrize("step", [[], [GONE], ApiFailed(410, "gone")])
async def test_watches_that_end_at_once_do_not_become_a_load(step: Any) -> None:
    steps = [one for _ in range(4) for one in (listed("a"), step)]
    script = await Script(*steps, seconds_each=0).run()
    assert script.slept == [1, 1, 1]
    assert script.failures == []


async def test_bookmarks_change_nothing() -> None:
    script = await Script(listed("a"), [event("BOOKMARK", "x"), event("ADDED", "b")], listed("a", "b")).run()
    assert script.seen[:2] == [{"a"}, {"a", "b"}]


async def test_what_is_known_stays_while_the_server_is_away_and_it_is_asked_ever_more_seldom() -> None:
    away = [ApiFailed(0, "refused") for _ in range(7)]
    script = await Script(listed("a"), [event("ADDED", "b"), ApiFailed(0, "reset")], *away, listed("c"), []).run()
    assert script.slept == [1, 2, 4, 8, 16, 30, 30, 30]
    assert script.seen == [{"a"}, {"a", "b"}, {"c"}]
    assert script.failures == [0] * 8


async def test_after_an_outage_the_patience_starts_anew() -> None:
    script = await Script(
        ApiFailed(500, "x"), ApiFailed(500, "x"), listed("a"), ApiFailed(403, "no"), listed("a"), []
    ).run()
    assert script.slept == [1, 2, 1]
    assert script.failures == [500, 500, 403]


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"type":"ADDED"}', b'{"type":"ERROR","object":{"code":500}}'])
async def test_what_makes_no_sense_is_an_outage(line: bytes) -> None:
    script = await Script(listed("a"), [line], listed("a"), []).run()
    assert script.slept == [1]
    assert script.names == {"a"}


async def test_it_can_be_ended() -> None:
    class Silent(Script):
        async def get(self, path: str, query: Mapping[str, str]) -> bytes:
            await asyncio.sleep(60)
            return b""

    task = asyncio.create_task(Silent().run())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
