"""The kernel: events and ticks queue keys, workers pass over them, and everything starts and ends in order."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

from inference_fleet.cluster import kinds, memory
from inference_fleet.cluster.claims import Entry, Ledger, Turns
from inference_fleet.cluster.client import ApiUnreachable, ClusterClient, NamespaceEnding, list_all
from inference_fleet.cluster.events import Reporter, digest
from inference_fleet.cluster.kinds import Kind
from inference_fleet.cluster.lease import LeaseLost
from inference_fleet.cluster.meta_reading import Object
from inference_fleet.cluster.metrics import OperatorMetrics
from inference_fleet.cluster.model_pass import ClassPasses, ModelPasses
from inference_fleet.cluster.observe import read_identity
from inference_fleet.cluster.policy_pass import PassResult, PolicyPasses
from inference_fleet.cluster.queue import LARGEST_BACK_OFF_SECONDS, QueueDriver, WorkQueue
from inference_fleet.cluster.reasons import Reason
from inference_fleet.cluster.rendering import Renderer
from inference_fleet.cluster.scopes import MEMORIES, scopes
from inference_fleet.cluster.scraping import ScrapeSchedule
from inference_fleet.cluster.seen import DeploymentSeen, PolicySeen, Seen
from inference_fleet.cluster.settings import OperatorOptions
from inference_fleet.cluster.snapshot import Periods, Snapshots
from inference_fleet.cluster.stock_book import StockBook
from inference_fleet.cluster.store import Expectations, policy_of, version
from inference_fleet.cluster.waking import References, class_key, model_key, policy_key, wakes
from inference_fleet.plan.observation import OperatorSettings
from inference_fleet.plan.outcome import Event
from inference_fleet.signals.scraper import Scraper

log = logging.getLogger("inference_fleet.kernel")

AWAY_SECONDS = 30.0
"""The longest back-off while the API server does not answer: when it is back, nothing waits for minutes."""
PRIME_SECONDS = 5.0
DRAIN_PASSES_SECONDS = 12.0
LAG_PERIOD_SECONDS = 0.25
ENDING_SECONDS = 15.0
"""How soon to look again at an object whose namespace is being deleted: it should be gone by then."""
CLAIMANTS_SECONDS = 0.2
COUNTED_SECONDS = 2.0
"""How soon the number of claimed devices is brought up to date in the status of a class."""

GAP_SECONDS = 0.5

KIND_OF = {"policy": kinds.POLICY, "model": kinds.MODEL, "class": kinds.ACCELERATOR_CLASS}
WATCHED_BY_KOPF = (kinds.POLICY, kinds.MODEL, kinds.ACCELERATOR_CLASS)
STOCK_KINDS = (kinds.POD, kinds.NODE, kinds.DEPLOYMENT, kinds.ACCELERATOR_CLASS)


class Kernel:
    """One leading operator. `run` until `stop` is set; belongs to one event loop."""

    def __init__(
        self,
        options: OperatorOptions,
        settings: OperatorSettings,
        client: ClusterClient,
        renderer: Renderer,
        metrics: OperatorMetrics,
        clock: Callable[[], float],
        wall: Callable[[], datetime],
    ) -> None:
        self.options = options
        self.metrics = metrics
        self.ready = False
        self.failed = ""
        """Why the process must end, once a task that never ends has ended."""
        self._client = client
        self._clock = clock
        self._started = False
        self._references = References()
        self._kopf_owes: dict[Kind, Expectations] = {kind: Expectations() for kind in WATCHED_BY_KOPF}
        self._kopf_seen: set[Kind] = set()
        self.queue = QueueDriver(WorkQueue(), clock)
        periods = Periods(relist=options.relist_seconds, owed=options.silence_seconds)
        self.snapshots = Snapshots(client, scopes(options), self._changed, clock, periods)
        self._stock = StockBook(self.snapshots, clock)
        self._scraper = Scraper(
            clock, options.scrape_seconds, lambda target, result: metrics.scrapes.labels(target, result).inc()
        )
        self._schedule = ScrapeSchedule(
            self.snapshots, self._scraper, options.scrape_seconds,
            lambda key: self.queue.add(policy_key(key), 0.05), clock, wall,
        )  # fmt: skip
        self._reporter = Reporter(client, options.identity, wall, lambda reason: metrics.events.labels(reason).inc())
        self._ledger = Ledger()
        self._executor = ThreadPoolExecutor(max_workers=2, thread_name_prefix="plan")
        self.policies = PolicyPasses(
            client=client,
            snapshots=self.snapshots,
            scraper=self._scraper,
            ledger=self._ledger,
            turns=Turns(),
            stock=self._stock,
            reporter=self._reporter,
            metrics=metrics,
            renderer=renderer,
            settings=settings,
            executor=self._executor,
            clock=clock,
            wall=wall,
            wake_claimants=self._wake_claimants,
            started_at=clock(),
        )
        self._models = ModelPasses(client, self.snapshots, self._reporter, renderer, clock, wall)
        self._classes = ClassPasses(client, self.snapshots, self._ledger, self._stock, self._wake_unsatisfied, wall)
        self._complained: dict[str, str] = {}
        self._tasks: list[asyncio.Task[Any]] = []

    # -- what wakes

    def _changed(self, kind: Kind, before: Seen | None, after: Seen | None) -> None:
        if kind in STOCK_KINDS:
            self._stock.changed()
        if kind is kinds.POLICY:
            key = (after or before).meta.key  # type: ignore[union-attr]
            self._references.note(after if isinstance(after, PolicySeen) else None, key)
        if not self._started:
            return
        if kind in self._kopf_owes and after is not None:
            self._kopf_owes[kind].expect(after.meta.key, version(after.meta.resource_version), self._clock())
        elif kind in self._kopf_owes and before is not None:
            self._kopf_owes[kind].waiting.pop(before.meta.key, None)
        for wake in wakes(kind, before, after, self._references, self._class_names()):
            self.queue.add(wake.key, wake.delay, self._priority_of(wake.key))

    def _class_names(self) -> tuple[str, ...]:
        return tuple(seen.meta.name for seen in self.snapshots.all(kinds.ACCELERATOR_CLASS))

    def _priority_of(self, key: str) -> int:
        sort, _, name = key.partition(":")
        policy = self.snapshots.get(kinds.POLICY, name) if sort == "policy" else None
        return policy.spec.priority if isinstance(policy, PolicySeen) and policy.spec is not None else 0

    def kopf_event(self, kind: Kind, event_type: str | None, obj: Object) -> None:
        """An event that kopf delivered. It moves the snapshot on if it is newer, and so wakes what it should."""
        self._kopf_seen.add(kind)
        self.snapshots.heard(kind, obj, deleted=event_type == "DELETED")
        metadata = obj["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        key = f"{namespace}/{name}" if namespace else name
        self._kopf_owes[kind].delivered(key, version(str(metadata.get("resourceVersion", ""))))

    def _wake_claimants(self, policy: str, classes: Iterable[str]) -> None:
        for name in classes:
            for other in sorted(self._ledger.concerned(policy, name)):
                key = policy_key(other)
                self.queue.add(key, CLAIMANTS_SECONDS, self._priority_of(key))
            self.queue.add(class_key(name), COUNTED_SECONDS)

    def _wake_unsatisfied(self, accelerator_class: str) -> None:
        held = self._stock.current().held.get(accelerator_class, {})
        for policy in sorted(self._ledger.unsatisfied(accelerator_class, held)):
            key = policy_key(policy)
            self.queue.add(key, CLAIMANTS_SECONDS, self._priority_of(key))

    # -- health

    def unhealthy(self) -> str:
        """Why this process should be replaced; empty while it is well. That the API cannot be reached is no reason."""
        if self.failed:
            return self.failed
        grace = self.options.silence_seconds
        late = self.snapshots.overdue(grace)
        if late:
            return f"a list shows changes that no watch event delivered: {', '.join(late)}"
        since = self._client.reachability.since
        if since is not None:
            now = self._clock()
            owed = [k.plural for k, e in self._kopf_owes.items() if e.overdue(now, grace, not_before=since)]
            if owed:
                return f"kopf delivers no events of: {', '.join(sorted(owed))}"
        return ""

    def sample(self) -> None:
        """Bring the gauges up to date."""
        now = self._clock()
        self.metrics.queue_depth.set(self.queue.queue.depth(now))
        self.metrics.queue_age.set(self.queue.queue.age(now))
        self.metrics.snapshot_objects.set(self.snapshots.count())

    # -- life

    async def run(self, stop: asyncio.Event) -> None:
        """Start, work until told to stop, end in order."""
        try:
            for name, reflector in self.snapshots.runs().items():
                self._spawn(name, reflector())
            if await self._unless(stop, self._prepare()):
                for number in range(self.options.workers):
                    self._spawn(f"worker {number}", self._work())
                self._spawn("resync", self._resync())
                self._spawn("loop lag", self._measure_lag())
                self._spawn("scraping", self._schedule.run())
                self.ready = True
                log.info("serving %d objects", self.snapshots.count())
                await stop.wait()
        finally:
            self.ready = False
            await self._end()

    async def _unless(self, stop: asyncio.Event, work: Awaitable[None]) -> bool:
        """Do some work, unless told to stop first."""
        working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                return True
            return False
        finally:
            for task in (working, stopping):
                task.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)

    async def _prepare(self) -> None:
        await self.snapshots.synced()
        self.policies.adopt(await self._read_memories())
        self._rebuild_ledger()
        await self._schedule.prime(PRIME_SECONDS)
        self._started = True
        self._queue_all(spread=0.0)

    async def _read_memories(self) -> dict[str, memory.Remembered]:
        found: dict[str, memory.Remembered] = {}
        for namespace in self.options.namespaces or ("",):
            items, _ = await list_all(self._client, kinds.CONFIG_MAP, namespace, MEMORIES)
            found |= memory.read_all(items)
        return found

    def _rebuild_ledger(self) -> None:
        """What runs is claimed before the first pass decides anything."""
        devices: dict[str, dict[str, int]] = {}
        for seen in self.snapshots.all(kinds.DEPLOYMENT):
            identity = read_identity(seen) if isinstance(seen, DeploymentSeen) else None
            if identity is not None and isinstance(seen, DeploymentSeen):
                claims = devices.setdefault(policy_of(seen), {})
                wanted = seen.desired_replicas * identity.devices_per_replica
                claims[identity.accelerator_class] = claims.get(identity.accelerator_class, 0) + wanted
        for policy, claims in devices.items():
            self._ledger.enter(policy, Entry(claims, self._priority_of(policy_key(policy))))

    def _keys(self) -> Iterator[str]:
        for seen in self.snapshots.all(kinds.POLICY):
            yield policy_key(seen.meta.key)
        for seen in self.snapshots.all(kinds.MODEL):
            yield model_key(seen.meta.key)
        for name in self._class_names():
            yield class_key(name)

    def _queue_all(self, spread: float) -> None:
        """Queue everything; with a spread, each key at its own moment of the period, always the same."""
        for key in self._keys():
            delay = (zlib.crc32(key.encode()) % 1000) / 1000 * spread
            self.queue.add(key, delay, self._priority_of(key))

    async def _resync(self) -> None:
        while True:
            self._queue_all(spread=self.options.resync_seconds)
            await asyncio.sleep(self.options.resync_seconds)

    async def _measure_lag(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await asyncio.sleep(LAG_PERIOD_SECONDS)
            self.metrics.loop_lag.observe(max(0.0, loop.time() - began - LAG_PERIOD_SECONDS))

    def _spawn(self, name: str, work: Any) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.append(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or self.queue.closed:
            return
        self.failed = f"the task {task.get_name()!r} ended: {task.exception()!r}"
        log.critical("%s", self.failed, exc_info=task.exception())

    # -- passes

    async def _work(self) -> None:
        while (taken := await self.queue.take()) is not None:
            self.metrics.queue_wait.observe(taken.waited_seconds)
            sort, _, name = taken.key.partition(":")
            began = self._clock()
            try:
                result = await self._pass(sort, name)
            except asyncio.CancelledError:
                raise
            except NamespaceEnding:
                self._done(taken.key, sort, PassResult(ENDING_SECONDS))
            except (ApiUnreachable, LeaseLost) as error:
                log.warning("%s: %s", taken.key, error)
                later = error.retry_after_seconds if isinstance(error, ApiUnreachable) else 0.0
                self._failed(taken.key, sort, "unreachable", later, AWAY_SECONDS)
            except Exception as error:
                log.exception("the pass over %s failed", taken.key)
                await self._complain(sort, name, error)
                self._failed(taken.key, sort, "error")
            else:
                self._done(taken.key, sort, result)
            self.metrics.step_duration.labels(f"{sort}-pass").observe(self._clock() - began)

    async def _pass(self, sort: str, name: str) -> PassResult:
        if self.snapshots.in_gap(KIND_OF[sort]):
            return PassResult(GAP_SECONDS)  # it may be gone, and what it owned with it: nothing is made for it now
        if sort == "policy":
            return await self.policies.run(name)
        if sort == "model":
            return await self._models.run(name)
        if self.options.clusterwide:
            return await self._classes.run(name)
        return PassResult()

    def _done(self, key: str, sort: str, result: PassResult) -> None:
        if result.failed:
            self._failed(key, sort, "refused")
            return
        self._complained.pop(key, None)
        self.metrics.passes.labels(sort, "done").inc()
        self.queue.done(key)
        if result.requeue_after_seconds is not None:
            self.queue.add(key, result.requeue_after_seconds)

    def _failed(
        self, key: str, sort: str, result: str, at_least: float = 0.0, at_most: float = LARGEST_BACK_OFF_SECONDS
    ) -> None:
        self.metrics.passes.labels(sort, result).inc()
        delay = self.queue.failed(key, at_least, at_most)
        log.info("%s is tried again in %.1f s", key, delay)

    async def _complain(self, sort: str, name: str, error: Exception) -> None:
        """Say once on the object that a pass failed for a reason nobody foresaw; its status stays as it was."""
        kind = KIND_OF[sort]
        seen = self.snapshots.get(kind, name)
        event = Event(
            "Warning", Reason.INTERNAL_ERROR, f"{type(error).__name__}: {error}. It is tried again; see the log."
        )
        key = f"{sort}:{name}"
        if seen is None or self._complained.get(key) == digest(event):
            return
        self._complained[key] = digest(event)
        try:
            await self._reporter.send(kind, seen.meta, [event])
        except LeaseLost as lost:
            log.warning("%s", lost)

    async def _end(self) -> None:
        """Finish the passes under way, write down what is remembered, stop everything."""
        self.queue.close()
        workers = [t for t in self._tasks if t.get_name().startswith("worker")]
        if workers:
            await asyncio.wait(workers, timeout=DRAIN_PASSES_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._started:
            try:
                async with asyncio.timeout(DRAIN_PASSES_SECONDS):
                    await self.policies.remember_all()
            except Exception as error:
                log.warning("what is remembered was not all written down: %s", error)
        await self._scraper.close()
        self._executor.shutdown(wait=False, cancel_futures=True)
