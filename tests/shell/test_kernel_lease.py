"""Leader election against an API that answers, conflicts, stalls and goes away."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import web
from kubernetes.aio import client as kubernetes_client

from inference_fleet.cluster.client import ClusterClient
from inference_fleet.cluster.lease import LeaseHolder, LeaseLost, LeaseTimes, Record, Sighting
from tests.support.fake_api import FakeApi, status

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
FAST = LeaseTimes(duration=1.5, renew_deadline=0.8, retry=0.1, request=0.3)


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as api:
        api.objects[LEASES] = {}
        yield api


class Process:
    """A candidate, and whether it was told that it lost."""

    def __init__(self, api: FakeApi, identity: str) -> None:
        self.lost = threading.Event()
        self.why = ""

        async def connect() -> ClusterClient:
            configuration = kubernetes_client.Configuration()
            configuration.host = api.url
            return ClusterClient(configuration, time.monotonic)

        def on_lost(why: str) -> None:
            self.why = why
            self.lost.set()

        self.lease = LeaseHolder(
            connect, namespace="default", name="operator", identity=identity, on_lost=on_lost, times=FAST
        )

    async def stop(self) -> None:
        await asyncio.to_thread(self.lease.stop)


async def until(what: Callable[[], object], seconds: float = 5) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "not in time"
        await asyncio.sleep(0.02)


async def test_one_leads_and_the_other_takes_over_at_once_when_it_ends(api: FakeApi) -> None:
    one, two = Process(api, "one"), Process(api, "two")
    one.lease.start()
    await asyncio.wait_for(one.lease.acquired(), 5)
    two.lease.start()
    await asyncio.sleep(0.5)
    assert not two.lease.held
    began = time.monotonic()
    await one.stop()
    await asyncio.wait_for(two.lease.acquired(), 5)
    assert time.monotonic() - began < FAST.duration, "a lease that was given back is not waited for"
    assert not one.lost.is_set()
    assert api.objects[LEASES]["operator"]["spec"]["holderIdentity"] == "two"
    await two.stop()


async def test_a_lease_whose_holder_died_is_taken_only_after_it_ran_out(api: FakeApi) -> None:
    stamp = "2020-01-01T00:00:00.000000Z"
    api.put(LEASES, "operator", spec={"holderIdentity": "dead", "leaseDurationSeconds": 1, "renewTime": stamp})
    process = Process(api, "next")
    began = time.monotonic()
    process.lease.start()
    await asyncio.wait_for(process.lease.acquired(), 5)
    assert time.monotonic() - began >= 0.9, "other machines' clocks are not believed: it counts from the first sight"
    await process.stop()


async def test_a_write_needs_a_lease_that_outlives_it(api: FakeApi) -> None:
    process = Process(api, "one")
    with pytest.raises(LeaseLost):
        process.lease.require(0.1)
    process.lease.start()
    await asyncio.wait_for(process.lease.acquired(), 5)
    process.lease.require(0.5)
    with pytest.raises(LeaseLost):
        process.lease.require(10)
    await process.stop()
    with pytest.raises(LeaseLost):
        process.lease.require(0.1)


async def test_it_is_kept_while_the_main_loop_hangs(api: FakeApi) -> None:
    """Renewal has a thread and a loop of its own. The API under test would hang too, so a second loop serves it."""
    ready, stop, url = threading.Event(), threading.Event(), []

    def serve() -> None:
        async def main() -> None:
            async with FakeApi() as other:
                other.objects[LEASES] = {}
                url.append(other)
                ready.set()
                while not stop.is_set():  # noqa: ASYNC110 - the event is another thread's
                    await asyncio.sleep(0.02)

        asyncio.run(main())

    server = threading.Thread(target=serve)
    server.start()
    ready.wait(5)
    process = Process(url[0], "one")
    process.lease.start()
    await asyncio.wait_for(process.lease.acquired(), 5)
    time.sleep(2.5)  # noqa: ASYNC251 - the loop hangs for longer than the lease lives
    assert process.lease.held
    assert not process.lost.is_set()
    await process.stop()
    stop.set()
    await asyncio.to_thread(server.join)


async def test_an_outage_stops_the_writes_well_before_others_may_take_over(api: FakeApi) -> None:
    process = Process(api, "one")
    process.lease.start()
    await asyncio.wait_for(process.lease.acquired(), 5)
    api.fault = lambda request: web.Response(status=503)
    began = time.monotonic()

    def refused() -> bool:
        try:
            process.lease.require(0.01)
        except LeaseLost:
            return True
        return False

    await until(refused)
    assert FAST.renew_deadline - 0.2 <= time.monotonic() - began < FAST.duration
    await until(lambda: not process.lease.held)
    assert not process.lost.is_set(), "an API server that is away is no reason to end"
    api.fault = lambda request: None
    await until(lambda: process.lease.held)
    process.lease.require(0.01)
    await process.stop()


async def test_a_lease_that_was_taken_during_an_outage_is_lost_when_it_ends(api: FakeApi) -> None:
    process = Process(api, "one")
    process.lease.start()
    await asyncio.wait_for(process.lease.acquired(), 5)
    api.fault = lambda request: web.Response(status=503)
    await until(lambda: not process.lease.held)
    api.put(LEASES, "operator", spec={"holderIdentity": "thief", "leaseDurationSeconds": 30})
    api.fault = lambda request: None
    await until(process.lost.is_set)
    with pytest.raises(LeaseLost):
        process.lease.require(0.01)


async def test_a_short_outage_costs_nothing(api: FakeApi) -> None:
    process = Process(api, "one")
    process.lease.start()
    await asyncio.wait_for(process.lease.acquired(), 5)
    api.fault = lambda request: status(500, "InternalError")
    await asyncio.sleep(0.4)
    api.fault = lambda request: None
    await asyncio.sleep(1.0)
    assert process.lease.held
    assert not process.lost.is_set()
    await process.stop()


async def test_it_is_lost_when_another_took_it(api: FakeApi) -> None:
    process = Process(api, "one")
    process.lease.start()
    await asyncio.wait_for(process.lease.acquired(), 5)
    api.put(LEASES, "operator", spec={"holderIdentity": "thief", "leaseDurationSeconds": 30})
    await until(process.lost.is_set)
    assert "another" in process.why


async def test_a_renewal_that_was_answered_late_is_not_a_loss(api: FakeApi) -> None:
    process = Process(api, "one")
    process.lease.start()
    await asyncio.wait_for(process.lease.acquired(), 5)
    conflicts = 2

    def once(request: web.Request) -> web.Response | None:
        nonlocal conflicts
        if request.method == "PUT" and conflicts:
            conflicts -= 1
            return status(409, "Conflict")
        return None

    api.fault = once
    await asyncio.sleep(1.0)
    assert conflicts == 0
    assert process.lease.held
    assert not process.lost.is_set()
    await process.stop()


async def test_a_lease_that_somebody_deleted_is_made_anew(api: FakeApi) -> None:
    process = Process(api, "one")
    process.lease.start()
    await asyncio.wait_for(process.lease.acquired(), 5)
    api.drop(LEASES, "operator")
    await until(lambda: "operator" in api.objects[LEASES])
    assert process.lease.held
    await process.stop()


def test_a_record_is_free_when_released_ours_or_run_out() -> None:
    def record(holder: str, version: str = "1") -> Record:
        return Record(holder, 30, "", "", 0, version)

    sighting = Sighting()
    assert sighting.free_at("me") == 0
    sighting.see(record("other"), 100)
    sighting.see(record("other"), 110)
    assert sighting.free_at("me") == 130
    sighting.see(record("other", "2"), 120)
    assert sighting.free_at("me") == 150
    sighting.see(record("", "3"), 121)
    assert sighting.free_at("me") == 0
    sighting.see(record("me", "4"), 122)
    assert sighting.free_at("me") == 0
