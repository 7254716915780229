"""From a Plan to the policy's status, and whether that is worth a write. Pure.

Conditions, counts and decisions are written as soon as they differ. Measured figures (latency, acceptance) move all the time: they
are rounded, and alone they cause at most one write a minute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import ROUND_DOWN, Decimal
from typing import Any

from inference_fleet.api.conditions import Condition, Status, with_times
from inference_fleet.api.money import Money
from inference_fleet.api.policy import InferencePolicySpec
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
from inference_fleet.cluster.apply import Refused
from inference_fleet.naming import gateway_name
from inference_fleet.plan.observation import ObjectiveReading, Observation
from inference_fleet.plan.outcome import Decision, Plan, VariantStatus

MEASURED_SECONDS = 60.0
SIGNIFICANT_DIGITS = 2


def endpoint(namespace: str, name: str, spec: InferencePolicySpec | None) -> str | None:
    """URL of the gateway inside the cluster; None while the spec cannot be read."""
    if spec is None:
        return None
    scheme = "https" if spec.gateway.tls is not None else "http"
    return f"{scheme}://{gateway_name(name)}.{namespace}.svc"


def rounded(value: Decimal) -> int:
    """A measured figure to two significant digits, so that noise is no news: 1234 → 1200, 87.6 → 88."""
    if value <= 0:
        return 0
    exponent = max(0, value.adjusted() - SIGNIFICANT_DIGITS + 1)
    step = Decimal(10) ** exponent
    return int((value / step).to_integral_value() * step)


def _objective(reading: ObjectiveReading) -> ObjectiveReport:
    share = None
    if reading.requests > 0:
        # Down, not to the nearest: 99.6 % is not "all".
        share = int((Decimal(100) * reading.within / reading.requests).to_integral_value(ROUND_DOWN))
    observed = reading.observed_milliseconds
    return ObjectiveReport(
        name=reading.name,
        observed_milliseconds=rounded(observed) if observed is not None else None,
        attainment_percent=share,
        requests=rounded(Decimal(reading.requests)),
    )


def _variant(row: VariantStatus) -> VariantReport:
    memory = None
    if row.memory is not None:
        memory = VariantMemory(
            needed_bytes=row.memory.needed_bytes,
            available_bytes=row.memory.available_bytes,
            sequences=row.memory.sequences,
        )
    speculation = None
    if row.speculation_depth is not None or row.accepted_percent is not None:
        speculation = VariantSpeculation(depth=row.speculation_depth, accepted_percent=row.accepted_percent)
    return VariantReport(
        name=row.name,
        model=row.model,
        build=row.build,
        accelerator=row.accelerator,
        replicas=ReplicaCounts(desired=row.desired, ready=row.ready_replicas),
        price_per_hour=Money.of(row.price_per_hour) if row.price_per_hour is not None else None,
        memory=memory,
        speculation=speculation,
        up_to_date=row.up_to_date,
    )


def _decision(decision: Decision) -> DecisionReport:
    return DecisionReport(
        variant=decision.variant,
        model=decision.model,
        action=decision.action.value,
        from_=decision.before,
        to=decision.after,
        reason=decision.reason,
        message=decision.message,
        rejected=tuple(RejectedReport(option=r.option, reason=r.reason, message=r.message) for r in decision.rejected),
    )


def _with_refusals(conditions: Sequence[Condition], refused: Sequence[Refused]) -> tuple[Condition, ...]:
    """What the API server refused is not in the plan, which could not know: it makes Accepted, and with it Ready, False."""
    if not refused:
        return tuple(conditions)
    first = refused[0]
    reason = "TemplateInvalid" if first.variant and first.status == 422 else "ApplyRefused"
    more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
    message = f"The API server refused {first.kind} {first.name}: {first.message}{more}"
    return tuple(
        c.model_copy(update={"status": Status.FALSE, "reason": reason, "message": message})
        if c.type in ("Accepted", "Ready") and c.status is not Status.FALSE
        else c
        for c in conditions
    )


def with_rollouts(conditions: Sequence[Condition], plan: Plan, rolled: Sequence[str]) -> tuple[Condition, ...]:
    """A variant that got another template in this very pass was observed, and planned with, as it was before: up to date."""
    names = [variant.name for variant in plan.variants if variant.name in rolled]
    if not names:
        return tuple(conditions)
    message = f"{', '.join(names)}: the present configuration is written, and its pods are being replaced."
    return tuple(
        c.model_copy(update={"status": Status.FALSE, "reason": "RollingOut", "message": message})
        if c.type == "UpToDate" and c.status is Status.TRUE
        else c
        for c in conditions
    )


def status_of(
    observation: Observation, plan: Plan, refused: Sequence[Refused], previous: Iterable[Condition], now: datetime
) -> dict[str, Any]:
    """The whole status as it should stand, in API spelling."""
    policy = observation.policy
    conditions = with_times(previous, _with_refusals(plan.conditions, refused), now)
    status = InferencePolicyStatus(
        observed_generation=policy.generation,
        endpoint=endpoint(policy.namespace, policy.name, policy.spec),
        replicas=f"{sum(m.ready_replicas for m in plan.models)}/{sum(m.desired for m in plan.models)}",
        models=tuple(
            ModelReport(
                name=m.name,
                ready=m.ready,
                replicas=ReplicaCounts(desired=m.desired, ready=m.ready_replicas),
                reason=m.reason,
                message=m.message,
            )
            for m in plan.models
        ),
        variants=tuple(_variant(row) for row in plan.variant_rows),
        objectives=tuple(_objective(reading) for reading in observation.traffic.objectives),
        cost=CostReport(currency=plan.currency, per_hour=Money.of(plan.cost_per_hour))
        if plan.cost_per_hour is not None
        else None,
        plan=PlanReport(summary=plan.summary, decisions=tuple(_decision(d) for d in plan.decisions)),
        conditions=conditions,
    )
    return status.to_dict()


def without_measured(status: Mapping[str, Any]) -> dict[str, Any]:
    """A status less the figures that move all the time."""
    plain = {key: value for key, value in status.items() if key not in ("objectives", "variants", "conditions")}
    plain["variants"] = [
        {key: value for key, value in row.items() if key != "speculation"} for row in status.get("variants") or []
    ]
    plain["objectives"] = [row.get("name") for row in status.get("objectives") or []]
    plain["conditions"] = [
        (c.get("type"), c.get("status"), c.get("reason"), c.get("observedGeneration"), _message(c))
        for c in status.get("conditions") or []
    ]
    return plain


def _message(condition: Mapping[str, Any]) -> str:
    """Conditions that quote measured figures do not count as changed when only the figures move."""
    measured = condition.get("type") in ("MetricsFresh", "LatencySLOMet", "SpeculationEffective", "CostSLOMet")
    return "" if measured else str(condition.get("message", ""))


def worth_writing(stored: Mapping[str, Any], computed: Mapping[str, Any], seconds_since_write: float) -> bool:
    """Whether a computed status must replace the stored one now. Before a first write count from the start of the process."""
    if not stored or without_measured(stored) != without_measured(computed):
        return True
    if dict(stored) == dict(computed):
        return False
    return seconds_since_write >= MEASURED_SECONDS


def patch_of(stored: Mapping[str, Any], computed: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON merge patch that turns one into the other: what is no longer there must be named as null."""
    patch: dict[str, Any] = {key: None for key in stored if key not in computed}
    for key, value in computed.items():
        before = stored.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            nested = patch_of(before, value)
            if nested:
                patch[key] = nested
        elif before != value:
            patch[key] = value
    return patch
