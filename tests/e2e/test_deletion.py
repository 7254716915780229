"""Deleting takes away what was made, and only that; what is merely wrong takes nothing away."""

from __future__ import annotations

import openai
import pytest

from hack.images.catalog import SMOLLM2
from tests.e2e import objects
from tests.e2e.conftest import OPERATOR, Fleet, condition, labels_of

OWNED = "deployments,replicasets,pods,services,configmaps,serviceaccounts,rolebindings,jobs,endpointslices"


def started(fleet: Fleet, namespace: str, cpu: str) -> None:
    fleet.cluster.apply(
        objects.model("smollm2", SMOLLM2), objects.policy("gone", objects.entry(cpu)), namespace=namespace
    )
    fleet.ready("gone", namespace)


def left(fleet: Fleet, namespace: str) -> list[str]:
    listed = fleet.cluster.kubectl(
        "-n", namespace, "get", OWNED, "-l", labels_of("gone"), "-o", "name", "--ignore-not-found"
    )
    return listed.split()


@pytest.mark.parametrize("operator", ["up", "down"])
def test_everything_goes_with_the_policy(fleet: Fleet, namespace: str, cpu: str, operator: str) -> None:
    started(fleet, namespace, cpu)
    assert {name.partition("/")[0] for name in left(fleet, namespace)} >= {
        "deployment.apps", "pod", "service", "configmap", "serviceaccount", "rolebinding.rbac.authorization.k8s.io",
    }  # fmt: skip
    for kind in ("inferencepolicy/gone", "inferencemodel/smollm2"):
        found = fleet.cluster.kubectl("-n", namespace, "get", kind, "-o", "jsonpath={.metadata.finalizers}")
        assert not found, f"{kind} has finalizers: {found}"
    if operator == "down":
        fleet.scale_operator(0)
    try:
        fleet.cluster.kubectl("-n", namespace, "delete", "inferencepolicy", "gone", "--timeout=20s")

        def nothing() -> bool:
            remains = left(fleet, namespace)
            assert not remains, f"left: {remains}"
            return True

        fleet.cluster.wait_for("nothing is left of the policy", nothing, 120, namespace)
    finally:
        if operator == "down":
            fleet.scale_operator(1)
    fleet.cluster.kubectl("-n", namespace, "delete", "inferencemodel", "smollm2", "--timeout=20s")
    fleet.cluster.wait_for(
        "the inspection's Job is gone", lambda: not fleet.cluster.list("jobs", namespace), 60, namespace
    )


def test_what_is_wrong_takes_nothing_down(fleet: Fleet, namespace: str, cpu: str) -> None:
    started(fleet, namespace, cpu)
    pods = {pod["metadata"]["uid"] for pod in fleet.pods("gone", namespace)}

    def answers() -> None:
        with openai.OpenAI(base_url=f"{fleet.url('gone', namespace)}/v1", api_key=objects.KEY, max_retries=0) as client:
            said = client.chat.completions.create(
                model="small", messages=[{"role": "user", "content": "Hello"}], max_tokens=4
            )
            assert said.choices[0].message.content

    def stands(kind: str, reason: str) -> None:
        def look() -> bool:
            found = fleet.cluster.get("ipol", "gone", namespace) or {}
            seen = condition(found, kind)
            assert (seen.get("status"), seen.get("reason")) == ("False", reason), found["status"]["conditions"]
            assert found["status"]["observedGeneration"] == found["metadata"]["generation"]
            return True

        fleet.cluster.wait_for(f"{kind}=False, {reason}", look, 60, namespace)
        assert {pod["metadata"]["uid"] for pod in fleet.pods("gone", namespace)} == pods
        answers()

    # An engine version that nobody knows.
    wrong = objects.entry(cpu)
    wrong["engine"]["version"] = "b1"
    fleet.patch("gone", namespace, {"models": [wrong]})
    stands("Accepted", "EngineVersionUnknown")
    fleet.patch("gone", namespace, {"models": [objects.entry(cpu)]})
    fleet.ready("gone", namespace)

    # The model is deleted.
    fleet.cluster.kubectl("-n", namespace, "delete", "inferencemodel", "smollm2", "--timeout=20s")
    stands("ModelsReady", "ModelMissing")

    # And made again, with the same content: the same pods serve on.
    fleet.cluster.apply(objects.model("smollm2", SMOLLM2), namespace=namespace)
    fleet.ready("gone", namespace)
    assert {pod["metadata"]["uid"] for pod in fleet.pods("gone", namespace)} == pods


def test_a_new_operator_changes_nothing(fleet: Fleet, namespace: str, cpu: str) -> None:
    started(fleet, namespace, cpu)
    pods = {pod["metadata"]["uid"] for pod in fleet.pods("gone", namespace)}
    (engine,) = fleet.engines("gone", namespace)
    fleet.cluster.kubectl("-n", OPERATOR, "rollout", "restart", "deployment/inference-fleet")
    fleet.cluster.wait_rollout("inference-fleet", OPERATOR)
    fleet.ready("gone", namespace)
    assert {pod["metadata"]["uid"] for pod in fleet.pods("gone", namespace)} == pods
    (after,) = fleet.engines("gone", namespace)
    assert after["metadata"]["generation"] == engine["metadata"]["generation"]
