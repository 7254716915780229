"""Kubernetes Events (events.k8s.io/v1), sent when something changes and not while it stays so."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from inference_fleet.cluster import kinds
from inference_fleet.cluster.client import ApiError, ApiUnreachable, ClusterClient, NamespaceEnding
from inference_fleet.cluster.kinds import Kind
from inference_fleet.cluster.seen import Meta
from inference_fleet.plan.outcome import Event

log = logging.getLogger("inference_fleet.events")

NOTE_LENGTH = 1024
CONTROLLER = "inference-fleet.dev/operator"


def digest(event: Event) -> str:
    """What makes two events the same news."""
    return hashlib.sha256(f"{event.type}\0{event.reason}\0{event.message}".encode()).hexdigest()[:16]


def news(events: Iterable[Event], said: frozenset[str]) -> tuple[tuple[Event, ...], frozenset[str]]:
    """The events that the pass before did not have, and the digests of all of this pass."""
    now = {digest(event): event for event in events}
    return tuple(event for key, event in now.items() if key not in said), frozenset(now)


def manifest(
    event: Event, kind: Kind, meta: Meta, instance: str, now: datetime, action: str = "Reconcile"
) -> dict[str, Any]:
    """An Event about an object. Cluster-scoped objects have theirs in `default`."""
    stamp = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    name = f"{meta.name[:200]}.{hashlib.sha256(f'{meta.uid}{stamp}{digest(event)}'.encode()).hexdigest()[:16]}"
    regarding: Mapping[str, str] = {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "name": meta.name,
        "uid": meta.uid,
        **({"namespace": meta.namespace} if meta.namespace else {}),
    }
    return {
        "apiVersion": kinds.EVENT.api_version,
        "kind": kinds.EVENT.name,
        "metadata": {"name": name, "namespace": meta.namespace or "default"},
        "eventTime": stamp,
        "reportingController": CONTROLLER,
        "reportingInstance": instance[:128],
        "action": action,
        "reason": event.reason,
        "type": event.type,
        "note": event.message[: NOTE_LENGTH - 1] + "…" if len(event.message) >= NOTE_LENGTH else event.message,
        "regarding": regarding,
    }


@dataclass(slots=True)
class Reporter:
    """Sends Events. One that cannot be sent is logged and lost: it is news, not state."""

    client: ClusterClient
    instance: str
    wall: Callable[[], datetime]
    on_sent: Callable[[str], None]

    async def send(self, kind: Kind, meta: Meta, events: Iterable[Event]) -> None:
        """Send each."""
        for event in events:
            log.info("%s %s: %s: %s", kind.name, meta.key, event.reason, event.message)
            try:
                await self.client.create(kinds.EVENT, manifest(event, kind, meta, self.instance, self.wall()))
            except NamespaceEnding:
                return
            except (ApiError, ApiUnreachable) as error:
                log.warning("an Event was not sent: %s", error)
                continue
            self.on_sent(event.reason)
