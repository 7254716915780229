"""Objects as this operator keeps them: what a decision can need and no more, frozen, comparable.

Two of them are equal when nothing that matters differs: resourceVersion, managedFields and status of our own writing do not
take part in the comparison, so that an event which changes only those wakes nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from inference_fleet.api.accelerator import AcceleratorClassSpec
from inference_fleet.api.model import InferenceModelSpec, ModelFacts, ResolvedArtifact
from inference_fleet.api.policy import InferencePolicySpec


@dataclass(frozen=True, slots=True)
class Meta:
    """Object metadata. `owner_uid` is the controlling owner's. Annotations of others are left out."""

    namespace: str
    name: str
    uid: str
    resource_version: str = field(compare=False)
    generation: int
    created: datetime
    deleting: bool
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    owner_uid: str = ""

    @property
    def key(self) -> str:
        """`namespace/name`, or the name alone."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class PolicySeen:
    """An InferencePolicy. `status` is what is stored, of our own writing."""

    meta: Meta
    spec: InferencePolicySpec | None
    invalid_message: str
    status: Mapping[str, Any] = field(compare=False)


@dataclass(frozen=True, slots=True)
class ModelSeen:
    """An InferenceModel. Its result is compared: policies wait for it."""

    meta: Meta
    spec: InferenceModelSpec | None
    invalid_message: str
    raw_source: Mapping[str, Any]
    resolved: ResolvedArtifact | None
    facts: ModelFacts | None
    ready: tuple[str, str, str]
    """Status, reason and message of its Ready condition; empty strings until there is one."""
    status: Mapping[str, Any] = field(compare=False)


@dataclass(frozen=True, slots=True)
class ClassSeen:
    """An AcceleratorClass."""

    meta: Meta
    spec: AcceleratorClassSpec | None
    invalid_message: str
    status: Mapping[str, Any] = field(compare=False)


@dataclass(frozen=True, slots=True)
class DeploymentSeen:
    """One of our Deployments."""

    meta: Meta
    selector: Mapping[str, str]
    desired_replicas: int
    observed_generation: int
    replicas: int
    updated_replicas: int
    ready_replicas: int
    available_replicas: int
    progress_deadline_exceeded: bool
    failure_message: str
    replicas_owners: tuple[str, ...]
    """Field managers that own `spec.replicas`."""
    revision: str
    """The Deployment controller's own revision number."""
    surge: bool = False
    """Whether a rolling update may add a pod before it takes one."""


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod: of ours with what holds it back, of others only what it takes from a node.

    `requests` are milli-cores of `cpu`, bytes of `memory`, and whole numbers of extended resources.
    """

    meta: Meta
    ours: bool
    finished: bool
    scheduled: bool
    ready: bool
    node: str
    address: str
    requests: Mapping[str, int]
    reason: str = ""
    message: str = ""
    container: str = ""
    restarts: int = 0
    deletion_cost: int = 0
    last_words: str = ""
    """Termination message of an inspection pod."""
    containers: tuple[str, ...] = ()
    """Names of containers and native sidecars."""


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node: labels, taints, and what may be requested of it (units as in `PodSeen.requests`)."""

    meta: Meta
    usable: bool
    """Ready and not cordoned."""
    taints: tuple[tuple[str, str, str], ...]
    """Key, value, effect."""
    allocatable: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class JobSeen:
    """An inspection Job."""

    meta: Meta
    finished: bool
    succeeded: bool
    finished_at: datetime | None
    message: str


@dataclass(frozen=True, slots=True)
class ObjectSeen:
    """Any other object of ours; of a ConfigMap also its data."""

    meta: Meta
    data: Mapping[str, str] = field(default_factory=dict)


Seen = PolicySeen | ModelSeen | ClassSeen | DeploymentSeen | PodSeen | NodeSeen | JobSeen | ObjectSeen
