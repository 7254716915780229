"""Passes over InferenceModels and AcceleratorClasses: snapshots in, a status and at most one Job out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from inference_fleet.api.conditions import Condition, ConditionType, Status, find
from inference_fleet.cluster import classes, events, kinds, models
from inference_fleet.cluster.claims import Ledger
from inference_fleet.cluster.client import ApiError, ClusterClient
from inference_fleet.cluster.observe import read_conditions
from inference_fleet.cluster.policy_pass import STALE_SECONDS, PassResult
from inference_fleet.cluster.reasons import Reason
from inference_fleet.cluster.rendering import Renderer
from inference_fleet.cluster.report import worth_writing
from inference_fleet.cluster.seen import ClassSeen, JobSeen, ModelSeen, PodSeen
from inference_fleet.cluster.snapshot import Snapshots
from inference_fleet.cluster.status_writes import write_status
from inference_fleet.cluster.stock import Usage
from inference_fleet.cluster.stock_book import StockBook
from inference_fleet.plan.outcome import Event


@dataclass(slots=True)
class ModelPasses:
    """Everything that passes over models share."""

    client: ClusterClient
    snapshots: Snapshots
    reporter: events.Reporter
    renderer: Renderer
    clock: Callable[[], float]
    wall: Callable[[], datetime]

    async def run(self, key: str) -> PassResult:
        """One pass over `namespace/name`."""
        seen = self.snapshots.get(kinds.MODEL, key)
        if not isinstance(seen, ModelSeen) or seen.meta.deleting:
            return PassResult()
        now = self.wall().astimezone(UTC).replace(microsecond=0)
        jobs = tuple(
            j
            for j in self.snapshots.all(kinds.JOB)
            if isinstance(j, JobSeen) and j.meta.owner_uid == seen.meta.uid and not j.meta.deleting
        )
        uids = {job.meta.uid for job in jobs}
        pods = tuple(
            p for p in self.snapshots.all(kinds.POD) if isinstance(p, PodSeen) and p.ours and p.meta.owner_uid in uids
        )
        previous = read_conditions(seen.status)
        plan = models.plan_model(seen, jobs, pods, previous, now)
        if not await self._act(seen, plan):
            return PassResult(STALE_SECONDS)
        if worth_writing(seen.status, plan.status, 0.0):
            if not await write_status(self.client, self.snapshots, kinds.MODEL, seen.meta, seen.status, plan.status):
                return PassResult(STALE_SECONDS)
            await self._tell(seen, previous, read_conditions(plan.status))
        return PassResult(plan.requeue_after_seconds)

    async def _act(self, seen: ModelSeen, plan: models.ModelPlan) -> bool:
        try:
            for job in plan.remove:
                meta = job.meta
                await self.client.delete(kinds.JOB, meta.namespace, meta.name, meta.uid, meta.resource_version)
                self.snapshots.removed(kinds.JOB, meta.namespace, meta.name, meta.uid)
            if plan.create is not None:
                made = await self.client.create(kinds.JOB, self.renderer.inspection(seen, plan.create))
                self.snapshots.wrote(kinds.JOB, made)
        except ApiError as error:
            if error.stale:
                return False
            raise
        return True

    async def _tell(self, seen: ModelSeen, previous: tuple[Condition, ...], computed: tuple[Condition, ...]) -> None:
        before, after = (find(c, ConditionType.INSPECTED.value) for c in (previous, computed))
        if after is None or (before is not None and (before.status, before.reason) == (after.status, after.reason)):
            return
        if after.status is Status.TRUE:
            await self.reporter.send(kinds.MODEL, seen.meta, [Event("Normal", Reason.INSPECTED, after.message)])
        elif after.status is Status.FALSE:
            message = f"{after.reason}: {after.message}"
            await self.reporter.send(kinds.MODEL, seen.meta, [Event("Warning", Reason.INSPECTION_FAILED, message)])


@dataclass(slots=True)
class ClassPasses:
    """Everything that passes over classes share. Only a cluster-wide install runs them."""

    client: ClusterClient
    snapshots: Snapshots
    ledger: Ledger
    stock: StockBook
    wake_unsatisfied: Callable[[str], None]
    """Told the name of a class whose stock changed: who wants more of it, or waits for what it claims, looks again."""
    wall: Callable[[], datetime]
    usages: dict[str, Usage | None] = field(default_factory=dict)

    async def run(self, name: str) -> PassResult:
        """One pass over a class."""
        seen = self.snapshots.get(kinds.ACCELERATOR_CLASS, name)
        if not isinstance(seen, ClassSeen) or seen.meta.deleting:
            self.usages.pop(name, None)
            return PassResult()
        usage = self.stock.current(fresh=True).usages.get(name)
        if name in self.usages and self.usages[name] != usage:
            self.wake_unsatisfied(name)
        self.usages[name] = usage
        now = self.wall().astimezone(UTC).replace(microsecond=0)
        computed = classes.status_of(seen, usage, self.ledger.total(name), read_conditions(seen.status), now)
        if worth_writing(seen.status, computed, 0.0) and not await write_status(
            self.client, self.snapshots, kinds.ACCELERATOR_CLASS, seen.meta, seen.status, computed
        ):
            return PassResult(STALE_SECONDS)
        return PassResult()
