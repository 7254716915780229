"""The policy's conditions, each a fold over one pass's facts. All are positive: True is good.

A condition that speaks of models names the first that fails and counts the rest; details are in `status.models`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from inference_fleet.api.conditions import Condition, Status
from inference_fleet.api.policy import InferencePolicySpec, Mode
from inference_fleet.naming import UPGRADE_ANNOTATION
from inference_fleet.plan.blueprint import Blueprint
from inference_fleet.plan.observation import Observation, PodView, VariantView
from inference_fleet.plan.rollout import Step
from inference_fleet.plan.stock_out import NO_STOCK_OUTS, StockOut, is_elastic
from inference_fleet.plan.upgrading import is_older

MINIMUM_SAMPLES = 30
"""Requests in the window under which a latency objective is reported but is no evidence."""

STALE_SECONDS = 60.0
"""A gateway sample older than this says nothing about now."""


@dataclass(frozen=True, slots=True)
class ModelPass:
    """One declared model in this pass: what it should be, the step taken, and its variants as they stand."""

    blueprint: Blueprint
    step: Step
    variants: tuple[VariantView, ...]

    @property
    def name(self) -> str:
        """The model's name in the policy."""
        return self.blueprint.entry.name

    @property
    def ready_replicas(self) -> int:
        """Replicas that answer requests, of all its variants."""
        return sum(v.ready_replicas for v in self.variants)

    @property
    def desired_replicas(self) -> int:
        """What it should hold in the end; what it holds where the declaration cannot be carried out."""
        wanted = self.blueprint.variant
        return wanted.replicas if wanted is not None else sum(v.desired_replicas for v in self.variants)


def condition(kind: str, status: Status, reason: str, message: str, observation: Observation) -> Condition:
    """A condition of this pass; when it last changed is worked out where the status is written."""
    return Condition(
        type=kind, status=status, reason=reason, message=message, observed_generation=observation.policy.generation
    )


def judge(
    observation: Observation,
    spec: InferencePolicySpec,
    passes: Sequence[ModelPass],
    stock_outs: Mapping[str, StockOut] = NO_STOCK_OUTS,
) -> tuple[Condition, ...]:
    """Every condition of an accepted or refused spec, Ready first. `stock_outs`: variants that wait in vain for nodes."""

    def say(kind: str, status: Status, reason: str, message: str) -> Condition:
        return condition(kind, status, reason, message, observation)

    true, false, unknown = Status.TRUE, Status.FALSE, Status.UNKNOWN

    def by_problem(kind: str, good_reason: str, good: str) -> Condition:
        failing = [p for p in passes if p.blueprint.problem is not None and p.blueprint.problem.condition == kind]
        if failing and failing[0].blueprint.problem is not None:
            problem = failing[0].blueprint.problem
            message = f"{failing[0].name}: {problem.message}" + _more(len(failing) - 1)
            return say(kind, false, problem.reason, message)
        return say(kind, true, good_reason, good)

    accepted = by_problem("Accepted", "Valid", "The declaration can be carried out.")
    models_ready = by_problem("ModelsReady", "Inspected", "Every model and draft is inspected.")
    fits = by_problem("FitsMemory", "Fits", _fits(passes))
    if fits.status is true and any(p.blueprint.memory is None for p in passes):
        fits = say("FitsMemory", unknown, "NotInspected", "Memory is worked out when every model is inspected.")
    conditions = [
        accepted,
        models_ready,
        fits,
        _scheduled(observation, passes, by_problem, stock_outs),
        workload := _workload(observation, passes),
        _up_to_date(observation, passes),
        gateway := _gateway(observation, spec),
        _scaling_active(observation, passes),
        *_traffic(observation, spec),
        _speculation(observation, passes),
    ]
    return (_ready(observation, spec, [accepted, models_ready, fits, workload, gateway]), *conditions)


