"""kill −9 of the operator, again and again, in the middle of everything: the end is the same as without.

Where a life ends is chosen by a seed that is printed: at its n-th write, before the API server has it or after it answered, or
at a moment of time. INFERENCE_FLEET_KILLS is how many lives there are (40; `make soak` takes 220), INFERENCE_FLEET_SEED the seed.
"""

from __future__ import annotations

import json
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support import fleet
from tests.support.cluster import KwokCluster
from tests.support.fault_proxy import FaultProxy, Strike
from tests.support.fleet import Fleet, cluster
from tests.support.following_gateways import FollowingGateways
from tests.support.forking_operator import ForkingOperators, strike
from tests.support.running_operator import USER_AGENT, RunningOperator, free_port

__all__ = ["cluster"]

KILLS = int(os.environ.get("INFERENCE_FLEET_KILLS", "40"))
SEED = os.environ.get("INFERENCE_FLEET_SEED", "") or str(random.randrange(10**6))
POLICIES = ("ant", "bee", "cat")
LONGEST_LIFE_SECONDS = 2.0
KINDS = "deployments,services,configmaps,serviceaccounts,rolebindings,poddisruptionbudgets,inferencepolicies"
FLAGS = ("--resync-seconds", "2", "--scrape-seconds", "1", "--lease-seconds", "6", "--image", "inference-fleet:test")


@dataclass
class Seen:
    """What a phase left behind."""

    objects: dict[str, Any]
    engine_pods: frozenset[str]
    """Their uids."""
    pods_made: int
    """In the phase, by anybody."""


