"""What one pass knows: frozen, serializable, so that any decision can be replayed from a file.

Everything here was seen by the shell (`cluster/`) at one moment; nothing here reads a clock or a network. A value that could not
be learned is None (missing), never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from inference_fleet.api.accelerator import AcceleratorClassSpec
from inference_fleet.api.conditions import Condition
from inference_fleet.api.model import InferenceModelSpec, ModelFacts, ResolvedArtifact
from inference_fleet.api.policy import InferencePolicySpec


@dataclass(frozen=True, slots=True)
class ModelView:
    """An InferenceModel as it stands. `resolved` and `facts` are what its inspection found, None until then."""

    name: str
    uid: str
    spec: InferenceModelSpec
    resolved: ResolvedArtifact | None = None
    facts: ModelFacts | None = None
    not_ready_reason: str = ""
    not_ready_message: str = ""


@dataclass(frozen=True, slots=True)
class ClassView:
    """An AcceleratorClass and its stock.

    `allocatable_devices` is what the matching nodes offer, None where nodes cannot be read (namespaced install).
    `used_by_others` counts devices given to pods that no policy owns. `claims` holds the devices that every OTHER policy has
    claimed, with the priority it claimed them at.
    """

    name: str
    spec: AcceleratorClassSpec
    allocatable_devices: int | None = None
    used_by_others: int = 0
    claims: tuple[Claim, ...] = ()


@dataclass(frozen=True, slots=True)
class Claim:
    """Devices of one class that another policy holds or has been promised."""

    policy: str
    """`namespace/name` of the policy."""
    accelerator_class: str
    devices: int
    """All it claims, held or not."""
    priority: int
    held_devices: int = 0
    """How many of them its pods occupy already: nobody takes these away, whatever the priority."""
    wanted_devices: int = 0
    """How many more it would take if there were any."""
    wanted_at_once: int = 1
    """Devices of one replica of what it wants: fewer are of no use to it."""


@dataclass(frozen=True, slots=True)
class PodView:
    """One engine pod. `engine_message` is the last termination or waiting message of whichever container holds it back."""

    name: str
    uid: str
    created: datetime
    ready: bool
    scheduled: bool
    deleting: bool
    node: str = ""
    template_hash: str = ""
    """The ReplicaSet's pod-template-hash: tells old pods from new ones in a rollout."""
    reason: str = ""
    """Why it is not running: Unschedulable, ImagePullBackOff, CrashLoopBackOff, SecretMissing, OOMKilled, … ; empty when well."""
    message: str = ""
    container: str = ""
    restarts: int = 0
    deletion_cost: int = 0


@dataclass(frozen=True, slots=True)
class VariantIdentity:
    """What makes two replicas interchangeable (docs/designs/001-seams.md)."""

    model: str
    digest: str
    """Content digest of the artefact: an InferenceModel made again with the same content changes nothing that runs."""
    weights: str
    method: str
    key_value_cache: str
    engine: str
    accelerator_class: str
    devices_per_replica: int


@dataclass(frozen=True, slots=True)
class VariantView:
    """An engine Deployment that this policy owns, as it stands."""

    name: str
    uid: str
    resource_version: str
    identity: VariantIdentity | None
    """None where the annotation is missing or unreadable: such a Deployment is kept and reported, never guessed at."""
    build: str
    accelerator: str
    generation: int
    observed_generation: int
    desired_replicas: int
    replicas: int
    updated_replicas: int
    ready_replicas: int
    """Ready pods as the API server last said; the pods themselves are in `pods`."""
    template_hash: str
    """Hash of the pod template as it was rendered: another one means that pods roll."""
    render_revision: int
    sidecar_image: str
    price_per_hour: Decimal | None = None
    foreign_scaler: str = ""
    """The field manager other than us that owns `spec.replicas`, or empty."""
    deleting: bool = False
    progress_deadline_exceeded: bool = False
    applied_generation: int = 0
    """The Deployment's generation after our last apply of the template or scale, as far as this process knows; 0: unknown."""
    pods: tuple[PodView, ...] = ()
    speculation: SpeculationView | None = None
    selector_conflict: str = ""
    surge: bool = False
    """Whether its rolling update may use one device more, as it stands."""

    @property
    def rolling(self) -> bool:
        """Whether pods of its present template are still replacing older ones."""
        return (
            self.observed_generation < self.generation
            or self.updated_replicas < self.desired_replicas
            or self.replicas > self.updated_replicas
        )


@dataclass(frozen=True, slots=True)
class SpeculationView:
    """What a variant's draft sidecars measured, summed over its pods; ratios are None until there is something to divide."""

    drafts: int
    draft_tokens: int
    accepted_tokens: int
    depth: int
    drafting: bool | None
    """False: tokens are generated and nothing is drafted. None: not enough was generated to tell."""


@dataclass(frozen=True, slots=True)
class GatewayView:
    """The policy's gateway Deployment, and the routes revision each Ready replica shows (None: could not be read)."""

    exists: bool = False
    desired_replicas: int = 0
    ready_replicas: int = 0
    updated_replicas: int = 0
    generation: int = 0
    observed_generation: int = 0
    rendered_hash: str = ""
    revisions: Mapping[str, str | None] = field(default_factory=dict)
    problem_reason: str = ""
    problem_message: str = ""


@dataclass(frozen=True, slots=True)
class ObjectiveReading:
    """One objective over its window, summed over gateway replicas. None where no gateway replica could be read."""

    name: str
    requests: int
    within: int
    observed_milliseconds: Decimal | None


@dataclass(frozen=True, slots=True)
class TrafficView:
    """What the gateway's own counters said, and how old that is."""

    objectives: tuple[ObjectiveReading, ...] = ()
    age_seconds: float | None = None
    """Age of the oldest replica's sample; None: never read."""
    missing_sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyView:
    """The InferencePolicy itself. `spec` is None where this version of the operator cannot read what is stored."""

    namespace: str
    name: str
    uid: str
    generation: int
    created: datetime
    spec: InferencePolicySpec | None
    invalid_message: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    deleting: bool = False

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """What the installation fixed for all policies."""

    image: str
    """The project's own image: gateway, draft sidecar, staging and inspection."""
    llama_cpp_image: str
    """Image where a policy names none; empty: the official one of the version."""
    vllm_image: str
    """The same for vLLM."""
    render_revision: int
    """The newest revision that this operator renders."""
    stock_known: bool = True
    """False in a namespaced install without the read-only ClusterRole for nodes."""
    gateway_cluster_role: str = "inference-fleet-gateway"
    """ClusterRole that a gateway's ServiceAccount is bound to, in its own namespace."""
    hub_endpoint: str = ""
    """Address of the Hugging Face hub or a mirror of it, for pods that inspect or stage; empty: the public one."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything one pass over one policy may look at."""

    policy: PolicyView
    settings: OperatorSettings
    models: Mapping[str, ModelView] = field(default_factory=dict)
    classes: Mapping[str, ClassView] = field(default_factory=dict)
    variants: tuple[VariantView, ...] = ()
    gateway: GatewayView = field(default_factory=GatewayView)
    traffic: TrafficView = field(default_factory=TrafficView)
    routes_revision: str = ""
    """The revision in the routes ConfigMap as it stands; empty: there is none."""
    routes_drain: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()
    """What could not be read (names of kinds). Nothing is deleted or scaled down while this is not empty."""
