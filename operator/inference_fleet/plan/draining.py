"""Taking pods out of routing before they go, and knowing when every gateway replica has taken that in.

A pod in the drain list gets no new request; what is in flight on it goes on, and its own preStop waits for that. The wait here is
only for the gateways' view: until each Ready replica shows the routes revision that drains the pod, or `DEADLINE_SECONDS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from inference_fleet.plan.observation import Observation, PodView, VariantView

DEADLINE_SECONDS = 60
"""A gateway replica that cannot be read for this long no longer holds up a scale-down: its endpoints' readiness protects it."""

POLL_SECONDS = 2.0
"""How soon to look again while a drain is under way."""


@dataclass(frozen=True, slots=True)
class Drains:
    """The drains as they stand: since when each pod is out of routing, and whether the gateways show it."""

    since: Mapping[str, datetime]
    in_routes: frozenset[str]
    shown: bool
    now: datetime

    @classmethod
    def of(cls, observation: Observation, since: Mapping[str, datetime], now: datetime) -> Drains:
        """Reads the gateways' revisions; a Ready replica that could not be read does not show anything."""
        shown = all(revision == observation.routes_revision for revision in observation.gateway.revisions.values())
        return cls(since, frozenset(observation.routes_drain), shown, now)

    def done(self, pods: Iterable[PodView]) -> bool:
        """Whether all these pods may be taken away without a new request still being sent to one of them."""
        return all(self._done(pod) for pod in pods)

    def _done(self, pod: PodView) -> bool:
        if not pod.ready or pod.deleting:
            return True  # no gateway sends to it
        if pod.name not in self.in_routes:
            return False
        began = self.since.get(pod.name)
        waited = began is not None and (self.now - began).total_seconds() >= DEADLINE_SECONDS
        return self.shown or waited


def victims(variant: VariantView, count: int, drains: Drains) -> tuple[PodView, ...]:
    """Which `count` pods to give up: those draining already, then those that serve nothing, then the youngest.

    The youngest has the least prefix cache to lose. Pods that are going anyway are not counted.
    """
    staying = [pod for pod in variant.pods if not pod.deleting]
    order = sorted(
        staying,
        key=lambda p: (
            p.name not in drains.in_routes,
            p.scheduled,
            p.ready,
            -p.restarts,
            -p.created.timestamp(),
            p.name,
        ),
    )
    return tuple(order[:count])
