"""From what runs to what should run, one safe step a pass: make before break, and one for one where devices are short.

A variant that is no longer wanted keeps its replicas and its routing until the replacement is Ready with equal capacity; then it is
taken out of routing, and only when the gateways show that is it removed. Nothing is removed or scaled down while the observation is
incomplete, and nothing at all for a model whose declaration cannot be carried out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from inference_fleet.plan.blueprint import Blueprint
from inference_fleet.plan.draining import POLL_SECONDS, Drains, victims
from inference_fleet.plan.observation import PodView, VariantView
from inference_fleet.plan.outcome import Action, Decision, DesiredVariant, Removal, ReplicaChange
from inference_fleet.plan.stock import Stock, devices_held


@dataclass(frozen=True, slots=True)
class Step:
    """What one pass does for one model (or for the variants of a model that is no longer declared)."""

    stock: Stock
    desired: DesiredVariant | None = None
    changes: tuple[ReplicaChange, ...] = ()
    removals: tuple[Removal, ...] = ()
    drain: tuple[str, ...] = ()
    weights: Mapping[str, int] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    requeue_after_seconds: float | None = None
    short_of_devices: str = ""
    """A sentence when the model holds fewer replicas than declared for want of devices."""


def keep(model: str, variants: tuple[VariantView, ...], stock: Stock, reason: str, message: str) -> Step:
    """Leaves everything of a model exactly as it is, and says why."""
    return Step(
        stock=stock,
        weights={v.name: 100 for v in variants},
        decisions=tuple(
            Decision(model, v.name, Action.KEEP, reason, message, v.desired_replicas, v.desired_replicas)
            for v in variants
        )
        or (Decision(model, "", Action.REFUSE, reason, message),),
    )


def retire(model: str, variants: tuple[VariantView, ...], stock: Stock, drains: Drains, complete: bool) -> Step:
    """Drains and removes every variant of a model that the policy no longer declares."""
    message = f"The policy no longer declares a model {model!r}."
    if not complete:
        return keep(
            model, variants, stock, "ObservationIncomplete", message + " Waiting for a complete view of the cluster."
        )
    step = Step(stock=stock)
    for variant in variants:
        step = _remove(step, model, variant, drains, "ModelDropped", message)
    return step


def advance(
    blueprint: Blueprint, variants: tuple[VariantView, ...], stock: Stock, drains: Drains, incomplete: tuple[str, ...]
) -> Step:
    """The next safe step from `variants` (all of this model) to what the blueprint says."""
    entry = blueprint.entry
    wanted = blueprint.variant
    if wanted is None:
        assert blueprint.problem is not None
        step = keep(entry.name, variants, stock, blueprint.problem.reason, blueprint.problem.message)
        return replace(step, decisions=tuple(replace(d, rejected=blueprint.rejected) for d in step.decisions))
    existing = next((v for v in variants if v.name == wanted.name), None)
    olds = tuple(v for v in variants if v.name != wanted.name)
    if existing is None:
        step = _create(blueprint, wanted, olds, stock)
    else:
        step = _resize(blueprint, wanted, existing, stock, drains, incomplete)
    return _replace_olds(step, blueprint, wanted, existing, olds, drains, incomplete)


def _create(blueprint: Blueprint, wanted: DesiredVariant, olds: tuple[VariantView, ...], stock: Stock) -> Step:
    entry, per_replica = blueprint.entry, wanted.identity.devices_per_replica
    name = wanted.identity.accelerator_class
    count = stock.replicas(name, per_replica, wanted.replicas)
    if count == 0:
        message = f"No free {name!r} device for {wanted.name}; one replica of what it replaces goes first."
        decision = Decision(
            entry.name,
            wanted.name,
            Action.WAIT,
            "SwappingDevices",
            message,
            0,
            0,
            _inputs(wanted, stock),
            blueprint.rejected,
        )
        return Step(stock=stock, decisions=(decision,), short_of_devices=message)
    short = "" if count == wanted.replicas else _short(wanted, count)
    why = f"{blueprint.message} {wanted.memory.message}" + (f" {short}" if short else "")
    if olds:
        why += f" Replaces {', '.join(v.name for v in olds)} once it is Ready with equal capacity."
    decision = Decision(
        entry.name,
        wanted.name,
        Action.CREATE,
        blueprint.reason,
        why,
        0,
        count,
        _inputs(wanted, stock),
        blueprint.rejected,
    )
    return Step(
        stock=stock.take(name, count * per_replica),
        desired=replace(wanted, replicas=count),
        weights={wanted.name: 100},
        decisions=(decision,),
        short_of_devices=short,
    )


def _resize(
    blueprint: Blueprint,
    wanted: DesiredVariant,
    existing: VariantView,
    stock: Stock,
    drains: Drains,
    incomplete: tuple[str, ...],
) -> Step:
    entry, current, goal = blueprint.entry, existing.desired_replicas, wanted.replicas
    per_replica, name = wanted.identity.devices_per_replica, wanted.identity.accelerator_class

    def step(action: Action, reason: str, message: str, after: int, **rest: object) -> Step:
        decision = Decision(
            entry.name, wanted.name, action, reason, message, current, after, _inputs(wanted, stock), blueprint.rejected
        )
        base = Step(stock=stock, desired=wanted, weights={wanted.name: 100}, decisions=(decision,))
        return replace(base, **rest)  # type: ignore[arg-type]

    def change(after: int, pods: tuple[PodView, ...] = ()) -> tuple[ReplicaChange, ...]:
        return (
            ReplicaChange(
                existing.name, existing.uid, existing.resource_version, current, after, tuple(p.name for p in pods)
            ),
        )

    if existing.foreign_scaler and current != goal:
        message = (
            f"{existing.foreign_scaler!r} owns spec.replicas of Deployment {existing.name} and holds it at {current}; "
            f"replicas are left alone. Remove that writer (an HPA, a script) to let the policy's {goal} take effect."
        )
        return step(Action.KEEP, "ForeignScaler", message, current)
    owed = stock.owed.get(name, 0)
    waiting = sorted(
        (p for p in existing.pods if not p.scheduled and not p.deleting), key=lambda p: p.created, reverse=True
    )
    given = tuple(waiting[: min(current, math.ceil(owed / per_replica))])
    if given and not incomplete and not existing.foreign_scaler:
        after = current - len(given)
        short = _short(wanted, after)
        message = f"{len(given)} of {current} replicas wait for devices that were promised to policies of higher priority. {short}"
        return step(
            Action.SCALE, "GivesWay", message, after, changes=change(after, given), short_of_devices=short,
            stock=stock.give_up(name, len(given) * per_replica),
        )  # fmt: skip
    if current < goal:
        grown = current + stock.replicas(name, per_replica, goal - current)
        short = "" if grown == goal else _short(wanted, grown)
        if grown == current:
            return step(Action.WAIT, "InsufficientDevices", short, current, short_of_devices=short)
        message = f"replicas.min is {goal}." + (f" {short}" if short else "")
        taken = stock.take(name, (grown - current) * per_replica)
        return step(
            Action.SCALE, "BelowMinimum", message, grown, changes=change(grown), stock=taken, short_of_devices=short
        )
    if current > goal:
        if incomplete:
            message = f"Would go down to {goal}, but {', '.join(incomplete)} could not be read."
            return step(Action.KEEP, "ObservationIncomplete", message, current)
        if existing.updated_replicas < current:
            return step(Action.WAIT, "RollingOut", f"Goes down to {goal} when the rollout under way is done.", current)
        pods = victims(existing, current - goal, drains)
        leaving = tuple(p.name for p in pods)
        message = f"replicas.min is {goal}; {', '.join(leaving) or 'surplus pods'} go."
        if not drains.done(pods):
            return step(
                Action.DRAIN, "AboveMinimum", message + " Waiting for the gateways to take them out of routing.",
                current, drain=leaving, requeue_after_seconds=POLL_SECONDS,
            )  # fmt: skip
        return step(Action.SCALE, "AboveMinimum", message, goal, changes=change(goal, pods), drain=leaving)
    if existing.rolling:
        message = (
            f"{existing.updated_replicas} of {current} replicas run the present configuration; "
            + ("one is added before one goes." if wanted.surge else "no device is free for one more, so one at a time goes first.")
        )  # fmt: skip
        return step(Action.UPDATE, "RollingOut", message, current)
    return step(Action.KEEP, blueprint.reason, f"{blueprint.message} {wanted.memory.message}", current)


def _replace_olds(
    step: Step,
    blueprint: Blueprint,
    wanted: DesiredVariant,
    existing: VariantView | None,
    olds: tuple[VariantView, ...],
    drains: Drains,
    incomplete: tuple[str, ...],
) -> Step:
    if not olds:
        return step
    model = blueprint.entry.name
    ready = existing.ready_replicas if existing is not None else 0
    serving = sum(v.ready_replicas for v in olds)
    needed = min(wanted.replicas, max(1, sum(v.desired_replicas for v in olds)))
    if incomplete:
        return _stay(step, model, olds, "ObservationIncomplete", f"{', '.join(incomplete)} could not be read.")
    if ready >= needed:
        message = f"{wanted.name} is Ready with {ready} replicas and takes over."
        for old in olds:
            step = _remove(step, model, old, drains, "Replaced", message)
        return step
    stuck = bool(step.short_of_devices) and (existing is None or existing.ready_replicas >= existing.desired_replicas)
    if stuck:
        giver = next(
            (
                v
                for v in sorted(olds, key=lambda v: v.ready_replicas)
                if v.desired_replicas > 0
                and v.identity is not None
                and v.identity.accelerator_class == wanted.identity.accelerator_class
            ),
            None,
        )
        if giver is not None and giver.identity is not None:
            missing = wanted.identity.devices_per_replica - (
                step.stock.of_class(wanted.identity.accelerator_class) or 0
            )
            gives = min(giver.desired_replicas, max(1, math.ceil(missing / giver.identity.devices_per_replica)))
            step = _shrink(step, model, giver, gives, drains, f"Its devices go to {wanted.name}, one for one.")
            rest = tuple(v for v in olds if v is not giver)
            return _stay(step, model, rest, "Replacing", f"Serves until {wanted.name} is Ready ({ready} of {needed}).")
    return _stay(
        step, model, olds, "Replacing",
        f"Serves with {serving} replicas until {wanted.name} is Ready with equal capacity ({ready} of {needed}).",
    )  # fmt: skip


def _stay(step: Step, model: str, variants: tuple[VariantView, ...], reason: str, message: str) -> Step:
    return replace(
        step,
        weights={**step.weights, **{v.name: 100 for v in variants}},
        decisions=step.decisions
        + tuple(
            Decision(model, v.name, Action.KEEP, reason, message, v.desired_replicas, v.desired_replicas)
            for v in variants
        ),
    )


def _remove(step: Step, model: str, variant: VariantView, drains: Drains, reason: str, message: str) -> Step:
    """Out of routing; when the gateways show that, deleted (its pods drain in their own preStop)."""
    leaving = tuple(p.name for p in variant.pods if not p.deleting)
    weights = {**step.weights, variant.name: 0}
    if variant.deleting:
        return replace(step, weights=weights)
    if drains.done(variant.pods):
        decision = Decision(model, variant.name, Action.DELETE, reason, message, variant.desired_replicas, 0)
        return replace(
            step,
            weights=weights,
            drain=step.drain + leaving,
            removals=(*step.removals, Removal(variant.name, variant.uid, variant.resource_version)),
            stock=step.stock.take(variant.identity.accelerator_class, -devices_held(variant))
            if variant.identity
            else step.stock,
            decisions=(*step.decisions, decision),
        )
    decision = Decision(
        model, variant.name, Action.DRAIN, reason, message + " Waiting for the gateways to take it out of routing.",
        variant.desired_replicas, variant.desired_replicas,
    )  # fmt: skip
    return replace(
        step,
        weights=weights,
        drain=step.drain + leaving,
        decisions=(*step.decisions, decision),
        requeue_after_seconds=POLL_SECONDS,
    )


def _shrink(step: Step, model: str, variant: VariantView, count: int, drains: Drains, message: str) -> Step:
    pods = victims(variant, count, drains)
    leaving = tuple(p.name for p in pods)
    after = variant.desired_replicas - count
    step = replace(step, weights={**step.weights, variant.name: 100}, drain=step.drain + leaving)
    if not drains.done(pods):
        decision = Decision(
            model,
            variant.name,
            Action.DRAIN,
            "SwappingDevices",
            message,
            variant.desired_replicas,
            variant.desired_replicas,
        )
        return replace(step, decisions=(*step.decisions, decision), requeue_after_seconds=POLL_SECONDS)
    change = ReplicaChange(
        variant.name, variant.uid, variant.resource_version, variant.desired_replicas, after, leaving
    )
    decision = Decision(model, variant.name, Action.SCALE, "SwappingDevices", message, variant.desired_replicas, after)
    return replace(step, changes=(*step.changes, change), decisions=(*step.decisions, decision))


def _short(wanted: DesiredVariant, count: int) -> str:
    name, per_replica = wanted.identity.accelerator_class, wanted.identity.devices_per_replica
    return (
        f"{count} of {wanted.replicas} replicas have devices: each needs {per_replica} of {name!r} and no more are free. "
        f"Add nodes, lower another policy, or list another accelerator."
    )


def _inputs(wanted: DesiredVariant, stock: Stock) -> dict[str, str]:
    free = stock.of_class(wanted.identity.accelerator_class)
    return {
        "freeDevices": "unknown" if free is None else str(free),
        "neededBytes": str(wanted.memory.needed_bytes),
        "availableBytes": str(wanted.memory.available_bytes),
        "pricePerHour": "unknown" if wanted.price_per_hour is None else str(wanted.price_per_hour),
    }