def _ready(observation: Observation, spec: InferencePolicySpec, parts: Sequence[Condition]) -> Condition:
    if spec.mode is Mode.PLAN:
        message = "mode is Plan: the plan is in the status and nothing is applied. Set mode: Apply to carry it out."
        return condition("Ready", Status.UNKNOWN, "PlanOnly", message, observation)
    for part in parts:
        if part.status is not Status.TRUE:
            return condition("Ready", Status.FALSE, part.reason, f"{part.type}: {part.message}", observation)
    return condition("Ready", Status.TRUE, "Ready", "Every model answers behind the gateway.", observation)


def _fits(passes: Sequence[ModelPass]) -> str:
    said = [f"{p.name}: {p.blueprint.memory.message}" for p in passes if p.blueprint.memory is not None]
    return said[0] + _more(len(said) - 1) if said else "Nothing to place."


def _scheduled(
    observation: Observation,
    passes: Sequence[ModelPass],
    by_problem: Callable[[str, str, str], Condition],
    stock_outs: Mapping[str, StockOut],
) -> Condition:
    refused = by_problem("Scheduled", "Placed", "Every replica has its devices.")
    if refused.status is not Status.TRUE:
        return refused
    short = [p for p in passes if p.step.short_of_devices]
    if short:
        message = f"{short[0].name}: {short[0].step.short_of_devices}" + _more(len(short) - 1)
        return condition("Scheduled", Status.FALSE, "InsufficientDevices", message, observation)
    vain = [stock_outs[v.name] for p in passes for v in p.variants if v.name in stock_outs]
    if vain:
        message = vain[0].message + _more(len(vain) - 1, "variants")
        return condition("Scheduled", Status.FALSE, "StockOut", message, observation)
    waiting = [(v, pod) for p in passes for v in p.variants for pod in v.pods if not pod.scheduled and not pod.deleting]
    expected = [(v, pod) for v, pod in waiting if _on_elastic(observation, v)]
    unschedulable = [pod for v, pod in waiting if pod.reason == "Unschedulable" and (v, pod) not in expected]
    if unschedulable:
        pod = unschedulable[0]
        message = f"Pod {pod.name}: {pod.message}" + _more(len(unschedulable) - 1, "pods")
        return condition("Scheduled", Status.FALSE, "Unschedulable", message, observation)
    provisioned = [pod for _, pod in expected if pod.reason == "Unschedulable"]
    if provisioned:
        message = f"Pod {provisioned[0].name} waits for a node that an autoscaler brings"
        message += _more(len(provisioned) - 1, "pods") + "."
        return condition("Scheduled", Status.FALSE, "Provisioning", message, observation)
    if spec_reads_no_nodes(observation):
        message = "Nodes cannot be read in this installation; stock is unknown and no surge replica is used."
        return condition("Scheduled", Status.UNKNOWN, "StockUnknown", message, observation)
    return refused


def _on_elastic(observation: Observation, variant: VariantView) -> bool:
    identity = variant.identity
    return identity is not None and is_elastic(observation.classes.get(identity.accelerator_class))


def spec_reads_no_nodes(observation: Observation) -> bool:
    """Whether this installation lacks the right to read nodes."""
    return not observation.settings.stock_known


def worst_pod(variants: Sequence[VariantView]) -> PodView | None:
    """The pod whose trouble explains most: one that fails before one that merely waits."""
    troubled = [pod for v in variants for pod in v.pods if pod.reason and not pod.deleting and not pod.ready]
    return max(troubled, key=lambda p: (p.reason != "Loading", p.restarts, p.name), default=None)


def _workload(observation: Observation, passes: Sequence[ModelPass]) -> Condition:
    failing = [p for p in passes if p.ready_replicas < 1]
    if not failing:
        total = sum(p.ready_replicas for p in passes)
        return condition(
            "WorkloadAvailable", Status.TRUE, "Serving", f"{total} engine replicas are Ready.", observation
        )
    first = failing[0]
    pod = worst_pod(first.variants)
    if pod is not None:
        reason = pod.reason
        message = f"{first.name}: pod {pod.name}" + (f", container {pod.container}" if pod.container else "")
        message += f": {pod.message or pod.reason}"
    elif first.variants:
        reason, message = (
            "Loading",
            f"{first.name}: 0 of {first.desired_replicas} replicas are Ready; engines are starting.",
        )
    else:
        reason, message = "NotCreated", f"{first.name}: no engine is created yet."
        if first.blueprint.problem is not None:
            reason, message = first.blueprint.problem.reason, f"{first.name}: {first.blueprint.problem.message}"
    return condition("WorkloadAvailable", Status.FALSE, reason, message + _more(len(failing) - 1), observation)


