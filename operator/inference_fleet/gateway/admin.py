"""Our own side of the gateway: health, readiness, metrics and the last decisions, on a port that tenants cannot reach."""

from __future__ import annotations

from collections.abc import Callable

import orjson
from aiohttp import web

from inference_fleet.gateway import metrics as m
from inference_fleet.gateway.exchange import Ledger
from inference_fleet.gateway.fleet import Fleet


class Admin:
    """`draining` tells whether this gateway is on its way out."""

    def __init__(self, fleet: Fleet, ledger: Ledger, draining: Callable[[], bool]) -> None:
        self._fleet = fleet
        self._ledger = ledger
        self._draining = draining

    async def handle(self, request: web.BaseRequest) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, headers={"Allow": "GET"})
        match request.path:
            case "/health":
                return _json(200, {"status": "ok"})
            case "/ready":
                return self._ready()
            case "/metrics":
                return self._metrics()
            case "/debug/decisions":
                return _json(200, {"decisions": self._ledger.decisions()})
        return web.Response(status=404)

    def _ready(self) -> web.Response:
        # A model without endpoints leaves the gateway ready: holding its requests is the gateway's work.
        ready = self._fleet.is_known and not self._draining()
        return _json(
            200 if ready else 503,
            {
                "ready": ready,
                "revision": self._fleet.routes().revision,
                "models": {name: {"endpoints": count} for name, count in self._fleet.counts().items()},
            },
        )

    def _metrics(self) -> web.Response:
        # Counted when asked for: an ejection ends by the clock, not by an event.
        self._ledger.metrics.set_only(m.ENDPOINTS, dict(self._fleet.counts()))
        return web.Response(
            body=self._ledger.metrics.exposition(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )


def _json(status: int, value: object) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(value), headers={"Content-Type": "application/json"})
