"""More than one operator: a leader that is stopped in the middle of its passes, its standby, a second install."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support import fleet
from tests.support.cluster import KwokCluster
from tests.support.fault_proxy import FaultProxy, Hold
from tests.support.fleet import Fleet, cluster
from tests.support.running_operator import RunningOperator, running

__all__ = ["cluster"]

LEASE_SECONDS = 6
LOST_STATUS = 3
SLACK_SECONDS = 6
"""What a loaded machine may add to a takeover."""


MOVED_ON = ("scaled", "made", "remembered")


class Pair:
    """Two operators that campaign for one Lease, each seen by the API server as a user of its own."""

    def __init__(self, cluster: KwokCluster, folder: Path, stack: ExitStack) -> None:
        self.lease = f"pair-{uuid.uuid4().hex[:6]}"
        self.users = tuple(f"{self.lease}-{name}" for name in ("one", "two"))
        self.cluster = cluster
        self.proxies = [stack.enter_context(FaultProxy(cluster.kubeconfig, user)) for user in self.users]
        flags = ("--lease-name", self.lease, "--lease-seconds", str(LEASE_SECONDS), "--resync-seconds", "2")
        self.operators = [
            RunningOperator(proxy.write_kubeconfig(folder / user), folder, user, *flags)
            for proxy, user in zip(self.proxies, self.users, strict=True)
        ]
        for operator in self.operators:
            stack.callback(operator.kill)

    def leads(self, number: int) -> bool:
        return "inference_fleet_operator_leading 1.0" in self.operators[number].get("/metrics")[1]

    def taken_over(self, since: float) -> float:
        """Wait until the second leads; seconds since a moment."""
        self.cluster.wait_for("the standby leads", lambda: self.leads(1), LEASE_SECONDS + SLACK_SECONDS)
        return time.monotonic() - since


@pytest.fixture
def pair(cluster: KwokCluster, tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        pair = Pair(cluster, tmp_path, stack)
        pair.operators[0].start()
        pair.operators[1].launch()
        cluster.wait_for("the standby is ready", lambda: pair.operators[1].get("/readyz")[0] == 200)
        yield pair


@pytest.fixture
def place(cluster: KwokCluster, pair: Pair) -> Iterator[Fleet]:
    with a_place(cluster, pair.operators[0]) as place:
        yield place


@contextmanager
def a_place(cluster: KwokCluster, operator: RunningOperator) -> Iterator[Fleet]:
    with cluster.namespace("leader") as namespace:
        fleet.add_gpu_node(cluster, f"gpu-{namespace}", namespace, gpus=24)
        cluster.apply(fleet.accelerator_class(namespace))
        cluster.apply(fleet.model("tiny"), namespace=namespace)
        fleet.inspected(cluster, namespace, "tiny")
        try:
            yield Fleet(cluster, namespace, operator)
        finally:
            cluster.run("kubectl", "delete", "accel", namespace)
            cluster.remove_node(f"gpu-{namespace}")


def test_what_a_stopped_leader_had_under_way_changes_nothing_when_it_goes_on(place: Fleet, pair: Pair) -> None:
    """Every kind of write is on its way when the leader is stopped, and arrives after another has taken over."""
    one, proxy = pair.operators[0], pair.proxies[0]
    for name in ("scaled", "remembered", "told"):
        place.declare(name)
    for name in ("scaled", "remembered", "told"):
        place.condition(name, "Ready")
    place.settled()
    held = {
        what: proxy.add(Hold(), method="PATCH", path=f"/namespaces/{place.namespace}/.*{path}", times=1)
        for what, path in (
            ("creation of an engine", "deployments/made-small-[^/]*[?]"),
            ("creation of routes", "configmaps/routed-routes"),
            ("scale", "deployments/scaled-small-.*/scale"),
            ("memory", "configmaps/remembered-memory"),
            ("status", "inferencepolicies/told/status"),
        )
    }
    for name in ("made", "routed"):
        place.declare(name)
    for name in ("scaled", "remembered", "told"):
        place.replicas(2, name)
    place.wait("all are on their way", lambda: all(rule.hits for rule in held.values()), seconds=20)
    began = time.monotonic()
    os.kill(one.pid, signal.SIGSTOP)
    try:
        took = pair.taken_over(began)
        assert took <= LEASE_SECONDS + SLACK_SECONDS
        place.operator = pair.operators[1]
        for name in ("made", "routed", "scaled", "remembered", "told"):
            place.condition(name, "Ready")
            place.wait(f"{name} is up", lambda name=name: place.engine(name)["spec"]["replicas"] in (1, 2))
        # Afterwards the world moves on: whatever the first had decided is out of date.
        for name in MOVED_ON:
            place.replicas(3, name)
        for name in MOVED_ON:
            place.wait("three replicas", lambda name=name: place.engine(name)["spec"]["replicas"] == 3)
        place.settled()
        marker = place.cluster.marker()
        before = {name: place.engine(name)["metadata"]["uid"] for name in MOVED_ON}
        for rule in held.values():
            proxy.end(rule)
        place.wait("all have arrived", lambda: all(rule.answers for rule in held.values()))
    finally:
        os.kill(one.pid, signal.SIGCONT)
    assert {what: rule.answers for what, rule in held.items()} == {what: [409] for what in held}
    place.wait("it ends", lambda: not one.alive)
    assert one.status == LOST_STATUS
    time.sleep(3)  # a resync
    stale = [w for w in place.cluster.writes_since(marker, user=pair.users[0]) if w.code < 300]
    assert [str(w) for w in stale] == []
    assert place.own_writes(marker) == [w for w in place.own_writes(marker) if w.startswith("409")], "nothing to mend"
    for name in MOVED_ON:
        assert place.engine(name)["spec"]["replicas"] == 3
        assert place.engine(name)["metadata"]["uid"] == before[name]


def test_the_standby_takes_over_from_a_leader_that_died_within_the_lease(pair: Pair) -> None:
    began = time.monotonic()
    pair.operators[0].kill()
    took = pair.taken_over(began)
    assert took >= LEASE_SECONDS / 2, "never while the other might still write"


def test_the_standby_takes_over_at_once_from_a_leader_that_was_told_to_end(pair: Pair) -> None:
    assert pair.operators[0].stop() == 0
    assert pair.taken_over(time.monotonic()) < LEASE_SECONDS / 2 + 1


def test_a_stopped_leader_that_nobody_replaced_goes_on(place: Fleet, pair: Pair) -> None:
    pair.operators[1].kill()
    os.kill(pair.operators[0].pid, signal.SIGSTOP)
    place.declare()
    time.sleep(LEASE_SECONDS + 2)
    os.kill(pair.operators[0].pid, signal.SIGCONT)
    place.condition("chat", "Ready")
    assert pair.operators[0].alive


def test_a_second_install_for_one_namespace_does_not_fight_the_first(cluster: KwokCluster, tmp_path: Path) -> None:
    """The first is told to leave the namespace to the second: docs/guides/operations.md."""
    tag = uuid.uuid4().hex[:6]
    with ExitStack() as stack:
        theirs = stack.enter_context(cluster.namespace("second"))
        proxies = [stack.enter_context(FaultProxy(cluster.kubeconfig, f"{name}-{tag}")) for name in ("one", "two")]
        first = stack.enter_context(
            running(proxies[0].write_kubeconfig(tmp_path / "one"), tmp_path, f"one-{tag}", "--resync-seconds", "2",
                    "--image", "fleet:one", "--exclude-namespace", theirs)
        )  # fmt: skip
        second = stack.enter_context(
            running(proxies[1].write_kubeconfig(tmp_path / "two"), tmp_path, f"two-{tag}", "--resync-seconds", "2",
                    "--image", "fleet:two", "--namespace", theirs)
        )  # fmt: skip
        place = stack.enter_context(a_place(cluster, first))
        cluster.apply(fleet.model("tiny"), namespace=theirs)
        fleet.inspected(cluster, theirs, "tiny")
        other = Fleet(cluster, theirs, second)
        other.pool = place.pool
        marker = cluster.marker()
        place.declare(replicas=2)
        other.declare(replicas=3)
        place.condition("chat", "Ready")
        other.condition("chat", "Ready")
        for where, image in ((place, "fleet:one"), (other, "fleet:two")):
            gateway = where.get("deployment", "chat-gateway")
            assert gateway is not None
            assert gateway["spec"]["template"]["spec"]["containers"][0]["image"] == image
        # Devices of the other install's pods are known to be taken.
        place.wait("the class counts both", lambda: devices(cluster, place.pool) == (24, 3, 2))
        assert {w.namespace for w in cluster.writes_since(marker, user=f"two-{tag}")} == {theirs}
        assert theirs not in {w.namespace for w in cluster.writes_since(marker, user=f"one-{tag}")}
        place.settled()
        other.settled()
        marker = cluster.marker()
        time.sleep(5)  # two resyncs
        assert [str(w) for user in ("one", "two") for w in cluster.writes_since(marker, user=f"{user}-{tag}")] == []


def devices(cluster: KwokCluster, pool: str) -> tuple[int, int, int]:
    found = (cluster.get("accel", pool) or {}).get("status", {}).get("devices", {})
    return found.get("allocatable", 0), found.get("usedByOthers", 0), found.get("claimed", 0)
