"""The operator's process: it stands by, leads, serves, and ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from inference_fleet import __version__
from inference_fleet.cluster.client import ClusterClient, load_configuration
from inference_fleet.cluster.health import HealthServer
from inference_fleet.cluster.kernel import Kernel
from inference_fleet.cluster.lease import LeaseHolder
from inference_fleet.cluster.metrics import OperatorMetrics
from inference_fleet.cluster.rendering import StandardRenderer
from inference_fleet.cluster.settings import OperatorOptions
from inference_fleet.cluster.wiring import KopfShell
from inference_fleet.plan.observation import OperatorSettings
from inference_fleet.render.revisions import NEWEST

log = logging.getLogger("inference_fleet.operator")

USER_AGENT = f"inference-fleet-operator/{__version__}"
LOST_STATUS = 3
FAILED_STATUS = 4
WATCHDOG_SECONDS = 1.0


def end_at_once(why: str) -> None:
    """The lease is lost: another process may write now, so this one ends, whatever its event loop is doing."""
    log.critical("%s; this process ends", why)
    logging.shutdown()
    os._exit(LOST_STATUS)


def settings_of(options: OperatorOptions) -> OperatorSettings:
    """What plans and manifests need of the options."""
    return OperatorSettings(
        image=options.image,
        llama_cpp_image=options.llama_cpp_image,
        vllm_image=options.vllm_image,
        render_revision=NEWEST,
        stock_known=options.clusterwide or options.read_nodes,
        gateway_cluster_role=options.gateway_cluster_role,
        hub_endpoint=options.hub_endpoint,
    )


class OperatorProcess:
    """One process, standby or leader."""

    def __init__(self, options: OperatorOptions, on_lost: Callable[[str], None] = end_at_once) -> None:
        self._options = options
        self._metrics = OperatorMetrics()
        self._metrics.build.info({"version": __version__})
        self._stop = asyncio.Event()
        self._kernel: Kernel | None = None
        self._kopf: KopfShell | None = None
        self.lease = LeaseHolder(
            self._connect_lease,
            namespace=options.lease_namespace,
            name=options.lease_name,
            identity=options.identity,
            on_lost=on_lost,
            times=options.lease_times,
        )
        self.health = HealthServer(options.port, self._metrics, self._unhealthy, self._waiting, self._sample)

    async def _connect_lease(self) -> ClusterClient:
        return ClusterClient(await load_configuration(self._options.kubeconfig), time.monotonic, user_agent=USER_AGENT)

    def stop(self) -> None:
        """Begin to end: SIGTERM."""
        log.info("ending")
        self._stop.set()

    def _unhealthy(self) -> str:
        if self._kopf is not None and self._kopf.died:
            return self._kopf.died
        return self._kernel.unhealthy() if self._kernel is not None else ""

    def _waiting(self) -> str:
        if self._kernel is None:
            return ""  # a standby is ready to take over
        return "" if self._kernel.ready else "the snapshots are not complete"

    def _sample(self) -> None:
        self._metrics.leading.set(1 if self.lease.held else 0)
        self._metrics.lease_remaining.set(self.lease.remaining())
        if self._kernel is not None:
            self._kernel.sample()

    async def run(self) -> int:
        """Until told to stop; the exit status."""
        await self.health.start()
        self.lease.start()
        try:
            log.info("standing by as %s", self._options.identity)
            if await self._first(self.lease.acquired()):
                await self._lead()
        finally:
            await asyncio.to_thread(self.lease.stop)
            await self.health.stop()
        return FAILED_STATUS if self._kernel is not None and self._kernel.failed else 0

    async def _first(self, work: Awaitable[None]) -> bool:
        """Whether some work ended before the process was told to stop."""
        working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        done = working.done()
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)
        return done

    async def _lead(self) -> None:
        client = ClusterClient(
            await load_configuration(self._options.kubeconfig),
            time.monotonic,
            guard=self.lease,
            on_write=lambda verb, kind: self._metrics.writes.labels(verb, kind).inc(),
            user_agent=USER_AGENT,
            write_timeout_seconds=self._options.lease_times.write,
        )
        settings = settings_of(self._options)
        kernel = Kernel(
            self._options, settings, client, StandardRenderer(settings), self._metrics, time.monotonic,
            lambda: datetime.now(UTC),
        )  # fmt: skip
        self._kernel = kernel
        self._kopf = KopfShell(self._options, asyncio.get_running_loop(), kernel.kopf_event)
        watchdog = asyncio.create_task(self._watch_over(kernel))
        self._kopf.start()
        try:
            await kernel.run(self._stop)
        finally:
            watchdog.cancel()
            await asyncio.to_thread(self._kopf.stop)
            await client.close()

    async def _watch_over(self, kernel: Kernel) -> None:
        """A process whose workers or watches have ended serves nobody: it ends, and is started anew."""
        while True:
            await asyncio.sleep(WATCHDOG_SECONDS)
            if kernel.failed or (self._kopf is not None and self._kopf.died):
                kernel.failed = kernel.failed or (self._kopf.died if self._kopf is not None else "")
                self._stop.set()


async def serve(options: OperatorOptions) -> int:
    """Run the operator until SIGTERM or SIGINT."""
    process = OperatorProcess(options)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, process.stop)
    return await process.run()