def _up_to_date(observation: Observation, passes: Sequence[ModelPass]) -> Condition:
    def say(reason: str, message: str) -> Condition:
        return condition("UpToDate", Status.FALSE, reason, message, observation)

    for p in passes:
        wanted = p.blueprint.variant
        current = next((v for v in p.variants if wanted is not None and v.name == wanted.name), None)
        for variant in p.variants:
            if variant.selector_conflict:
                message = f"{p.name}: Deployment {variant.name} {variant.selector_conflict}, which cannot be changed; delete it."
                return say("SelectorConflict", message)
            if variant.progress_deadline_exceeded:
                pod = worst_pod([variant])
                cause = f"pod {pod.name}: {pod.message or pod.reason}" if pod is not None else "no pod says why"
                return say("RolloutBlocked", f"{p.name}: the rollout of {variant.name} does not go on; {cause}.")
        if wanted is None:
            if p.variants and p.blueprint.problem is not None:
                return say(
                    "LastAcceptedStands",
                    f"{p.name}: what was accepted before still runs; {p.blueprint.problem.message}",
                )
            continue
        if current is None or len(p.variants) > 1:
            return say("Replacing", f"{p.name}: {wanted.name} is replacing what ran before.")
        if current.rolling:
            pod = worst_pod([current])
            if pod is not None and not (pod.reason == "Unschedulable" and _on_elastic(observation, current)):
                where = f"pod {pod.name}" + (f", container {pod.container}" if pod.container else "")
                message = (
                    f"{p.name}: the rollout of {current.name} does not go on; {where}: {pod.message or pod.reason}"
                )
                return say("RolloutBlocked", message)
            done = f"{current.updated_replicas} of {current.desired_replicas}"
            return say("RollingOut", f"{p.name}: {done} replicas run the present configuration.")
    for p in passes:
        for variant in p.variants:
            if is_older(variant, observation.settings):
                value = observation.policy.annotations.get(UPGRADE_ANNOTATION, "")
                ask = f"annotate the policy with {UPGRADE_ANNOTATION}=now to roll it."
                if value:
                    ask = f"{UPGRADE_ANNOTATION}={value} is under way, or was for an earlier version; another value asks anew."
                return say(
                    "OlderRevision",
                    f"{variant.name} was rendered by an earlier version of the operator and keeps running as it is; {ask}",
                )
    return condition("UpToDate", Status.TRUE, "AsDeclared", "What runs is what is declared.", observation)


def _gateway(observation: Observation, spec: InferencePolicySpec) -> Condition:
    gateway = observation.gateway
    if gateway.ready_replicas >= 1:
        message = f"{gateway.ready_replicas} of {spec.gateway.replicas} gateway replicas are Ready."
        return condition("GatewayAvailable", Status.TRUE, "Serving", message, observation)
    if gateway.problem_reason:
        return condition("GatewayAvailable", Status.FALSE, gateway.problem_reason, gateway.problem_message, observation)
    message = f"0 of {spec.gateway.replicas} gateway replicas are Ready."
    return condition("GatewayAvailable", Status.FALSE, "Starting", message, observation)


def _scaling_active(observation: Observation, passes: Sequence[ModelPass]) -> Condition:
    for p in passes:
        for variant in p.variants:
            if variant.foreign_scaler:
                message = (
                    f"{variant.foreign_scaler!r} owns spec.replicas of Deployment {variant.name}; this operator leaves "
                    f"its replicas alone. To give scaling back to the policy, remove that writer (an HPA, a script), then: "
                    f"kubectl -n {observation.policy.namespace} patch deployment {variant.name} --type=json "
                    f"""-p '[{{"op":"replace","path":"/metadata/managedFields","value":[{{}}]}}]'"""
                )
                return condition("ScalingActive", Status.FALSE, "ForeignScaler", message, observation)
    return condition("ScalingActive", Status.TRUE, "Operator", "Replicas follow the policy.", observation)


