"""The real process on a real API server, with the rights of the chart's role and no others."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hack.cluster.api_server import ApiServer, api_server
from tests.gateway.harness import (
    CHAT,
    Engine,
    Gateway,
    answers,
    eventually,
    model,
    routes,
    run_engine,
    run_gateway,
    variant,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

SOAK = bool(os.environ.get("SOAK"))

OUTAGE_SECONDS = 600 if SOAK else 0
TRIES_OF_OUTAGE = 18
"""So often at least is each resource asked for in ten minutes: waits double from 1 s to 30 s, each up to half longer."""

NAMESPACE = "models"
POLICY_LABEL = "inference-fleet.dev/policy"
ROLE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "gateway"},
    "rules": [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]},
    ],
}


class Cluster:
    """What the operator and the EndpointSlice controller would write."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server

    def kubectl(self, *words: str, text: str | None = None) -> str:
        done = self.server.run("kubectl", *words, text=text)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def apply(self, *documents: Mapping[str, Any]) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        self.kubectl("apply", "-f", "-", text=json.dumps(listed))

    def write_routes(self, document: Mapping[str, Any], policy: str = "chat") -> None:
        metadata = {"name": f"{policy}-routes", "namespace": NAMESPACE}
        data = {"routes.json": json.dumps(document)}
        self.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})

    def write_slice(self, name: str, service: str, *endpoints: dict[str, Any], policy: str = "chat", port: int) -> None:
        labels = {POLICY_LABEL: policy, "kubernetes.io/service-name": service}
        self.apply(
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
                "addressType": "IPv4",
                "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
                "endpoints": list(endpoints),
            }
        )

    def stop_api_server(self) -> None:
        self.server.processes["kube-apiserver"].kill()
        self.server.processes["kube-apiserver"].wait()

    def start_api_server(self) -> None:
        command: Any = self.server.processes["kube-apiserver"].args
        with (self.server.state / "again.log").open("wb") as log:
            self.server.processes["kube-apiserver"] = subprocess.Popen(command, stdout=log, stderr=log)

    def kubeconfig_of_gateway(self, target: Path) -> Path:
        """As the operator binds the role: in the policy's namespace only."""
        where = {"name": "gateway", "namespace": NAMESPACE}
        self.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
            ROLE,
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": where},
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": where,
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "gateway"},
                "subjects": [{"kind": "ServiceAccount", **where}],
            },
        )
        token = self.kubectl("-n", NAMESPACE, "create", "token", "gateway").strip()
        document = json.loads(self.kubectl("config", "view", "--raw", "--flatten", "--minify", "-o", "json"))
        document["users"][0]["user"] = {"token": token}
        target.write_text(json.dumps(document))
        return target


def pod(name: str, **conditions: bool) -> dict[str, Any]:
    # The mock engine listens on the loopback address, which the API refuses in a slice: any other of this machine does.
    return {"addresses": [address_of_machine()], "conditions": conditions, "targetRef": {"kind": "Pod", "name": name}}


def address_of_machine() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        return str(probe.getsockname()[0])


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with api_server("1.37") as server:
        yield server


@pytest.fixture(scope="module")
def cluster(server: ApiServer) -> Cluster:
    return Cluster(server)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[Engine]:
    async with run_engine(answers({"engine": "a"}), host=address_of_machine()) as engine:
        yield engine


@pytest.fixture(scope="module")
def port(engine: Engine) -> int:
    return int(engine.address.rpartition(":")[2])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("gateway")
    kubeconfig = cluster.kubeconfig_of_gateway(folder / "kubeconfig")
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    # Time is shortened by the waits between the tries. The number of tries stays that of ten minutes.
    arguments = ("--namespace", NAMESPACE, "--relist-seconds", "2", "--retry-seconds", "30" if SOAK else "0.1")
    async with run_gateway(folder, None, *arguments, environment=environment) as gateway:
        yield gateway


def table(**changes: Any) -> dict[str, Any]:
    return routes(model("small", variant("v"), served=["chat-small"]), **changes)


async def shows(gateway: Gateway, revision: str, endpoints: int) -> None:
    async def shown() -> bool:
        status, body = await gateway.ready()
        return status == 200 and body["revision"] == revision and body["models"] == {"small": {"endpoints": endpoints}}

    await eventually(shown)


