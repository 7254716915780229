"""Conditions: the type that every resource's status carries. What each means is in `condition_types`, why in `reasons`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AwareDatetime, Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from inference_fleet.api.base import StatusModel, Whole, shortened

MESSAGE_LENGTH = 1024


class Status(StrEnum):
    """A condition is positive: True is good. Unknown says that it cannot be told, never that it is False."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class ConditionType(StrEnum):
    """Every condition that a resource of this API can have."""

    READY = "Ready"
    ACCEPTED = "Accepted"
    MODELS_READY = "ModelsReady"
    FITS_MEMORY = "FitsMemory"
    SCHEDULED = "Scheduled"
    WORKLOAD_AVAILABLE = "WorkloadAvailable"
    UP_TO_DATE = "UpToDate"
    GATEWAY_AVAILABLE = "GatewayAvailable"
    SCALING_ACTIVE = "ScalingActive"
    METRICS_FRESH = "MetricsFresh"
    LATENCY_SLO_MET = "LatencySLOMet"
    SPECULATION_EFFECTIVE = "SpeculationEffective"
    INSPECTED = "Inspected"
    PRICE_CURRENT = "PriceCurrent"


class Condition(StatusModel):
    """One aspect of a resource's state, as `metav1.Condition`."""

    type: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Z][A-Za-z]*$")]
    """What this speaks of."""
    status: Status
    """True, False or Unknown. True is good."""
    reason: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Z][A-Za-z0-9]*$")]
    """Why, in one CamelCase word."""
    message: Annotated[str, shortened(MESSAGE_LENGTH), Field(max_length=MESSAGE_LENGTH)] = ""
    """Why, in a sentence with the numbers. Cut at 1,024 characters."""
    observed_generation: Annotated[Whole, Field(ge=0)] | None = None
    """The metadata.generation that this was computed from."""
    last_transition_time: AwareDatetime | None = None
    """When `status` last changed. None in a condition that was computed and not yet written."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """As computed the time may be missing; as written it never is."""
        document = super().__get_pydantic_json_schema__(schema, handler)
        document["required"] = sorted({*document["required"], "lastTransitionTime", "message"})
        return document


def find(conditions: Iterable[Condition], wanted: str) -> Condition | None:
    """The condition of this type, None where there is none."""
    return next((condition for condition in conditions if condition.type == wanted), None)


def with_times(previous: Iterable[Condition], computed: Sequence[Condition], now: datetime) -> tuple[Condition, ...]:
    """The computed conditions, in their order, ready to be written.

    `now` is timezone-aware; whole seconds of it are kept, as Kubernetes does. `lastTransitionTime` moves only where `status`
    changed; a condition that was not there before changed now. Types that are no longer computed are left out.
    """
    now = now.replace(microsecond=0)
    before = {condition.type: condition for condition in previous}

    def since(condition: Condition) -> datetime:
        old = before.get(condition.type)
        if old is None or old.status is not condition.status or old.last_transition_time is None:
            return now
        return old.last_transition_time

    return tuple(condition.model_copy(update={"last_transition_time": since(condition)}) for condition in computed)
