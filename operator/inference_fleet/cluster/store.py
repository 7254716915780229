"""What is known of one kind of object: replaced whole at each list, moved on by events and by our own writes.

Pure: no I/O, no clock but the one handed in. resourceVersions are compared as numbers, which Kubernetes promises since 1.35 and
etcd has always given; that is what keeps an event from before a list from undoing the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from inference_fleet.cluster.kinds import Kind
from inference_fleet.cluster.seen import Seen
from inference_fleet.naming import POLICY_LABEL

Listener = Callable[[Kind, Seen | None, Seen | None], None]
"""Called with (kind, before, after) for every change that matters; None: was not, or is no longer, there."""


def policy_of(seen: Seen) -> str:
    """`namespace/name` of the policy whose label an object carries; empty where it carries none."""
    name = seen.meta.labels.get(POLICY_LABEL, "")
    return f"{seen.meta.namespace}/{name}" if name else ""


def version(text: str) -> int:
    """A resourceVersion as a number; 0 where it is none."""
    return int(text) if text.isdigit() else 0


@dataclass(slots=True)
class Expectations:
    """Changes that a list showed and that no event has delivered yet: key → (resourceVersion, since when)."""

    waiting: dict[str, tuple[int, float]] = field(default_factory=dict)

    def expect(self, key: str, resource_version: int, now: float) -> None:
        """An event for this object, of this version or newer, is due."""
        known = self.waiting.get(key)
        self.waiting[key] = (resource_version, known[1] if known is not None else now)

    def delivered(self, key: str, resource_version: int) -> None:
        """An event came."""
        known = self.waiting.get(key)
        if known is not None and resource_version >= known[0]:
            del self.waiting[key]

    def forget(self) -> None:
        """The stream of events began anew: what it skipped is not owed."""
        self.waiting.clear()

    def overdue(self, now: float, grace_seconds: float, not_before: float = 0.0) -> tuple[str, ...]:
        """Objects whose event has been due for longer than the grace, counted at the earliest from `not_before`."""
        late = (key for key, (_, since) in self.waiting.items() if now - max(since, not_before) > grace_seconds)
        return tuple(sorted(late))


class Store:
    """The objects of one kind, in one scope (all namespaces or one)."""

    def __init__(self, kind: Kind, listener: Listener) -> None:
        self.kind = kind
        self.synced = False
        self.expectations = Expectations()
        self._listener = listener
        self._objects: dict[str, Seen] = {}
        self._by_policy: dict[str, dict[str, Seen]] = {}
        self._listed_at = 0
        self._removed: dict[str, int] = {}

    def get(self, key: str) -> Seen | None:
        """One object."""
        return self._objects.get(key)

    def values(self) -> Iterable[Seen]:
        """All objects, as they stand."""
        return tuple(self._objects.values())

    def of_policy(self, policy: str) -> Iterable[Seen]:
        """The objects that carry a policy's label."""
        return tuple(self._by_policy.get(policy, {}).values())

    def _put(self, key: str, seen: Seen) -> None:
        self._drop(key)
        self._objects[key] = seen
        policy = policy_of(seen)
        if policy:
            self._by_policy.setdefault(policy, {})[key] = seen

    def _drop(self, key: str) -> None:
        old = self._objects.pop(key, None)
        policy = policy_of(old) if old is not None else ""
        if policy:
            group = self._by_policy[policy]
            group.pop(key, None)
            if not group:
                del self._by_policy[policy]

    def __len__(self) -> int:
        return len(self._objects)

    def replace(self, objects: Iterable[Seen], resource_version: str, *, owed: bool, now: float) -> None:
        """Take a complete list. `owed`: a stream of events runs beside it, which must show every difference soon."""
        listed_at = version(resource_version)
        fresh = {seen.meta.key: seen for seen in objects}
        before = dict(self._objects)
        # An object that an event or our own write showed in a newer version than the list has stays as that showed it.
        for key, old in before.items():
            held = version(old.meta.resource_version)
            if key in fresh:
                if held > version(fresh[key].meta.resource_version):
                    fresh[key] = old
            elif held > listed_at:
                fresh[key] = old
        for key, removed_at in self._removed.items():
            if key in fresh and version(fresh[key].meta.resource_version) < removed_at:
                del fresh[key]
        self._removed = {key: at for key, at in self._removed.items() if at > listed_at}
        for key in before:
            self._drop(key)
        for key, seen in fresh.items():
            self._put(key, seen)
        self._listed_at = max(self._listed_at, listed_at)
        self.synced = True
        for key in before.keys() | fresh.keys():
            old_seen, new_seen = before.get(key), fresh.get(key)
            if owed and not _same_version(old_seen, new_seen):
                # The event of a deletion is older than the list, and newer than what was known.
                known_at = version(old_seen.meta.resource_version) + 1 if old_seen else 0
                self.expectations.expect(key, version(new_seen.meta.resource_version) if new_seen else known_at, now)
            self._tell(old_seen, new_seen)

    def old_news(self, metadata: Mapping[str, Any]) -> bool:
        """Whether an event shows what a list, another stream or our own write showed already: then it need not even be read."""
        namespace, name = metadata.get("namespace", ""), metadata.get("name", "")
        return self._old_news(
            f"{namespace}/{name}" if namespace else name, version(str(metadata.get("resourceVersion", "")))
        )

    def _old_news(self, key: str, at: int) -> bool:
        self.expectations.delivered(key, at)
        known = self._objects.get(key)
        return at <= self._listed_at or (known is not None and version(known.meta.resource_version) >= at)

    def event(self, seen: Seen, *, deleted: bool) -> None:
        """Take one event of the stream; what is no news is not told again."""
        key, at = seen.meta.key, version(seen.meta.resource_version)
        if self._old_news(key, at):
            return
        known = self._objects.get(key)
        if not deleted:
            if at > self._removed.get(key, 0):
                self._put(key, seen)
                self._tell(known, seen)
            return
        self._removed[key] = at
        if known is not None:
            self._drop(key)
            self._tell(known, None)

    def wrote(self, seen: Seen) -> None:
        """Take the answer to a write of ours, so that the next pass reads what this one wrote."""
        known = self._objects.get(seen.meta.key)
        at = version(seen.meta.resource_version)
        if known is not None and version(known.meta.resource_version) >= at:
            return
        if known is None and at <= max(self._listed_at, self._removed.get(seen.meta.key, 0)):
            return  # it has been deleted since
        self._put(seen.meta.key, seen)
        self._tell(known, seen)

    def removed(self, key: str, uid: str) -> None:
        """A delete of ours was answered: the object is gone, or going."""
        known = self._objects.get(key)
        if known is None or known.meta.uid != uid:
            return
        self._drop(key)
        self._removed[key] = version(known.meta.resource_version)

    def _tell(self, before: Seen | None, after: Seen | None) -> None:
        if before != after:
            self._listener(self.kind, before, after)


def _same_version(one: Seen | None, other: Seen | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.meta.resource_version == other.meta.resource_version and one.meta.uid == other.meta.uid
