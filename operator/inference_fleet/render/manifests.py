"""What all rendered objects have in common: their metadata, their owner, and the hash that tells whether they changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inference_fleet.api.base import API_VERSION
from inference_fleet.naming import RENDERED_HASH_ANNOTATION, canonical_json, digest, labels
from inference_fleet.plan.observation import PolicyView

Manifest = dict[str, Any]
"""A Kubernetes object as plain data."""

SHA256_HEX_DIGITS = 64


def owner(kind: str, name: str, uid: str) -> Manifest:
    """The controlling owner. It does not block its deletion: that would need a right on its finalizers."""
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def metadata(
    policy: PolicyView,
    name: str,
    component: str,
    extra_labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """Metadata of an object that a policy owns."""
    return {
        "name": name,
        "namespace": policy.namespace,
        "labels": {**labels(policy.name, component), **(extra_labels or {})},
        **({"annotations": dict(annotations)} if annotations else {}),
        "ownerReferences": [owner("InferencePolicy", policy.name, policy.uid)],
    }


def rendered_hash(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of an object as rendered, without the annotation that carries it."""
    return digest(canonical_json(manifest), SHA256_HEX_DIGITS)


def stamped(manifest: Manifest) -> Manifest:
    """The same object with its hash as an annotation."""
    annotations = {**manifest["metadata"].get("annotations", {}), RENDERED_HASH_ANNOTATION: rendered_hash(manifest)}
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": annotations}}


def with_replicas(manifest: Mapping[str, Any], replicas: int) -> Manifest:
    """A Deployment as it is created. Only then: an applied `spec.replicas` would undo every later scaling."""
    return {**manifest, "spec": {"replicas": replicas, **manifest["spec"]}}
