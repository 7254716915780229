"""What latency must hold. Part of InferencePolicy."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from inference_fleet.api.base import ApiModel, ByName, ItemName, Whole


class LatencyMetric(StrEnum):
    """What is measured, at the gateway, as the client feels it."""

    TIME_TO_FIRST_TOKEN = "TimeToFirstToken"
    TIME_PER_OUTPUT_TOKEN = "TimePerOutputToken"
    END_TO_END_LATENCY = "EndToEndLatency"


class Objective(ApiModel):
    """A share of requests must be at least this fast. Failed and refused requests count as too slow."""

    name: ItemName
    """Name of the objective, shown in status and metrics."""
    metric: LatencyMetric
    """TimeToFirstToken: from the request's arrival to the first token sent. TimePerOutputToken: mean time between a request's later
    tokens. EndToEndLatency: from arrival to the last byte."""
    percentile: Annotated[Whole, Field(ge=50, le=99)]
    """Whole percent of requests that must be within `milliseconds`."""
    milliseconds: Annotated[Whole, Field(ge=1, le=3600000)]
    """The bound."""


class SLO(ApiModel):
    """Latency that must hold. Says nothing about readiness: a fleet that is slow is still up."""

    window_seconds: Annotated[Whole, Field(ge=60, le=3600)] = 300
    """Requests of this many last seconds are looked at."""
    objectives: Annotated[tuple[Objective, ...], Field(min_length=1, max_length=8), ByName()]
    """All must hold."""
