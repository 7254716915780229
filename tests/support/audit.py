"""Requests that wrote, counted where it matters: at the API server, from its audit log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STORED_NOWHERE = {"authentication.k8s.io", "authorization.k8s.io"}
"""Groups whose objects are questions: they are created, answered and forgotten."""

CONNECTIONS = {"exec", "attach", "portforward", "proxy", "token"}
"""Subresources that are `create`d without changing an object."""


@dataclass(frozen=True, slots=True)
class Write:
    """One request of verb create, update, patch, delete or deletecollection, refused ones included."""

    verb: str
    group: str
    resource: str
    """With its subresource: `deployments/scale`."""
    namespace: str
    name: str
    user: str
    user_agent: str
    code: int

    def __str__(self) -> str:
        what = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.code} {self.verb} {what} {self.namespace}/{self.name} by {self.user} ({self.user_agent})"


@dataclass(frozen=True, slots=True)
class Marker:
    """A place in the audit log."""

    inode: int
    offset: int


class AuditLog:
    """The log is written before the answer is sent: what a client has seen answered is in it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def marker(self) -> Marker:
        try:
            facts = self.path.stat()
        except FileNotFoundError:  # nothing was written since the start
            return Marker(0, 0)
        return Marker(facts.st_ino, facts.st_size)

    def writes_since(
        self,
        marker: Marker,
        user: str | None = None,
        user_agent: str | None = None,
        leases: bool = False,
        dry_runs: bool = False,
    ) -> list[Write]:
        """Writes since the marker, by the user of that name, by programs whose user agent starts so.

        Without leases (leaders and nodes renew theirs all the time) and without dry runs, which change nothing.
        """
        found = []
        for event in self.events_since(marker):
            write = as_write(event)
            if write is None or (write.resource == "leases" and not leases):
                continue
            if not dry_runs and "dryRun=" in event.get("requestURI", ""):
                continue
            if user in (None, write.user) and write.user_agent.startswith(user_agent or ""):
                found.append(write)
        return found

    def events_since(self, marker: Marker) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        if marker.inode not in (0, self.path.stat().st_ino):
            raise AssertionError("the audit log was rotated since the marker: too many writes to count")
        with self.path.open("rb") as file:
            file.seek(marker.offset)
            for line in file:
                if line.endswith(b"\n"):
                    yield json.loads(line)


def as_write(event: dict[str, Any]) -> Write | None:
    target = event.get("objectRef", {})
    group, subresource = target.get("apiGroup", ""), target.get("subresource", "")
    if group in STORED_NOWHERE or subresource in CONNECTIONS:
        return None
    resource = target.get("resource", "")
    return Write(
        verb=event["verb"],
        group=group,
        resource=f"{resource}/{subresource}" if subresource else resource,
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        user=event.get("impersonatedUser", event["user"]).get("username", ""),
        user_agent=event.get("userAgent", ""),
        code=event.get("responseStatus", {}).get("code", 0),
    )
