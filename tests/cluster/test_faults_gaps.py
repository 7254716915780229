"""What the operator makes of an API server that breaks off, forgets, refuses, stalls and goes away. Nothing here restarts it."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import KwokCluster, OldApiServer
from tests.support.fault_proxy import Break, Delay, Fault, FaultProxy, Mute, Refuse, Silence
from tests.support.fleet import Fleet, cluster, place
from tests.support.running_operator import USER_AGENT, RunningOperator, running

__all__ = ["cluster", "place"]

LEASE_SECONDS = 6
SILENCE_SECONDS = 12
"""Longer than kopf waits between its attempts after the faults of this file, as 60 s are after those of real life."""
OUR_WATCHES, KOPFS_WATCHES = 12, 3
RELIST_SECONDS = 4
FLAGS = (
    "--resync-seconds", "2", "--scrape-seconds", "3", "--lease-seconds", str(LEASE_SECONDS),
    "--relist-seconds", str(RELIST_SECONDS), "--silence-seconds", str(SILENCE_SECONDS),
)  # fmt: skip


@pytest.fixture(scope="module")
def proxy(cluster: KwokCluster) -> Iterator[FaultProxy]:
    with FaultProxy(cluster.kubeconfig) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def operator(proxy: FaultProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningOperator]:
    folder = tmp_path_factory.mktemp("operator")
    kubeconfig = proxy.write_kubeconfig(folder / "kubeconfig")
    with running(kubeconfig, folder, f"gaps-{uuid.uuid4().hex[:6]}", *FLAGS) as operator:
        yield operator


@pytest.fixture(autouse=True)
def same_process(proxy: FaultProxy, operator: RunningOperator) -> Iterator[None]:
    """Every test ends with the process it began with, unless it ended that itself, and leaves no fault behind."""
    watching(proxy)
    before, ends = operator.pid, operator.ends
    yield
    proxy.clear()
    try:
        assert operator.alive, f"the operator ended:\n{operator.tail()}"
        assert operator.ends > ends or operator.pid == before
    finally:
        if not operator.alive:
            operator.start(seconds=30)


def watching(proxy: FaultProxy) -> None:
    """Until every watch runs, ours and kopf's: after a fault each comes back in its own time."""
    end = time.monotonic() + 40
    while proxy.watches(agent=USER_AGENT) < OUR_WATCHES or proxy.watches(agent="kopf") < KOPFS_WATCHES:
        assert time.monotonic() < end, f"only these watches run: {', '.join(sorted(proxy.running()))}"
        time.sleep(0.1)


