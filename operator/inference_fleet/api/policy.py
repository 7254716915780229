"""InferencePolicy: what must hold for a fleet of models. Its parts are in `entries`, `engine`, `objectives`, `gateway`."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from inference_fleet.api.base import API_VERSION, ApiModel, ByName, Rule, Whole
from inference_fleet.api.engine import (
    Batching,
    Engine,
    EngineType,
    KeyValueCacheType,
    Quantization,
    QuantizationMethod,
    Speculation,
    SpeculationMethod,
    Weights,
)
from inference_fleet.api.entries import AcceleratorChoice, Build, ModelEntry, Replicas
from inference_fleet.api.gateway import TLS, Authentication, AuthenticationType, Gateway, GatewayService, ServiceType
from inference_fleet.api.metadata import Column, ObjectMeta, Resource
from inference_fleet.api.objectives import SLO, LatencyMetric, Objective
from inference_fleet.api.policy_status import (
    CostReport,
    DecisionReport,
    InferencePolicyStatus,
    ModelReport,
    ObjectiveReport,
    PlanReport,
    RejectedReport,
    ReplicaCounts,
    VariantMemory,
    VariantReport,
    VariantSpeculation,
)
from inference_fleet.api.template import PodTemplate

__all__ = [
    "SLO",
    "TLS",
    "AcceleratorChoice",
    "Authentication",
    "AuthenticationType",
    "Batching",
    "Build",
    "CostReport",
    "DecisionReport",
    "Engine",
    "EngineType",
    "Gateway",
    "GatewayService",
    "InferencePolicy",
    "InferencePolicySpec",
    "InferencePolicyStatus",
    "KeyValueCacheType",
    "LatencyMetric",
    "Mode",
    "ModelEntry",
    "ModelReport",
    "Objective",
    "ObjectiveReport",
    "PlanReport",
    "PodTemplate",
    "Quantization",
    "QuantizationMethod",
    "RejectedReport",
    "ReplicaCounts",
    "Replicas",
    "ServiceType",
    "Speculation",
    "SpeculationMethod",
    "VariantMemory",
    "VariantReport",
    "VariantSpeculation",
    "Weights",
]

NAME_LENGTH = 50
_NAME = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")


class Mode(StrEnum):
    """Whether decisions are carried out."""

    APPLY = "Apply"
    PLAN = "Plan"


def _names_differ(spec: InferencePolicySpec) -> bool:
    seen = [name for model in spec.models for name in {model.name, *model.served_names}]
    return len(seen) == len(set(seen))


def _own_name_is_the_default(policy: InferencePolicy) -> bool:
    return not any(policy.metadata.name in (model.name, *model.served_names) for model in policy.spec.models[1:])


class InferencePolicySpec(ApiModel):
    """What must hold."""

    mode: Mode = Mode.APPLY
    """Apply: decide and do. Plan: decide, price and explain in status; change nothing."""
    priority: Annotated[Whole, Field(ge=-1000, le=1000)] = 0
    """Who gets scarce devices: higher first."""
    models: Annotated[tuple[ModelEntry, ...], Field(min_length=1, max_length=16), ByName()]
    """The models that are served. A request for the policy's own name goes to the first."""
    slo: SLO | None = None
    """Latency that must hold. Absent: none is judged."""
    gateway: Gateway
    """The OpenAI-compatible door."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.models.all(a, self.models.all(b, a.name == b.name || !has(b.servedNames) ||"
            " (!(a.name in b.servedNames) && (!has(a.servedNames) || !a.servedNames.exists(name, name in b.servedNames)))))",
            message="a served name must not be the name or a served name of another model",
            holds=_names_differ,
            field="models",
        ),
    )


class InferencePolicy(ApiModel):
    """What an inference fleet must achieve: which models, on what, how fast, behind which door. Creating one creates pods."""

    api_version: Literal["inference-fleet.dev/v1alpha1"] = API_VERSION
    kind: Literal["InferencePolicy"] = "InferencePolicy"
    metadata: ObjectMeta = ObjectMeta()
    spec: InferencePolicySpec
    """What must hold."""
    status: InferencePolicyStatus = InferencePolicyStatus()
    """How it stands."""

    resource: ClassVar[Resource] = Resource(
        kind="InferencePolicy",
        plural="inferencepolicies",
        short_names=("ipol",),
        namespaced=True,
        columns=(
            Column("Ready", '.status.conditions[?(@.type=="Ready")].status'),
            Column("Endpoint", ".status.endpoint"),
            Column("Replicas", ".status.replicas"),
            Column("Latency-SLO", '.status.conditions[?(@.type=="LatencySLOMet")].status'),
            Column("Cost/h", ".status.cost.perHour"),
            Column("Reason", '.status.conditions[?(@.type=="Ready")].reason', priority=1),
            Column("Age", ".metadata.creationTimestamp", type="date"),
        ),
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.metadata.name.size() <= 50 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            message="the name of an InferencePolicy must start with a letter, hold only a-z, 0-9 and '-', and have at most 50"
            " characters: its Services are named after it",
            holds=lambda self: (
                not self.metadata.name
                or (len(self.metadata.name) <= NAME_LENGTH and _NAME.fullmatch(self.metadata.name) is not None)
            ),
        ),
        Rule(
            cel="self.spec.models.all(model, model.name == self.spec.models[0].name || (model.name != self.metadata.name"
            " && (!has(model.servedNames) || !(self.metadata.name in model.servedNames))))",
            message="the policy's own name goes to its first model: no other model may be called so",
            holds=_own_name_is_the_default,
        ),
    )
