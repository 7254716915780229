"""Documents of a small fleet, for tests on a cluster."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cluster import Cluster, KwokCluster
from tests.support.running_operator import USER_AGENT, RunningOperator, running

API_VERSION = "inference-fleet.dev/v1alpha1"
FACTS = {
    "architecture": "llama",
    "parameters": 1_000_000_000,
    "layers": 16,
    "hiddenSize": 2048,
    "keyValueHeads": 8,
    "attentionHeads": 32,
    "headDimension": 64,
    "attention": "GQA",
    "vocabularySize": 128256,
    "tokensDigest": "abc",
    "maxContextTokens": 131072,
    "weightBits": 4,
}


def accelerator_class(name: str, **spec: Any) -> dict[str, Any]:
    """A class of one-GPU devices on the nodes labelled `pool: NAME`."""
    whole = {
        "resourceName": "nvidia.com/gpu",
        "memory": "24Gi",
        "nodeSelector": {"pool": name},
        "price": {"currency": "USD", "onDemandPerHour": "1.00", "effectiveDate": "2026-11-01"},
        **spec,
    }
    return {"apiVersion": API_VERSION, "kind": "AcceleratorClass", "metadata": {"name": name}, "spec": whole}


def model(name: str, **spec: Any) -> dict[str, Any]:
    source = {"http": {"url": f"https://models.example/{name}.gguf", "sha256": "a" * 64}}
    return {
        "apiVersion": API_VERSION,
        "kind": "InferenceModel",
        "metadata": {"name": name},
        "spec": {"source": source, **spec},
    }


def policy(name: str, accelerator: str, *, model_name: str = "tiny", replicas: int = 1, **spec: Any) -> dict[str, Any]:
    entry = {
        "name": "small",
        "engine": {"type": "LlamaCpp", "version": "b11549"},
        "builds": [{"name": "q4", "modelRef": {"name": model_name}}],
        "contextTokens": 2048,
        "accelerators": [{"name": "gpu", "classRef": {"name": accelerator}, "devicesPerReplica": 1}],
        "replicas": {"min": replicas},
    }
    whole = {"models": [entry], "gateway": {"authentication": {"type": "None"}}, **spec}
    return {"apiVersion": API_VERSION, "kind": "InferencePolicy", "metadata": {"name": name}, "spec": whole}


def add_gpu_node(cluster: KwokCluster, name: str, pool: str, gpus: int) -> None:
    """A fake node of a pool. KWOK's nodes offer no ephemeral storage by themselves, which engine pods request."""
    cluster.add_node(name, gpus=gpus, labels={"pool": pool})
    patch = '{"status":{"capacity":{"ephemeral-storage":"10Ti"},"allocatable":{"ephemeral-storage":"10Ti"}}}'
    cluster.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", patch)


def inspected(cluster: Cluster, namespace: str, name: str, digest: str = "sha256:aa") -> None:
    """Writes what an inspection would have found: KWOK's pods end without a word."""
    size = 1_000_000_000
    files = [{"path": f"{name}.gguf", "bytes": size, "digest": digest}]
    resolved = {"digest": digest, "format": "GGUF", "weightBytes": size, "files": files}
    patch = json.dumps({"status": {"resolved": resolved, "facts": FACTS}})
    cluster.kubectl("-n", namespace, "patch", "imodel", name, "--subresource=status", "--type=merge", "-p", patch)


@pytest.fixture(scope="module")
def cluster() -> Iterator[KwokCluster]:
    with KwokCluster.session() as cluster:
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "crds")
        role = cluster.run(
            "kubectl", "create", "clusterrole", "inference-fleet-gateway", "--verb=get", "--resource=configmaps"
        )
        assert role.returncode == 0 or "exists" in role.stderr
        cluster.add_node("plain")
        yield cluster


@pytest.fixture(scope="module")
def operator(cluster: KwokCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningOperator]:
    folder = tmp_path_factory.mktemp("operator")
    with running(
        cluster.kubeconfig, folder, f"kernel-{uuid.uuid4().hex[:6]}", "--resync-seconds", "2", "--scrape-seconds", "3"
    ) as operator:
        yield operator


class Fleet:
    """One namespace, one pool of GPUs, one policy in it."""

    def __init__(self, cluster: KwokCluster, namespace: str, operator: RunningOperator) -> None:
        self.cluster, self.namespace, self.operator = cluster, namespace, operator
        self.pool = namespace

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        return self.cluster.get(kind, name, self.namespace)

    def declare(self, name: str = "chat", **options: Any) -> None:
        self.cluster.apply(policy(name, self.pool, **options), namespace=self.namespace)

    def engines(self, policy: str = "chat") -> list[dict[str, Any]]:
        selector = f"inference-fleet.dev/component=engine,inference-fleet.dev/policy={policy}"
        return self.cluster.list("deployment", self.namespace, selector)

    def engine(self, policy: str = "chat") -> dict[str, Any]:
        found = self.engines(policy)
        assert len(found) == 1, f"{[d['metadata']['name'] for d in found]}\n{self.operator.tail()}"
        return found[0]

    def wait(self, what: str, look: Any, seconds: float = 40) -> Any:
        try:
            return self.cluster.wait_for(what, look, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.operator.tail()}") from error

    def condition(self, name: str, wanted: str, status: str = "True", seconds: float = 40) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            found = self.get("ipol", name)
            conditions = (found or {}).get("status", {}).get("conditions", [])
            generation = (found or {}).get("metadata", {}).get("generation")
            for c in conditions:
                if (c["type"], c["status"]) == (wanted, status) and c.get("observedGeneration") == generation:
                    return c
            raise AssertionError(
                "\n".join(f"{c['type']}={c['status']} {c['reason']}: {c['message']}" for c in conditions)
            )

        return self.wait(f"policy {name} has {wanted}={status}", look, seconds)

    def patch(self, kind: str, name: str, *operations: dict[str, Any]) -> None:
        self.cluster.kubectl("-n", self.namespace, "patch", kind, name, "--type=json", "-p", json.dumps(operations))

    def replicas(self, count: int, policy: str = "chat") -> None:
        self.patch("ipol", policy, {"op": "replace", "path": "/spec/models/0/replicas/min", "value": count})

    def settled(self) -> None:
        """Until the operator has written nothing for a while."""

        def look() -> bool:
            marker = self.cluster.marker()
            time.sleep(1.5)
            return not self.own_writes(marker)

        self.wait("the operator is settled", look)

    def own_writes(self, marker: Any) -> list[str]:
        writes = self.cluster.writes_since(marker, user_agent=USER_AGENT)
        return [
            str(w)
            for w in writes
            if (w.namespace in (self.namespace, "") and w.name in ("", self.pool)) or self.namespace == w.namespace
        ]


@pytest.fixture
def place(cluster: KwokCluster, operator: RunningOperator) -> Iterator[Fleet]:
    with cluster.namespace("kernel") as namespace:
        add_gpu_node(cluster, f"gpu-{namespace}", namespace, gpus=4)
        cluster.apply(accelerator_class(namespace))
        cluster.apply(model("tiny"), namespace=namespace)
        inspected(cluster, namespace, "tiny")
        try:
            yield Fleet(cluster, namespace, operator)
        finally:
            cluster.run("kubectl", "delete", "accel", namespace)
            cluster.remove_node(f"gpu-{namespace}")
