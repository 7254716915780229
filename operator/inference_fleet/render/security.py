"""The restricted Pod Security Standard, for every pod that is rendered."""

from __future__ import annotations

from inference_fleet.render.manifests import Manifest

USER = 65532
"""A user that is in no image's passwd and owns nothing."""


def pod_security() -> Manifest:
    """`securityContext` of a pod."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Manifest:
    """`securityContext` of a container: what it writes goes to mounted volumes."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def pod_isolation() -> Manifest:
    """Fields of a pod's spec that keep the cluster from it: no token, no variables about other Services."""
    return {"automountServiceAccountToken": False, "enableServiceLinks": False, "securityContext": pod_security()}
