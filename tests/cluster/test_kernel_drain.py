"""Replicas are taken away only after the gateways have taken them out of routing; replacements come before what they replace."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator

import pytest

from tests.support import fleet
from tests.support.fake_gateway import FakeGateway
from tests.support.fleet import Fleet, cluster, operator, place
from tests.support.running_operator import USER_AGENT

__all__ = ["cluster", "operator", "place"]


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway(f"127.{random.randint(64, 250)}.{random.randint(1, 250)}.{random.randint(2, 250)}") as gateway:
        yield gateway


def gateway_pod(place: Fleet) -> dict:
    return place.cluster.list("pod", place.namespace, "inference-fleet.dev/component=gateway")[0]


def stand_in(place: Fleet, gateway: FakeGateway) -> None:
    """The policy's gateway pod gets the fake gateway's address."""
    addresses = {"podIP": gateway.address, "podIPs": [{"ip": gateway.address}]}
    patch = json.dumps({"status": addresses})
    name = gateway_pod(place)["metadata"]["name"]
    place.cluster.kubectl(
        "-n", place.namespace, "patch", "pod", name, "--subresource=status", "--type=merge", "-p", patch
    )


def routes(place: Fleet) -> dict:
    found = place.get("configmap", "chat-routes")
    assert found is not None
    return json.loads(found["data"]["routes.json"])


def test_a_scale_down_waits_for_every_gateway_and_takes_the_drained_pod(place: Fleet, gateway: FakeGateway) -> None:
    place.declare(replicas=3)
    place.condition("chat", "Ready")
    stand_in(place, gateway)
    gateway.revision = routes(place)["revision"]
    place.condition("chat", "MetricsFresh")
    place.replicas(2)
    drained = place.wait("a pod is drained", lambda: routes(place)["drain"])
    time.sleep(4)
    assert place.engine()["spec"]["replicas"] == 3, "the gateway has not taken it in yet"
    marker = place.cluster.marker()
    gateway.revision = routes(place)["revision"]
    place.wait("two replicas", lambda: place.engine()["spec"]["replicas"] == 2)
    name = place.engine()["metadata"]["name"]
    writes = place.cluster.writes_since(marker, user_agent=USER_AGENT)
    assert [w.resource for w in writes if w.name == name] == ["deployments/scale"]
    assert [w.name for w in writes if w.resource == "pods"] == drained

    def gone() -> bool:
        pods = place.cluster.list("pod", place.namespace, "inference-fleet.dev/component=engine")
        return len(pods) == 2 and not {p["metadata"]["name"] for p in pods} & set(drained)

    place.wait("the drained pod is the one that went", gone)
    place.wait("nothing is drained any more", lambda: routes(place)["drain"] == [])


def test_another_identity_is_made_before_the_old_one_goes(place: Fleet, gateway: FakeGateway) -> None:
    place.cluster.apply(fleet.model("other"), namespace=place.namespace)
    fleet.inspected(place.cluster, place.namespace, "other", digest="sha256:bb")
    place.declare(replicas=2)
    place.condition("chat", "Ready")
    stand_in(place, gateway)
    gateway.revision = routes(place)["revision"]
    old = place.engine()["metadata"]
    place.patch("ipol", "chat", {"op": "replace", "path": "/spec/models/0/builds/0/modelRef/name", "value": "other"})
    place.wait("old and new run side by side", lambda: len(place.engines()) == 2)
    place.wait("the old one is out of routing", lambda: len(routes(place)["drain"]) == 2)
    weights = {v["name"]: v["weight"] for v in routes(place)["models"][0]["variants"]}
    assert weights.pop(old["name"]) == 0
    assert list(weights.values()) == [100]
    assert all(d["status"].get("readyReplicas") == 2 for d in place.engines())
    gateway.revision = routes(place)["revision"]
    place.wait("the old one is gone", lambda: old["uid"] not in {d["metadata"]["uid"] for d in place.engines()})
    place.condition("chat", "Ready")
    place.wait("its Service is gone", lambda: place.get("service", old["name"]) is None)


def test_where_devices_are_short_they_are_swapped_one_for_one(place: Fleet) -> None:
    place.cluster.apply(fleet.model("other"), namespace=place.namespace)
    fleet.inspected(place.cluster, place.namespace, "other", digest="sha256:bb")
    place.declare(replicas=4)
    place.condition("chat", "Ready")
    old = place.engine()["metadata"]
    # A gateway pod that is not Ready shows nothing that a drain would wait for.
    patch = '{"status":{"conditions":[{"type":"Ready","status":"False"}]}}'
    name = gateway_pod(place)["metadata"]["name"]
    place.cluster.kubectl("-n", place.namespace, "patch", "pod", name, "--subresource=status", "-p", patch)
    least = 4

    def swapped() -> bool:
        nonlocal least
        engines = place.engines()
        least = min(least, sum(d["status"].get("readyReplicas", 0) for d in engines))
        return [d["spec"]["replicas"] for d in engines if d["metadata"]["uid"] != old["uid"]] == [4] and len(
            engines
        ) == 1

    place.patch("ipol", "chat", {"op": "replace", "path": "/spec/models/0/builds/0/modelRef/name", "value": "other"})
    place.wait("all four devices are the new one's", swapped, seconds=90)
    assert least >= 2, "never all at once"


def test_objectives_are_reported_from_what_the_gateways_counted(place: Fleet, gateway: FakeGateway) -> None:
    objective = {"name": "first", "metric": "TimeToFirstToken", "percentile": 95, "milliseconds": 500}
    place.declare(slo={"windowSeconds": 60, "objectives": [objective]})
    place.condition("chat", "Ready")
    stand_in(place, gateway)
    gateway.revision = routes(place)["revision"]

    def counted(requests: int, within: int) -> str:
        lines = [
            f'inference_fleet_objective_requests_total{{objective="first"}} {requests}',
            f'inference_fleet_objective_within_total{{objective="first"}} {within}',
        ]
        for edge in ("0.3", "0.5", "+Inf"):
            count = 0 if edge == "0.3" else within if edge == "0.5" else requests
            lines.append(f'inference_fleet_time_to_first_token_seconds_bucket{{model="small",le="{edge}"}} {count}')
        return "\n".join(["# TYPE inference_fleet_time_to_first_token_seconds histogram", *lines]) + "\n"

    gateway.metrics = counted(100, 97)
    place.condition("chat", "LatencySLOMet", seconds=60)
    gateway.metrics = counted(400, 300)
    found = place.condition("chat", "LatencySLOMet", "False", seconds=60)
    assert "500 ms" in found["message"]
    place.condition("chat", "Ready")
    report = place.get("ipol", "chat")["status"]["objectives"][0]  # type: ignore[index]
    assert report["name"] == "first"
    assert report["attainmentPercent"] < 95
