"""The local node runs this project's images as a strict cluster would: restricted Pod Security, nothing writable."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import NodeCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[NodeCluster]:
    with NodeCluster.session() as cluster:
        yield cluster


@pytest.fixture
def namespace(cluster: NodeCluster) -> Iterator[str]:
    with cluster.namespace("harness") as name:
        yield name


def restricted_pod(name: str, image: str, arguments: Sequence[str] = (), **container: Any) -> dict[str, Any]:
    """A pod as strict as Kubernetes can make it, with one container."""
    strict = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    main = {"name": "main", "image": image, "args": list(arguments), "securityContext": strict, **container}
    security = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    metadata = {"name": name, "labels": {"app": name}}
    spec = {"securityContext": security, "automountServiceAccountToken": False, "containers": [main]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def service(name: str, port: int) -> dict[str, Any]:
    spec = {"selector": {"app": name}, "ports": [{"port": port}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def http_probe(path: str, port: int) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": port}, "periodSeconds": 1}


def reachable(cluster: NodeCluster, url: str, namespace: str) -> str:
    """The body of a URL; waits for the moment that lies between a pod being Ready and its Service knowing it."""
    return cluster.wait_for(f"{url} answers", lambda: cluster.fetch(url) or "empty", 30, namespace)


def test_the_operator_image_starts_as_a_restricted_pod(cluster: NodeCluster, namespace: str) -> None:
    cluster.load_images("inference-fleet")
    command = [
        "python3",
        "-c",
        "import inference_fleet, kopf, kubernetes, os; print(inference_fleet.__version__, os.getuid())",
    ]
    pod = restricted_pod("operator", "localhost/inference-fleet:dev", command=command)
    pod["spec"]["restartPolicy"] = "Never"
    cluster.apply(pod, namespace=namespace)
    phase = cluster.wait_for(
        "the pod ends", lambda: (cluster.get("pod", "operator", namespace) or {}).get("status", {}).get("phase") in
        ("Succeeded", "Failed"), 60, namespace,
    )  # fmt: skip
    assert phase
    assert cluster.logs("operator", namespace, "main").split()[-1] == "65532"


def test_the_models_are_served_with_ranges(cluster: NodeCluster, namespace: str) -> None:
    cluster.load_images("models")
    cluster.apply(
        restricted_pod("models", "localhost/models:dev", (), args=None, readinessProbe=http_probe("/healthz", 8080)),
        service("models", 8080),
        namespace=namespace,
    )
    cluster.wait_condition("pod", "models", "Ready", namespace=namespace)
    base = f"http://models.{namespace}.svc:8080"
    assert "smollm2-135m-instruct-q4_1.gguf" in reachable(cluster, f"{base}/", namespace)
    head = cluster.fetch(f"{base}/smollm2-135m-instruct-q4_1.gguf", "-I")
    assert "Content-Length: 98362432" in head and "Accept-Ranges: bytes" in head
    assert cluster.fetch(f"{base}/smollm2-135m-instruct-q4_1.gguf", "-r", "0-3") == "GGUF"


def test_the_simulator_answers_like_vllm(cluster: NodeCluster, namespace: str) -> None:
    cluster.load_images("llm-d-inference-sim")
    arguments = ("--model", "simulated", "--port", "8000", "--mode", "echo")
    probe = http_probe("/health", 8000)
    pod = restricted_pod("sim", "localhost/llm-d-inference-sim:0.10.2", arguments, readinessProbe=probe)
    cluster.apply(pod, service("sim", 8000), namespace=namespace)
    cluster.wait_condition("pod", "sim", "Ready", namespace=namespace)
    assert "vllm:num_requests_running" in reachable(cluster, f"http://sim.{namespace}.svc:8000/metrics", namespace)


def test_a_deleted_engine_pod_finishes_its_stream(cluster: NodeCluster, namespace: str) -> None:
    cluster.load_images("models", "llama-server")
    model = "/models/smollm2-135m-instruct-q4_1.gguf"
    volume = {"name": "models", "emptyDir": {}}
    mount = {"name": "models", "mountPath": "/models"}
    arguments = ("-m", model, "--port", "8080", "-c", "2048", "-np", "1", "-t", "1", "--metrics")
    probe = http_probe("/health", 8080)
    pod = restricted_pod(
        "engine", "localhost/llama-server:b11549", arguments, readinessProbe=probe, volumeMounts=[mount]
    )
    copy = dict(
        restricted_pod("x", "localhost/models:dev", volumeMounts=[{**mount, "mountPath": "/to"}])["spec"]["containers"][
            0
        ]
    )
    copy |= {"name": "copy", "command": ["cp", model, "/to/"], "args": []}
    pod["spec"] |= {"volumes": [volume], "initContainers": [copy], "terminationGracePeriodSeconds": 60}
    cluster.apply(pod, service("engine", 8080), namespace=namespace)
    cluster.wait_condition("pod", "engine", "Ready", namespace=namespace, seconds=90)
    base = f"http://engine.{namespace}.svc:8080"
    assert "llamacpp:requests_processing" in reachable(cluster, f"{base}/metrics", namespace)

    question = {
        "stream": True,
        "max_tokens": 100,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": "Count."}],
    }
    curl = cluster.node.command("curl", "-sN", f"{base}/v1/chat/completions", "-d", json.dumps(question))
    stream = subprocess.Popen(curl, env=cluster.node.environment(), stdout=subprocess.PIPE, text=True)
    assert stream.stdout is not None
    first = stream.stdout.readline()
    assert first.startswith("data: ")
    deleted = time.monotonic()
    cluster.kubectl("-n", namespace, "delete", "pod", "engine", "--wait=true", "--timeout=60s")
    assert time.monotonic() - deleted < 60, "the pod left before its grace period was over"
    rest = stream.stdout.read()
    assert stream.wait() == 0
    assert rest.rstrip().endswith("data: [DONE]")


def test_counts_writes_at_its_api_server(cluster: NodeCluster, namespace: str, tmp_path: Path) -> None:
    cluster.kubectl("-n", namespace, "create", "serviceaccount", "writer")
    kubeconfig = cluster.service_account_kubeconfig(namespace, "writer", tmp_path / "kubeconfig")
    marker = cluster.marker()
    cluster.refused("--kubeconfig", kubeconfig, "-n", namespace, "create", "configmap", "one")
    writes = cluster.writes_since(marker, user=f"system:serviceaccount:{namespace}:writer")
    assert [(write.verb, write.resource, write.code) for write in writes] == [("create", "configmaps", 403)]


def test_a_claim_gets_a_volume_that_another_user_can_write(cluster: NodeCluster, namespace: str) -> None:
    claim_spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "kept"}, "spec": claim_spec}
    mount = {"name": "kept", "mountPath": "/kept"}
    command = ["sh", "-c", "echo written > /kept/file && cat /kept/file"]
    pod = restricted_pod("writer", "localhost/busybox:1", command=command, volumeMounts=[mount])
    volume = {"name": "kept", "persistentVolumeClaim": {"claimName": "kept"}}
    pod["spec"] |= {"restartPolicy": "Never", "volumes": [volume]}
    pod["spec"]["securityContext"]["fsGroup"] = 65532
    cluster.apply(claim, pod, namespace=namespace)
    cluster.wait_for("it is written", lambda: "written" in cluster.logs("writer", namespace, "main"), 30, namespace)