@dataclass
class Story:
    """One namespace in which the policies are declared, scaled, changed and deleted."""

    cluster: KwokCluster
    proxy: FaultProxy
    operators: ForkingOperators
    place: Fleet
    words: tuple[str, ...]
    kills: int
    chance: random.Random
    lives: int = 0
    killed: int = 0
    seen: dict[str, Seen] = field(default_factory=dict)

    def tell(self) -> None:
        for phase, change, arrived in (
            ("create", self.create, lambda: self.settled_at(2)),
            ("scale up", lambda: self.scale(3), lambda: self.settled_at(3)),
            ("update", self.update, lambda: self.settled_at(3) and self.of_the_other_model()),
            ("scale down", lambda: self.scale(1), lambda: self.settled_at(1)),
            ("delete", self.delete, self.nothing_left),
        ):
            self.phase(phase, change, arrived)

    def phase(self, name: str, change: Callable[[], None], arrived: Callable[[], bool]) -> None:
        marker = self.cluster.marker()
        pid = self.start()
        change()
        for _ in range(self.kills // 5):
            self.die(pid)
            pid = self.start()
        self.place.wait(f"{name}: it has come about", arrived, seconds=60)
        if name != "delete":
            self.place.settled()
            for policy in POLICIES:
                self.place.condition(policy, "Ready")
        self.operators.kill(pid)
        made = [w for w in self.cluster.audit.writes_since(marker) if (w.verb, w.resource) == ("create", "pods")]
        mine = [w for w in made if w.namespace == self.place.namespace and w.code < 300]
        self.seen[name] = Seen(self.objects(), self.engine_pods(), len(mine))

    def start(self) -> int:
        # A lease of its own: as if that of the killed one had run out meanwhile.
        self.lives += 1
        return self.operators.start(*self.words, "--lease-name", f"{self.place.namespace}-{self.lives}")

    def die(self, pid: int) -> None:
        if self.chance.random() < 0.25:
            time.sleep(self.chance.uniform(0.05, LONGEST_LIFE_SECONDS))
        else:
            blow = Strike(lambda: strike(pid), after=self.chance.random() < 0.5)
            skip = self.chance.randrange(8)
            with self.proxy.fault(blow, write=True, agent=USER_AGENT, skip=skip, times=1) as rule:
                end = time.monotonic() + LONGEST_LIFE_SECONDS
                while not rule.hits and time.monotonic() < end:
                    time.sleep(0.01)
        self.operators.kill(pid)
        self.killed += 1

    # -- changes

    def create(self) -> None:
        for policy in POLICIES:
            self.place.declare(policy, replicas=2)

    def scale(self, count: int) -> None:
        for policy in POLICIES:
            self.place.replicas(count, policy)

    def update(self) -> None:
        change = {"op": "replace", "path": "/spec/models/0/builds/0/modelRef/name", "value": "other"}
        for policy in POLICIES:
            self.place.patch("ipol", policy, change)

    def delete(self) -> None:
        self.cluster.kubectl("-n", self.place.namespace, "delete", "ipol", *POLICIES, "--wait=false")

    # -- whether they have come about

    def settled_at(self, replicas: int) -> bool:
        for policy in POLICIES:
            found = [
                (d["spec"]["replicas"], d.get("status", {}).get("readyReplicas")) for d in self.place.engines(policy)
            ]
            assert found == [(replicas, replicas)], (policy, found)
        return True

    def of_the_other_model(self) -> bool:
        return all("other.gguf" in json.dumps(d) for policy in POLICIES for d in self.place.engines(policy))

    def nothing_left(self) -> bool:
        left = self.cluster.kubectl(
            "-n", self.place.namespace, "get", f"{KINDS},pods", "-o", "name", "-l", "inference-fleet.dev/policy"
        )
        assert not left.strip(), left
        return True

    # -- what is there

    def engine_pods(self) -> frozenset[str]:
        pods = self.cluster.list("pod", self.place.namespace, "inference-fleet.dev/component=engine")
        return frozenset(p["metadata"]["uid"] for p in pods if not p["metadata"].get("deletionTimestamp"))

    def objects(self) -> dict[str, Any]:
        """Every object without what differs between two namespaces, two moments and two births."""
        text = self.cluster.kubectl(
            "-n", self.place.namespace, "get", KINDS, "-o", "json", "--show-managed-fields",
        ).replace(self.place.namespace, "NAMESPACE")  # fmt: skip
        found = [normal(item) for item in json.loads(text)["items"]]
        for item in found:
            if item["kind"] != "InferencePolicy":
                item.pop("status", None)  # other controllers' business, in their own time
        return {f"{item['kind']}/{item['metadata']['name']}": item for item in found if wanted(item)}


def wanted(item: dict[str, Any]) -> bool:
    name = item["metadata"]["name"]
    return not name.endswith("-memory") and name not in ("kube-root-ca.crt", "default")


TRANSIENT = {
    "uid", "resourceVersion", "creationTimestamp", "generation", "observedGeneration", "time", "lastTransitionTime",
    "lastUpdateTime", "clusterIP", "clusterIPs", "inference-fleet.dev/rendered-hash", "revision",
}  # fmt: skip


def normal(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {k: owners(v) if k == "managedFields" else v for k, v in value.items() if k not in TRANSIENT}
        return {k: normal(v) for k, v in kept.items()}
    if isinstance(value, list):
        return [normal(v) for v in value]
    if isinstance(value, str) and value.startswith("{"):
        try:
            return normal(json.loads(value))
        except ValueError:
            return value
    return value


def owners(entries: list[dict[str, Any]]) -> list[str]:
    """Which fields our two field managers own. Replicas are the scaling one's, whether or not the other named them at creation."""
    found = {
        (e["manager"], path)
        for e in entries
        if e["manager"].startswith("inference-fleet")
        for path in fields(e.get("fieldsV1", {}))
    }
    if ("inference-fleet-scale", "/f:spec/f:replicas") in found:
        found.discard(("inference-fleet", "/f:spec/f:replicas"))
    return sorted(f"{manager} {path}" for manager, path in found)


def fields(tree: dict[str, Any], above: str = "") -> Iterator[str]:
    for name, below in tree.items():
        path = f"{above}/{'k:uid' if 'uid' in name else name}"
        if below:
            yield from fields(below, path)
        else:
            yield path


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted(one.keys() | other.keys())
        return [d for k in keys for d in differences(one.get(k), other.get(k), f"{path}/{k}")]
    if isinstance(one, list) and isinstance(other, list) and path.endswith("managedFields"):
        return [f"{path}: {entry} only in one" for entry in sorted(set(one) ^ set(other))]
    return [] if one == other else [f"{path}: {one!r} is not {other!r}"]


@pytest.fixture
def stories(cluster: KwokCluster, tmp_path: Path) -> Iterator[tuple[Story, Story]]:
    """The same story in two namespaces: one operator is left alone, the other is killed."""
    pool = f"crash-{uuid.uuid4().hex[:6]}"
    chance = random.Random(SEED)
    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy(cluster.kubeconfig))
        through_proxy = proxy.write_kubeconfig(tmp_path / "kubeconfig")
        log = tmp_path / "operators.log"
        operators = stack.enter_context(ForkingOperators(log, *FLAGS))
        fleet.add_gpu_node(cluster, pool, pool, gpus=32)
        stack.callback(cluster.remove_node, pool)
        cluster.apply(fleet.accelerator_class(pool))
        stack.callback(cluster.run, "kubectl", "delete", "accel", pool)
        # Only to show the end of the log where something fails.
        shown = RunningOperator(through_proxy, tmp_path, "operators")

        def begin(kubeconfig: Path, kills: int, *words: str) -> Story:
            namespace = stack.enter_context(cluster.namespace("crash"))
            for name, digest in (("tiny", "sha256:aa"), ("other", "sha256:bb")):
                cluster.apply(fleet.model(name), namespace=namespace)
                fleet.inspected(cluster, namespace, name, digest)
            stack.enter_context(FollowingGateways(f"http://127.0.0.1:{proxy.port}", namespace))
            place = Fleet(cluster, namespace, shown)
            place.pool = pool
            whole = ("--kubeconfig", str(kubeconfig), "--port", str(free_port()), *words)
            return Story(cluster, proxy, operators, place, whole, kills, chance)

        calm = begin(cluster.kubeconfig, 0)
        calm.words += ("--namespace", calm.place.namespace)
        storm = begin(through_proxy, KILLS, "--exclude-namespace", calm.place.namespace)
        yield calm, storm


def test_killed_again_and_again_it_ends_where_it_would_have_ended(stories: tuple[Story, Story]) -> None:
    print(f"INFERENCE_FLEET_SEED={SEED}")
    calm, storm = stories
    with ThreadPoolExecutor() as both:
        for story in [both.submit(story.tell) for story in stories]:
            story.result()
    assert storm.killed >= KILLS // 5 * 5
    for phase, expected in calm.seen.items():
        seen = storm.seen[phase]
        found = differences(seen.objects, expected.objects)
        assert not found, "\n".join([f"after {phase}:", *found])
        assert seen.pods_made == expected.pods_made, f"{phase}: pods were made beyond those the change calls for"
    # No engine pod was ever replaced but by the update, which calls for it.
    assert storm.seen["create"].engine_pods < storm.seen["scale up"].engine_pods
    assert not storm.seen["scale up"].engine_pods & storm.seen["update"].engine_pods
    assert storm.seen["scale down"].engine_pods < storm.seen["update"].engine_pods
