"""From objects as the API sends them to objects as we keep them. Each reader drops everything a decision does not need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from inference_fleet.api.accelerator import AcceleratorClassSpec
from inference_fleet.api.model import InferenceModelSpec, ModelFacts, ResolvedArtifact
from inference_fleet.api.policy import InferencePolicySpec
from inference_fleet.cluster import kinds
from inference_fleet.cluster.amounts import amounts
from inference_fleet.cluster.kinds import Kind
from inference_fleet.cluster.meta_reading import read_meta, read_time
from inference_fleet.cluster.pod_reading import read_pod
from inference_fleet.cluster.seen import (
    ClassSeen,
    DeploymentSeen,
    JobSeen,
    ModelSeen,
    NodeSeen,
    ObjectSeen,
    PolicySeen,
    Seen,
)

Object = Mapping[str, Any]
Reader = Callable[[Object], Seen]
M = TypeVar("M", bound=BaseModel)


def _parsed(model: type[M], value: object) -> tuple[M | None, str]:
    """A stored spec by our models, or what is wrong with it: an older or newer CRD may have let it in."""
    try:
        return model.model_validate(value), ""
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        return None, f"spec{'.' if where else ''}{where}: {first['msg']}{more}"


def _stored(model: type[M], value: object) -> M | None:
    """Part of a status of our own writing; None where it is absent or another version's."""
    return _parsed(model, value)[0] if value else None


def read_policy(obj: Object) -> PolicySeen:
    """An InferencePolicy."""
    spec, invalid = _parsed(InferencePolicySpec, obj.get("spec") or {})
    return PolicySeen(meta=read_meta(obj), spec=spec, invalid_message=invalid, status=obj.get("status") or {})


def _ready(status: Object) -> tuple[str, str, str]:
    ready: Object = next((c for c in status.get("conditions") or [] if c.get("type") == "Ready"), {})
    return str(ready.get("status", "")), str(ready.get("reason", "")), str(ready.get("message", ""))


def read_model(obj: Object) -> ModelSeen:
    """An InferenceModel."""
    spec, invalid = _parsed(InferenceModelSpec, obj.get("spec") or {})
    status = obj.get("status") or {}
    return ModelSeen(
        meta=read_meta(obj),
        spec=spec,
        invalid_message=invalid,
        raw_source=(obj.get("spec") or {}).get("source") or {},
        resolved=_stored(ResolvedArtifact, status.get("resolved")),
        facts=_stored(ModelFacts, status.get("facts")),
        ready=_ready(status),
        status=status,
    )


def read_class(obj: Object) -> ClassSeen:
    """An AcceleratorClass."""
    spec, invalid = _parsed(AcceleratorClassSpec, obj.get("spec") or {})
    return ClassSeen(meta=read_meta(obj), spec=spec, invalid_message=invalid, status=obj.get("status") or {})


def _replicas_owners(obj: Object) -> tuple[str, ...]:
    """Who owns `spec.replicas`, from managedFields; a name once, in order."""
    owners: dict[str, None] = {}
    for entry in obj["metadata"].get("managedFields") or []:
        if "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {}):
            owners[str(entry.get("manager", ""))] = None
    return tuple(owners)


def read_deployment(obj: Object) -> DeploymentSeen:
    """A Deployment of ours."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    conditions = {c.get("type"): c for c in status.get("conditions") or []}
    progressing = conditions.get("Progressing", {})
    failure = conditions.get("ReplicaFailure", {})
    annotations = obj["metadata"].get("annotations") or {}
    return DeploymentSeen(
        meta=read_meta(obj),
        selector=dict((spec.get("selector") or {}).get("matchLabels") or {}),
        desired_replicas=int(spec.get("replicas", 1)),
        observed_generation=int(status.get("observedGeneration") or 0),
        replicas=int(status.get("replicas") or 0),
        updated_replicas=int(status.get("updatedReplicas") or 0),
        ready_replicas=int(status.get("readyReplicas") or 0),
        available_replicas=int(status.get("availableReplicas") or 0),
        progress_deadline_exceeded=progressing.get("reason") == "ProgressDeadlineExceeded",
        failure_message=str(failure.get("message", "")) if failure.get("status") == "True" else "",
        replicas_owners=_replicas_owners(obj),
        revision=str(annotations.get("deployment.kubernetes.io/revision", "")),
        surge=((spec.get("strategy") or {}).get("rollingUpdate") or {}).get("maxSurge", 0) not in (0, "0%"),
    )


def read_node(obj: Object) -> NodeSeen:
    """A node. A heartbeat changes nothing that is kept."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or [])
    return NodeSeen(
        meta=read_meta(obj),
        usable=ready and not spec.get("unschedulable", False),
        taints=tuple((t.get("key", ""), t.get("value", ""), t.get("effect", "")) for t in spec.get("taints") or []),
        allocatable=amounts(status.get("allocatable")),
    )


def read_job(obj: Object) -> JobSeen:
    """An inspection Job."""
    ends = [
        c
        for c in (obj.get("status") or {}).get("conditions") or []
        if c.get("type") in ("Complete", "Failed") and c.get("status") == "True"
    ]
    end: Object = ends[0] if ends else {}
    return JobSeen(
        meta=read_meta(obj),
        finished=bool(end),
        succeeded=end.get("type") == "Complete",
        finished_at=read_time(end.get("lastTransitionTime")),
        message=str(end.get("message") or ""),
    )


def read_object(obj: Object) -> ObjectSeen:
    """Any other object of ours."""
    return ObjectSeen(meta=read_meta(obj), data=dict(obj.get("data") or {}))


READERS: Mapping[Kind, Reader] = {
    kinds.POLICY: read_policy,
    kinds.MODEL: read_model,
    kinds.ACCELERATOR_CLASS: read_class,
    kinds.DEPLOYMENT: read_deployment,
    kinds.POD: read_pod,
    kinds.NODE: read_node,
    kinds.JOB: read_job,
    kinds.SERVICE: read_object,
    kinds.CONFIG_MAP: read_object,
    kinds.SERVICE_ACCOUNT: read_object,
    kinds.ROLE_BINDING: read_object,
    kinds.DISRUPTION_BUDGET: read_object,
}
