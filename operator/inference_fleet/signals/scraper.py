"""Reading pods over HTTP: a few at a time, each with a short deadline, and what failed said as such."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp
import orjson

from inference_fleet.api.policy import InferencePolicySpec
from inference_fleet.plan.observation import SpeculationView
from inference_fleet.signals.gateway import ADMIN_PORT, GatewayHistory, read_counters
from inference_fleet.signals.readings import Measured, Target
from inference_fleet.signals.speculation import DRAFT_PORT, read_speculation, together

TIMEOUT_SECONDS = 2.0
CONNECT_SECONDS = 1.0
AT_ONCE = 32
LARGEST_BYTES = 4 * 1024 * 1024
DEFAULT_WINDOW_SECONDS = 300.0
STALE_SPECULATION_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Targets:
    """What to read of one policy."""

    gateways: tuple[Target, ...] = ()
    drafts: tuple[Target, ...] = ()


@dataclass(slots=True)
class PolicyReadings:
    """Everything measured of one policy so far."""

    gateways: GatewayHistory = field(default_factory=GatewayHistory)
    drafts: dict[str, tuple[float, str, SpeculationView]] = field(default_factory=dict)
    """Pod uid → when, variant, what."""
    targets: Targets = field(default_factory=Targets)


class Scraper:
    """Reads policies' pods and keeps what they said. Belongs to one event loop; `close` when done."""

    def __init__(
        self,
        clock: Callable[[], float],
        scrape_seconds: float,
        on_read: Callable[[str, str], None] = lambda target, result: None,
    ) -> None:
        self._clock = clock
        self._scrape_seconds = scrape_seconds
        self._on_read = on_read
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._session: aiohttp.ClientSession | None = None
        self._policies: dict[str, PolicyReadings] = {}

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def forget(self, policy: str) -> None:
        """Drop what is known of a policy that is gone."""
        self._policies.pop(policy, None)

    async def _get(self, kind: str, url: str) -> bytes | None:
        """The body of a 200; None for everything else."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS, sock_connect=CONNECT_SECONDS)
            # Pods come and go and share addresses over time: nothing is kept open, no proxy is asked.
            self._session = aiohttp.ClientSession(
                timeout=timeout, connector=aiohttp.TCPConnector(limit=AT_ONCE, force_close=True), trust_env=False
            )
        async with self._slots:
            try:
                async with self._session.get(url, allow_redirects=False) as response:
                    if response.status != 200:
                        self._on_read(kind, f"status-{response.status // 100}xx")
                        return None
                    body = await response.content.read(LARGEST_BYTES)
            except (aiohttp.ClientError, OSError, TimeoutError):
                self._on_read(kind, "unreachable")
                return None
        self._on_read(kind, "read")
        return body

    async def read_revisions(self, policy: str, targets: Sequence[Target]) -> None:
        """Read only which routes each gateway runs by, where a drain waits for that."""
        readings = self._policies.setdefault(policy, PolicyReadings())
        await asyncio.gather(*(self._read_revision(readings, target) for target in targets))

    async def _read_revision(self, readings: PolicyReadings, target: Target) -> None:
        body = await self._get("gateway-ready", target.url(ADMIN_PORT, "/ready"))
        try:
            document = orjson.loads(body) if body is not None else None
        except orjson.JSONDecodeError:
            document = None
        revision = document.get("revision") if isinstance(document, dict) else None
        readings.gateways.revisions[target.pod] = str(revision) if revision else None

    async def read(self, policy: str, spec: InferencePolicySpec, targets: Targets) -> None:
        """Read all of one policy's pods, together."""
        readings = self._policies.setdefault(policy, PolicyReadings())
        readings.targets = targets
        window = _window(spec)
        await asyncio.gather(
            *(self._read_gateway(readings, target, window) for target in targets.gateways),
            *(self._read_draft(readings, target) for target in targets.drafts),
        )
        now = self._clock()
        readings.gateways.prune(targets.gateways, now, window)
        live = {target.uid for target in targets.drafts}
        readings.drafts = {
            uid: item
            for uid, item in readings.drafts.items()
            if uid in live and now - item[0] < STALE_SPECULATION_SECONDS
        }

    async def _read_gateway(self, readings: PolicyReadings, target: Target, window: float) -> None:
        body = await self._get("gateway", target.url(ADMIN_PORT, "/metrics"))
        if body is None:
            readings.gateways.unread(target)
            return
        try:
            counters = read_counters(body.decode())
        except ValueError:
            self._on_read("gateway", "malformed")
            readings.gateways.unread(target)
            return
        readings.gateways.add(target, counters, self._clock(), window)

    async def _read_draft(self, readings: PolicyReadings, target: Target) -> None:
        body = await self._get("draft", target.url(DRAFT_PORT, "/speculation"))
        if body is None:
            return
        try:
            view = read_speculation(body)
        except ValueError:
            self._on_read("draft", "malformed")
            return
        readings.drafts[target.uid] = (self._clock(), target.variant, view)

    def measured(self, policy: str, spec: InferencePolicySpec | None, live: Sequence[Target]) -> Measured:
        """What is known of a policy now. `live`: its Ready gateway pods; series of others never speak for now."""
        readings = self._policies.get(policy)
        objectives = spec.slo.objectives if spec is not None and spec.slo is not None else ()
        if readings is None:
            readings = PolicyReadings()
        window = _window(spec)
        return Measured(
            traffic=readings.gateways.traffic(live, objectives, window, self._clock(), self._scrape_seconds),
            revisions=dict(readings.gateways.revisions),
            speculation=_by_variant(readings.drafts),
        )


def _window(spec: InferencePolicySpec | None) -> float:
    return float(spec.slo.window_seconds) if spec is not None and spec.slo is not None else DEFAULT_WINDOW_SECONDS


def _by_variant(drafts: Mapping[str, tuple[float, str, SpeculationView]]) -> dict[str, SpeculationView]:
    grouped: dict[str, list[SpeculationView]] = {}
    for _, variant, view in drafts.values():
        grouped.setdefault(variant, []).append(view)
    summed = {name: together(views) for name, views in grouped.items()}
    return {name: view for name, view in summed.items() if view is not None}
