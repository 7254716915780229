"""More is asked for than there is: who gets the last device, what waits, what is said of it, and that it mends itself."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.fleet import Fleet, accelerator_class, add_gpu_node, cluster, operator, place, policy

__all__ = ["cluster", "operator", "place"]

ENGINES = "inference-fleet.dev/component=engine"


def desired(place: Fleet, name: str) -> int:
    return sum(d["spec"]["replicas"] for d in place.engines(name))


def running(place: Fleet, name: str) -> int:
    return sum(d.get("status", {}).get("readyReplicas", 0) for d in place.engines(name))


def pods(place: Fleet, name: str = "chat") -> list[dict[str, Any]]:
    return place.cluster.list("pod", place.namespace, f"{ENGINES},inference-fleet.dev/policy={name}")


def devices(place: Fleet, count: int) -> None:
    """The pool's node offers another number of devices, and the operator has seen it."""
    add_gpu_node(place.cluster, f"gpu-{place.namespace}", place.namespace, gpus=count)

    def counted() -> bool:
        status = (place.cluster.get("accel", place.pool) or {}).get("status", {})
        return bool(status.get("devices", {}).get("allocatable") == count)

    place.wait(f"{count} devices are counted", counted)


@contextmanager
def another_class(place: Fleet, suffix: str, **spec: Any) -> Iterator[str]:
    """A class of its own, without nodes."""
    name = f"{place.namespace}-{suffix}"
    place.cluster.apply(accelerator_class(name, **spec))
    try:
        yield name
    finally:
        place.cluster.run("kubectl", "delete", "accel", name)
        place.cluster.run("kubectl", "delete", "node", "-l", f"pool={name}")


def stranger(place: Fleet, name: str) -> None:
    """A pod of somebody else's that takes a device as soon as one is free, before anyone of ours."""
    place.cluster.apply(
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "stranger"},
         "value": 1000, "preemptionPolicy": "Never"}
    )  # fmt: skip
    secure = {
        "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True, "runAsUser": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }  # fmt: skip
    container = {
        "name": "c", "image": "theirs:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}, "securityContext": secure
    }  # fmt: skip
    place.cluster.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
         "spec": {"priorityClassName": "stranger", "nodeSelector": {"pool": place.namespace}, "containers": [container]}},
        namespace=place.namespace,
    )  # fmt: skip


def test_the_last_device_goes_to_the_higher_priority_and_the_next_to_the_lower(place: Fleet) -> None:
    devices(place, 0)
    place.declare("low", priority=-5)
    place.declare("high", priority=5)
    for name in ("low", "high"):
        assert place.condition(name, "Scheduled", "False")["reason"] == "InsufficientDevices"
    devices(place, 1)
    place.condition("high", "Ready")
    assert running(place, "high") == 1
    assert desired(place, "low") == 0
    found = place.condition("low", "Scheduled", "False")
    assert found["reason"] == "InsufficientDevices"
    assert "1 claimed by other policies" in found["message"]
    devices(place, 2)
    place.condition("low", "Ready")
    # What runs is never taken away, whoever asks.
    place.declare("highest", priority=100)
    assert place.condition("highest", "Scheduled", "False")["reason"] == "InsufficientDevices"
    time.sleep(3)
    assert (running(place, "low"), running(place, "high"), desired(place, "highest")) == (1, 1, 0)


def test_replicas_that_still_wait_for_nodes_give_way_to_a_higher_priority(place: Fleet) -> None:
    with another_class(place, "elastic", capacity={"type": "Elastic", "maxDevices": 2}) as elastic:
        place.cluster.apply(policy("low", elastic, replicas=2, priority=-5), namespace=place.namespace)
        place.wait("two replicas wait for nodes", lambda: len(pods(place, "low")) == 2)
        assert place.condition("low", "Scheduled", "False")["reason"] == "Provisioning"
        place.cluster.apply(policy("high", elastic, priority=5), namespace=place.namespace)
        place.wait("the lower one gives way", lambda: (desired(place, "high"), desired(place, "low")) == (1, 1))
        place.wait("one of its pods goes", lambda: len(pods(place, "low")) == 1)
        assert place.condition("low", "Scheduled", "False")["reason"] == "InsufficientDevices"
        add_gpu_node(place.cluster, f"gpu-{elastic}", elastic, gpus=2)
        place.condition("high", "Ready")
        place.condition("low", "Ready")
        assert (desired(place, "high"), desired(place, "low")) == (1, 1)


def test_a_stock_out_is_learned_from_the_clock_and_the_next_accelerator_is_taken(place: Fleet) -> None:
    capacity = {"type": "Elastic", "maxDevices": 8, "provisioningSeconds": 10}
    with another_class(place, "elastic", capacity=capacity) as elastic:
        declared = policy("chat", elastic)
        place.cluster.apply(declared, namespace=place.namespace)
        assert place.condition("chat", "Scheduled", "False")["reason"] == "Provisioning"

        def stocked_out() -> bool:
            found = place.condition("chat", "Scheduled", "False", seconds=0)
            assert found["reason"] == "StockOut", found
            assert "10 s" in found["message"]
            return True

        place.wait("it is out of stock", stocked_out)
        waiting = place.engine()["metadata"]["name"]
        second = {"name": "fixed", "classRef": {"name": place.pool}, "devicesPerReplica": 1}
        place.patch("ipol", "chat", {"op": "add", "path": "/spec/models/0/accelerators/-", "value": second})
        place.condition("chat", "Ready")
        place.wait("what waited is gone", lambda: waiting not in {d["metadata"]["name"] for d in place.engines()})
        status = place.get("ipol", "chat")["status"]  # type: ignore[index]
        assert [v["accelerator"] for v in status["variants"]] == ["fixed"]
        place.condition("chat", "Scheduled")
        # It stays where it serves when nodes of the first class come after all.
        add_gpu_node(place.cluster, f"gpu-{elastic}", elastic, gpus=1)
        time.sleep(8)
        assert [v["accelerator"] for v in place.get("ipol", "chat")["status"]["variants"]] == ["fixed"]  # type: ignore[index]


