"""Leader election by a Lease, renewed in a thread of its own.

The thread has its own event loop and connection, so that neither a slow pass nor a full connection pool delays a renewal. A
Lease does not fence: what this buys is that two leaders are rare, and `require` that a write which could outlive the lease is
never begun. Preconditions on the writes do the rest.

A lease that cannot be renewed because the API server cannot be reached is not lost yet: nothing is written, and once the server
answers again the holder goes on, unless another process has taken the lease meanwhile. Then, and only then, it is lost.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from inference_fleet.cluster.client import ApiError, ApiUnreachable, ClusterClient
from inference_fleet.cluster.kinds import LEASE

log = logging.getLogger("inference_fleet.lease")


class LeaseLost(Exception):
    """This process may not write any more."""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """All in seconds. `renew_deadline` after the last renewal the holder stops to write, well before others may take over."""

    duration: float = 30.0
    renew_deadline: float = 15.0
    retry: float = 5.0
    request: float = 5.0
    write: float = 10.0
    """How long a write may take: less than what is left of the lease at the renew deadline."""

    @classmethod
    def of(cls, duration: float) -> LeaseTimes:
        """The other times in proportion to how long the lease lives."""
        return cls(duration, duration / 2, duration / 6, min(5.0, duration / 6), min(10.0, duration / 3))


@dataclass(frozen=True, slots=True)
class Record:
    """What a Lease says, and its resourceVersion. An empty holder: released."""

    holder: str
    duration_seconds: float
    renew_time: str
    acquire_time: str
    transitions: int
    resource_version: str


def record_of(lease: dict[str, Any]) -> Record:
    """Read a Lease object."""
    spec = lease.get("spec") or {}
    return Record(
        holder=str(spec.get("holderIdentity") or ""),
        duration_seconds=float(spec.get("leaseDurationSeconds") or 0),
        renew_time=str(spec.get("renewTime") or ""),
        acquire_time=str(spec.get("acquireTime") or ""),
        transitions=int(spec.get("leaseTransitions") or 0),
        resource_version=str(lease["metadata"]["resourceVersion"]),
    )


@dataclass(slots=True)
class Sighting:
    """When, on our clock, we first saw the record as it now stands. Other machines' clocks are never compared with ours."""

    record: Record | None = None
    seen_at: float = 0.0

    def see(self, record: Record, now: float) -> None:
        """Note a record; the time only moves when the record changed."""
        if self.record is None or self.record.resource_version != record.resource_version:
            self.record = record
            self.seen_at = now

    def free_at(self, identity: str) -> float:
        """From when on `identity` may take the lease (0: at once)."""
        if self.record is None or not self.record.holder or self.record.holder == identity:
            return 0.0
        return self.seen_at + self.record.duration_seconds


