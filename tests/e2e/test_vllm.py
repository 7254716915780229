"""vLLM's pods for real, on devices that are only counted: the simulator plays the engine, everything around it is as on GPUs."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.e2e import objects
from tests.e2e.conftest import Fleet, condition
from tests.e2e.load import Load
from tests.support.small_models import folder_files

CLASS = "fake-gpu"


def claim_with(files: dict[str, bytes]) -> list[dict[str, Any]]:
    """A claim, and a Job that writes the files onto it."""
    data = {name: base64.b64encode(content).decode() for name, content in files.items()}
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    container = {
        "name": "copy",
        "image": "localhost/busybox:1",
        "command": ["sh", "-c", "mkdir -p /weights/small && cp -L /files/* /weights/small/"],
        "volumeMounts": [{"name": "weights", "mountPath": "/weights"}, {"name": "files", "mountPath": "/files"}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    pod = {
        "restartPolicy": "Never",
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": 65532, "fsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "weights", "persistentVolumeClaim": {"claimName": "weights"}},
            {"name": "files", "configMap": {"name": "files"}},
        ],
    }  # fmt: skip
    return [
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "weights"}, "spec": spec},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "files"}, "binaryData": data},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "copy"}, "spec": {"template": {"spec": pod}}},
    ]


def entry(**more: Any) -> dict[str, Any]:
    """A model for vLLM, from the claim."""
    return {
        "name": "quick",
        "engine": {"type": "VLLM", "version": "0.32"},
        "builds": [{"name": "bf16", "modelRef": {"name": "small"}, "quantization": {"weights": "BF16"}}],
        "contextTokens": 512,
        "batching": {"maxSequences": 8},
        "accelerators": [{"name": "gpu", "classRef": {"name": CLASS}}],
        "replicas": {"min": 2},
        **more,
    }


@pytest.fixture
def gpu(fleet: Fleet) -> Iterator[str]:
    """A class over the four devices that the node claims to have."""
    price = {"currency": "USD", "onDemandPerHour": "1.50"}
    spec = {"resourceName": "nvidia.com/gpu", "memory": "24Gi", "price": price}
    fleet.cluster.apply(
        {"apiVersion": objects.API, "kind": "AcceleratorClass", "metadata": {"name": CLASS}, "spec": spec}
    )
    yield CLASS
    fleet.cluster.run("kubectl", "delete", "acceleratorclass", CLASS, "--wait=false")


def test_served_drained_and_priced(fleet: Fleet, namespace: str, gpu: str) -> None:
    small = {
        "apiVersion": objects.API,
        "kind": "InferenceModel",
        "metadata": {"name": "small"},
        "spec": {"source": {"volumeClaim": {"name": "weights", "path": "small"}}},
    }
    fleet.cluster.apply(*claim_with(folder_files()), namespace=namespace)
    fleet.cluster.kubectl("-n", namespace, "wait", "--for=condition=Complete", "job/copy", "--timeout=60s")
    fleet.cluster.apply(small, objects.policy("gpus", entry()), namespace=namespace)
    found = fleet.ready("gpus", namespace)

    assert found["status"]["cost"] == {"currency": "USD", "perHour": "3.00"}
    pods = fleet.pods("gpus", namespace)
    assert len(pods) == 2
    for pod in pods:
        engine = next(container for container in pod["spec"]["containers"] if container["name"] == "engine")
        assert engine["resources"]["limits"]["nvidia.com/gpu"] == "1"
        assert "vllm:num_requests_running" in fleet.metrics(pod, 8000)
    devices = (fleet.cluster.get("acceleratorclass", gpu) or {})["status"]["devices"]
    assert devices["allocatable"] == 4 and devices["claimed"] == 2

    url = fleet.url("gpus", namespace)
    with openai.OpenAI(base_url=f"{url}/v1", api_key=objects.KEY, max_retries=0) as client:
        question: list[Any] = [{"role": "user", "content": "Hello"}]
        answer = client.chat.completions.create(model="quick", messages=question, max_tokens=8)
        assert answer.choices[0].message.content and answer.usage is not None
        pieces = client.chat.completions.create(model="quick", messages=question, max_tokens=8, stream=True)
        assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)

    # A flag rolls the pods while clients stream.
    load = Load(url, "quick", clients=8, tokens=48)
    with load.running(100):
        fleet.patch("gpus", namespace, {"models": [entry(batching={"maxSequences": 16})]})
        fleet.ready("gpus", namespace, 240)
    print(load.tally)
    assert not load.tally.failures and not load.tally.cuts, (load.tally.failures[:5], load.tally.cuts[:5])


def test_more_devices_than_there_are(fleet: Fleet, namespace: str, gpu: str) -> None:
    """What cannot be placed says so with numbers, and what can be runs."""
    small = {
        "apiVersion": objects.API,
        "kind": "InferenceModel",
        "metadata": {"name": "small"},
        "spec": {"source": {"volumeClaim": {"name": "weights", "path": "small"}}},
    }
    fleet.cluster.apply(*claim_with(folder_files()), namespace=namespace)
    fleet.cluster.kubectl("-n", namespace, "wait", "--for=condition=Complete", "job/copy", "--timeout=60s")
    fleet.cluster.apply(small, objects.policy("gpus", entry(replicas={"min": 6})), namespace=namespace)

    def short() -> bool:
        found = fleet.cluster.get("ipol", "gpus", namespace) or {}
        scheduled = condition(found, "Scheduled")
        assert (scheduled.get("status"), scheduled.get("reason")) == ("False", "InsufficientDevices"), found.get(
            "status"
        )
        assert "6" in scheduled["message"] and "4" in scheduled["message"], scheduled
        assert condition(found, "Ready").get("status") == "True", condition(found, "Ready")
        return True

    fleet.cluster.wait_for("four run, two are missing, and that is said", short, 180, namespace)
    assert len(fleet.pods("gpus", namespace)) == 4
