"""One pass over one InferencePolicy: observe, plan, apply, report, remember."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from inference_fleet.api.conditions import Condition, ConditionType, Status, find
from inference_fleet.cluster import events, kinds, memory, report
from inference_fleet.cluster.apply import NEVER, Applier, Outcome, Refused
from inference_fleet.cluster.claims import Entry, Ledger, Turns
from inference_fleet.cluster.client import ApiError, ClusterClient, NamespaceEnding
from inference_fleet.cluster.metrics import OperatorMetrics
from inference_fleet.cluster.observe import World, is_gateway, observe, read_conditions, read_identity
from inference_fleet.cluster.reasons import Reason
from inference_fleet.cluster.rendering import Renderer
from inference_fleet.cluster.scraping import live_gateways
from inference_fleet.cluster.seen import ClassSeen, DeploymentSeen, ModelSeen, ObjectSeen, PodSeen, PolicySeen
from inference_fleet.cluster.snapshot import Snapshots
from inference_fleet.cluster.status_writes import write_status
from inference_fleet.cluster.stock_book import StockBook
from inference_fleet.cluster.waking import classes_of, models_of
from inference_fleet.naming import COMPONENT_LABEL, VARIANT_LABEL, routes_name
from inference_fleet.plan.decide import plan as decide
from inference_fleet.plan.observation import Observation, OperatorSettings
from inference_fleet.plan.outcome import Action, Event, Memory, Plan, ReplicaChange
from inference_fleet.signals.scraper import Scraper

log = logging.getLogger("inference_fleet.policy")

OWNED = (
    kinds.DEPLOYMENT,
    kinds.SERVICE,
    kinds.CONFIG_MAP,
    kinds.SERVICE_ACCOUNT,
    kinds.ROLE_BINDING,
    kinds.DISRUPTION_BUDGET,
)
"""Kinds of what a policy owns and what is applied again after a hand edit."""

STALE_SECONDS = 0.2
"""How soon to look again where something changed between the look and the write; twice as long each time in a row."""

MOST_DOUBLINGS = 6

FAILURES_TOLD = 3
"""How many passes in a row an API server may fail (500) to write an object before the policy says so: it may only have hiccuped."""


@dataclass(slots=True)
class PolicyState:
    """What this process knows of one policy between passes. `Keeper` says when it is written down."""

    plan: Memory
    applied: dict[str, str]
    said: frozenset[str]
    keeper: memory.Keeper
    status_written_at: float
    status_held_back: bool = False
    """Measured figures have moved since the last write, which is too recent for another."""
    decided: frozenset[tuple[str, str, str]] = frozenset()
    standing: frozenset[str] = frozenset()
    """Of `said`, what is said as long as its cause stands; that something changed is said once and never again by itself."""
    said_written: frozenset[str] = frozenset()
    stale_passes: int = 0
    failed_passes: int = 0

    def text(self) -> str:
        """As it is written down."""
        # Events that are no longer said need not be forgotten in writing: only one more that a successor would repeat counts.
        if not self.standing <= self.said_written:
            self.said_written = self.standing
        return memory.encode(memory.Remembered(self.plan, self.applied, self.said_written))


@dataclass(frozen=True, slots=True)
class PassResult:
    """How a pass went. `failed`: back off; else come back after so many seconds, None: when something happens."""

    requeue_after_seconds: float | None = None
    failed: bool = False


@dataclass(slots=True)
class PolicyPasses:
    """Everything that passes over policies share."""

    client: ClusterClient
    snapshots: Snapshots
    scraper: Scraper
    ledger: Ledger
    turns: Turns
    stock: StockBook
    reporter: events.Reporter
    metrics: OperatorMetrics
    renderer: Renderer
    settings: OperatorSettings
    executor: Executor
    clock: Callable[[], float]
    wall: Callable[[], datetime]
    wake_claimants: Callable[[str, Iterable[str]], None]
    """Told (policy, classes) when a policy's claims changed: others may now take more, or must give way."""
    states: dict[str, PolicyState] = field(default_factory=dict)
    """By the policy's uid."""
    started_at: float = 0.0

    def adopt(self, remembered: dict[str, memory.Remembered]) -> None:
        """Take over what an earlier process wrote down, by policy uid."""
        for uid, known in remembered.items():
            self.states[uid] = PolicyState(
                plan=known.plan,
                applied=dict(known.applied),
                said=known.said,
                standing=known.said,
                said_written=known.said,
                keeper=memory.Keeper(memory.encode(known), self.clock(), known.resource_version),
                status_written_at=self.started_at,
            )

    def _state(self, uid: str) -> PolicyState:
        if uid not in self.states:
            fresh = memory.Remembered()
            keeper = memory.Keeper(memory.encode(fresh), self.clock())
            self.states[uid] = PolicyState(fresh.plan, {}, fresh.said, keeper, self.started_at)
        return self.states[uid]

    def forget(self, key: str) -> None:
        """A policy is gone; the API server collects what it owned."""
        live = {p.meta.uid for p in self.snapshots.all(kinds.POLICY)}
        self.states = {uid: state for uid, state in self.states.items() if uid in live}
        self.scraper.forget(key)
        freed = self.ledger.drop(key)
        if freed:
            self.wake_claimants(key, freed)

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        began = self.clock()
        try:
            yield
        finally:
            self.metrics.step_duration.labels(step).observe(self.clock() - began)

    async def run(self, key: str) -> PassResult:
        """One pass over `namespace/name`."""
        policy = self.snapshots.get(kinds.POLICY, key)
        if not isinstance(policy, PolicySeen) or policy.meta.deleting:
            self.forget(key)
            return PassResult()
        state = self._state(policy.meta.uid)
        async with self.turns.of(self._classes(policy)):
            with self._timed("observe"):
                observation = self._observe(policy, state)
            with self._timed("plan"):
                loop = asyncio.get_running_loop()
                plan, remembered = await loop.run_in_executor(
                    self.executor, decide, observation, state.plan, self.wall()
                )
            priority = policy.spec.priority if policy.spec is not None else 0
            changed = self.ledger.enter(key, Entry(plan.claims, priority, plan.wants))
        if changed:
            self.wake_claimants(key, changed)
        drains_changed = remembered != state.plan
        state.plan = remembered
        with self._timed("apply"):
            outcome = await self._apply(policy, observation, plan, state)
        failed = any(one.status >= 500 for one in outcome.refused)
        state.failed_passes = state.failed_passes + 1 if failed else 0
        if state.failed_passes < FAILURES_TOLD:
            outcome.refused = [one for one in outcome.refused if one.status < 500]
        with self._timed("report"):
            fresh = await self._report(policy, observation, plan, outcome, state)
        with self._timed("remember"):
            await self.remember(policy, state, acted=outcome.acted or drains_changed)
        if outcome.refused or failed:
            return PassResult(failed=True)
        if outcome.stale or not fresh:
            self.metrics.conflicts.inc()
            # What is being removed may take its time: no tight loop until it is gone.
            state.stale_passes = min(state.stale_passes + 1, MOST_DOUBLINGS)
            return PassResult(STALE_SECONDS * 2.0 ** (state.stale_passes - 1))
        state.stale_passes = 0
        return PassResult(_sooner(plan.requeue_after_seconds, self._held_back_seconds(state)))

    def _held_back_seconds(self, state: PolicyState) -> float | None:
        """When figures that moved, but not long enough after the last write, are to be written; None: all is written."""
        if not state.status_held_back:
            return None
        return max(1.0, state.status_written_at + report.MEASURED_SECONDS - self.clock())

    def _deployments(self, key: str) -> tuple[DeploymentSeen, ...]:
        return tuple(d for d in self.snapshots.of_policy(kinds.DEPLOYMENT, key) if isinstance(d, DeploymentSeen))

    def _classes(self, policy: PolicySeen) -> frozenset[str]:
        wanted = classes_of(policy.spec) if policy.spec is not None else frozenset()
        running = (read_identity(d) for d in self._deployments(policy.meta.key))
        return wanted | {identity.accelerator_class for identity in running if identity is not None}

    def _observe(self, policy: PolicySeen, state: PolicyState) -> Observation:
        key, namespace = policy.meta.key, policy.meta.namespace
        names = models_of(policy.spec) if policy.spec is not None else frozenset()
        models = (self.snapshots.get(kinds.MODEL, f"{namespace}/{name}") for name in names)
        classes = (self.snapshots.get(kinds.ACCELERATOR_CLASS, name) for name in self._classes(policy))
        pods = tuple(p for p in self.snapshots.of_policy(kinds.POD, key) if isinstance(p, PodSeen))
        routes = self.snapshots.get(kinds.CONFIG_MAP, f"{namespace}/{routes_name(policy.meta.name)}")
        counted = self.stock.current()
        world = World(
            policy=policy,
            models=tuple(m for m in models if isinstance(m, ModelSeen)),
            classes=tuple(c for c in classes if isinstance(c, ClassSeen)),
            deployments=self._deployments(key),
            pods=pods,
            routes=routes if isinstance(routes, ObjectSeen) else None,
            usages=counted.usages,
            held=counted.held,
            incomplete=self.snapshots.incomplete(),
        )
        live = live_gateways(pods, self.clock(), self.wall())
        measured = self.scraper.measured(key, policy.spec, live)
        return observe(world, self.settings, self.ledger, measured, state.applied)

    async def _apply(self, policy: PolicySeen, observation: Observation, plan: Plan, state: PolicyState) -> Outcome:
        namespace = policy.meta.namespace
        applier = Applier(self.client, self.snapshots, policy.meta.uid, state.applied)
        rendered = self.renderer.policy(plan, observation.policy)
        await applier.ensure(rendered.foundation)
        await applier.ensure(rendered.gateway)
        for _, manifests in rendered.variants:
            await applier.ensure(manifests, variant=True)
        pods = tuple(p for p in self.snapshots.of_policy(kinds.POD, policy.meta.key) if isinstance(p, PodSeen))
        for change in (*plan.changes, *self._gateway_change(policy, plan)):
            await applier.scale(change, namespace, pods)
        for removal in plan.removals:
            await applier.remove(removal, namespace)
        if plan.gateway is not None and not observation.incomplete:
            await applier.sweep(self._leftovers(policy.meta.key, plan), kinds.SERVICE)
        return applier.outcome

    def _gateway_change(self, policy: PolicySeen, plan: Plan) -> Iterator[ReplicaChange]:
        """The gateway's replicas move through `/scale` like any others; a foreign owner keeps them."""
        if plan.gateway is None:
            return
        wanted = plan.gateway.gateway.replicas
        for d in self._deployments(policy.meta.key):
            ours = all(name.startswith("inference-fleet") for name in d.replicas_owners)
            if is_gateway(d.meta.labels) and d.desired_replicas != wanted and ours and not d.meta.deleting:
                yield ReplicaChange(d.meta.name, d.meta.uid, d.meta.resource_version, d.desired_replicas, wanted)

    def _leftovers(self, key: str, plan: Plan) -> Iterator[ObjectSeen]:
        """Services of variants that neither run nor are wanted."""
        keep = {d.meta.name for d in self._deployments(key)} | {v.name for v in plan.variants}
        for seen in self.snapshots.of_policy(kinds.SERVICE, key):
            labels = seen.meta.labels
            gone = labels.get(VARIANT_LABEL, seen.meta.name) not in keep and not seen.meta.deleting
            if isinstance(seen, ObjectSeen) and labels.get(COMPONENT_LABEL) == "engine" and gone:
                yield seen

    async def _report(
        self, policy: PolicySeen, observation: Observation, plan: Plan, outcome: Outcome, state: PolicyState
    ) -> bool:
        """Status and Events; False where the policy changed meanwhile."""
        now = self.wall().astimezone(UTC).replace(microsecond=0)
        seen = self.snapshots.get(kinds.POLICY, policy.meta.key)
        current = seen if isinstance(seen, PolicySeen) and seen.meta.uid == policy.meta.uid else policy
        previous = read_conditions(current.status)
        told = replace(plan, conditions=report.with_rollouts(plan.conditions, plan, outcome.rolled))
        computed = report.status_of(observation, told, outcome.refused, previous, now)
        fresh = True
        write = report.worth_writing(current.status, computed, self.clock() - state.status_written_at)
        state.status_held_back = not write and dict(current.status) != computed
        if write:
            fresh = await write_status(
                self.client, self.snapshots, kinds.POLICY, current.meta, current.status, computed
            )
            if fresh:
                state.status_written_at = self.clock()
        self._count_decisions(plan, state)
        standing = (*plan.events, *_refusals(outcome.refused))
        news, state.said = events.news((*standing, *_transitions(previous, computed)), state.said)
        state.standing = frozenset(events.digest(event) for event in standing)
        await self.reporter.send(kinds.POLICY, policy.meta, news)
        return fresh

    def _count_decisions(self, plan: Plan, state: PolicyState) -> None:
        now = frozenset(
            (d.variant or d.model, d.action.value, d.reason) for d in plan.decisions if d.action != Action.KEEP
        )
        for _, action, reason in now - state.decided:
            self.metrics.decisions.labels(action, reason).inc()
        state.decided = now

    async def remember(self, policy: PolicySeen, state: PolicyState, *, acted: bool) -> None:
        """Write the memory down when it is due."""
        owned = {seen.meta.uid for kind in OWNED for seen in self.snapshots.of_policy(kind, policy.meta.key)}
        for uid in [uid for uid in state.applied if uid not in owned]:
            del state.applied[uid]
        text = state.text()
        if state.keeper.due(text, self.clock(), acted=acted):
            body = memory.manifest(policy.meta.namespace, policy.meta.name, policy.meta.uid, text)
            answer = await self._write_memory(body, state.keeper.resource_version)
            state.keeper.wrote(text, self.clock(), str(answer["metadata"]["resourceVersion"]))

    async def _write_memory(self, body: dict[str, Any], resource_version: str) -> dict[str, Any]:
        """Over what was last read or written, so that a write that was held up for long does not bring back an old memory."""
        namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
        for attempt in range(2):
            body["metadata"]["resourceVersion"] = resource_version or NEVER
            try:
                return await self.client.apply(kinds.CONFIG_MAP, body)
            except ApiError as error:
                if error.status != 409 or isinstance(error, NamespaceEnding) or attempt:
                    raise
            try:
                live = await self.client.get(kinds.CONFIG_MAP, namespace, name)
                resource_version = str(live["metadata"]["resourceVersion"])
            except ApiError as error:
                if not error.gone:
                    raise
                resource_version = ""
        raise AssertionError("unreachable")

    async def remember_all(self) -> None:
        """Write down everything that differs from what is written; for the end of the process."""
        for policy in self.snapshots.all(kinds.POLICY):
            state = self.states.get(policy.meta.uid)
            if isinstance(policy, PolicySeen) and state is not None and not policy.meta.deleting:
                await self.remember(policy, state, acted=True)


def _refusals(refused: Iterable[Refused]) -> Iterator[Event]:
    for one in refused:
        yield Event("Warning", Reason.APPLY_REFUSED, f"{one.kind} {one.name}: {one.message}")


def _sooner(one: float | None, other: float | None) -> float | None:
    """The smaller of two waits; None: only an event ends it."""
    given = [seconds for seconds in (one, other) if seconds is not None]
    return min(given, default=None)


def _transitions(previous: Iterable[Condition], computed: Mapping[str, object]) -> Iterator[Event]:
    """Ready turning True or False is worth an Event."""
    before = find(previous, ConditionType.READY.value)
    after = find(read_conditions(computed), ConditionType.READY.value)
    if after is None or (before is not None and before.status is after.status):
        return
    if after.status is Status.TRUE:
        yield Event("Normal", Reason.READY, after.message)
    elif before is not None and before.status is Status.TRUE:
        yield Event("Warning", Reason.NOT_READY, f"{after.reason}: {after.message}")
