"""How weights get into an engine pod: a claim mounted read-only, or an emptyDir that is filled before the engine starts.

Either way the init container `stage` runs: on a claim it only looks whether the weights are there. It also carries in the script by
which the engine container drains, since the engine's own image has nothing of ours.
"""

from __future__ import annotations

from typing import Any

from inference_fleet.api.model import ModelSource
from inference_fleet.naming import canonical_json
from inference_fleet.plan.observation import ModelView
from inference_fleet.render.amounts import MIB, mebibytes
from inference_fleet.render.manifests import Manifest
from inference_fleet.render.security import container_security

TARGET_DIRECTORY = "/models/target"
DRAFT_DIRECTORY = "/models/draft"
FLEET_DIRECTORY = "/fleet"
DRAIN_SCRIPT = f"{FLEET_DIRECTORY}/drained"
SCRATCH_DIRECTORY = "/tmp"

STAGING_BYTES_PER_SECOND = 10_000_000
"""How slowly weights may arrive before a rollout counts as stuck: 10 MB/s. Staging itself has no such limit, it goes on."""

FLEET_BYTES = 16 * MIB

_ROOM_PERCENT = 110
_ROOM_BYTES = 64 * MIB


def staged_bytes(model: ModelView) -> int:
    """Room for a model's files in an emptyDir: its weights and a tenth for tokenizer and file system. 0 on a claim."""
    if model.spec.source.volume_claim is not None or model.resolved is None:
        return 0
    return model.resolved.weight_bytes * _ROOM_PERCENT // 100 + _ROOM_BYTES


def staging_seconds(model: ModelView) -> int:
    """How long staging may take before a rollout counts as stuck."""
    if model.spec.source.volume_claim is not None or model.resolved is None:
        return 0
    return -(-model.resolved.weight_bytes // STAGING_BYTES_PER_SECOND)


def volume(name: str, model: ModelView) -> Manifest:
    """The volume that a model's files are in."""
    claim = model.spec.source.volume_claim
    if claim is not None:
        return {"name": name, "persistentVolumeClaim": {"claimName": claim.name, "readOnly": True}}
    return empty_directory(name, staged_bytes(model))


def empty_directory(name: str, size_bytes: int) -> Manifest:
    """An emptyDir; a pod that writes more than its size is evicted."""
    return {"name": name, "emptyDir": {"sizeLimit": mebibytes(size_bytes)}}


def mount(name: str, path: str, read_only: bool = False) -> Manifest:
    """A volume in a container."""
    return {"name": name, "mountPath": path, **({"readOnly": True} if read_only else {})}


def artifact_arguments(model: ModelView, into: str) -> list[str]:
    """What `stage` and `draft` are told of a model: where from, exactly what, where to."""
    assert model.resolved is not None
    return [
        "--source", canonical_json(model.spec.source.to_dict()),
        "--resolved", canonical_json(model.resolved.to_dict()),
        "--into", into,
    ]  # fmt: skip


def hub_environment(source: ModelSource, hub_endpoint: str) -> list[Manifest]:
    """The hub's address and the model's token, for a source on the hub. The Secret is read by the kubelet only."""
    hub = source.hugging_face
    if hub is None:
        return []
    variables: list[Manifest] = [{"name": "HF_ENDPOINT", "value": hub_endpoint}] if hub_endpoint else []
    if hub.token_secret_ref is not None:
        reference = {"name": hub.token_secret_ref.name, "key": hub.token_secret_ref.key}
        variables.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}})
    return variables


def stage_container(image: str, target: ModelView, hub_endpoint: str) -> Manifest:
    """The init container that brings the target's weights and the drain script."""
    return our_container(
        name="stage",
        image=image,
        arguments=["stage", *artifact_arguments(target, TARGET_DIRECTORY), "--drain-script", DRAIN_SCRIPT],
        environment=hub_environment(target.spec.source, hub_endpoint),
        mounts=[
            mount("target", TARGET_DIRECTORY, read_only=target.spec.source.volume_claim is not None),
            mount("fleet", FLEET_DIRECTORY),
            mount("tmp", SCRATCH_DIRECTORY),
        ],
        resources={"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
    )


def our_container(
    name: str,
    image: str,
    arguments: list[str],
    environment: list[Manifest],
    mounts: list[Manifest],
    resources: Manifest,
    **fields: Any,
) -> Manifest:
    """A container of the project's own image. The image is never pulled again where it is present: tags are not moved."""
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["inference-fleet"],
        "args": arguments,
        **({"env": environment} if environment else {}),
        "resources": resources,
        **fields,
        "volumeMounts": mounts,
        "securityContext": container_security(),
    }
