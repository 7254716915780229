"""The Job that inspects a model: reads headers, answers by its termination message."""

from __future__ import annotations

from typing import Any

from inference_fleet.api.model import InferenceModelSpec
from inference_fleet.naming import (
    COMPONENT_LABEL,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    MODEL_LABEL,
    canonical_json,
    inspection_name,
)
from inference_fleet.plan.observation import OperatorSettings
from inference_fleet.render.amounts import MIB
from inference_fleet.render.manifests import Manifest, owner, stamped
from inference_fleet.render.security import pod_isolation
from inference_fleet.render.weights import SCRATCH_DIRECTORY, empty_directory, hub_environment, mount, our_container

SOURCE_DIRECTORY = "/models/source"

KEPT_SECONDS = 3600
"""How long a finished Job stays for people to look at. Its answer is in the model's status long before."""

LONGEST_SECONDS = 900
"""For all attempts together, image pull included: headers are small, slow is only the way to them."""

SCRATCH_BYTES = 256 * MIB


def render_inspection(
    namespace: str, name: str, uid: str, spec: InferenceModelSpec, settings: OperatorSettings, attempt: str = ""
) -> Manifest:
    """The Job that inspects the InferenceModel `name`. Another `attempt` (any text) is another Job.

    A Job cannot be changed: what is rendered differently later belongs to a later attempt.
    """
    labels = {MANAGED_BY_LABEL: MANAGED_BY, COMPONENT_LABEL: "inspect", MODEL_LABEL: name}
    claim = spec.source.volume_claim
    volumes: list[Any] = [empty_directory("tmp", SCRATCH_BYTES)]
    mounts = [mount("tmp", SCRATCH_DIRECTORY)]
    if claim is not None:
        volumes.append({"name": "source", "persistentVolumeClaim": {"claimName": claim.name, "readOnly": True}})
        mounts.append(mount("source", SOURCE_DIRECTORY, read_only=True))
    container = our_container(
        name="inspect",
        image=settings.image,
        arguments=["inspect", "--source", canonical_json(spec.source.to_dict())],
        environment=hub_environment(spec.source, settings.hub_endpoint),
        mounts=mounts,
        resources={"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
    )
    return stamped(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": inspection_name(name, uid, attempt),
                "namespace": namespace,
                "labels": labels,
                "ownerReferences": [owner("InferenceModel", name, uid)],
            },
            "spec": {
                "backoffLimit": 2,
                "activeDeadlineSeconds": LONGEST_SECONDS,
                "ttlSecondsAfterFinished": KEPT_SECONDS,
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        **pod_isolation(),
                        "restartPolicy": "Never",
                        "containers": [container],
                        "volumes": volumes,
                    },
                },
            },
        }
    )
