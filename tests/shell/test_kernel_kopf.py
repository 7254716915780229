"""kopf only watches: what it hands over, and what it never does."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import kopf
import pytest
from aiohttp import web

from inference_fleet.cluster.kinds import Kind
from inference_fleet.cluster.lease import LeaseTimes
from inference_fleet.cluster.settings import OperatorOptions
from inference_fleet.cluster.wiring import WATCHED, KopfShell, configure, registry
from tests.support.fake_api import FakeApi

GROUP = "inference-fleet.dev"
POLICIES = f"/apis/{GROUP}/v1alpha1/inferencepolicies"


def discovery(request: web.Request) -> web.Response | None:
    """The questions that kopf asks before it watches."""
    path = request.path
    if path == "/apis":
        version = {"groupVersion": f"{GROUP}/v1alpha1", "version": "v1alpha1"}
        return web.json_response({"groups": [{"name": GROUP, "versions": [version], "preferredVersion": version}]})
    if path == "/api":
        return web.json_response({"versions": ["v1"]})
    if path == "/api/v1":
        names = {"name": "namespaces", "singularName": "namespace", "kind": "Namespace", "namespaced": False}
        return web.json_response({"resources": [{**names, "verbs": ["get", "list", "watch"]}]})
    if path == f"/apis/{GROUP}/v1alpha1":
        resources = [
            {"name": kind.plural, "singularName": kind.name.lower(), "kind": kind.name, "namespaced": kind.namespaced,
             "verbs": ["get", "list", "watch", "patch"]}
            for kind in WATCHED
        ]  # fmt: skip
        return web.json_response({"resources": resources})
    return None


def options(kubeconfig: str, **more: Any) -> OperatorOptions:
    whole: dict[str, Any] = {
        "image": "i", "llama_cpp_image": "", "vllm_image": "", "gateway_cluster_role": "g", "namespaces": (), "read_nodes": True,
        "hub_endpoint": "", "lease_namespace": "default", "lease_name": "l", "identity": "me", "resync_seconds": 60.0,
        "workers": 1, "port": 0, "kubeconfig": kubeconfig, "log_level": "Info", "lease_times": LeaseTimes(), **more,
    }  # fmt: skip
    return OperatorOptions(**whole)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[FakeApi]:
    async with FakeApi() as api:
        api.fault = discovery
        api.page = 500
        for kind in WATCHED:
            api.objects[kind.path()] = {}
        yield api


@pytest.fixture
def kubeconfig(api: FakeApi, tmp_path: Path) -> str:
    path = tmp_path / "kubeconfig"
    document = {
        "clusters": [{"name": "c", "cluster": {"server": api.url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(document))
    return str(path)


async def until(what: Callable[[], object], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "not in time"
        await asyncio.sleep(0.05)


async def test_events_are_handed_over_and_nothing_is_written(
    api: FakeApi, kubeconfig: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", kubeconfig)
    api.put(POLICIES, "before", spec={"mode": "Apply"})
    got: list[tuple[Kind, str | None, str]] = []
    shell = KopfShell(
        options(kubeconfig),
        asyncio.get_running_loop(),
        lambda kind, event, obj: got.append((kind, event, obj["metadata"]["name"])),
    )
    shell.start()
    try:
        await until(lambda: (WATCHED[0], None, "before") in got)
        api.put(POLICIES, "new", spec={})
        api.put(POLICIES, "before", spec={"mode": "Plan"}, metadata={"generation": 2})
        await until(lambda: (WATCHED[0], "MODIFIED", "before") in got and (WATCHED[0], "ADDED", "new") in got)
        api.drop(POLICIES, "new")
        await until(lambda: (WATCHED[0], "DELETED", "new") in got)
        assert {method for method, _ in api.requests} <= {"GET", "WATCH"}
        for held in api.objects[POLICIES].values():
            assert "finalizers" not in held["metadata"]
            assert "annotations" not in held["metadata"]
    finally:
        await asyncio.to_thread(shell.stop)
    assert shell.died == ""


async def test_that_kopf_ended_by_itself_is_known(api: FakeApi, tmp_path: Path) -> None:
    shell = KopfShell(options(str(tmp_path / "nowhere")), asyncio.get_running_loop(), lambda *_: None)
    shell.start()
    await until(lambda: shell.died, 20)


def test_kopf_neither_posts_nor_peers_nor_scans() -> None:
    settings = kopf.OperatorSettings()
    configure(settings)
    assert settings.posting.enabled is False
    assert settings.peering.standalone is True
    assert settings.scanning.disabled is True
    assert (settings.watching.server_timeout, settings.watching.client_timeout) == (300, 310)
    assert settings.networking.request_timeout == 10


def test_there_are_only_event_handlers() -> None:
    handlers = registry(lambda *_: None, "", lambda why: None)
    assert len(handlers._watching._handlers) == len(WATCHED)
    for other in ("_changing", "_spawning", "_indexing", "_webhooks"):
        assert not getattr(handlers, other)._handlers, other
