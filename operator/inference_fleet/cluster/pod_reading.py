"""Reading pods: whether one runs, and if not, the one reason that holds it back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from inference_fleet.cluster.amounts import pod_requests
from inference_fleet.cluster.meta_reading import read_meta
from inference_fleet.cluster.seen import PodSeen

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "inference-fleet"
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
MESSAGE_LENGTH = 512

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Trouble:
    """What holds a pod back: a CamelCase reason, its own words, and which container."""

    reason: str = ""
    message: str = ""
    container: str = ""


def _condition(status: Object, wanted: str) -> Object:
    return next((c for c in status.get("conditions") or [] if c.get("type") == wanted), {})


def _of_container(status: Object) -> Trouble | None:
    """What one container's status complains of; None when it is well, or only starting."""
    name = str(status.get("name", ""))
    state = status.get("state") or {}
    last = (status.get("lastState") or {}).get("terminated") or {}
    waiting = state.get("waiting") or {}
    reason, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
    if reason == "CreateContainerConfigError" and "secret" in message:
        return Trouble("SecretMissing", message, name)
    if reason == "CrashLoopBackOff":
        if last.get("reason") == "OOMKilled":
            return Trouble("OOMKilled", f"Exit status {last.get('exitCode')}. {message}", name)
        words = str(last.get("message") or "").strip()
        return Trouble("CrashLoopBackOff", f"Exit status {last.get('exitCode')}. {words or message}".strip(), name)
    if reason and reason not in ("ContainerCreating", "PodInitializing"):
        return Trouble(reason, message, name)
    ended = state.get("terminated") or {}
    if ended and int(ended.get("exitCode") or 0) != 0:
        words = str(ended.get("message") or "").strip()
        return Trouble(
            str(ended.get("reason") or "Error"), f"Exit status {ended.get('exitCode')}. {words}".strip(), name
        )
    return None


def trouble_of(status: Object) -> Trouble:
    """The first thing that holds a pod back: its node, then its init containers in order, then its containers."""
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return Trouble(str(scheduled.get("reason") or "Unschedulable"), str(scheduled.get("message") or ""))
    if status.get("phase") == "Failed" and status.get("reason"):
        return Trouble(str(status["reason"]), str(status.get("message") or ""))
    for group in ("initContainerStatuses", "containerStatuses"):
        for one in status.get(group) or []:
            trouble = _of_container(one)
            if trouble is not None:
                return replace(trouble, message=trouble.message[:MESSAGE_LENGTH])
    return Trouble()


def _last_words(status: Object) -> str:
    """The termination message of a pod with one container (an inspection), cut where a kubelet would."""
    for one in status.get("containerStatuses") or []:
        ended = (one.get("state") or {}).get("terminated") or {}
        if ended.get("message"):
            return str(ended["message"])[:4096]
    return ""


def read_pod(obj: Object) -> PodSeen:
    """A pod; of pods that are not ours only where they are and what they take."""
    meta = read_meta(obj)
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    ours = meta.labels.get(MANAGED_BY) == MANAGER
    finished = status.get("phase") in ("Succeeded", "Failed")
    node = str(spec.get("nodeName") or "")
    requests = pod_requests(spec)
    if not ours:
        return PodSeen(
            meta=replace(meta, labels={}, annotations={}, owner_uid="", deleting=False),
            ours=False,
            finished=finished,
            scheduled=bool(node),
            ready=False,
            node=node,
            address="",
            requests=requests,
        )
    trouble = trouble_of(status)
    statuses = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    sidecars = [c for c in spec.get("initContainers") or [] if c.get("restartPolicy") == "Always"]
    annotations = (obj["metadata"].get("annotations") or {}).get(DELETION_COST, "0")
    inspection = meta.labels.get("inference-fleet.dev/component") == "inspect"
    return PodSeen(
        meta=meta,
        ours=True,
        finished=finished,
        scheduled=bool(node),
        ready=_condition(status, "Ready").get("status") == "True",
        node=node,
        address=str(status.get("podIP") or ""),
        requests=requests,
        reason=trouble.reason,
        message=trouble.message,
        container=trouble.container,
        restarts=sum(int(s.get("restartCount") or 0) for s in statuses),
        deletion_cost=int(annotations) if str(annotations).lstrip("-").isdigit() else 0,
        last_words=_last_words(status) if inspection else "",
        containers=tuple(str(c.get("name", "")) for c in [*sidecars, *(spec.get("containers") or [])]),
    )
