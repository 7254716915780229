"""A user's policy → what is simulated: the variants that today's planner makes of it, its objectives, its gateway's rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from inference_fleet.api.policy import InferencePolicy, LatencyMetric, Mode
from inference_fleet.plan.decide import plan
from inference_fleet.plan.observation import OperatorSettings
from inference_fleet.plan.outcome import DesiredVariant, Memory
from inference_fleet.simulator.scenario import Objectives, Scenario, Variant
from inference_fleet.simulator.truth import EngineTruth

if TYPE_CHECKING:
    from inference_fleet.explain.files import Declared

MAXIMUM = 32
"""Replicas that scalers may use: policies do not say it yet."""
SETTINGS = OperatorSettings(image="inference-fleet", llama_cpp_image="", vllm_image="", render_revision=1)
"""Names of images decide nothing here."""
FIRST_DAY = datetime(2026, 1, 5, tzinfo=UTC)
"""The Monday on which virtual time begins."""


class CannotSimulate(ValueError):
    """What is missing, and how to give it."""


def objectives(policy: InferencePolicy) -> Objectives:
    """The tightest bound of each metric. Several percentiles of one metric are judged by the tightest bound."""
    bounds: dict[LatencyMetric, float] = {}
    percentile = 50
    for objective in policy.spec.slo.objectives if policy.spec.slo is not None else ():
        seconds = objective.milliseconds / 1000
        bounds[objective.metric] = min(seconds, bounds.get(objective.metric, seconds))
        percentile = max(percentile, objective.percentile)
    return Objectives(
        ttft=bounds.get(LatencyMetric.TIME_TO_FIRST_TOKEN),
        tpot=bounds.get(LatencyMetric.TIME_PER_OUTPUT_TOKEN),
        e2e=bounds.get(LatencyMetric.END_TO_END_LATENCY),
        percentile=percentile,
    )


def scenario(
    policy: InferencePolicy,
    declared: Declared,
    engines: Mapping[str, EngineTruth],
    duration: float,
    *,
    model: str | None = None,
    maximum: int = MAXIMUM,
    seed: int = 1,
) -> Scenario:
    """What would be simulated for one model of the policy. `engines`: step times by accelerator choice; "" stands for every other.

    Raises CannotSimulate.
    """
    from inference_fleet.explain.offline import observe

    entry = next((m for m in policy.spec.models if model in (None, m.name)), None)
    if entry is None:
        raise CannotSimulate(f"policy {policy.metadata.name!r} has no model {model!r}")
    observation = observe(policy, declared, SETTINGS, {})
    applied = policy.spec.model_copy(update={"mode": Mode.APPLY})
    outcome, _ = plan(replace(observation, policy=replace(observation.policy, spec=applied)), Memory(), FIRST_DAY)
    wanted = [v for v in outcome.variants if v.model.name == entry.name]
    if not wanted:
        raise CannotSimulate(
            f"model {entry.name!r} cannot be placed, see `inference-fleet plan`: {outcome.summary or 'no variant'}"
        )
    return Scenario(
        name=policy.metadata.name,
        variants=tuple(_variant(v, engines, maximum) for v in wanted),
        objectives=objectives(policy),
        duration=duration,
        hold_seconds=float(policy.spec.gateway.hold_seconds),
        currency=outcome.currency or "USD",
        seed=seed,
    )


def _variant(wanted: DesiredVariant, engines: Mapping[str, EngineTruth], maximum: int) -> Variant:
    truth = engines.get(wanted.accelerator) or engines.get("")
    if truth is None:
        raise CannotSimulate(
            f"no step times for accelerator {wanted.accelerator!r}: give --engine {wanted.accelerator}=NAME or --engine NAME"
        )
    config = wanted.engine
    changed = replace(
        truth,
        max_sequences=config.max_sequences,
        max_batched_tokens=config.max_batched_tokens or truth.max_batched_tokens,
    )
    return Variant(
        name=wanted.accelerator,
        truth=changed,
        price_per_hour=wanted.price_per_hour if wanted.price_per_hour is not None else Decimal(0),
        devices=config.devices,
        minimum=wanted.replicas,
        maximum=max(maximum, wanted.replicas),
        initial=wanted.replicas,
    )
