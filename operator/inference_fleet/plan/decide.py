"""The decision: an Observation in, a Plan out. Pure: no clock, no I/O; the same arguments give the same plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal

from inference_fleet.api.conditions import Status
from inference_fleet.api.policy import InferencePolicySpec, Mode
from inference_fleet.plan.blueprint import draw
from inference_fleet.plan.draining import Drains
from inference_fleet.plan.observation import Observation, VariantView
from inference_fleet.plan.outcome import (
    Action,
    Decision,
    Event,
    Memory,
    ModelStatus,
    Plan,
    RouteModel,
    Routes,
    RouteVariant,
    VariantStatus,
    Want,
)
from inference_fleet.plan.rollout import Step, advance, keep, retire
from inference_fleet.plan.stock import Stock
from inference_fleet.plan.stock_out import StockOut, next_look_seconds, stock_outs
from inference_fleet.plan.upgrading import asked_of, is_older, upgrading
from inference_fleet.plan.verdicts import ModelPass, condition, judge, worst_pod

ENGINE_PORT = 8000
RETRY_SECONDS = 30.0
"""How soon to look again at something that only the world can mend (stock, a missing object), besides the events for it."""


def plan(observation: Observation, memory: Memory, now: datetime) -> tuple[Plan, Memory]:
    """Decides one pass over one policy.

    Returns the plan and what the next pass must remember. `now` is timezone-aware. Planning the outcome of its own plan again gives
    a plan that changes nothing.
    """
    spec = observation.policy.spec
    if spec is None:
        return _unreadable(observation, memory)
    drains = Drains.of(observation, memory.drains, now)
    asked = asked_of(observation, memory.upgrade)
    waiting = stock_outs(observation, now)
    passes, steps, retired = _advance_all(observation, spec, drains, waiting, upgrading(observation, asked))

    conditions = judge(observation, spec, passes, waiting)
    decisions = tuple(d for step in steps for d in step.decisions)
    acting = spec.mode is Mode.APPLY
    routes = _routes(spec, passes, retired) if acting else None
    leaving = routes.drain if routes is not None else ()
    pods = {pod.name for v in observation.variants for pod in v.pods}
    remembered = Memory({name: memory.drains.get(name, now) for name in leaving if name in pods}, asked)
    requeues = [s.requeue_after_seconds for s in steps if s.requeue_after_seconds is not None]
    later = next_look_seconds(observation, now)
    if later is not None:
        requeues.append(later)
    if not requeues and any(p.blueprint.problem is not None or p.step.short_of_devices for p in passes):
        requeues = [RETRY_SECONDS]
    price, currency = _price(observation, steps, passes)
    return (
        Plan(
            variants=tuple(s.desired for s in steps if s.desired is not None) if acting else (),
            changes=tuple(c for s in steps for c in s.changes) if acting else (),
            removals=tuple(r for s in steps for r in s.removals) if acting else (),
            routes=routes,
            gateway=spec if acting else None,
            conditions=conditions,
            models=tuple(_model_status(p) for p in passes),
            variant_rows=_variant_rows(observation, passes),
            decisions=decisions,
            events=_events(decisions),
            summary=_summary(passes, price, currency),
            cost_per_hour=price,
            currency=currency,
            requeue_after_seconds=min(requeues, default=None),
            claims=_claims(observation, steps) if acting else _claims(observation, ()),
            wants=_wants(passes) if acting else {},
        ),
        remembered,
    )


def _unreadable(observation: Observation, memory: Memory) -> tuple[Plan, Memory]:
    message = observation.policy.invalid_message or "The stored spec cannot be read by this version of the operator."
    message += " What runs goes on unchanged; correct the policy."
    said = [
        condition("Ready", Status.FALSE, "InvalidSpec", message, observation),
        condition("Accepted", Status.FALSE, "InvalidSpec", message, observation),
    ]
    decisions = tuple(
        Decision(
            v.identity.model if v.identity else "",
            v.name,
            Action.KEEP,
            "InvalidSpec",
            message,
            v.desired_replicas,
            v.desired_replicas,
        )
        for v in observation.variants
    )
    return Plan(conditions=tuple(said), decisions=decisions, summary=message, claims=_claims(observation, ())), memory


def _wants(passes: Sequence[ModelPass]) -> Mapping[str, Want]:
    """Devices that would be taken if there were more."""
    wants: dict[str, Want] = {}
    for p in passes:
        more = dict(p.blueprint.wants)
        wanted = p.blueprint.variant
        if wanted is not None and p.step.short_of_devices:
            per_replica = wanted.identity.devices_per_replica
            missing = max(1, wanted.replicas - _after(p, wanted.name))
            more[wanted.identity.accelerator_class] = Want(missing * per_replica, per_replica)
        for name, want in more.items():
            known = wants.get(name, Want(0, want.at_once))
            wants[name] = Want(known.devices + want.devices, min(known.at_once, want.at_once))
    return dict(sorted(wants.items()))


def _after(p: ModelPass, variant: str) -> int:
    """Replicas of a variant once this pass is carried out."""
    changed = [c.after for c in p.step.changes if c.variant == variant]
    held = [v.desired_replicas for v in p.variants if v.name == variant]
    created = [p.step.desired.replicas] if p.step.desired is not None else []
    return (changed or held or created or [0])[0]


def _advance_all(
    observation: Observation,
    spec: InferencePolicySpec,
    drains: Drains,
    waiting: Mapping[str, StockOut],
    upgraded: str,
) -> tuple[list[ModelPass], list[Step], list[tuple[Step, tuple[VariantView, ...]]]]:
    """Each declared model in order, drawing on one stock; then what is no longer declared."""
    by_model: dict[str, tuple[VariantView, ...]] = {}
    unreadable: tuple[VariantView, ...] = ()
    for variant in observation.variants:
        if variant.identity is None:
            unreadable += (variant,)
        else:
            by_model[variant.identity.model] = (*by_model.get(variant.identity.model, ()), variant)
    stock = Stock.of(observation.classes, observation.variants, spec.priority)
    passes: list[ModelPass] = []
    steps: list[Step] = []
    for entry in spec.models:
        variants = by_model.pop(entry.name, ())
        blueprint = draw(observation, entry, stock, waiting, upgraded)
        step = advance(blueprint, variants, stock, drains, observation.incomplete)
        stock = step.stock
        passes.append(ModelPass(blueprint, step, variants))
        steps.append(step)
    retired: list[tuple[Step, tuple[VariantView, ...]]] = []
    for model, variants in sorted(by_model.items()):
        step = retire(model, variants, stock, drains, not observation.incomplete)
        stock = step.stock
        retired.append((step, variants))
        steps.append(step)
    if unreadable:
        message = (
            "Its annotation inference-fleet.dev/identity cannot be read; delete the Deployment to have it made anew."
        )
        steps.append(keep("", unreadable, stock, "IdentityUnreadable", message))
    return passes, steps, retired


def _routes(
    spec: InferencePolicySpec, passes: Sequence[ModelPass], retired: Sequence[tuple[Step, tuple[VariantView, ...]]]
) -> Routes:
    models: list[RouteModel] = []
    for index, p in enumerate(passes):
        kinds = {v.name: v.identity.engine for v in p.variants if v.identity is not None}
        if p.blueprint.variant is not None:
            kinds[p.blueprint.variant.name] = p.blueprint.variant.identity.engine
        going = {removal.variant for removal in p.step.removals}
        variants = tuple(
            RouteVariant(name=name, service=name, port=ENGINE_PORT, weight=weight, engine=kinds[name])
            for name, weight in sorted(p.step.weights.items())
            if name in kinds and name not in going
        )
        entry = p.blueprint.entry
        models.append(
            RouteModel(
                name=entry.name,
                served_names=tuple(entry.served_names),
                context_tokens=entry.context_tokens,
                default=index == 0,
                variants=variants,
            )
        )
    drain = sorted(
        {name for p in passes for name in p.step.drain} | {name for step, _ in retired for name in step.drain}
    )
    return Routes(models=tuple(models), drain=tuple(drain))


def _claims(observation: Observation, steps: Sequence[Step]) -> Mapping[str, int]:
    """Devices of each class claimed once this pass is carried out."""
    identities = {v.name: v.identity for v in observation.variants}
    identities.update({step.desired.name: step.desired.identity for step in steps if step.desired is not None})
    claims: dict[str, int] = {}
    for name, replicas in _replicas_after(observation, steps).items():
        identity = identities[name]
        if identity is not None and replicas:
            held = claims.get(identity.accelerator_class, 0)
            claims[identity.accelerator_class] = held + replicas * identity.devices_per_replica
    return dict(sorted(claims.items()))


def _price(observation: Observation, steps: Sequence[Step], passes: Sequence[ModelPass]) -> tuple[Decimal | None, str]:
    """What everything costs an hour once this pass is carried out, pods that still drain included.

    None where one price is missing, currencies differ or a model is not placed and not running: never a partial sum.
    """
    replicas = _replicas_after(observation, steps)
    prices = {v.name: v.price_per_hour for v in observation.variants}
    for p in passes:
        wanted = p.blueprint.variant
        if wanted is not None:
            prices[wanted.name] = wanted.price_per_hour
        elif not p.variants:
            return None, ""
    currencies = {c.spec.price.currency for c in observation.classes.values() if c.spec.price is not None}
    total = Decimal(0)
    for name, count in replicas.items():
        price = prices.get(name)
        if count and price is None:
            return None, ""
        total += count * (price or Decimal(0))
    return (total, currencies.pop()) if len(currencies) == 1 else (None, "")


def _replicas_after(observation: Observation, steps: Sequence[Step]) -> dict[str, int]:
    """Replicas of each variant once this pass is carried out: what is desired, or what pods still hold if that is more."""
    after = {v.name: v.desired_replicas for v in observation.variants}
    for step in steps:
        after.update({change.variant: change.after for change in step.changes})
        after.update({removal.variant: 0 for removal in step.removals})
        if step.desired is not None:
            after.setdefault(step.desired.name, step.desired.replicas)
    holding = {v.name: len(v.pods) for v in observation.variants}
    return {name: max(count, holding.get(name, 0)) for name, count in after.items()}


def _summary(passes: Sequence[ModelPass], price: Decimal | None, currency: str) -> str:
    parts = []
    for p in passes:
        wanted = p.blueprint.variant
        if wanted is not None:
            parts.append(f"{p.name}: {wanted.replicas} × {wanted.accelerator}")
        elif p.blueprint.problem is not None:
            parts.append(f"{p.name}: {p.blueprint.problem.reason}")
    money = "price unknown" if price is None else f"{price} {currency} an hour"
    return f"{'; '.join(parts)}; {money}"


def _model_status(p: ModelPass) -> ModelStatus:
    ready, desired = p.ready_replicas, p.desired_replicas
    pod = worst_pod(p.variants)
    if p.blueprint.problem is not None:
        reason, message = p.blueprint.problem.reason, p.blueprint.problem.message
    elif ready >= desired:
        reason, message = "Serving", p.blueprint.message
    elif pod is not None:
        reason, message = pod.reason, f"pod {pod.name}: {pod.message or pod.reason}"
    else:
        reason, message = "Loading", p.step.short_of_devices or f"{ready} of {desired} replicas are Ready."
    return ModelStatus(p.name, ready >= 1, desired, ready, reason, message)


def _variant_rows(observation: Observation, passes: Sequence[ModelPass]) -> tuple[VariantStatus, ...]:
    wanted = {p.blueprint.variant.name: p.blueprint.variant for p in passes if p.blueprint.variant is not None}
    depths = {
        p.name: p.blueprint.entry.speculation.max_depth for p in passes if p.blueprint.entry.speculation is not None
    }
    rows = []
    for v in observation.variants:
        target = wanted.get(v.name)
        current = target is not None and not v.rolling
        newest = not is_older(v, observation.settings)
        seen = v.speculation
        accepted = None
        if seen is not None and seen.draft_tokens > 0:
            accepted = round(100 * seen.accepted_tokens / seen.draft_tokens)
        model = v.identity.model if v.identity is not None else ""
        rows.append(
            VariantStatus(
                name=v.name,
                model=model,
                build=v.build,
                accelerator=v.accelerator,
                desired=v.desired_replicas,
                ready_replicas=v.ready_replicas,
                price_per_hour=v.price_per_hour,
                memory=target.memory if target is not None else None,
                up_to_date=current and newest,
                speculation_depth=depths.get(model) if target is not None else None,
                accepted_percent=accepted,
            )
        )
    return tuple(rows)


def _events(decisions: Sequence[Decision]) -> tuple[Event, ...]:
    """Decisions that change something are worth an Event; that they repeat is filtered where events are sent."""
    worth = {Action.CREATE, Action.SCALE, Action.DELETE, Action.REFUSE}
    return tuple(
        Event(
            "Warning" if d.action is Action.REFUSE else "Normal",
            d.reason,
            f"{d.action} {d.variant or d.model}: {d.message}",
        )
        for d in decisions
        if d.action in worth
    )
