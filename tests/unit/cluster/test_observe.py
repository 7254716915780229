"""From what was seen to what is planned on."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from inference_fleet.cluster import kinds
from inference_fleet.cluster.apply import mark, only_template_owns_replicas, without_replicas
from inference_fleet.cluster.claims import Entry, Ledger
from inference_fleet.cluster.observe import World, held_devices, observe, read_routes
from inference_fleet.cluster.reading import READERS
from inference_fleet.cluster.seen import ClassSeen, ModelSeen, ObjectSeen
from inference_fleet.cluster.stock import Usage
from inference_fleet.plan.observation import Observation
from inference_fleet.signals.readings import Measured
from tests.unit.cluster.objects import OURS, deployment_seen, metadata, pod_seen, policy_seen
from tests.unit.plan.world import SETTINGS

IDENTITY = {
    "model": "small", "digest": "sha256:aa", "weights": "AsStored", "method": "None", "key_value_cache": "Auto",
    "engine": "LlamaCpp", "accelerator_class": "gpu", "devices_per_replica": 2,
}  # fmt: skip
ANNOTATIONS = {
    "inference-fleet.dev/identity": json.dumps(IDENTITY),
    "inference-fleet.dev/configuration": json.dumps({"build": "q4", "accelerator": "gpu", "pricePerHour": "2.50"}),
    "inference-fleet.dev/render-revision": "1",
}
ENGINE = {**OURS, "inference-fleet.dev/policy": "chat", "inference-fleet.dev/component": "engine"}
GATEWAY = {**OURS, "inference-fleet.dev/policy": "chat", "inference-fleet.dev/component": "gateway"}


def gpu() -> ClassSeen:
    spec = {"resourceName": "nvidia.com/gpu", "memory": "24Gi"}
    seen = READERS[kinds.ACCELERATOR_CLASS]({"metadata": metadata("gpu", namespace=None), "spec": spec})
    assert isinstance(seen, ClassSeen)
    return seen


def seen_by(ledger: Ledger | None = None, measured: Measured | None = None, **world: Any) -> Observation:
    whole: dict[str, Any] = {
        "policy": policy_seen("chat"), "models": (), "classes": (gpu(),), "deployments": (), "pods": (), "routes": None,
        "usages": {"gpu": Usage(8, 1)}, "held": {}, **world,
    }  # fmt: skip
    return observe(World(**whole), SETTINGS, ledger or Ledger(), measured or Measured(), {})


def test_a_variant_is_read_with_its_pods() -> None:
    engine = replace(deployment_seen("v", annotations=ANNOTATIONS, replicas=2), updated_replicas=2, ready_replicas=1)
    pods = tuple(
        pod_seen(name, node="n", labels={**ENGINE, "inference-fleet.dev/variant": "v", "pod-template-hash": "h"})
        for name in ("b", "a")
    )
    (variant,) = seen_by(deployments=(engine,), pods=pods).variants
    assert variant.identity is not None
    assert (variant.identity.accelerator_class, variant.identity.devices_per_replica) == ("gpu", 2)
    assert (variant.build, variant.accelerator, str(variant.price_per_hour)) == ("q4", "gpu", "2.50")
    assert [p.name for p in variant.pods] == ["a", "b"]
    assert variant.pods[0].template_hash == "h"
    assert variant.selector_conflict == ""


def test_an_identity_that_cannot_be_read_is_none_never_a_guess() -> None:
    for text in ("", "{}", "[]", "nonsense", json.dumps({**IDENTITY, "more": 1})):
        engine = deployment_seen("v", annotations={**ANNOTATIONS, "inference-fleet.dev/identity": text})
        (variant,) = seen_by(deployments=(engine,)).variants
        assert variant.identity is None, text


def test_what_another_policy_of_that_name_left_behind_is_not_ours() -> None:
    stranger = deployment_seen("v", annotations=ANNOTATIONS, ownerReferences=[{"uid": "old", "controller": True}])
    assert seen_by(deployments=(stranger,)).variants == ()


def test_a_foreign_owner_of_replicas_is_seen_and_we_are_not_foreign() -> None:
    ours = replace(deployment_seen("v"), replicas_owners=("inference-fleet", "inference-fleet-scale"))
    (variant,) = seen_by(deployments=(ours,)).variants
    assert variant.foreign_scaler == ""
    (variant,) = seen_by(deployments=(replace(ours, replicas_owners=("inference-fleet-scale", "hpa")),)).variants
    assert variant.foreign_scaler == "hpa"


def test_stock_comes_with_the_claims_of_others_or_as_unknown() -> None:
    ledger = Ledger()
    ledger.enter("default/other", Entry({"gpu": 3}, 1))
    ledger.enter("default/chat", Entry({"gpu": 2}, 1))
    view = seen_by(ledger).classes["gpu"]
    assert (view.allocatable_devices, view.used_by_others) == (8, 1)
    assert [(c.policy, c.devices) for c in view.claims] == [("default/other", 3)]
    assert seen_by(usages={}).classes["gpu"].allocatable_devices is None


def test_only_ready_gateways_must_show_the_routes() -> None:
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    gateway = deployment_seen("chat-gateway", labels=GATEWAY)
    pods = (pod_seen("up", node="n", labels=GATEWAY, status=ready), pod_seen("starting", node="n", labels=GATEWAY))
    found = seen_by(measured=Measured(revisions={"up": "abc", "gone": "x"}), deployments=(gateway,), pods=pods)
    assert found.gateway.exists
    assert found.gateway.revisions == {"up": "abc"}
    assert found.variants == ()


def test_a_gateway_that_does_not_start_says_why() -> None:
    gateway = deployment_seen("chat-gateway", labels=GATEWAY)
    waiting = {
        "containerStatuses": [{"name": "gateway", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "m"}}}]
    }
    view = seen_by(deployments=(gateway,), pods=(pod_seen("p", labels=GATEWAY, status=waiting),)).gateway
    assert (view.problem_reason, view.problem_message) == ("ImagePullBackOff", "pod p: m")


def test_routes_that_cannot_be_read_are_none() -> None:
    def routes(text: str) -> ObjectSeen:
        return ObjectSeen(policy_seen("chat").meta, {"routes.json": text})

    assert read_routes(routes('{"revision": "r", "drain": ["p"]}')) == ("r", ("p",))
    assert read_routes(routes("{")) == ("", ())
    assert read_routes(None) == ("", ())


def test_pods_hold_devices_once_they_have_a_node() -> None:
    engine = deployment_seen("v", annotations=ANNOTATIONS)
    labels = {**ENGINE, "inference-fleet.dev/variant": "v"}
    pods = (pod_seen("a", node="n", labels=labels), pod_seen("b", labels=labels),
            pod_seen("c", node="n", labels=labels, status={"phase": "Failed"}))  # fmt: skip
    assert held_devices([engine], pods) == {"gpu": {"default/chat": 2}}


def test_a_model_whose_facts_were_contradicted_is_not_run() -> None:
    from tests.unit.cluster.test_models import FACTS, RESOLVED, model

    said = {"conditions": [{"type": "Ready", "status": "False", "reason": "FactsContradicted", "message": "m"}]}
    seen = model({"resolved": RESOLVED, "facts": FACTS, **said})
    assert isinstance(seen, ModelSeen)
    view = seen_by(models=(seen,)).models["tiny"]
    assert view.resolved is None
    assert view.not_ready_reason == "FactsContradicted"


def test_replicas_are_never_in_an_apply_of_what_exists() -> None:
    body = {"kind": "Deployment", "metadata": {}, "spec": {"replicas": 3, "template": {}}}
    assert without_replicas(body)["spec"] == {"template": {}}
    assert body["spec"]["replicas"] == 3, "the rendered object is not changed"


def test_an_interrupted_creation_is_noticed_before_it_costs_the_replicas() -> None:
    assert only_template_owns_replicas(replace(deployment_seen("v"), replicas_owners=("inference-fleet",)))
    assert not only_template_owns_replicas(
        replace(deployment_seen("v"), replicas_owners=("inference-fleet", "inference-fleet-scale"))
    )


def test_a_mark_moves_with_an_edit() -> None:
    assert mark(deployment_seen("v", generation=4).meta) == "4"
    assert mark(deployment_seen("v", version=9, generation=0).meta) == "9"