async def test_routes_and_endpoints_come_from_the_cluster(
    gateway: Gateway, cluster: Cluster, engine: Engine, port: int
) -> None:
    status, body = await gateway.ready()
    assert (status, body["ready"]) == (503, False)
    # Another policy's objects are none of its business.
    cluster.write_routes({**table(), "revision": "other"}, policy="other")
    cluster.write_slice("other-1", "v", pod("stranger", ready=True), policy="other", port=1)
    document = table()
    cluster.write_routes(document)
    await shows(gateway, document["revision"], 0)

    asked = asyncio.create_task(gateway.ask("/v1/chat/completions", CHAT))
    await asyncio.sleep(0.2)
    cluster.write_slice("v-1", "v", pod("p1", ready=False), port=port)
    await shows(gateway, document["revision"], 0)
    cluster.write_slice("v-1", "v", pod("p1", ready=True), port=port)
    assert (await asked)[0] == 200
    await shows(gateway, document["revision"], 1)
    assert (await gateway.decisions())[0]["endpoint"] == "p1"

    cluster.write_slice("v-1", "v", pod("p1", ready=True, terminating=True), port=port)
    await shows(gateway, document["revision"], 0)
    cluster.write_slice("v-1", "v", pod("p1", ready=True), port=port)
    drained = table(drain=["p1"])
    cluster.write_routes(drained)
    await shows(gateway, drained["revision"], 0)
    cluster.write_routes(document)
    await shows(gateway, document["revision"], 1)
    cluster.kubectl("-n", NAMESPACE, "delete", "endpointslice", "v-1")
    await shows(gateway, document["revision"], 0)


async def test_it_outlives_watches_and_bad_documents_and_a_deleted_configmap(
    gateway: Gateway, cluster: Cluster, port: int
) -> None:
    document = table(holdSeconds=7)
    cluster.write_routes(document)
    cluster.write_slice("v-1", "v", pod("p1", ready=True), port=port)
    await shows(gateway, document["revision"], 1)
    cluster.write_routes({"revision": "broken"})

    async def refused() -> bool:
        return await gateway.metric("inference_fleet_gateway_channel_errors_total", resource="routes") >= 1

    await eventually(refused)
    cluster.kubectl("-n", NAMESPACE, "delete", "configmap", "chat-routes")
    await asyncio.sleep(4)  # two re-lists
    await shows(gateway, document["revision"], 1)
    assert (await gateway.ask("/v1/chat/completions", CHAT))[0] == 200
    synced = await gateway.metric("inference_fleet_gateway_channel_synced_timestamp_seconds", resource="endpoints")
    assert synced > 0
    assert await gateway.metric("inference_fleet_gateway_channel_errors_total", resource="endpoints") == 0


async def test_it_keeps_serving_while_the_api_server_is_gone_and_catches_up_afterwards(
    gateway: Gateway, cluster: Cluster, server: ApiServer, port: int
) -> None:
    document = table(holdSeconds=8)
    cluster.write_routes(document)
    cluster.write_slice("v-1", "v", pod("p1", ready=True), port=port)
    await shows(gateway, document["revision"], 1)

    cluster.stop_api_server()

    errors_metric = "inference_fleet_gateway_channel_errors_total"
    resources = ("routes", "endpoints")
    before = {resource: await gateway.metric(errors_metric, resource=resource) for resource in resources}
    began = asyncio.get_running_loop().time()

    async def served_and_over() -> bool:
        assert (await gateway.ask("/v1/chat/completions", CHAT))[0] == 200
        assert (await gateway.ready())[0] == 200
        tries = [await gateway.metric(errors_metric, resource=one) - before[one] for one in resources]
        return asyncio.get_running_loop().time() - began >= OUTAGE_SECONDS and min(tries) >= TRIES_OF_OUTAGE

    await eventually(served_and_over, OUTAGE_SECONDS + 60)

    cluster.start_api_server()

    async def back() -> bool:
        return await asyncio.to_thread(server.ready)

    await eventually(back, 60)
    cluster.write_slice("v-1", "v", pod("p1", ready=True), pod("p2", ready=False), port=port)
    changed = table(holdSeconds=9)
    cluster.write_routes(changed)
    cluster.kubectl("-n", NAMESPACE, "delete", "endpointslice", "v-1")

    async def caught_up() -> bool:
        _, body = await gateway.ready()
        return bool(body["revision"] == changed["revision"] and body["models"]["small"]["endpoints"] == 0)

    await eventually(caught_up, 60)


async def test_an_api_server_that_hangs_changes_nothing_and_is_caught_up_with(
    gateway: Gateway, cluster: Cluster, server: ApiServer, port: int
) -> None:
    document = table(holdSeconds=10)
    cluster.write_routes(document)
    cluster.write_slice("v-1", "v", pod("p1", ready=True), port=port)
    await shows(gateway, document["revision"], 1)

    # Stopped, it still takes connections and keeps those it has, and says nothing.
    server.processes["kube-apiserver"].send_signal(signal.SIGSTOP)
    try:
        for _ in range(8):
            assert (await gateway.ask("/v1/chat/completions", CHAT))[0] == 200
            assert (await gateway.ready())[0] == 200
            await asyncio.sleep(0.5)
    finally:
        server.processes["kube-apiserver"].send_signal(signal.SIGCONT)
    changed = table(holdSeconds=11)
    cluster.write_routes(changed)
    await shows(gateway, changed["revision"], 1)


async def test_it_stops_in_order(gateway: Gateway) -> None:
    gateway.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(15):
        assert await gateway.process.wait() == 0
    log = gateway.log.read_text()
    assert "Traceback" not in log
    assert "Unclosed" not in log
