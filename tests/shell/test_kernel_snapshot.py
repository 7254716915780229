"""Snapshots against an API that pages, forgets, breaks off and goes silent."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from aiohttp import web
from kubernetes.aio import client as kubernetes_client

from inference_fleet.cluster import kinds
from inference_fleet.cluster.client import ApiError, ApiUnreachable, ClusterClient
from inference_fleet.cluster.lease import LeaseLost
from inference_fleet.cluster.seen import Seen
from inference_fleet.cluster.snapshot import Periods, Reflector, Scope
from tests.support.fake_api import FakeApi, status

CONFIG_MAPS = "/api/v1/configmaps"


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as api:
        api.objects[CONFIG_MAPS] = {}
        yield api


@pytest.fixture
async def client(api: FakeApi) -> AsyncIterator[ClusterClient]:
    configuration = kubernetes_client.Configuration()
    configuration.host = api.url
    client = ClusterClient(configuration, time.monotonic)
    yield client
    await client.close()


class Running:
    def __init__(self, client: ClusterClient, periods: Periods) -> None:
        self.told: list[tuple[str | None, str | None]] = []

        def listen(_: object, before: Seen | None, after: Seen | None) -> None:
            self.told.append((before.meta.name if before else None, after.meta.name if after else None))

        self.reflector = Reflector(client, Scope(kinds.CONFIG_MAP), listen, time.monotonic, periods)
        self.task = asyncio.create_task(self.reflector.run())

    @property
    def names(self) -> set[str]:
        return {seen.meta.name for seen in self.reflector.store.values()}


@pytest.fixture
async def running(client: ClusterClient) -> AsyncIterator[Running]:
    async with followed(client, Periods()) as running:
        yield running


@contextlib.asynccontextmanager
async def followed(client: ClusterClient, periods: Periods) -> AsyncIterator[Running]:
    running = Running(client, periods)
    try:
        yield running
    finally:
        running.task.cancel()
        await asyncio.gather(running.task, return_exceptions=True)


async def until(what: Callable[[], object], seconds: float = 5) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "not in time"
        await asyncio.sleep(0.02)


async def test_a_list_is_read_page_by_page_and_then_followed(api: FakeApi, client: ClusterClient) -> None:
    for name in "abcde":
        api.put(CONFIG_MAPS, name)
    async with followed(client, Periods()) as running:
        await until(lambda: running.names == set("abcde"))
        assert api.requests.count(("GET", CONFIG_MAPS)) == 3
        await until(lambda: api.watches(CONFIG_MAPS))
        api.put(CONFIG_MAPS, "f")
        api.drop(CONFIG_MAPS, "a")
        await until(lambda: running.names == set("bcdef"))
        assert running.told[-2:] == [(None, "f"), ("a", None)]


async def test_a_page_token_that_expired_starts_the_list_over(api: FakeApi, client: ClusterClient) -> None:
    for name in "abc":
        api.put(CONFIG_MAPS, name)
    expired = 1

    def fault(request: web.Request) -> web.Response | None:
        nonlocal expired
        if request.query.get("continue") and expired:
            expired -= 1
            return status(410, "Expired")
        return None

    api.fault = fault
    async with followed(client, Periods()) as running:
        await until(lambda: running.names == set("abc"))


async def test_what_was_deleted_in_a_gap_does_not_outlive_the_next_list(api: FakeApi, running: Running) -> None:
    api.put(CONFIG_MAPS, "a")
    await until(lambda: running.names == {"a"})
    api.drop(CONFIG_MAPS, "a", tell=False)
    api.put(CONFIG_MAPS, "b")
    api.oldest = 10**9  # every watch from now on is answered 410 Gone
    api.fail_watches(CONFIG_MAPS, 410)
    await until(lambda: running.names == {"b"})
    assert ("a", None) in running.told


async def test_a_stream_that_breaks_is_resumed_where_it_stood_without_a_list(api: FakeApi, running: Running) -> None:
    await until(lambda: api.watches(CONFIG_MAPS))
    lists = api.requests.count(("GET", CONFIG_MAPS))
    broken = 2

    def fault(request: web.Request) -> web.Response | None:
        nonlocal broken
        if request.query.get("watch") and broken:
            broken -= 1
            return status(500, "InternalError")
        return None

    api.fault = fault
    api.fail_watches(CONFIG_MAPS, 500)
    await until(lambda: broken == 0)
    api.log = [event for event in api.log if event[1] != "ERROR"]
    api.put(CONFIG_MAPS, "late")
    await until(lambda: running.names == {"late"}, 8)
    assert api.requests.count(("GET", CONFIG_MAPS)) == lists


async def test_a_watch_that_went_silent_is_found_out_by_a_list_and_opened_anew(
    api: FakeApi, client: ClusterClient
) -> None:
    async with followed(client, Periods(relist=0.3, owed=0.4)) as running:
        await until(lambda: api.watches(CONFIG_MAPS) == 1)
        api.silent = True
        api.put(CONFIG_MAPS, "a")
        await until(lambda: running.names == {"a"})
        await until(lambda: running.reflector.overdue(0.4) == ("default/a",))
        await until(lambda: api.watches(CONFIG_MAPS) == 2)
        assert running.reflector.overdue(0.4) == ("default/a",), (
            "the new one is as silent: this process is to be replaced"
        )
        api.silent = False
        await until(lambda: running.reflector.overdue(0.4) == ())


async def test_an_api_that_is_away_makes_nothing_unhealthy_and_loses_nothing(
    api: FakeApi, client: ClusterClient
) -> None:
    async with followed(client, Periods(relist=0.2, owed=0.1)) as running:
        api.put(CONFIG_MAPS, "a")
        await until(lambda: running.names == {"a"})
        api.fault = lambda request: web.Response(status=503)
        for _ in range(10):
            await asyncio.sleep(0.1)
            assert running.reflector.overdue(0.1) == ()
        assert running.names == {"a"}
        api.fault = lambda request: None


async def test_an_object_that_cannot_be_read_does_not_hide_the_others(api: FakeApi, client: ClusterClient) -> None:
    api.put(CONFIG_MAPS, "a")
    api.put(CONFIG_MAPS, "odd", data=17)
    api.put(CONFIG_MAPS, "b")
    async with followed(client, Periods()) as running:
        await until(lambda: running.reflector.store.synced)
        assert running.names == {"a", "b"}


async def test_a_kind_that_may_not_be_read_is_done_without_where_that_is_allowed(
    api: FakeApi, client: ClusterClient
) -> None:
    api.fault = lambda request: status(403, "Forbidden")
    reflector = Reflector(client, Scope(kinds.NODE, optional=True), lambda *_: None, time.monotonic)
    task = asyncio.create_task(reflector.run())
    await until(lambda: reflector.forbidden)
    assert not reflector.store.synced
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def refusing() -> Iterator[type]:
    class Refusing:
        def require(self, seconds: float) -> None:
            raise LeaseLost(f"{seconds}")

    yield Refusing


async def test_without_a_lease_that_lives_long_enough_no_write_is_sent(
    api: FakeApi, client: ClusterClient, refusing: type
) -> None:
    client.guard = refusing()
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "default"}}
    for write in (
        client.create(kinds.CONFIG_MAP, body),
        client.apply(kinds.CONFIG_MAP, body),
        client.replace(kinds.CONFIG_MAP, body),
        client.merge(kinds.CONFIG_MAP, "default", "x", {}),
        client.delete(kinds.CONFIG_MAP, "default", "x", "u", "1"),
    ):
        with pytest.raises(LeaseLost):
            await write
    assert api.requests == []


async def test_refusals_and_silence_are_told_apart(api: FakeApi, client: ClusterClient) -> None:
    with pytest.raises(ApiError) as refused:
        await client.get(kinds.CONFIG_MAP, "", "none")
    assert refused.value.gone
    assert client.reachability.since is not None
    api.fault = lambda request: web.Response(status=504, text="gateway")
    with pytest.raises(ApiUnreachable):
        await client.get(kinds.CONFIG_MAP, "", "none")
    client.configuration.host = "http://127.0.0.1:1"
    with pytest.raises(ApiUnreachable):
        await client.get(kinds.CONFIG_MAP, "", "none")
    assert client.reachability.since is None
