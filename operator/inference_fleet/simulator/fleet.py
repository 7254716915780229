"""The simulated cluster: makes, schedules, starts, drains and ends replicas, and keeps the bill."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from random import Random

from inference_fleet.simulator.replica import Bill, Replica
from inference_fleet.simulator.request import Outcome, Request
from inference_fleet.simulator.scenario import Scenario, Variant
from inference_fleet.simulator.view import Phase

LOAD_BACKOFF_SECONDS = (10.0, 20.0, 40.0, 80.0, 160.0, 300.0)
"""The kubelet's CrashLoopBackOff."""

Schedule = Callable[[float, Callable[[float], None]], None]
"""At this time call this with the time."""


class Fleet:
    """Every replica there ever was. `requeue` takes a request that lost its engine before its first token."""

    def __init__(
        self,
        scenario: Scenario,
        at: Schedule,
        requeue: Callable[[Request, float], None],
        end: Callable[[Request, Outcome], None],
        changed: Callable[[float], None],
    ) -> None:
        """An empty cluster. `changed` hears when what is ready changed."""
        self.scenario = scenario
        self.replicas: list[Replica] = []
        """Not gone, in the order in which they were made."""
        self.desired = {variant.name: 0 for variant in scenario.variants}
        self.bills: list[Bill] = []
        self.rates: list[tuple[float, Decimal]] = []
        """When the spend an hour changed, and to what: replicas that have devices."""
        self.commitments: list[tuple[float, Decimal]] = []
        """When the committed spend an hour changed, and to what: everything that is not gone, pending replicas included."""
        self.counts: list[tuple[float, dict[str, int]]] = []
        """When the number of replicas (not draining) changed, by variant."""
        self.start_seconds: list[float] = []
        self._at = at
        self._requeue = requeue
        self._end = end
        self._changed = changed
        self._made = 0
        self._random = Random(f"{scenario.seed}/fleet")

    def populate(self) -> None:
        """The initial replicas are ready at once."""
        for variant in self.scenario.variants:
            self.desired[variant.name] = variant.initial
            for _ in range(variant.initial):
                replica = self._make(variant, 0.0)
                replica.scheduled_at = 0.0
                replica.enter(Phase.READY, 0.0)
        self._note(0.0)
        self._changed(0.0)

    # --- What a scaler asks for ------------------------------------------------------------------------------------------------

    def scale(self, variant: Variant, wanted: int, now: float) -> None:
        """Sets the number of replicas, as a write to /scale would; no bound but zero is kept here."""
        wanted = max(0, wanted)
        self.desired[variant.name] = wanted
        held = self._held(variant)
        if len(held) == wanted:
            return
        for _ in range(wanted - len(held)):
            self._make(variant, now)
        if wanted < len(held):
            # Pending ones first, then loading, then the fewest requests inside; the youngest of equals.
            rank = {Phase.PENDING: 0, Phase.LOADING: 1, Phase.READY: 2}
            held.sort(key=lambda r: (rank[r.phase], r.load, -r.number))
            for replica in held[: len(held) - wanted]:
                self._retire(replica, now, self.scenario.drain_seconds)
        self.schedule(now)
        self._note(now)
        self._changed(now)

    def reclaim(self, variant: Variant, count: int | None, now: float) -> None:
        """The provider gives notice; replacements are made at once, as the Deployment does, and may stay pending."""
        running = [
            r for r in self.replicas if r.variant.name == variant.name and r.phase in (Phase.LOADING, Phase.READY)
        ]
        for replica in running[:count]:
            self._retire(replica, now, self.scenario.notice_seconds)
        self.scale(variant, self.desired[variant.name], now)
        self._note(now)
        self._changed(now)

    # --- Life ------------------------------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> None:
        """Gives devices to pending replicas, the oldest first, as far as there are any."""
        for variant in self.scenario.variants:
            pending = [r for r in self.replicas if r.variant.name == variant.name and r.phase is Phase.PENDING]
            if not pending:
                continue
            used = sum(1 for r in self.replicas if r.variant.name == variant.name and r.has_device)
            room = self._room(variant, now) - used
            for replica in pending:
                if room < 1:
                    break
                room -= 1
                replica.scheduled_at = now
                self._load(replica, now)
            self._note(now)

    def finished_draining(self, replica: Replica, now: float) -> None:
        """A draining replica has nothing left."""
        if replica.phase is Phase.DRAINING:
            self._gone(replica, now)

    def close(self, now: float) -> None:
        """Bills what still runs."""
        for replica in self.replicas:
            if replica.has_device:
                self._bill(replica, now)

    def _make(self, variant: Variant, now: float) -> Replica:
        self._made += 1
        replica = Replica(self._made, variant, now, self.scenario.seed, self.scenario.coarse)
        self.replicas.append(replica)
        return replica

    def _load(self, replica: Replica, now: float) -> None:
        replica.enter(Phase.LOADING, now)
        truth = replica.variant.truth
        seconds = truth.start_median_seconds * math.exp(replica.random.gauss(0.0, truth.start_sigma))
        for slow in self.scenario.faults.slow_starts:
            if slow.window.holds(now):
                seconds *= slow.factor
        self._at(now + seconds, lambda at: self._loaded(replica, at))

    def _loaded(self, replica: Replica, now: float) -> None:
        if replica.phase is not Phase.LOADING:
            return
        if replica.random.random() < self.scenario.faults.load_failure:
            wait = LOAD_BACKOFF_SECONDS[min(replica.restarts, len(LOAD_BACKOFF_SECONDS) - 1)]
            replica.restarts += 1
            self._at(now + wait, lambda at: self._load(replica, at) if replica.phase is Phase.LOADING else None)
            return
        replica.enter(Phase.READY, now)
        self.start_seconds.append(now - replica.scheduled_at)
        self._changed(now)

    def _retire(self, replica: Replica, now: float, within: float) -> None:
        if replica.phase is not Phase.READY or not replica.load:
            self._gone(replica, now)
            return
        replica.enter(Phase.DRAINING, now)
        self._at(now + within, lambda at: self._kill(replica, at))

    def _kill(self, replica: Replica, now: float) -> None:
        if replica.phase is Phase.GONE:
            return
        lost = replica.engine.abandon()
        replica.load = 0
        replica.version += 1
        self._gone(replica, now)
        for request in lost:
            if request.first_token_at >= 0:
                request.finished_at = now
                self._end(request, Outcome.KILLED)
            else:
                request.retries += 1
                self._requeue(request, now)

    def _gone(self, replica: Replica, now: float) -> None:
        if replica.has_device:
            self._bill(replica, now)
        replica.enter(Phase.GONE, now)
        replica.gone_at = now
        self.replicas.remove(replica)
        self.schedule(now)
        self._note(now)
        self._changed(now)

    # --- Accounts --------------------------------------------------------------------------------------------------------------

    def _bill(self, replica: Replica, now: float) -> None:
        variant = replica.variant
        end = max(self.scenario.warm_up, min(now, self.scenario.duration))
        start = min(max(self.scenario.warm_up, replica.scheduled_at), end)
        self.bills.append(Bill(variant.name, variant.devices, variant.price_per_hour, start, end))

    def _note(self, now: float) -> None:
        rate = sum((r.variant.price_per_hour for r in self.replicas if r.has_device), Decimal(0))
        if not self.rates or self.rates[-1][1] != rate:
            self.rates.append((now, rate))
        committed = sum((r.variant.price_per_hour for r in self.replicas), Decimal(0))
        if not self.commitments or self.commitments[-1][1] != committed:
            self.commitments.append((now, committed))
        counts = {v.name: sum(1 for r in self._held(v)) for v in self.scenario.variants}
        if not self.counts or self.counts[-1][1] != counts:
            self.counts.append((now, counts))

    def _held(self, variant: Variant) -> list[Replica]:
        return [r for r in self.replicas if r.variant.name == variant.name and r.is_held]

    def _room(self, variant: Variant, now: float) -> int:
        room = variant.stock if variant.stock is not None else 1_000_000
        limits: Iterable[int] = (
            out.replicas
            for out in self.scenario.faults.stock_outs
            if out.variant == variant.name and out.window.holds(now)
        )
        return min([room, *limits])
