"""Objects as the API server sends them, for tests: only what is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inference_fleet.cluster import kinds
from inference_fleet.cluster.reading import READERS
from inference_fleet.cluster.seen import DeploymentSeen, NodeSeen, PodSeen, PolicySeen

OURS = {"app.kubernetes.io/managed-by": "inference-fleet"}


def metadata(name: str, version: int = 1, **more: Any) -> dict[str, Any]:
    whole = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-{name}",
        "resourceVersion": str(version),
        "generation": 1,
        "creationTimestamp": "2026-12-01T12:00:00Z",
        **more,
    }
    return {key: value for key, value in whole.items() if value is not None}


def policy(name: str = "chat", version: int = 1, spec: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    entry = {
        "name": "small",
        "engine": {"type": "LlamaCpp", "version": "b11549"},
        "builds": [{"name": "q4", "modelRef": {"name": "tiny"}}],
        "contextTokens": 2048,
        "accelerators": [{"name": "gpu", "classRef": {"name": "gpu"}, "devicesPerReplica": 1}],
        "replicas": {"min": 1},
    }
    whole = {"models": [entry], "gateway": {"authentication": {"type": "None"}}, **(spec or {})}
    return {"metadata": metadata(name, version, **more), "spec": whole}


def policy_seen(name: str = "chat", version: int = 1, **more: Any) -> PolicySeen:
    seen = READERS[kinds.POLICY](policy(name, version, **more))
    assert isinstance(seen, PolicySeen)
    return seen


def deployment(name: str, version: int = 1, replicas: int = 1, **more: Any) -> dict[str, Any]:
    labels = {**OURS, "inference-fleet.dev/policy": "chat", "inference-fleet.dev/component": "engine",
              "inference-fleet.dev/variant": name}  # fmt: skip
    owner = {"kind": "InferencePolicy", "name": "chat", "uid": "uid-chat", "controller": True}
    return {
        "metadata": metadata(name, version, **{"labels": labels, "ownerReferences": [owner], **more}),
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"inference-fleet.dev/variant": name}}},
        "status": {},
    }


def deployment_seen(name: str, version: int = 1, **more: Any) -> DeploymentSeen:
    seen = READERS[kinds.DEPLOYMENT](deployment(name, version, **more))
    assert isinstance(seen, DeploymentSeen)
    return seen


def pod(
    name: str, *, node: str = "", requests: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None,
    status: Mapping[str, Any] | None = None, version: int = 1, **spec: Any,
) -> dict[str, Any]:  # fmt: skip
    containers = [{"name": "engine", "resources": {"requests": dict(requests or {})}}]
    return {
        "metadata": metadata(name, version, labels=dict(labels or {}), generation=None),
        "spec": {"nodeName": node, "containers": containers, **spec},
        "status": {"phase": "Running" if node else "Pending", **(status or {})},
    }


def pod_seen(name: str, **more: Any) -> PodSeen:
    seen = READERS[kinds.POD](pod(name, **more))
    assert isinstance(seen, PodSeen)
    return seen


def node_seen(
    name: str, allocatable: Mapping[str, str], labels: Mapping[str, str] | None = None,
    taints: list[dict[str, str]] | None = None, ready: str = "True", unschedulable: bool = False,
) -> NodeSeen:  # fmt: skip
    seen = READERS[kinds.NODE](
        {
            "metadata": metadata(name, namespace=None, labels=dict(labels or {})),
            "spec": {"taints": taints or [], "unschedulable": unschedulable},
            "status": {"allocatable": dict(allocatable), "conditions": [{"type": "Ready", "status": ready}]},
        }
    )
    assert isinstance(seen, NodeSeen)
    return seen
