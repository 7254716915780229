"""The operator on a real API server: what a user's declaration becomes, and what it leaves alone."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support.fleet import Fleet, cluster, operator, place
from tests.support.running_operator import USER_AGENT, RunningOperator

__all__ = ["cluster", "operator", "place"]


def test_a_policy_becomes_engines_behind_a_gateway_and_says_so(place: Fleet) -> None:
    place.declare(replicas=2)
    place.condition("chat", "Ready")
    engine = place.engine()
    assert engine["spec"]["replicas"] == 2
    assert place.get("service", engine["metadata"]["name"])["spec"]["clusterIP"] == "None"  # type: ignore[index]
    for kind, name in (
        ("deployment", "chat-gateway"), ("service", "chat-gateway"), ("serviceaccount", "chat-gateway"),
        ("rolebinding", "chat-gateway"), ("configmap", "chat-routes"), ("configmap", "chat-memory"),
    ):  # fmt: skip
        found = place.get(kind, name)
        assert found is not None, (kind, name)
        assert found["metadata"]["ownerReferences"][0]["name"] == "chat"
        assert not found["metadata"].get("finalizers"), (kind, name)
    policy = place.get("ipol", "chat")
    assert policy is not None
    assert not policy["metadata"].get("finalizers")
    assert policy["status"]["replicas"] == "2/2"
    assert policy["status"]["endpoint"] == f"http://chat-gateway.{place.namespace}.svc"
    assert policy["status"]["cost"] == {"currency": "USD", "perHour": "2.00"}

    def counted() -> bool:
        status = (place.cluster.get("accel", place.pool) or {}).get("status", {})
        return status.get("devices") == {"allocatable": 4, "usedByOthers": 0, "claimed": 2}

    place.wait("the class counts its devices", counted)


def test_an_unchanged_world_is_not_written_to(place: Fleet) -> None:
    place.declare()
    place.condition("chat", "Ready")
    place.settled()
    marker = place.cluster.marker()
    time.sleep(5)  # two resyncs
    assert place.own_writes(marker) == []


def test_a_restart_writes_nothing(place: Fleet) -> None:
    place.declare()
    place.condition("chat", "Ready")
    place.replicas(2)
    place.condition("chat", "Ready")
    place.settled()
    marker = place.cluster.marker()
    assert place.operator.stop() == 0
    place.operator.start()
    time.sleep(5)
    assert [w for w in place.own_writes(marker) if "chat-memory" not in w] == []
    marker = place.cluster.marker()
    place.operator.kill()
    place.operator.start(seconds=60)  # the lease of the killed one must run out first
    time.sleep(5)
    assert place.own_writes(marker) == []


def test_replicas_move_only_through_scale(place: Fleet) -> None:
    place.declare()
    place.condition("chat", "Ready")
    place.settled()
    marker = place.cluster.marker()
    place.replicas(3)
    name = place.engine()["metadata"]["name"]
    place.wait("three replicas", lambda: place.engine()["spec"]["replicas"] == 3)
    place.condition("chat", "Ready")
    writes = place.cluster.writes_since(marker, user_agent=USER_AGENT)
    assert [w.resource for w in writes if w.name == name] == ["deployments/scale"]
    owners = [e["manager"] for e in place.engine()["metadata"].get("managedFields", [])]
    assert owners == [] or "inference-fleet-scale" in owners


def test_a_foreign_owner_of_replicas_is_reported_and_not_fought(place: Fleet) -> None:
    place.declare()
    place.condition("chat", "Ready")
    name = place.engine()["metadata"]["name"]
    place.cluster.kubectl("-n", place.namespace, "scale", f"deployment/{name}", "--replicas=3")
    found = place.condition("chat", "ScalingActive", "False")
    assert found["reason"] == "ForeignScaler"
    assert "kubectl" in found["message"]
    place.replicas(2)
    time.sleep(3)
    assert place.engine()["spec"]["replicas"] == 3


def test_a_hand_edit_of_the_template_is_mended(place: Fleet) -> None:
    place.declare(replicas=2)
    place.condition("chat", "Ready")
    before = place.engine()
    image = before["spec"]["template"]["spec"]["containers"][0]["image"]
    name = before["metadata"]["name"]
    place.cluster.kubectl("-n", place.namespace, "set", "image", f"deployment/{name}", "engine=evil:1")
    place.wait(
        "the image is back", lambda: place.engine()["spec"]["template"]["spec"]["containers"][0]["image"] == image
    )
    assert place.engine()["spec"]["replicas"] == 2


def test_a_deleted_child_comes_back(place: Fleet) -> None:
    place.declare()
    place.condition("chat", "Ready")
    name = place.engine()["metadata"]["name"]
    children = (("deployment", name), ("service", name), ("service", "chat-gateway"), ("deployment", "chat-gateway"),
                ("configmap", "chat-routes"), ("serviceaccount", "chat-gateway"), ("rolebinding", "chat-gateway"))  # fmt: skip
    for kind, child in children:
        uid = place.get(kind, child)["metadata"]["uid"]  # type: ignore[index]
        place.cluster.kubectl("-n", place.namespace, "delete", kind, child)
        place.wait(
            f"{kind} {child} is back",
            lambda kind=kind, child=child, uid=uid: (o := place.get(kind, child)) and o["metadata"]["uid"] != uid,
        )
    place.condition("chat", "Ready")


def test_deleting_a_policy_takes_all_it_owns_also_while_the_operator_is_down(place: Fleet) -> None:
    place.declare()
    place.condition("chat", "Ready")
    place.operator.stop()
    try:
        place.cluster.kubectl("-n", place.namespace, "delete", "ipol", "chat", "--timeout=20s")
        kinds = ("deployments,services,configmaps,serviceaccounts,rolebindings,pods",
                 "-l", "inference-fleet.dev/policy=chat", "-o", "name")  # fmt: skip
        place.wait(
            "everything is gone", lambda: not place.cluster.kubectl("-n", place.namespace, "get", *kinds).strip()
        )
    finally:
        place.operator.start()


def test_a_policy_made_anew_under_the_same_name_starts_afresh(place: Fleet) -> None:
    place.declare()
    place.condition("chat", "Ready")
    uid = place.engine()["metadata"]["uid"]
    place.cluster.kubectl("-n", place.namespace, "delete", "ipol", "chat")
    place.declare()
    place.condition("chat", "Ready")
    assert place.engine()["metadata"]["uid"] != uid


def test_a_deleted_model_takes_nothing_down(place: Fleet) -> None:
    place.declare()
    place.condition("chat", "Ready")
    uid = place.engine()["metadata"]["uid"]
    place.cluster.kubectl("-n", place.namespace, "delete", "imodel", "tiny")
    found = place.condition("chat", "ModelsReady", "False")
    assert found["reason"] == "ModelMissing"
    time.sleep(3)
    assert place.engine()["metadata"]["uid"] == uid
    assert place.engine()["status"]["readyReplicas"] == 1


def test_a_spec_that_cannot_be_carried_out_takes_nothing_down(place: Fleet) -> None:
    place.declare(replicas=2)
    place.condition("chat", "Ready")
    place.settled()
    marker = place.cluster.marker()
    before = place.engine()
    place.patch("ipol", "chat", {"op": "replace", "path": "/spec/models/0/engine/version", "value": "b1"},
                {"op": "replace", "path": "/spec/models/0/replicas/min", "value": 1})  # fmt: skip
    place.condition("chat", "Accepted", "False")
    time.sleep(3)
    after = place.engine()
    assert (after["metadata"]["uid"], after["spec"]["replicas"]) == (before["metadata"]["uid"], 2)
    assert not [w for w in place.own_writes(marker) if "deployments" in w]


def test_in_mode_plan_nothing_is_made(place: Fleet) -> None:
    place.declare(mode="Plan")
    found = place.condition("chat", "Ready", "Unknown")
    assert found["reason"] == "PlanOnly"
    assert place.engines() == []
    assert place.get("deployment", "chat-gateway") is None


def test_two_policies_never_both_take_the_last_devices(place: Fleet) -> None:
    for name in ("one", "two", "three"):
        place.declare(name, replicas=3)
    engines = ("inference-fleet.dev/component=engine",)

    def given_out() -> bool:
        return sum(d["spec"]["replicas"] for d in place.cluster.list("deployment", place.namespace, *engines)) == 4

    place.wait("four devices are given out", given_out)
    time.sleep(2)
    pods = place.cluster.list("pod", place.namespace, "inference-fleet.dev/component=engine")
    assert len(pods) == 4
    place.wait("all of them run", lambda: all(p["status"]["phase"] == "Running" for p in place.cluster.list(
        "pod", place.namespace, "inference-fleet.dev/component=engine")))  # fmt: skip


def test_a_stranger_of_the_same_name_is_left_alone(place: Fleet) -> None:
    place.cluster.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "chat-routes"}, "data": {"mine": "yes"}},
        namespace=place.namespace,
    )
    place.declare()
    found = place.condition("chat", "Accepted", "False")
    assert "chat-routes" in found["message"]
    assert place.get("configmap", "chat-routes")["data"] == {"mine": "yes"}  # type: ignore[index]


def test_health_and_metrics(place: Fleet) -> None:
    assert place.operator.get("/healthz") == (200, "ok\n")
    assert place.operator.get("/readyz") == (200, "ok\n")
    status, text = place.operator.get("/metrics")
    assert status == 200
    assert "inference_fleet_operator_leading 1.0" in text
    assert 'inference_fleet_operator_passes_total{kind="policy",result="error"}' not in text


def test_the_log_has_no_errors(operator: RunningOperator) -> None:
    logs = [path.read_text() for path in Path(operator.log.parent).glob("*.log")]
    bad = [line for text in logs for line in text.splitlines() if " ERROR " in line or "Traceback" in line]
    assert [line for line in bad if "chat-routes" not in line] == []
