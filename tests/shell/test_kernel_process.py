"""The whole process against a small API: it stands by without watching, leads, ends in order, and dies when it must."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from aiohttp import ClientSession, web

from inference_fleet.cluster.kinds import ACCELERATOR_CLASS, MODEL, POLICY, Kind
from inference_fleet.cluster.scopes import scopes
from tests.shell.test_kernel_kopf import api, discovery, kubeconfig, options
from tests.support.fake_api import FakeApi
from tests.support.running_operator import free_port

__all__ = ["api", "kubeconfig"]

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


async def until(what: Callable[[], object], seconds: float = 15) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "not in time"
        await asyncio.sleep(0.05)


class Operator:
    def __init__(self, kubeconfig: str, log: Path) -> None:
        self.port = free_port()
        self.log = log
        self._kubeconfig = kubeconfig
        self.process: asyncio.subprocess.Process | None = None

    async def start(self, *flags: str) -> None:
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "inference_fleet.cli", "operator", "--kubeconfig", self._kubeconfig,
                "--port", str(self.port), "--lease-name", "operator", "--lease-seconds", "24", *flags,
                stdout=log, stderr=log,
            )  # fmt: skip

    async def get(self, path: str) -> tuple[int, str]:
        async with ClientSession() as session:
            try:
                async with session.get(f"http://127.0.0.1:{self.port}{path}") as answer:
                    return answer.status, await answer.text()
            except OSError:
                return 0, ""

    async def serving(self, seconds: float = 15) -> None:
        await until(lambda: "inference_fleet.kernel: serving" in self.log.read_text(), seconds)

    async def end(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), 25)


@pytest.fixture
async def fleet_api(api: FakeApi) -> FakeApi:
    for scope in scopes(options("")):
        api.objects.setdefault(scope.kind.path(), {})
    api.objects[LEASES] = {}
    return api


@pytest.fixture
async def operator(fleet_api: FakeApi, kubeconfig: str, tmp_path: Path) -> AsyncIterator[Operator]:
    operator = Operator(kubeconfig, tmp_path / "operator.log")
    yield operator
    if operator.process is not None and operator.process.returncode is None:
        operator.process.kill()
        await operator.process.wait()


def watched(api: FakeApi, kind: Kind) -> int:
    return api.watches(kind.path())


async def test_it_leads_serves_and_ends_in_order(fleet_api: FakeApi, operator: Operator) -> None:
    await operator.start()
    await operator.serving()
    assert await operator.get("/healthz") == (200, "ok\n")
    assert await operator.get("/readyz") == (200, "ok\n")
    assert "inference_fleet_operator_leading 1.0" in (await operator.get("/metrics"))[1]
    # Ours and kopf's: one each.
    await until(lambda: all(watched(fleet_api, kind) == 2 for kind in (POLICY, MODEL, ACCELERATOR_CLASS)))
    began = time.monotonic()
    assert await operator.end() == 0
    assert time.monotonic() - began < 15
    assert fleet_api.objects[LEASES]["operator"]["spec"]["holderIdentity"] == "", "given back"
    assert "Traceback" not in operator.log.read_text()


async def test_a_standby_holds_no_watches_and_is_ready_to_take_over(fleet_api: FakeApi, operator: Operator) -> None:
    fleet_api.put(LEASES, "operator", spec={"holderIdentity": "other", "leaseDurationSeconds": 600})
    await operator.start()
    await until(lambda: "standing by" in operator.log.read_text())
    await asyncio.sleep(1.5)
    assert [path for method, path in fleet_api.requests if method == "WATCH"] == []
    assert (await operator.get("/healthz"))[0] == 200
    assert (await operator.get("/readyz"))[0] == 200
    fleet_api.put(LEASES, "operator", spec={"holderIdentity": "", "leaseDurationSeconds": 1})
    await operator.serving()
    assert await operator.end() == 0


async def test_a_standby_ends_at_once(fleet_api: FakeApi, operator: Operator) -> None:
    fleet_api.put(LEASES, "operator", spec={"holderIdentity": "other", "leaseDurationSeconds": 600})
    await operator.start()
    await until(lambda: "standing by" in operator.log.read_text())
    assert await operator.end() == 0


async def test_who_loses_the_lease_ends_at_once_and_says_why(fleet_api: FakeApi, operator: Operator) -> None:
    await operator.start()
    await operator.serving()
    fleet_api.put(LEASES, "operator", spec={"holderIdentity": "thief", "leaseDurationSeconds": 600})
    assert operator.process is not None
    assert await asyncio.wait_for(operator.process.wait(), 15) == 3
    assert "another process holds the lease" in operator.log.read_text()
    assert fleet_api.objects[LEASES]["operator"]["spec"]["holderIdentity"] == "thief"


async def test_it_waits_for_the_snapshots_before_it_is_ready(fleet_api: FakeApi, operator: Operator) -> None:
    def fault(request: web.Request) -> web.Response | None:
        return web.Response(status=503) if request.path.endswith("/deployments") else discovery(request)

    fleet_api.fault = fault
    await operator.start()
    await until(lambda: "leading" in operator.log.read_text())
    await asyncio.sleep(1)
    assert (await operator.get("/readyz"))[0] == 503
    assert (await operator.get("/healthz"))[0] == 200, "that the API cannot be reached is no reason to be restarted"
    fleet_api.fault = discovery
    await operator.serving(20)
    assert (await operator.get("/readyz"))[0] == 200


async def test_an_api_that_goes_away_and_comes_back_is_survived(fleet_api: FakeApi, operator: Operator) -> None:
    await operator.start()
    await operator.serving()

    def fault(request: web.Request) -> web.Response | None:
        return None if "leases" in request.path else web.Response(status=503)

    fleet_api.fault = fault
    fleet_api.fail_watches(POLICY.path(), 500)
    await asyncio.sleep(2)
    assert (await operator.get("/healthz"))[0] == 200
    fleet_api.log = []
    fleet_api.fault = discovery
    document = json.loads(json.dumps({"models": []}))
    fleet_api.put(POLICY.path(), "odd", spec=document)
    patches = lambda: [p for m, p in fleet_api.requests if m == "PATCH" and "odd/status" in p]  # noqa: E731
    await until(patches, 40)
    assert await operator.end() == 0
