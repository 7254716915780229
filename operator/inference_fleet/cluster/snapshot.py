"""The shared snapshots: one paged LIST and one WATCH for each kind and scope, whatever the number of policies.

The list is repeated every few minutes and after every gap (410, or a stream that could not be resumed), and each time replaces
the store whole: an object whose deletion was lost does not outlive the next list. While a stream runs, a list that shows what
the stream did not deliver within a minute proves the stream dead (`overdue`). It is opened anew from where it stood, so that the
server sends again what is owed; what stays silent even then stays overdue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass

from inference_fleet.cluster import kinds
from inference_fleet.cluster.client import ApiError, ApiUnreachable, ClusterClient, list_all
from inference_fleet.cluster.kinds import Kind
from inference_fleet.cluster.meta_reading import Object
from inference_fleet.cluster.reading import READERS
from inference_fleet.cluster.seen import Seen
from inference_fleet.cluster.store import Listener, Store

log = logging.getLogger("inference_fleet.snapshot")

FIRST_RETRY_SECONDS = 0.5
LARGEST_RETRY_SECONDS = 30.0
SHORTEST_STREAM_SECONDS = 1.0
SHORT_GAP_SECONDS = 1.0
"""A gap that a list closes at once is not worth a word in any status."""


@dataclass(frozen=True, slots=True)
class Periods:
    """How often to list again, and how long a change that a list showed may take to come as an event. Seconds."""

    relist: float = 300.0
    owed: float = 60.0


@dataclass(frozen=True, slots=True)
class Scope:
    """What one reflector reads: a kind, in one namespace or in all, by label selector."""

    kind: Kind
    namespace: str = ""
    selector: str = ""
    optional: bool = False
    """A refusal (403) means that this installation does without, not that it is broken."""
    excluded: frozenset[str] = frozenset()
    """Namespaces whose objects another installation cares for."""


class Reflector:
    """Keeps one store like the API server's: lists, watches, lists again."""

    def __init__(
        self,
        client: ClusterClient,
        scope: Scope,
        listener: Listener,
        clock: Callable[[], float],
        periods: Periods | None = None,
    ) -> None:
        self.scope = scope
        self._periods = periods or Periods()
        self.store = Store(scope.kind, listener)
        self.forbidden = False
        self._client = client
        self._clock = clock
        self._read = READERS[scope.kind]
        self._gap_since: float | None = None
        self._position = ""
        """The resourceVersion up to which the stream has delivered."""
        self._opened_at: float | None = None
        self._open_since: float | None = None
        """Since when a stream runs and owes what a list shows."""

    @property
    def in_gap(self) -> bool:
        """Whether the store is older than a gap that no list has closed yet."""
        return self._gap_since is not None

    @property
    def complete(self) -> bool:
        """Whether the store may be decided from."""
        short = self._gap_since is None or self._clock() - self._gap_since < SHORT_GAP_SECONDS
        return self.store.synced and short

    async def run(self) -> None:
        """List and watch until cancelled."""
        retry = FIRST_RETRY_SECONDS
        while True:
            try:
                resource_version = await self._list(owed=False)
                self.forbidden, self._gap_since = False, None
                retry = FIRST_RETRY_SECONDS
                try:
                    await self._follow(resource_version)
                finally:
                    self._gap_since = self._clock()
                continue
            except ApiError as error:
                if error.status == 403 and self.scope.optional:
                    if not self.forbidden:
                        log.info("%s: not permitted; going without", self.scope.kind.plural)
                    self.forbidden = True
                    retry = LARGEST_RETRY_SECONDS
                else:
                    log.warning("%s: %s", self.scope.kind.plural, error)
            except ApiUnreachable as error:
                log.warning("%s: %s", self.scope.kind.plural, error)
                retry = max(retry, error.retry_after_seconds)
            await asyncio.sleep(retry)
            retry = min(retry * 2, LARGEST_RETRY_SECONDS)

    async def _list(self, *, owed: bool) -> str:
        items, resource_version = await list_all(
            self._client, self.scope.kind, self.scope.namespace, self.scope.selector
        )
        seen = tuple(self._readable(items))
        self.store.replace(seen, resource_version, owed=owed and self._open_since is not None, now=self._clock())
        return resource_version

    def _readable(self, items: Iterable[Object]) -> Iterable[Seen]:
        for item in items:
            seen = self._try_read(item)
            if seen is not None:
                yield seen

    def read(self, item: Object) -> Seen | None:
        """An object as the store holds it; None where it is another installation's."""
        metadata = item["metadata"]
        if metadata.get("namespace", "") in self.scope.excluded:
            if self.scope.kind is not kinds.POD:
                return None
            item = {**item, "metadata": {**metadata, "labels": {}}}  # what it takes counts, as of any stranger's pod
        return self._read(item)

    def _try_read(self, item: Object) -> Seen | None:
        try:
            return self.read(item)
        except Exception:
            # One object that nobody foresaw must not blind the operator to all the others of its kind.
            log.exception("a %s could not be read: %s", self.scope.kind.name, item.get("metadata", {}).get("name"))
            return None

    async def _follow(self, resource_version: str) -> None:
        """Watch, and list again beside it from time to time, until the stream has a gap."""
        self.store.expectations.forget()
        self._position, self._open_since = resource_version, None
        relist, watch = asyncio.create_task(self._relist_periodically()), asyncio.create_task(self._watch())
        try:
            while True:
                done, _ = await asyncio.wait({relist, watch}, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                if watch in done:
                    return
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
                relist, watch = asyncio.create_task(self._relist_periodically()), asyncio.create_task(self._watch())
        finally:
            for task in (relist, watch):
                task.cancel()
            await asyncio.gather(relist, watch, return_exceptions=True)

    async def _relist_periodically(self) -> None:
        """Returns when the stream is proven dead."""
        while True:
            await asyncio.sleep(self._periods.relist)
            try:
                await self._list(owed=True)
            except (ApiError, ApiUnreachable) as error:
                log.warning("%s: %s", self.scope.kind.plural, error)
                continue
            await asyncio.sleep(self._periods.owed * 1.25)
            if self.overdue(self._periods.owed):
                log.error("%s: the watch delivers no events; opening it anew", self.scope.kind.plural)
                return

    def _opened(self) -> None:
        self._opened_at = self._clock()
        if self._open_since is None:
            self._open_since = self._opened_at

    async def _watch(self) -> None:
        """Stream after stream from where the last one stood; returns at a gap."""
        retry, scope = FIRST_RETRY_SECONDS, self.scope
        while True:
            try:
                self._opened_at = None
                began = self._clock()
                stream = self._client.watch(scope.kind, scope.namespace, scope.selector, self._position, self._opened)
                async with aclosing(stream) as events:
                    async for event in events:
                        obj = event.get("object") or {}
                        if event.get("type") == "ERROR":
                            raise ApiError(int(obj.get("code") or 0), str(obj.get("reason")), str(obj.get("message")))
                        self._position = (obj.get("metadata") or {}).get("resourceVersion") or self._position
                        retry = FIRST_RETRY_SECONDS
                        if event.get("type") != "BOOKMARK":
                            self._take(event["type"], obj)
                self._open_since = None
                retry = self._rested(retry)
                if self._clock() - began < SHORTEST_STREAM_SECONDS:
                    await asyncio.sleep(retry)  # something in between closes streams at once: no tight loop
            except ApiError as error:
                if error.status == 410:
                    return
                self._open_since = None
                if error.status in (401, 403, 404):
                    raise  # the kind is gone, or we may no longer read it: begin with a list
                log.warning("%s: %s", scope.kind.plural, error)
                retry = self._rested(retry)
                await asyncio.sleep(retry)
            except ApiUnreachable as error:
                self._open_since = None
                log.info("%s: %s", scope.kind.plural, error)
                retry = self._rested(retry)
                await asyncio.sleep(max(retry, error.retry_after_seconds))
            # What came while no stream ran is replayed from `_position`, or is a 410: it stays owed.
            retry = min(retry * 2, LARGEST_RETRY_SECONDS)

    def _rested(self, retry: float) -> float:
        """The wait before the next attempt: it starts over after a stream that ran, events or not."""
        ran = self._opened_at is not None and self._clock() - self._opened_at >= SHORTEST_STREAM_SECONDS
        return FIRST_RETRY_SECONDS if ran else retry

    def _take(self, kind: str, obj: Object) -> None:
        if self.store.old_news(obj.get("metadata") or {}):
            return
        seen = self._try_read(obj)
        if seen is not None:
            self.store.event(seen, deleted=kind == "DELETED")

    def overdue(self, grace_seconds: float) -> tuple[str, ...]:
        """Keys of changes that a list showed and that the running stream has not delivered in time."""
        if self._open_since is None:
            return ()
        return self.store.expectations.overdue(self._clock(), grace_seconds, not_before=self._open_since)


class Snapshots:
    """All reflectors of the process, read by kind and key."""

    def __init__(
        self,
        client: ClusterClient,
        scopes: Iterable[Scope],
        listener: Listener,
        clock: Callable[[], float],
        periods: Periods | None = None,
    ) -> None:
        self._reflectors = [Reflector(client, scope, listener, clock, periods) for scope in scopes]
        self._by_kind: dict[Kind, list[Reflector]] = {}
        for reflector in self._reflectors:
            self._by_kind.setdefault(reflector.scope.kind, []).append(reflector)

    def runs(self) -> Mapping[str, Callable[[], object]]:
        """The tasks to start, by name."""
        return {
            f"reflector {r.scope.kind.plural}{' ' + r.scope.namespace if r.scope.namespace else ''}": r.run
            for r in self._reflectors
        }

    async def synced(self) -> None:
        """Wait until every kind has been listed once (or is one this installation does without)."""
        while not all(r.store.synced or r.forbidden for r in self._reflectors):  # noqa: ASYNC110 - once, at start
            await asyncio.sleep(0.05)

    def incomplete(self) -> tuple[str, ...]:
        """Kinds that could not be read, or not since a gap, and are not optional."""
        return tuple(sorted({r.scope.kind.plural for r in self._reflectors if not r.complete and not r.scope.optional}))

    def in_gap(self, kind: Kind) -> bool:
        """Whether objects of a kind may have come and gone unseen, until the list that is being asked for answers."""
        return any(r.in_gap for r in self._by_kind.get(kind, []))

    def known(self, kind: Kind) -> bool:
        """Whether this kind can be read at all."""
        return all(r.store.synced and not r.forbidden for r in self._by_kind.get(kind, [])) and kind in self._by_kind

    def overdue(self, grace_seconds: float) -> tuple[str, ...]:
        """Kinds whose stream of events is proven dead."""
        return tuple(sorted({r.scope.kind.plural for r in self._reflectors if r.overdue(grace_seconds)}))

    def get(self, kind: Kind, key: str) -> Seen | None:
        """One object, None where there is none or it is out of scope."""
        for reflector in self._by_kind.get(kind, []):
            found = reflector.store.get(key)
            if found is not None:
                return found
        return None

    def all(self, kind: Kind) -> tuple[Seen, ...]:
        """Every object of a kind."""
        return tuple(seen for r in self._by_kind.get(kind, []) for seen in r.store.values())

    def of_policy(self, kind: Kind, policy: str) -> tuple[Seen, ...]:
        """Every object of a kind that carries a policy's label; `policy` is `namespace/name`."""
        return tuple(seen for r in self._by_kind.get(kind, []) for seen in r.store.of_policy(policy))

    def count(self) -> int:
        """Objects held, of all kinds."""
        return sum(len(r.store) for r in self._reflectors)

    def _reflector_of(self, kind: Kind, namespace: str) -> Reflector | None:
        for reflector in self._by_kind.get(kind, []):
            if reflector.scope.namespace in ("", namespace):
                return reflector
        return None

    def _store_of(self, kind: Kind, namespace: str) -> Store | None:
        reflector = self._reflector_of(kind, namespace)
        return reflector.store if reflector is not None else None

    def heard(self, kind: Kind, obj: Object, *, deleted: bool) -> None:
        """Take an event that came by another stream than our own; the newer of the two counts, whichever comes first."""
        reflector = self._reflector_of(kind, obj["metadata"].get("namespace", ""))
        if reflector is None or not reflector.store.synced or reflector.store.old_news(obj["metadata"]):
            return
        seen = reflector.read(obj)
        if seen is not None:
            reflector.store.event(seen, deleted=deleted)

    def wrote(self, kind: Kind, obj: Object) -> None:
        """Take the answer to a write of ours."""
        store = self._store_of(kind, obj["metadata"].get("namespace", ""))
        if store is not None:
            store.wrote(READERS[kind](obj))

    def removed(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Take note of a delete of ours."""
        store = self._store_of(kind, namespace)
        if store is not None:
            store.removed(f"{namespace}/{name}" if namespace else name, uid)
