"""Documents of a small fleet, for tests on a cluster."""

from __future__ import annotations

import json
from typing import Any

from tests.support.cluster import Cluster, KwokCluster

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
