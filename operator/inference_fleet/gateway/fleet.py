"""What this gateway knows of its fleet: the routes in force and the endpoints, fed by a channel."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from inference_fleet.gateway import metrics as m
from inference_fleet.gateway.endpoints import EndpointView
from inference_fleet.gateway.exchange import Ledger
from inference_fleet.gateway.hold import Changes
from inference_fleet.gateway.routes import MalformedRoutes, Routes, parse

log = logging.getLogger(__name__)


class Fleet:
    """Takes in documents as they come and keeps the last good ones. `wall` is Unix time, for the metrics."""

    def __init__(
        self, policy: str, ledger: Ledger, clock: Callable[[], float], wall: Callable[[], float], needs_slices: bool
    ) -> None:
        self.changes = Changes()
        self.endpoints = EndpointView(clock, self.changes.notify)
        self._ledger = ledger
        self._wall = wall
        self._routes: Routes | None = None
        self._slices_listed = not needs_slices
        # Serves nothing, and refuses every body but an empty one, until the first document is there.
        self._nothing = Routes("", policy, "", 0.0, 0, (), (), frozenset(), {})

    def routes(self) -> Routes:
        return self._routes or self._nothing

    @property
    def is_known(self) -> bool:
        """Whether there are routes, and endpoints were listed once."""
        return self._routes is not None and self._slices_listed

    def take_routes(self, document: str | bytes) -> None:
        """Takes a new `routes.json`; one that cannot be read changes nothing."""
        try:
            routes = parse(document)
        except MalformedRoutes as error:
            log.error("routes: refused, revision %s stays in force: %s", self.routes().revision or "none", error)
            self.channel_failed("routes")
            return
        if routes == self._routes:
            return
        log.info("routes: revision %s, models %s", routes.revision, ", ".join(model.name for model in routes.models))
        self._routes = routes
        self._ledger.set_objectives(routes.objectives)
        self._ledger.metrics.set_only(m.ROUTES_INFO, {routes.revision: 1})
        self.endpoints.routes_changed()

    def take_slices(self, slices: list[dict[str, Any]]) -> None:
        """Takes a complete list of EndpointSlices."""
        self._slices_listed = True
        self.endpoints.replace(slices)

    def channel_synced(self, resource: str) -> None:
        self._ledger.metrics.set(m.CHANNEL_SYNCED, resource, self._wall())

    def channel_failed(self, resource: str) -> None:
        self._ledger.metrics.count(m.CHANNEL_ERRORS, resource)

    def counts(self) -> dict[str, int]:
        """Usable endpoints by model."""
        routes = self.routes()
        return {model.name: self.endpoints.count(routes, model) for model in routes.models}
