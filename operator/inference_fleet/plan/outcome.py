"""What a pass decided: values, to be rendered, applied and reported. Planning its own outcome again gives no change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from inference_fleet.api.conditions import Condition
from inference_fleet.api.entries import ModelEntry
from inference_fleet.api.policy import InferencePolicySpec
from inference_fleet.engines.config import EngineConfig, MemoryEstimate
from inference_fleet.plan.observation import ClassView, ModelView, VariantIdentity


@dataclass(frozen=True, slots=True)
class DesiredVariant:
    """A variant that should run, with everything `render/` needs; it reads nothing else."""

    name: str
    identity: VariantIdentity
    model: ModelEntry
    build: str
    accelerator: str
    engine: EngineConfig
    engine_image: str
    target: ModelView
    draft: ModelView | None
    accelerator_class: ClassView
    replicas: int
    """What it should hold in the end. Only used when the Deployment is created; later counts move by `ReplicaChange`."""
    render_revision: int
    sidecar_image: str
    surge: bool
    """True: a rolling update may use one device more; False: one replica at a time is taken down first."""
    longest_generation_seconds: int
    price_per_hour: Decimal | None
    memory: MemoryEstimate
    resting_surge: bool | None = None
    """What `surge` is in the Deployment as it stands, while no pod rolls; None: nothing runs, or pods roll. While the template
    stays the same it is kept: it matters in a rollout only, and stock comes and goes."""
    running_template_hash: str = ""
    """Hash of the pod template that runs; where rendering at `render_revision` gives another, the variant rolls anyway and moves to
    the newest revision and image. Empty: nothing runs, or an upgrade was asked for."""


class Action(StrEnum):
    """What a decision does to a variant."""

    CREATE = "Create"
    UPDATE = "Update"
    SCALE = "Scale"
    KEEP = "Keep"
    DRAIN = "Drain"
    DELETE = "Delete"
    REFUSE = "Refuse"
    WAIT = "Wait"


@dataclass(frozen=True, slots=True)
class Rejected:
    """An alternative that was looked at and not taken."""

    option: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Decision:
    """One thing decided, why, and what else was looked at."""

    model: str
    variant: str
    action: Action
    reason: str
    message: str
    before: int | None = None
    after: int | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    rejected: tuple[Rejected, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaChange:
    """A write to `/scale`, valid only against this resourceVersion of the Deployment. Victims get a low pod-deletion-cost first."""

    variant: str
    uid: str
    resource_version: str
    before: int
    after: int
    victims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Removal:
    """A delete of a variant's Deployment and Service, valid only against this uid and resourceVersion."""

    variant: str
    uid: str
    resource_version: str


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event on the policy: type Normal or Warning."""

    type: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class RouteVariant:
    """A variant as the gateway sees it."""

    name: str
    service: str
    port: int
    weight: int
    engine: str


@dataclass(frozen=True, slots=True)
class RouteModel:
    """A model as the gateway sees it."""

    name: str
    served_names: tuple[str, ...]
    context_tokens: int
    default: bool
    variants: tuple[RouteVariant, ...]


@dataclass(frozen=True, slots=True)
class Routes:
    """The content of the routes ConfigMap; `render/routes.py` writes it and derives the revision."""

    models: tuple[RouteModel, ...]
    drain: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """One row of `status.models`."""

    name: str
    ready: bool
    desired: int
    ready_replicas: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class VariantStatus:
    """One row of `status.variants`."""

    name: str
    model: str
    build: str
    accelerator: str
    desired: int
    ready_replicas: int
    price_per_hour: Decimal | None
    memory: MemoryEstimate | None
    up_to_date: bool
    speculation_depth: int | None = None
    accepted_percent: int | None = None


@dataclass(frozen=True, slots=True)
class UpgradeAsked:
    """An upgrade annotation's value, and which version of the operator was asked by it."""

    value: str
    render_revision: int
    image: str


@dataclass(frozen=True, slots=True)
class Memory:
    """What the next pass must remember, persisted and bounded."""

    drains: Mapping[str, datetime] = field(default_factory=dict)
    """Pod name → when it was first taken out of routing."""
    upgrade: UpgradeAsked | None = None
    """The upgrade that the policy's annotation asked for; kept as long as the annotation has that value."""


@dataclass(frozen=True, slots=True)
class Want:
    """Devices of a class that a policy is short of, and how many make one replica."""

    devices: int
    at_once: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole outcome of one pass."""

    variants: tuple[DesiredVariant, ...] = ()
    """To be created, or kept at the template rendered from this. A variant that runs and is in neither this nor `removals` is
    left exactly as it is."""
    changes: tuple[ReplicaChange, ...] = ()
    removals: tuple[Removal, ...] = ()
    routes: Routes | None = None
    """None: leave the routes as they are."""
    gateway: InferencePolicySpec | None = None
    """The spec to render the gateway from; None: leave the gateway as it is."""
    conditions: tuple[Condition, ...] = ()
    models: tuple[ModelStatus, ...] = ()
    variant_rows: tuple[VariantStatus, ...] = ()
    decisions: tuple[Decision, ...] = ()
    events: tuple[Event, ...] = ()
    summary: str = ""
    cost_per_hour: Decimal | None = None
    currency: str = ""
    requeue_after_seconds: float | None = None
    """None: only an event or the resync tick brings the policy back."""
    claims: Mapping[str, int] = field(default_factory=dict)
    """Accelerator class → devices this policy claims once the plan is carried out (old and new together while both run)."""
    wants: Mapping[str, Want] = field(default_factory=dict)
    """Accelerator class → what it would take more of it if there were any."""
