"""Hand edits of what a policy owns are mended, and what is not ours to mend is named."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.support.fleet import Fleet, cluster, operator, place

__all__ = ["cluster", "operator", "place"]


def owned(place: Fleet, kind: str, name: str) -> dict[str, Any]:
    found = place.get(kind, name)
    assert found is not None, (kind, name)
    return found


def patch(place: Fleet, kind: str, name: str, body: Any, how: str = "merge", *words: str) -> None:
    place.cluster.kubectl("-n", place.namespace, "patch", kind, name, f"--type={how}", "-p", json.dumps(body), *words)


def test_hand_edits_of_every_owned_object_are_mended_and_then_nothing_is_written(place: Fleet) -> None:
    place.declare(replicas=2)
    place.condition("chat", "Ready")
    engine = place.engine()["metadata"]["name"]
    cases: list[tuple[str, str, Any, Any]] = [
        (
            "deployment", engine, {"spec": {"template": {"spec": {"containers": [{"name": "engine", "args": ["--evil"]}]}}}},
            lambda o: o["spec"]["template"]["spec"]["containers"][0]["args"],
        ),
        ("deployment", engine, {"spec": {"minReadySeconds": 77}}, lambda o: o["spec"]["minReadySeconds"]),
        (
            "deployment", "chat-gateway",
            {"spec": {"template": {"spec": {"containers": [{"name": "gateway", "image": "evil:1"}]}}}},
            lambda o: o["spec"]["template"]["spec"]["containers"][0]["image"],
        ),
        ("service", engine, {"spec": {"selector": {"app": "evil"}}}, lambda o: o["spec"]["selector"]),
        ("service", "chat-gateway", {"spec": {"ports": [{"port": 80, "targetPort": 1}]}}, lambda o: o["spec"]["ports"]),
        ("configmap", "chat-routes", {"data": {"routes.json": "{}"}}, lambda o: o["data"]["routes.json"]),
        (
            "rolebinding", "chat-gateway",
            {"subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "mallory"}]},
            lambda o: o["subjects"],
        ),
        ("serviceaccount", "chat-gateway", {"automountServiceAccountToken": True}, lambda o: o["automountServiceAccountToken"]),
    ]  # fmt: skip
    for kind, name, edit, look in cases:
        before = look(owned(place, kind, name))
        patch(place, kind, name, edit, "strategic" if kind == "deployment" else "merge")
        place.wait(
            f"{kind} {name} is mended after {edit}",
            lambda kind=kind, name=name, look=look, before=before: look(owned(place, kind, name)) == before,
        )
    assert place.engine()["spec"]["replicas"] == 2
    place.condition("chat", "Ready")
    place.condition("chat", "UpToDate")
    place.settled()


def test_the_gateways_replicas_follow_the_policy_again_after_a_deletion(place: Fleet) -> None:
    place.declare(gateway={"authentication": {"type": "None"}, "replicas": 2})
    place.condition("chat", "Ready")
    uid = owned(place, "pdb", "chat-gateway")["metadata"]["uid"]
    place.cluster.kubectl("-n", place.namespace, "delete", "pdb,deployment,rolebinding", "chat-gateway")
    place.wait(
        "all are back",
        lambda: (
            (found := place.get("pdb", "chat-gateway"))
            and found["metadata"]["uid"] != uid
            and place.get("rolebinding", "chat-gateway")
            and (place.get("deployment", "chat-gateway") or {"spec": {"replicas": 0}})["spec"]["replicas"] == 2
        ),
    )
    place.condition("chat", "Ready")


def test_a_foreign_owner_of_replicas_freezes_scaling_until_it_lets_go(place: Fleet) -> None:
    place.declare()
    place.condition("chat", "Ready")
    name = place.engine()["metadata"]["name"]
    manifest = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {"replicas": 2}}
    words = (
        "-n",
        place.namespace,
        "apply",
        "--server-side",
        "--field-manager=their-scaler",
        "--force-conflicts",
        "-f",
        "-",
    )
    place.cluster.kubectl(*words, input=json.dumps(manifest))
    found = place.condition("chat", "ScalingActive", "False")
    assert found["reason"] == "ForeignScaler"
    assert "their-scaler" in found["message"]
    place.replicas(3)
    time.sleep(3)
    assert place.engine()["spec"]["replicas"] == 2
    # The way that the message names: the writer is gone, and so is its claim on the field.
    command = found["message"].partition("then: kubectl ")[2]
    assert command.startswith(f"-n {place.namespace} patch deployment {name} ")
    cleared = json.dumps([{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}], separators=(",", ":"))
    assert cleared in command
    place.cluster.kubectl("-n", place.namespace, "patch", "deployment", name, "--type=json", "-p", cleared)
    place.condition("chat", "ScalingActive")
    place.wait("replicas follow the policy again", lambda: place.engine()["spec"]["replicas"] == 3)
    place.replicas(4)
    place.wait("and go on to", lambda: place.engine()["spec"]["replicas"] == 4)
    place.condition("chat", "ScalingActive")
    # Ours again, also for the template: an edit is mended without losing the replicas.
    place.cluster.kubectl("-n", place.namespace, "set", "image", f"deployment/{name}", "engine=evil:1")
    place.wait(
        "the image is back",
        lambda: place.engine()["spec"]["template"]["spec"]["containers"][0]["image"] != "evil:1",
    )
    place.condition("chat", "ScalingActive")
    assert place.engine()["spec"]["replicas"] == 4


@pytest.mark.parametrize("disguise", ["plain", "with-our-labels"])
def test_a_strangers_deployment_of_our_name_is_reported_and_left_alone(place: Fleet, disguise: str) -> None:
    place.declare()
    place.condition("chat", "Ready")
    name = place.engine()["metadata"]["name"]
    place.cluster.kubectl("-n", place.namespace, "delete", "ipol", "chat")
    place.wait("the policy's own is gone", lambda: place.get("deployment", name) is None)
    labels = {"app": "theirs"}
    if disguise == "with-our-labels":  # as after `kubectl get -o yaml | kubectl apply` into another cluster
        labels |= {
            "app.kubernetes.io/managed-by": "inference-fleet", "inference-fleet.dev/policy": "chat",
            "inference-fleet.dev/component": "engine", "inference-fleet.dev/variant": name,
        }  # fmt: skip
    place.cluster.apply(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": labels},
         "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "theirs"}},
                  "template": {"metadata": {"labels": {"app": "theirs"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}},
        namespace=place.namespace,
    )  # fmt: skip
    uid = owned(place, "deployment", name)["metadata"]["uid"]
    place.declare()
    found = place.condition("chat", "Accepted", "False")
    assert found["reason"] == "ApplyRefused"
    assert f"{place.namespace}/{name}" in found["message"]
    time.sleep(2)
    before = place.operator.log.read_text().count(f"{place.namespace}/{name} exists")
    marker = place.cluster.marker()
    time.sleep(6)
    # Once for each resync (two seconds for the operator of these tests) and backed off between: not every 0.2 s.
    assert place.operator.log.read_text().count(f"{place.namespace}/{name} exists") - before <= 8
    assert len([w for w in place.own_writes(marker) if f"/{name}" in w]) <= 8
    live = owned(place, "deployment", name)
    assert (live["metadata"]["uid"], live["spec"]["selector"]["matchLabels"]) == (uid, {"app": "theirs"})
    assert live["spec"]["template"]["spec"]["containers"][0]["image"] == "i"
    place.cluster.kubectl("-n", place.namespace, "delete", "deployment", name)
    place.condition("chat", "Ready", seconds=60)


def test_a_deployment_of_ours_with_another_selector_is_named(place: Fleet) -> None:
    """Somebody made it anew by hand, as ours: a selector cannot be changed, so nothing can be applied to it."""
    place.declare()
    place.condition("chat", "Ready")
    engine = place.engine()
    meta = {key: engine["metadata"][key] for key in ("name", "labels", "annotations", "ownerReferences")}
    template = engine["spec"]["template"]
    template["metadata"]["labels"]["extra"] = "yes"
    spec = {"replicas": 1, "template": template, "selector": {"matchLabels": {"extra": "yes"}}}
    made = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}
    place.operator.stop()
    try:
        place.cluster.kubectl("-n", place.namespace, "delete", "deployment", meta["name"])
        place.cluster.kubectl("-n", place.namespace, "create", "-f", "-", input=json.dumps(made))
    finally:
        place.operator.start()
    found = place.condition("chat", "UpToDate", "False")
    assert found["reason"] == "SelectorConflict"
    assert meta["name"] in found["message"]


def test_an_api_server_that_cannot_write_an_object_is_reported_and_the_rest_is_made(place: Fleet) -> None:
    """An admission webhook that is down makes writes fail with status 500; so does a full range of Service addresses."""
    name = f"down-{place.namespace}"
    hook = {
        "name": "down.inference-fleet.example", "failurePolicy": "Fail", "sideEffects": "None", "timeoutSeconds": 1,
        "admissionReviewVersions": ["v1"], "clientConfig": {"url": "https://127.0.0.1:1/"},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": place.namespace}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["services"]}],
    }  # fmt: skip
    place.cluster.apply(
        {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
         "metadata": {"name": name}, "webhooks": [hook]}
    )  # fmt: skip
    try:
        time.sleep(1)
        place.declare()
        found = place.condition("chat", "Accepted", "False")
        assert found["reason"] == "ApplyRefused"
        assert "Service" in found["message"]
        assert "webhook" in found["message"]
        assert place.engine()["spec"]["replicas"] == 1
        assert place.get("configmap", "chat-routes") is not None
    finally:
        place.cluster.kubectl("delete", "validatingwebhookconfiguration", name)
    place.condition("chat", "Accepted")
    place.condition("chat", "Ready")
