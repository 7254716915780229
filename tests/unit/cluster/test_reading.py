"""What is kept of objects, and what of a change matters."""

from __future__ import annotations

from typing import Any

import pytest

from inference_fleet.cluster import kinds
from inference_fleet.cluster.amounts import amount, pod_requests
from inference_fleet.cluster.reading import READERS
from inference_fleet.cluster.seen import DeploymentSeen, ModelSeen, PodSeen, PolicySeen
from tests.unit.cluster.objects import OURS, deployment, pod, pod_seen, policy


@pytest.mark.parametrize(
    ("text", "value"),
    [("4", "4"), ("500m", "0.5"), ("16Gi", str(16 * 2**30)), ("1e3", "1000"), ("129M", "129000000"), ("100n", "1e-7"),
     ("1.5Ki", "1536"), ("", "0"), ("nonsense", "0")],
)  # fmt: skip
def test_every_form_of_quantity_is_read(text: str, value: str) -> None:
    assert amount(text) == amount(value)


def test_a_pod_takes_what_the_scheduler_reserves() -> None:
    """Sidecars run beside the containers; an init container runs before them, beside the sidecars that started earlier."""

    def container(cpu: str, **more: Any) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu, "nvidia.com/gpu": "1"}}, **more}

    spec = {
        "initContainers": [container("8"), container("1", restartPolicy="Always"), container("2")],
        "containers": [container("3"), container("1")],
        "overhead": {"cpu": "250m"},
    }
    assert pod_requests(spec) == {"cpu": 8250, "nvidia.com/gpu": 3}


def status(*containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"containerStatuses": list(containers), **more}


@pytest.mark.parametrize(
    ("shown", "reason", "words"),
    [
        (status(conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]),
         "Unschedulable", "0/3 nodes"),
        (status({"name": "engine", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}),
         "ImagePullBackOff", "no such image"),
        (status({"name": "engine", "state": {"waiting": {"reason": "CreateContainerConfigError",
                                                         "message": 'secret "hf" not found'}}}), "SecretMissing", "hf"),
        (status({"name": "engine", "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                 "lastState": {"terminated": {"exitCode": 1, "message": "bad flag"}}}), "CrashLoopBackOff", "bad flag"),
        (status({"name": "engine", "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                 "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}), "OOMKilled", "137"),
        (status({"name": "engine", "state": {"terminated": {"exitCode": 2, "reason": "Error"}}}), "Error", "2"),
        (status({"name": "engine", "state": {"waiting": {"reason": "ContainerCreating"}}}), "", ""),
        (status({"name": "engine", "state": {"running": {}}}), "", ""),
        ({"phase": "Failed", "reason": "Evicted", "message": "disk"}, "Evicted", "disk"),
    ],
)  # fmt: skip
def test_what_holds_a_pod_back_is_one_reason(shown: dict[str, Any], reason: str, words: str) -> None:
    seen = pod_seen("p", labels=OURS, status=shown)
    assert seen.reason == reason
    assert words in seen.message


def test_of_other_peoples_pods_only_what_they_take_is_kept() -> None:
    one = pod("p", node="n", requests={"nvidia.com/gpu": "2"}, labels={"app": "theirs"})
    other = pod("p", node="n", requests={"nvidia.com/gpu": "2"}, labels={"app": "renamed"}, version=2,
                status={"message": "busy"})  # fmt: skip
    assert READERS[kinds.POD](one) == READERS[kinds.POD](other)


def test_a_spec_that_cannot_be_read_says_where() -> None:
    document = policy()
    document["spec"]["models"][0]["contextTokens"] = "many"
    seen = READERS[kinds.POLICY](document)
    assert isinstance(seen, PolicySeen)
    assert seen.spec is None
    assert "models.0.contextTokens" in seen.invalid_message


def test_the_owners_of_replicas_are_read_from_managed_fields() -> None:
    def entry(manager: str, *fields: str) -> dict[str, Any]:
        return {"manager": manager, "fieldsV1": {"f:spec": {f"f:{field}": {} for field in fields}}}

    document = deployment(
        "x", managedFields=[entry("inference-fleet", "template"), entry("hpa", "replicas"), {"manager": "y"}]
    )
    seen = READERS[kinds.DEPLOYMENT](document)
    assert isinstance(seen, DeploymentSeen)
    assert seen.replicas_owners == ("hpa",)


def test_an_inspections_answer_is_kept_only_of_inspections() -> None:
    shown = {"containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": 0, "message": "{}"}}}]}
    inspection = pod_seen("p", labels={**OURS, "inference-fleet.dev/component": "inspect"}, status=shown)
    engine = pod_seen("p", labels=OURS, status=shown)
    assert (inspection.last_words, engine.last_words) == ("{}", "")


def test_a_models_result_matters_its_conditions_times_do_not() -> None:
    def model(version: str, ready: str, at: str) -> ModelSeen:
        seen = READERS[kinds.MODEL](
            {
                "metadata": {"name": "m", "namespace": "d", "uid": "u", "resourceVersion": version, "generation": 1},
                "spec": {"source": {"http": {"url": "https://h/m.gguf", "sha256": "a" * 64}}},
                "status": {"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": at}]},
            }
        )
        assert isinstance(seen, ModelSeen)
        return seen

    assert model("1", "True", "2026-01-01T00:00:00Z") == model("2", "True", "2026-01-02T00:00:00Z")
    assert model("1", "True", "") != model("2", "False", "")


def test_ipv6_and_dual_stack_pods_have_their_address() -> None:
    seen = pod_seen("p", labels=OURS, status={"podIP": "fd00::1"})
    assert isinstance(seen, PodSeen)
    assert seen.address == "fd00::1"
