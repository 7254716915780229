"""What an InferencePolicy's status says. Everything here is of our own writing: long texts and lists are cut, never refused."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from inference_fleet.api.base import ByName, Message, ReasonName, StatusModel, Whole, first
from inference_fleet.api.conditions import Condition
from inference_fleet.api.money import Money

Name = Annotated[str, Field(max_length=63)]
Count = Annotated[Whole, Field(ge=0, le=1000000)]
Percent = Annotated[Whole, Field(ge=0, le=100)]
Bytes = Annotated[Whole, Field(ge=0, le=2**53)]


class ReplicaCounts(StatusModel):
    """Replicas wanted and replicas that can serve."""

    desired: Count
    """Wanted by the plan."""
    ready: Count
    """Ready now."""


class ModelReport(StatusModel):
    """One model of the policy."""

    name: Name
    """Name of the model in the policy."""
    ready: bool
    """Whether it can be served now."""
    replicas: ReplicaCounts
    """Over all its variants."""
    reason: ReasonName = ""
    """Why it is not ready, in one word; empty when it is."""
    message: Message = ""
    """Why, in a sentence."""


class VariantMemory(StatusModel):
    """The arithmetic behind FitsMemory for one replica."""

    needed_bytes: Bytes
    """Weights, KV cache, draft and overhead."""
    available_bytes: Bytes
    """Usable memory of all its devices."""
    sequences: Count | None = None
    """Sequences of full context that fit; absent where memory does not limit them."""


class VariantSpeculation(StatusModel):
    """What speculation does in one variant."""

    depth: Annotated[Whole, Field(ge=0, le=1024)] | None = None
    """Tokens guessed at once."""
    accepted_percent: Percent | None = None
    """Guessed tokens that were right; absent until some were guessed."""


class VariantReport(StatusModel):
    """One variant: interchangeable replicas, one Deployment."""

    name: Name
    """Name of its Deployment."""
    model: Name
    """Name of the model in the policy."""
    build: Name = ""
    """Name of the build."""
    accelerator: Name = ""
    """Name of the accelerator choice."""
    replicas: ReplicaCounts
    """Its replicas."""
    price_per_hour: Money | None = None
    """Price of one replica; absent: unknown."""
    memory: VariantMemory | None = None
    """What a replica needs and has."""
    speculation: VariantSpeculation | None = None
    """Absent: it does not speculate."""
    up_to_date: bool = True
    """Whether it runs what the newest operator would render."""


class ObjectiveReport(StatusModel):
    """How an objective fares over its window."""

    name: Name
    """Name of the objective."""
    observed_milliseconds: Annotated[Whole, Field(ge=0, le=2**53)] | None = None
    """The metric at the objective's percentile; absent without requests."""
    attainment_percent: Percent | None = None
    """Requests that were within the bound; absent without requests."""
    requests: Annotated[Whole, Field(ge=0, le=2**53)] | None = None
    """Requests in the window; absent where no gateway could be read."""


class CostReport(StatusModel):
    """What the policy costs now."""

    currency: Annotated[str, Field(max_length=3)]
    """ISO 4217 code."""
    per_hour: Money
    """Committed rate of all its pods."""


class RejectedReport(StatusModel):
    """An alternative that was looked at and not taken."""

    option: Annotated[str, Field(max_length=128)]
    """What could have been done."""
    reason: ReasonName
    """Why not, in one word."""
    message: Message = ""
    """Why not, in a sentence."""


class DecisionReport(StatusModel):
    """One decision of the plan."""

    variant: Name = ""
    """The variant it is about; empty where there is none."""
    model: Name = ""
    """The model it is about."""
    action: Annotated[str, Field(max_length=32)]
    """Create, Update, Scale, Keep, Drain, Delete, Refuse or Wait."""
    from_: Annotated[Count | None, Field(alias="from")] = None
    """Replicas before."""
    to: Count | None = None
    """Replicas after."""
    reason: ReasonName
    """Why, in one word."""
    message: Message = ""
    """Why, in a sentence with the numbers."""
    rejected: Annotated[tuple[RejectedReport, ...], Field(max_length=8), first(8)] = ()
    """What else was looked at."""


class PlanReport(StatusModel):
    """What the last pass decided."""

    summary: Message = ""
    """In one sentence."""
    decisions: Annotated[tuple[DecisionReport, ...], Field(max_length=64), first(64)] = ()
    """At most 64, in order."""


class InferencePolicyStatus(StatusModel):
    """How the policy stands."""

    observed_generation: Annotated[Whole, Field(ge=0)] | None = None
    """The metadata.generation that this status speaks of."""
    endpoint: Annotated[str, Field(max_length=512)] | None = None
    """URL of the gateway inside the cluster."""
    replicas: Annotated[str, Field(max_length=32)] | None = None
    """Engine replicas of all models, ready/desired, such as `2/3`."""
    models: Annotated[tuple[ModelReport, ...], Field(max_length=16), ByName(), first(16)] = ()
    """One row for each model."""
    variants: Annotated[tuple[VariantReport, ...], Field(max_length=128), ByName(), first(128)] = ()
    """One row for each variant, old ones that are being replaced included."""
    objectives: Annotated[tuple[ObjectiveReport, ...], Field(max_length=8), ByName(), first(8)] = ()
    """One row for each objective."""
    cost: CostReport | None = None
    """What it costs now; absent where a price is unknown."""
    plan: PlanReport | None = None
    """What the last pass decided."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16), ByName("type")] = ()
    """See the reference of conditions."""