def _traffic(observation: Observation, spec: InferencePolicySpec) -> tuple[Condition, ...]:
    traffic = observation.traffic
    if traffic.age_seconds is None or traffic.age_seconds > STALE_SECONDS or traffic.missing_sources:
        source = ", ".join(traffic.missing_sources) or "the gateway"
        age = "never" if traffic.age_seconds is None else f"more than {int(STALE_SECONDS)} seconds ago"
        message = f"The metrics of {source} were last read {age}."
        fresh = condition("MetricsFresh", Status.FALSE, "GatewayUnread", message, observation)
    else:
        fresh = condition("MetricsFresh", Status.TRUE, "Fresh", "The gateway's metrics are current.", observation)
    if spec.slo is None or not spec.slo.objectives:
        return (fresh,)
    if fresh.status is not Status.TRUE:
        return fresh, condition("LatencySLOMet", Status.UNKNOWN, "MetricsStale", fresh.message, observation)
    readings = {r.name: r for r in traffic.objectives}
    missed: list[str] = []
    met: list[str] = []
    too_few: list[str] = []
    for objective in spec.slo.objectives:
        reading = readings.get(objective.name)
        if reading is None or reading.requests < MINIMUM_SAMPLES:
            too_few.append(f"{objective.name} has {reading.requests if reading else 0} requests in the window")
            continue
        share = Decimal(100) * reading.within / reading.requests
        said = (
            f"{objective.name}: {share:.1f} % of {reading.requests} requests within {objective.milliseconds} ms "
            f"({objective.percentile} % wanted)"
        )
        (met if share >= objective.percentile else missed).append(said)
    if missed:
        message = missed[0] + _more(len(missed) - 1, "objectives")
        return fresh, condition("LatencySLOMet", Status.FALSE, "Missed", message, observation)
    if too_few:
        message = f"{too_few[0]}; {MINIMUM_SAMPLES} are needed to judge." + _more(len(too_few) - 1, "objectives")
        return fresh, condition("LatencySLOMet", Status.UNKNOWN, "TooFewSamples", message, observation)
    return fresh, condition(
        "LatencySLOMet", Status.TRUE, "Met", met[0] + _more(len(met) - 1, "objectives"), observation
    )


def _speculation(observation: Observation, passes: Sequence[ModelPass]) -> Condition:
    speculating = [p for p in passes if p.blueprint.entry.speculation is not None]
    if not speculating:
        return condition(
            "SpeculationEffective", Status.UNKNOWN, "NotDeclared", "No model declares speculation.", observation
        )
    for p in speculating:
        for variant in p.variants:
            if variant.speculation is not None and variant.speculation.drafting is False:
                message = (
                    f"{p.name}: tokens are generated but nothing is drafted by {variant.name}; the engine started without "
                    f"its draft. See the logs of its containers draft and engine."
                )
                return condition("SpeculationEffective", Status.FALSE, "NotDrafting", message, observation)
    said = "Not measured yet."
    for p in speculating:
        for variant in p.variants:
            seen = variant.speculation
            if seen is not None and seen.draft_tokens > 0:
                share = Decimal(100) * seen.accepted_tokens / seen.draft_tokens
                said = f"{p.name} accepts {share:.0f} % of {seen.draft_tokens} drafted tokens."
                break
    message = said + " Whether that pays is unknown without tokens per second measured with and without drafts."
    return condition("SpeculationEffective", Status.UNKNOWN, "NoBaseline", message, observation)


def _more(count: int, noun: str = "models") -> str:
    if count <= 0:
        return ""
    return f" (and {count} more {noun if count > 1 else noun.removesuffix('s')})"
