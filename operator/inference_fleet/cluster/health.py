"""The operator's HTTP side: `/healthz`, `/readyz`, `/metrics`."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from inference_fleet.cluster.metrics import OperatorMetrics


class HealthServer:
    """Answers probes and scrapes.

    `unhealthy()`: why the process should be replaced, empty while it is well. `waiting()`: why it is not ready, empty once it is;
    a standby that waits for the lease is ready to take over, and says so. `sample()` brings the gauges up to date.
    """

    def __init__(
        self,
        port: int,
        metrics: OperatorMetrics,
        unhealthy: Callable[[], str],
        waiting: Callable[[], str],
        sample: Callable[[], None],
        host: str | None = None,
    ) -> None:
        self.port = port
        self._host = host
        self._metrics = metrics
        self._unhealthy = unhealthy
        self._waiting = waiting
        self._sample = sample
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen; with port 0 the chosen port is in `port`."""
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._serve_metrics)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self.port).start()
        self.port = int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _healthz(self, _: web.Request) -> web.Response:
        return _answer(self._unhealthy())

    async def _readyz(self, _: web.Request) -> web.Response:
        return _answer(self._unhealthy() or self._waiting())

    async def _serve_metrics(self, _: web.Request) -> web.Response:
        self._sample()
        return web.Response(body=generate_latest(self._metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _answer(problem: str) -> web.Response:
    return web.Response(status=503 if problem else 200, text=f"{problem or 'ok'}\n")
