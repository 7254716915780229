"""The sidecar's process: stage, verify, say so, then measure until it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import aiohttp
import orjson
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from inference_fleet.draft.engine_metrics import read_snapshot
from inference_fleet.draft.measure import Measurement, fold
from inference_fleet.draft.report import registry_of, to_document
from inference_fleet.engines.contract import Metrics
from inference_fleet.facts.failure import SourceFailure

POLL_SECONDS = 2.0
FASTEST_POLL_SECONDS = 1.0
"""llama.cpp no longer notices that a client has left while its metrics are read more often."""
READ_SECONDS = 10.0
MAX_METRICS_BYTES = 8 * 2**20

_logger = logging.getLogger(__name__)


class Phase(StrEnum):
    """How far the sidecar is."""

    PREPARING = "Preparing"
    READY = "Ready"


@dataclass(slots=True)
class Sidecar:
    """One draft sidecar. `prepare` stages and verifies, blocking; it raises SourceFailure."""

    engine: str
    names: Metrics
    metrics_url: str
    depth: int | None
    prepare: Callable[[], None]
    poll_seconds: float = POLL_SECONDS
    clock: Callable[[], float] = field(default=time.monotonic)
    phase: Phase = field(default=Phase.PREPARING, init=False)
    measured: Measurement = field(default_factory=Measurement, init=False)

    async def run(self, port: int, host: str = "") -> None:
        """Serve until SIGTERM or SIGINT. Raises SourceFailure where the draft cannot be used."""
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        runner = web.AppRunner(self.application(), access_log=None, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, host or None, port).start()
        work = asyncio.create_task(self._work())
        ending = asyncio.create_task(stopped.wait())
        try:
            await asyncio.wait({work, ending}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            for task in (work, ending):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError, SourceFailure):
                await work
            await runner.cleanup()

    def application(self) -> web.Application:
        """`/ready`, `/health`, `/metrics`, `/speculation`."""
        registry = registry_of(lambda: self.measured, self.depth)

        async def health(_: web.Request) -> web.Response:
            return web.json_response({"healthy": True})

        async def ready(_: web.Request) -> web.Response:
            is_ready = self.phase is Phase.READY
            body = {"ready": is_ready, "phase": str(self.phase)}
            return web.json_response(body, status=200 if is_ready else 503)

        async def metrics(_: web.Request) -> web.Response:
            return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

        async def speculation(_: web.Request) -> web.Response:
            document = to_document(self.engine, self.depth, self.measured, self.clock())
            return web.Response(body=orjson.dumps(document), content_type="application/json")

        application = web.Application()
        application.router.add_get("/health", health)
        application.router.add_get("/ready", ready)
        application.router.add_get("/metrics", metrics)
        application.router.add_get("/speculation", speculation)
        return application

    async def _work(self) -> None:
        await in_thread(self.prepare)
        self.phase = Phase.READY
        await self._measure()

    async def _measure(self) -> None:
        """Read, fold, wait. An engine that does not answer (it starts after this sidecar) is asked again; nothing is concluded."""
        pause = max(FASTEST_POLL_SECONDS, self.poll_seconds)
        timeout = aiohttp.ClientTimeout(total=READ_SECONDS)
        answered = True
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                try:
                    self.measured = fold(
                        self.measured, read_snapshot(self.names, await self._read(session), self.clock())
                    )
                    answered = True
                except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                    if answered:
                        _logger.warning("the engine's metrics cannot be read: %s", error or type(error).__name__)
                    answered = False
                await asyncio.sleep(pause)

    async def _read(self, session: aiohttp.ClientSession) -> str:
        async with session.get(self.metrics_url) as answer:
            answer.raise_for_status()
            body = await answer.content.read(MAX_METRICS_BYTES)
            while not answer.content.at_eof():
                if len(body) >= MAX_METRICS_BYTES:
                    raise ValueError(f"more than {MAX_METRICS_BYTES} bytes")
                body += await answer.content.read(MAX_METRICS_BYTES)
            return body.decode("utf-8", "replace")


async def in_thread(action: Callable[[], None]) -> None:
    """Run something that blocks. Its thread does not keep the process: on SIGTERM a transfer is left as it is, to be resumed."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if not done.done():
            done.set_result(None) if error is None else done.set_exception(error)

    def target() -> None:
        try:
            action()
            outcome: BaseException | None = None
        except BaseException as error:
            outcome = error
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=target, name="prepare", daemon=True).start()
    await done
