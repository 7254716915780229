"""When to read which pods. Reading itself is `signals/`; what comes of it wakes the policy only if it is news."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Iterable
from datetime import datetime

from inference_fleet.cluster import kinds
from inference_fleet.cluster.observe import is_gateway, read_routes
from inference_fleet.cluster.report import rounded
from inference_fleet.cluster.seen import ObjectSeen, PodSeen, PolicySeen
from inference_fleet.cluster.snapshot import Snapshots
from inference_fleet.naming import VARIANT_LABEL, routes_name
from inference_fleet.signals.readings import Measured, Target
from inference_fleet.signals.scraper import Scraper, Targets
from inference_fleet.signals.speculation import CONTAINER

log = logging.getLogger("inference_fleet.scraping")

TICK_SECONDS = 0.5
DRAIN_SECONDS = 2.0
"""How often a gateway is asked for its revision while a drain waits for it."""


def _target(pod: PodSeen, now: float, wall: datetime) -> Target:
    return Target(
        pod=pod.meta.name,
        uid=pod.meta.uid,
        address=pod.address,
        variant=pod.meta.labels.get(VARIANT_LABEL, ""),
        born=now - (wall - pod.meta.created).total_seconds(),
    )


def live_gateways(pods: Iterable[PodSeen], now: float, wall: datetime) -> tuple[Target, ...]:
    """The Ready gateway pods: what they counted speaks for now."""
    return tuple(
        _target(p, now, wall)
        for p in sorted(pods, key=lambda p: p.meta.name)
        if is_gateway(p.meta.labels) and p.ready and p.address and not p.meta.deleting and not p.finished
    )


def live_drafts(pods: Iterable[PodSeen], now: float, wall: datetime) -> tuple[Target, ...]:
    """Engine pods with a draft sidecar that can be reached."""
    return tuple(
        _target(p, now, wall)
        for p in pods
        if CONTAINER in p.containers and p.ready and p.address and not p.meta.deleting and not p.finished
    )


def news_of(measured: Measured) -> tuple[object, ...]:
    """What of a measurement is worth a pass: revisions, who is missing, objectives in coarse figures."""
    return (
        tuple(sorted(measured.revisions.items())),
        measured.traffic.missing_sources,
        measured.traffic.age_seconds is None,
        tuple(
            (
                o.name,
                100 * o.within // o.requests if o.requests else None,
                o.requests >= 30,
                _coarse(o.observed_milliseconds),
            )
            for o in measured.traffic.objectives
        ),
        tuple(sorted((name, view.drafting, view.depth) for name, view in measured.speculation.items())),
    )


def _coarse(milliseconds: object) -> int | None:
    return rounded(milliseconds) if milliseconds is not None else None  # type: ignore[arg-type]


class ScrapeSchedule:
    """Reads every policy's pods each `scrape_seconds`, and revisions more often while a drain waits."""

    def __init__(
        self,
        snapshots: Snapshots,
        scraper: Scraper,
        scrape_seconds: float,
        wake: Callable[[str], None],
        clock: Callable[[], float],
        wall: Callable[[], datetime],
    ) -> None:
        self._snapshots = snapshots
        self._scraper = scraper
        self._scrape_seconds = scrape_seconds
        self._wake = wake
        self._clock = clock
        self._wall = wall
        self._due: dict[str, float] = {}
        self._revisions_due: dict[str, float] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                self._tick()
                await asyncio.sleep(TICK_SECONDS)
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def prime(self, timeout_seconds: float) -> None:
        """Read everything once before the first passes, so that a restart does not report the gateways as unread."""
        self._tick()
        if self._running:
            await asyncio.wait(tuple(self._running.values()), timeout=timeout_seconds)

    def _tick(self) -> None:
        now = self._clock()
        policies = {p.meta.key: p for p in self._snapshots.all(kinds.POLICY) if isinstance(p, PolicySeen)}
        for gone in self._due.keys() - policies.keys():
            self._due.pop(gone, None)
            self._revisions_due.pop(gone, None)
        for key, policy in policies.items():
            if key in self._running or policy.spec is None:
                continue
            if now >= self._due.get(key, 0.0):
                self._due[key] = self._next(key, now)
                self._start(key, self._read(policy))
            elif now >= self._revisions_due.get(key, 0.0) and self._draining(policy):
                self._revisions_due[key] = now + DRAIN_SECONDS
                self._start(key, self._read_revisions(policy))

    def _next(self, key: str, now: float) -> float:
        """The first reading is at once; the others each at their policy's own moment of the period, not all together."""
        if key in self._due:
            return now + self._scrape_seconds
        return now + self._scrape_seconds * (0.5 + (zlib.crc32(key.encode()) % 1000) / 2000)

    def _start(self, key: str, reading: object) -> None:
        task: asyncio.Task[None] = asyncio.create_task(reading)  # type: ignore[arg-type]
        self._running[key] = task
        task.add_done_callback(lambda done: self._ended(key, done))

    def _ended(self, key: str, task: asyncio.Task[None]) -> None:
        self._running.pop(key, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("reading the pods of %s failed", key, exc_info=task.exception())

    def _draining(self, policy: PolicySeen) -> bool:
        meta = policy.meta
        routes = self._snapshots.get(kinds.CONFIG_MAP, f"{meta.namespace}/{routes_name(meta.name)}")
        return bool(read_routes(routes if isinstance(routes, ObjectSeen) else None)[1])

    def _pods(self, key: str) -> tuple[PodSeen, ...]:
        return tuple(p for p in self._snapshots.of_policy(kinds.POD, key) if isinstance(p, PodSeen))

    async def _read(self, policy: PolicySeen) -> None:
        key = policy.meta.key
        assert policy.spec is not None
        pods, now, wall = self._pods(key), self._clock(), self._wall()
        targets = Targets(live_gateways(pods, now, wall), live_drafts(pods, now, wall))
        before = news_of(self._scraper.measured(key, policy.spec, targets.gateways))
        await self._scraper.read(key, policy.spec, targets)
        if news_of(self._scraper.measured(key, policy.spec, targets.gateways)) != before:
            self._wake(key)

    async def _read_revisions(self, policy: PolicySeen) -> None:
        key = policy.meta.key
        live = live_gateways(self._pods(key), self._clock(), self._wall())
        before = news_of(self._scraper.measured(key, policy.spec, live))
        await self._scraper.read_revisions(key, live)
        if news_of(self._scraper.measured(key, policy.spec, live)) != before:
            self._wake(key)