def hold_for(operator: RunningOperator, seconds: float) -> None:
    """Let a fault work, and look meanwhile that it makes nobody replace the process."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert operator.get("/healthz") == (200, "ok\n")
        time.sleep(0.25)


@pytest.mark.parametrize(
    "fault",
    [Refuse(429, retry_after=1), Refuse(500), Refuse(503), Delay(1.0), Break(), Silence()],
    ids=["429", "500", "503", "slow", "cut-mid-body", "half-open"],
)
def test_a_policy_declared_during_a_fault_is_carried_out_after_it(
    place: Fleet, proxy: FaultProxy, operator: RunningOperator, fault: Fault
) -> None:
    with proxy.fault(fault) as rule:
        proxy.cut_watches()
        place.declare(replicas=2)
        hold_for(operator, 2.5)
    assert rule.hits > 0
    place.condition("chat", "Ready")
    assert place.engine()["spec"]["replicas"] == 2


@pytest.mark.parametrize("status", [429, 500], ids=str)
def test_writes_that_are_refused_for_a_while_are_made_up_for(place: Fleet, proxy: FaultProxy, status: int) -> None:
    with proxy.fault(Refuse(status, retry_after=1), write=True) as rule:
        place.declare()
        place.wait("writes were refused", lambda: rule.hits >= 3)
        assert place.engines() == []
    place.condition("chat", "Ready")


def test_while_429_says_come_back_later_it_stays_away(place: Fleet, proxy: FaultProxy) -> None:
    place.declare()
    place.condition("chat", "Ready")
    place.settled()
    with proxy.fault(Refuse(429, retry_after=3), write=True, path=f"/namespaces/{place.namespace}/") as rule:
        place.replicas(2)
        place.wait("a write was refused", lambda: rule.hits >= 1)
        time.sleep(2.5)
        assert rule.hits == 1
    place.wait("two replicas", lambda: place.engine()["spec"]["replicas"] == 2)


def test_watches_that_are_cut_again_and_again_lose_nothing(place: Fleet, proxy: FaultProxy) -> None:
    place.declare()
    for count in (2, 3, 4):
        place.replicas(count)
        for _ in range(6):
            proxy.cut_watches()
            time.sleep(0.2)
    place.wait("four replicas", lambda: place.engine()["spec"]["replicas"] == 4)


def test_after_a_gap_the_deleted_is_not_alive_and_the_created_is_not_missed(place: Fleet, proxy: FaultProxy) -> None:
    """The gap is a 410: what happened in it is never told by an event."""
    place.declare("gone")
    place.declare("kept")
    place.condition("gone", "Ready")
    place.condition("kept", "Ready")
    lost = place.engine("kept")["metadata"]
    with proxy.fault(Refuse(410), watch=True), proxy.fault(Silence(), method="GET", path="/(deployments|inference)"):
        proxy.expire_watches()
        place.cluster.kubectl("-n", place.namespace, "delete", "ipol", "gone", "--timeout=20s")
        place.cluster.kubectl("-n", place.namespace, "delete", "deployment", lost["name"], "--timeout=20s")
        place.declare("new")
        time.sleep(1)
    marker = place.cluster.marker()
    place.condition("new", "Ready")

    def back() -> bool:
        return [d["metadata"]["uid"] != lost["uid"] for d in place.engines("kept")] == [True]

    place.wait("the deleted Deployment is back", back)
    place.condition("kept", "Ready")
    time.sleep(3)  # a resync
    assert [w for w in place.own_writes(marker) if "/gone" in w and w.startswith("20")] == []
    assert place.engines("gone") == []


def test_a_deletion_whose_event_is_lost_is_found_by_the_next_list(place: Fleet, proxy: FaultProxy) -> None:
    place.declare()
    place.condition("chat", "Ready")
    lost = place.engine()["metadata"]

    def of_the_lost(event: Mapping[str, Any]) -> bool:
        return event["type"] == "DELETED" and event["object"]["metadata"].get("uid") == lost["uid"]

    with proxy.fault(Mute(of_the_lost)) as rule:
        place.cluster.kubectl("-n", place.namespace, "delete", "deployment", lost["name"])
        place.wait("the event was swallowed", lambda: rule.hits > 0)
        place.wait("it is back", lambda: [d["metadata"]["uid"] != lost["uid"] for d in place.engines()] == [True])


@pytest.mark.parametrize("kind", ["deployments", "pods", "configmaps"])
def test_until_everything_is_read_nothing_is_written(
    place: Fleet, proxy: FaultProxy, operator: RunningOperator, kind: str
) -> None:
    """A new process that cannot list one kind must not take what it does not see for what is not there."""
    place.declare(replicas=3)
    place.condition("chat", "Ready")
    operator.stop()
    place.replicas(1)
    marker = place.cluster.marker()
    with proxy.fault(Refuse(503), method="GET", path=rf"/{kind}\?") as rule:
        operator.launch()
        place.wait("it tried", lambda: rule.hits >= 2)
        hold_for(operator, 1.5)
        assert operator.get("/readyz")[0] == 503
        assert place.own_writes(marker) == []
        assert place.engine()["spec"]["replicas"] == 3
    operator.await_ready()


def test_a_list_that_breaks_off_is_not_taken_for_the_whole(place: Fleet, proxy: FaultProxy) -> None:
    place.declare(replicas=2)
    place.condition("chat", "Ready")
    place.settled()
    uid = place.engine()["metadata"]["uid"]
    marker = place.cluster.marker()
    with proxy.fault(Break(), method="GET", watch=False, path=r"\?limit=") as rule:
        proxy.expire_watches()
        place.wait("lists broke off", lambda: rule.hits >= 14)
        assert place.own_writes(marker) == []
    place.replicas(3)
    place.wait("three replicas", lambda: place.engine()["spec"]["replicas"] == 3)
    assert place.engine()["metadata"]["uid"] == uid


def test_an_outage_longer_than_the_lease_needs_no_restart(
    place: Fleet, proxy: FaultProxy, operator: RunningOperator
) -> None:
    place.declare()
    place.condition("chat", "Ready")
    place.settled()
    with proxy.fault(Silence()):
        place.replicas(3)
        hold_for(operator, LEASE_SECONDS * 2)
        assert "inference_fleet_operator_leading 0.0" in operator.get("/metrics")[1]
        assert place.engine()["spec"]["replicas"] == 1
    place.wait("three replicas", lambda: place.engine()["spec"]["replicas"] == 3)
    assert "inference_fleet_operator_leading 1.0" in operator.get("/metrics")[1]


def test_a_create_that_must_not_overwrite_is_understood_by_old_and_new_servers(
    cluster: KwokCluster, tmp_path: Path
) -> None:
    """An apply against a resourceVersion that no object ever has creates, and is refused where there is something."""
    manifest = {
        "apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"},
        "metadata": {"name": f"first-{uuid.uuid4().hex[:6]}", "namespace": "default", "resourceVersion": "1"},
    }  # fmt: skip
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(manifest))
    words = ("apply", "--server-side", "--force-conflicts", "--field-manager=inference-fleet", "-f", path)
    with OldApiServer.session() as old:
        for server in (cluster, old):
            server.kubectl(*words)
            assert "object has been modified" in server.refused(*words)
    cluster.kubectl("delete", "-f", path)