def roll(place: Fleet, context: int) -> None:
    place.patch("ipol", "chat", {"op": "replace", "path": "/spec/models/0/contextTokens", "value": context})


def surge(place: Fleet) -> int:
    found: int = place.engine()["spec"]["strategy"]["rollingUpdate"]["maxSurge"]
    return found


def test_with_a_free_device_a_rollout_adds_before_it_takes(place: Fleet) -> None:
    place.declare(replicas=2)
    place.condition("chat", "Ready")
    least = 2

    def rolled() -> bool:
        nonlocal least
        least = min(least, running(place, "chat"))
        status = place.engine()["status"]
        return status.get("updatedReplicas") == 2 and status.get("replicas") == 2 and len(pods(place)) == 2

    roll(place, 1024)
    place.wait("the rollout begins", lambda: place.condition("chat", "UpToDate", "False", seconds=0))
    assert surge(place) == 1
    place.wait("the rollout is done", rolled)
    assert least == 2
    place.condition("chat", "UpToDate")


def test_a_rollout_without_a_free_device_goes_one_at_a_time_says_what_blocks_it_and_mends_itself(place: Fleet) -> None:
    place.declare(replicas=4)
    place.condition("chat", "Ready")
    stranger(place, "theirs")
    roll(place, 1024)
    blocked = place.wait(
        "the rollout is blocked",
        lambda: (c := place.condition("chat", "UpToDate", "False", seconds=0))["reason"] == "RolloutBlocked" and c,
    )
    assert surge(place) == 0
    stuck = [p["metadata"]["name"] for p in pods(place) if not p["spec"].get("nodeName")]
    assert stuck
    assert any(name in blocked["message"] for name in stuck)
    assert "nvidia.com/gpu" in blocked["message"]
    place.condition("chat", "Ready")
    found = place.condition("chat", "Scheduled", "False")
    assert found["reason"] == "Unschedulable"
    time.sleep(3)
    assert running(place, "chat") == 3, "one at a time: the others serve"
    devices(place, 5)
    place.condition("chat", "UpToDate", seconds=90)
    place.condition("chat", "Scheduled")
    assert running(place, "chat") == 4


def test_what_holds_a_pod_back_is_named_on_the_policy_within_a_pass(place: Fleet) -> None:
    place.declare()
    place.condition("chat", "Ready")
    name = pods(place)[0]["metadata"]["name"]

    def container(**state: Any) -> dict[str, Any]:
        return {"name": "engine", "image": "i", "imageID": "", "ready": False, "restartCount": 3, **state}

    pull = container(state={"waiting": {"reason": "ImagePullBackOff", "message": "no such image: engine:9"}})
    crash = container(
        state={"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}},
        lastState={"terminated": {"exitCode": 2, "message": "unknown argument: --warp"}},
    )
    for status, reason, words in (
        (pull, "ImagePullBackOff", "no such image: engine:9"),
        (crash, "CrashLoopBackOff", "Exit status 2. unknown argument: --warp"),
    ):
        shown = {"containerStatuses": [status], "conditions": [{"type": "Ready", "status": "False"}]}
        patch = json.dumps({"status": shown})
        place.cluster.kubectl("-n", place.namespace, "patch", "pod", name, "--subresource=status", "-p", patch)

        def said(reason: str = reason, words: str = words) -> bool:
            found = place.condition("chat", "WorkloadAvailable", "False", seconds=0)
            assert found["reason"] == reason, found
            assert name in found["message"]
            assert "container engine" in found["message"]
            assert words in found["message"]
            return True

        place.wait(f"{reason} is named", said, seconds=5)
        ready = place.condition("chat", "Ready", "False", seconds=5)
        assert ready["reason"] == reason
        (row,) = place.get("ipol", "chat")["status"]["models"]  # type: ignore[index]
        assert (row["ready"], row["reason"]) == (False, reason)
    patch = json.dumps({"status": {"containerStatuses": [], "conditions": [{"type": "Ready", "status": "True"}]}})
    place.cluster.kubectl("-n", place.namespace, "patch", "pod", name, "--subresource=status", "-p", patch)
    place.condition("chat", "Ready", seconds=15)


def test_a_pod_that_no_node_takes_is_named(place: Fleet) -> None:
    """The stock counts devices; a pod may still fit nowhere: here a node selector of the user's own."""
    place.declare()
    place.condition("chat", "Ready")
    selector = {"spec": {"nodeSelector": {"disk": "fast"}}}
    place.patch("ipol", "chat", {"op": "add", "path": "/spec/models/0/podTemplate", "value": selector})

    def said() -> bool:
        found = place.condition("chat", "Scheduled", "False", seconds=0)
        assert found["reason"] == "Unschedulable", found
        assert "node selector" in found["message"] or "affinity" in found["message"]
        return True

    place.wait("it is named", said, seconds=15)
    blocked = place.condition("chat", "UpToDate", "False")
    assert blocked["reason"] == "RolloutBlocked"
    place.condition("chat", "Ready")
    place.cluster.kubectl("label", "node", f"gpu-{place.namespace}", "disk=fast")
    place.condition("chat", "UpToDate")
