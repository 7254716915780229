"""The process: everything put together, started, and stopped without cutting anybody off."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import signal
import ssl
import time
from collections.abc import Callable, Coroutine
from typing import Any

from aiohttp import web

from inference_fleet.gateway.admin import Admin
from inference_fleet.gateway.attempts import Table, report_held
from inference_fleet.gateway.exchange import Ledger
from inference_fleet.gateway.file_channel import FileChannel
from inference_fleet.gateway.fleet import Fleet
from inference_fleet.gateway.front import Front
from inference_fleet.gateway.hold import Waiting
from inference_fleet.gateway.keys import KeyDirectory
from inference_fleet.gateway.logs import http_logger, report_unhandled
from inference_fleet.gateway.metrics import Metrics
from inference_fleet.gateway.settings import Settings
from inference_fleet.gateway.tls import Certificate
from inference_fleet.gateway.upstream import HttpUpstream
from inference_fleet.gateway.web import Door

log = logging.getLogger(__name__)

CLIENT_KEEP_ALIVE_SECONDS = 75.0
"""Longer than the idle timeouts of the usual load balancers (60 s), which must be the ones that close."""

BACKLOG = 4096

COLLECT_AFTER_OBJECTS = 10_000

READ_BYTES = 256 << 10
"""Read ahead of a client that sends a large body; smaller pieces would stop and start its connection more often."""


class Gateway:
    """One gateway. `run` serves until SIGTERM or SIGINT."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stopping = asyncio.Event()
        metrics = Metrics()
        self._ledger = Ledger(metrics, time.monotonic, time.time)
        self._fleet = Fleet(
            settings.policy, self._ledger, time.monotonic, time.time, needs_slices=settings.routes_file is None
        )
        self._keys = KeyDirectory(settings.keys_directory) if settings.keys_directory else None
        self._certificate = Certificate(settings.tls_directory) if settings.tls_directory else None
        self._upstream = HttpUpstream(settings.connect_seconds, settings.read_seconds)
        table = Table(
            self._fleet.routes,
            self._fleet.endpoints,
            self._fleet.changes,
            Waiting(settings.held_limit, settings.held_bytes, report_held(metrics)),
        )
        front = Front(
            table=table,
            upstream=self._upstream,
            ledger=self._ledger,
            keys=lambda: self._keys.keys if self._keys else None,
            random=random.random,
            first_seconds=settings.heartbeat_seconds,
        )
        self._door = Door(front, settings.heartbeat_seconds, settings.stall_seconds)
        self._admin = Admin(self._fleet, self._ledger, self._stopping.is_set)

    async def run(self) -> None:
        settings = self._settings
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(report_unhandled)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        if self._keys:
            self._keys.refresh()
        if self._certificate:
            self._certificate.refresh()
        tasks = [asyncio.create_task(work) for work in (await self._channel(), self._door.beat(), self._poll())]
        for task in tasks:
            task.add_done_callback(self._ended)
        context = self._certificate.context if self._certificate else None
        clients = await _serve(
            self._door.handle, settings.host, settings.port, context, drain_seconds=settings.drain_seconds
        )
        admin = await _serve(self._admin.handle, settings.host, settings.admin_port, None)
        _calm_the_collector()
        log.info("gateway of %s/%s is serving", settings.namespace, settings.policy)
        try:
            await self._stopping.wait()
            await self._drain(clients)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await admin.cleanup()
            await self._upstream.close()

    async def _channel(self) -> Coroutine[Any, Any, None]:
        settings = self._settings
        if settings.routes_file is not None:
            return FileChannel(settings.routes_file, self._fleet, settings.poll_seconds).run()
        # Only here, because importing the client costs memory that a gateway with a file can do without.
        from inference_fleet.gateway.channel import KubernetesApi, KubernetesChannel

        api = await KubernetesApi.connect()
        return KubernetesChannel(
            api,
            settings.policy,
            settings.namespace,
            self._fleet,
            settings.relist_seconds,
            settings.retry_seconds,
            random.random,
        ).run()

    async def _poll(self) -> None:
        """Looks at the mounted Secrets."""
        refreshes = [source.refresh for source in (self._keys, self._certificate) if source is not None]
        while refreshes:
            await asyncio.sleep(self._settings.poll_seconds)
            for refresh in refreshes:
                _try(refresh)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """These tasks do not end by themselves: a gateway without one of them would go stale without a sign."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("a part of the gateway failed; stopping", exc_info=error)
            self._stopping.set()

    async def _drain(self, clients: web.ServerRunner) -> None:
        """Leaves: first out of everybody's sight, then no new connection, then the end of what is in flight."""
        settings = self._settings
        log.info("stopping: not ready any more, %d requests in flight", self._ledger.open)
        self._door.closing = True
        await asyncio.sleep(settings.accept_seconds)
        # Ends the listening and idle connections, and waits for the others as long as it was told to.
        await clients.cleanup()
        log.info("stopped, %d requests were cut", self._ledger.open)


def _calm_the_collector() -> None:
    """What is there by now stays, and need not be looked through again. Requests leave few cycles behind, so looking
    rarely suffices."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_OBJECTS, 20, 20)


def _try(refresh: Callable[[], bool]) -> None:
    try:
        refresh()
    except (OSError, ssl.SSLError) as error:
        log.error("tls: the new certificate cannot be used: %s", error)


async def _serve(
    handle: Callable[[web.BaseRequest], Coroutine[Any, Any, web.StreamResponse]],
    host: str | None,
    port: int,
    context: ssl.SSLContext | None,
    drain_seconds: float = 5.0,
) -> web.ServerRunner:
    server = web.Server(
        handle,
        handler_cancellation=True,
        access_log=None,
        logger=http_logger(),
        read_bufsize=READ_BYTES,
        keepalive_timeout=CLIENT_KEEP_ALIVE_SECONDS,
        # A body is bounded by the routes, as it is read.
        auto_decompress=True,
    )
    runner = web.ServerRunner(server, shutdown_timeout=drain_seconds)
    await runner.setup()
    await web.TCPSite(runner, host, port, ssl_context=context, backlog=BACKLOG).start()
    return runner