class LeaseHolder:
    """Takes and keeps one Lease. `start` in one thread; `require` from any.

    `on_lost` is called once, in the renewing thread, when another process holds the lease; the process is expected to end in it.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        *,
        namespace: str,
        name: str,
        identity: str,
        on_lost: Callable[[str], None],
        times: LeaseTimes | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._connect = connect
        self._namespace = namespace
        self._name = name
        self.identity = identity
        self._on_lost = on_lost
        self.times = times or LeaseTimes()
        self._clock = clock
        self._wall = wall
        self._renewed_at: float | None = None
        self._late = False
        self._acquired = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._sighting = Sighting()

    @property
    def held(self) -> bool:
        """Whether this process leads, as far as it knows."""
        return self.remaining() > 0

    def remaining(self) -> float:
        """Seconds that the lease still lives without another renewal; 0 when it is not ours."""
        renewed = self._renewed_at
        if renewed is None:
            return 0.0
        return max(0.0, renewed + self.times.duration - self._clock())

    def require(self, seconds: float) -> None:
        """Raise LeaseLost unless the lease lives at least that much longer and was renewed in time."""
        remaining = self.remaining()
        if remaining < max(seconds, self.times.duration - self.times.renew_deadline):
            raise LeaseLost(
                f"the lease {self._namespace}/{self._name} lives {remaining:.1f} s more: too short for a write of {seconds:.0f} s"
            )

    def start(self) -> None:
        """Begin to campaign, and then to renew, in a thread."""
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    async def acquired(self) -> None:
        """Wait until this process leads."""
        while not self._acquired.is_set():  # noqa: ASYNC110 - the event is another thread's
            await asyncio.sleep(0.1)

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Release the lease, so that a standby need not wait for it to expire, and end the thread. Blocks."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        try:
            asyncio.run(self._campaign())
        except Exception as error:
            log.exception("leader election ended")
            self._lose(f"leader election ended: {error}")

    def _lose(self, why: str) -> None:
        self._renewed_at = None
        if not self._stopping.is_set():
            self._on_lost(why)

    async def _campaign(self) -> None:
        client: ClusterClient = await self._connect()
        try:
            while not self._stopping.is_set():
                await self._turn(client)
                self._say_whether_late()
                await self._pause(self.times.retry)
            await self._release(client)
        finally:
            await client.close()

    def _say_whether_late(self) -> None:
        renewed = self._renewed_at
        late = renewed is not None and self._clock() - renewed > self.times.renew_deadline
        if late and not self._late:
            log.error(
                "the lease could not be renewed for %.0f s: nothing is written until it is", self.times.renew_deadline
            )
        elif self._late and not late:
            log.warning("the lease was renewed again and is still ours")
        self._late = late

    async def _pause(self, seconds: float) -> None:
        end = self._clock() + seconds
        while not self._stopping.is_set() and self._clock() < end:  # noqa: ASYNC110 - as above
            await asyncio.sleep(min(0.1, seconds))

    async def _turn(self, client: ClusterClient) -> None:
        began = self._clock()
        try:
            async with asyncio.timeout(self.times.request):
                held = await self._take_or_renew(client, began)
        except (ApiError, ApiUnreachable, TimeoutError) as error:
            log.warning("lease %s/%s: %s", self._namespace, self._name, error)
            return
        if held:
            # From before the request: the server may have stamped it the moment it was sent.
            self._renewed_at = began
            if not self._acquired.is_set():
                log.info("leading as %s", self.identity)
                self._acquired.set()
        elif self._renewed_at is not None:
            self._lose("another process holds the lease")
            self._stopping.set()

    async def _take_or_renew(self, client: ClusterClient, now: float) -> bool:
        path = LEASE.path(self._namespace, self._name)
        try:
            lease = await client.request("GET", path)
        except ApiError as error:
            if not error.gone:
                raise
            return await self._write(client, "POST", LEASE.path(self._namespace), None)
        record = record_of(lease)
        self._sighting.see(record, now)
        if now < self._sighting.free_at(self.identity):
            return False
        return await self._write(client, "PUT", path, record)

    async def _write(self, client: ClusterClient, method: str, path: str, record: Record | None) -> bool:
        stamp = self._wall().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        ours = record is not None and record.holder == self.identity
        body: dict[str, Any] = {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.name,
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": max(1, round(self.times.duration)),
                "renewTime": stamp,
                "acquireTime": record.acquire_time if record is not None and ours else stamp,
                "leaseTransitions": 0 if record is None else record.transitions + (0 if ours else 1),
            },
        }
        if record is not None:
            body["metadata"]["resourceVersion"] = record.resource_version
        try:
            answer = await client.request(method, path, body=body, timeout_seconds=self.times.request)
        except ApiError as error:
            if error.stale:
                return False if self._renewed_at is None else await self._still_ours(client)
            raise
        self._sighting.see(record_of(answer), self._clock())
        return True

    async def _still_ours(self, client: ClusterClient) -> bool:
        """After a conflict: a write of ours that was answered late looks like someone else's."""
        record = record_of(await client.request("GET", LEASE.path(self._namespace, self._name)))
        self._sighting.see(record, self._clock())
        if record.holder == self.identity:
            raise ApiUnreachable("the lease was ours in another version; trying again")
        return False

    async def _release(self, client: ClusterClient) -> None:
        if self._renewed_at is None:
            return
        self._renewed_at = None
        patch = {"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}
        record = self._sighting.record
        try:
            await client.request(
                "PATCH",
                LEASE.path(self._namespace, self._name),
                body={**patch, "metadata": {"resourceVersion": record.resource_version}} if record else patch,
                content_type="application/merge-patch+json",
                timeout_seconds=self.times.request,
            )
        except (ApiError, ApiUnreachable) as error:
            log.info("the lease was not released: %s", error)
