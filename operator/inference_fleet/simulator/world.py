"""The clock of the simulated world: arrivals, iterations, start-ups, scrapes, decisions, faults, in the order of their times."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from random import Random

from inference_fleet.simulator.fleet import Fleet
from inference_fleet.simulator.gateway import Gateway
from inference_fleet.simulator.replica import SAMPLES_KEPT, Replica
from inference_fleet.simulator.request import Outcome, Request
from inference_fleet.simulator.results import Decided, Result
from inference_fleet.simulator.scaler import ScalerFactory, Weighing
from inference_fleet.simulator.scenario import Scenario
from inference_fleet.simulator.view import GatewaySample, Phase, ScalerView, VariantView

Event = tuple[float, int, "Replica | Callable[[float], None]", int]


class World:
    """One run. Everything that happens is decided by the scenario, its seed, the traffic and the scaler."""

    def __init__(
        self,
        scenario: Scenario,
        arrivals: Iterable[Request],
        scaler: ScalerFactory,
        on_end: Callable[[Request], None] | None = None,
    ) -> None:
        """`arrivals` in the order of their times. `on_end` hears of every request that ended."""
        self.scenario = scenario
        self.now = 0.0
        self._arrivals = iter(arrivals)
        self._make_scaler = scaler
        self._scaler = scaler()
        self._events: list[Event] = []
        self._count = 0
        self._random = Random(f"{scenario.seed}/world")
        self.gateway = Gateway(scenario.objectives, Random(f"{scenario.seed}/routing"), on_end, scenario.warm_up)
        self.fleet = Fleet(scenario, self.at, self._route, self.gateway.end, self._endpoints_changed)
        self._weights: dict[str, float] = {}
        self._samples: deque[GatewaySample] = deque(maxlen=SAMPLES_KEPT)
        self._decided: list[Decided] = []
        self._variants = {v.name: v for v in scenario.variants}
        self._scaling = True

    def at(self, when: float, what: Callable[[float], None]) -> None:
        """Something that will happen."""
        self._count += 1
        heappush(self._events, (when, self._count, what, 0))

    # --- Running ---------------------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        """Runs to the end and returns what came of it."""
        self.fleet.populate()
        self._plan_faults()
        self.at(self._random.uniform(0.0, 1.0), self._scrape)
        self.at(self._scaler.interval_seconds, self._decide)
        self._loop(self.scenario.duration)
        self._scaling = False
        self.fleet.close(self.scenario.duration)
        bills = tuple(self.fleet.bills)
        self._loop(self.scenario.duration + self.scenario.tail_seconds, only_rest=True)
        return Result(
            scenario=self.scenario,
            book=self.gateway.book,
            bills=bills,
            commitments=tuple(self.fleet.commitments),
            rates=tuple(self.fleet.rates),
            counts=tuple(self.fleet.counts),
            decisions=tuple(self._decided),
            open_requests=self.gateway.in_flight,
            arrivals=len(self.gateway.book.arrived),
        )

    def _loop(self, until: float, only_rest: bool = False) -> None:
        events = self._events
        arrivals = self._arrivals
        upcoming = None if only_rest else next(arrivals, None)
        next_arrival = upcoming.arrival if upcoming is not None else math.inf
        while True:
            when = events[0][0] if events else math.inf
            if next_arrival <= when:
                if upcoming is None or next_arrival >= until:
                    break
                self.now = next_arrival
                self._arrive(upcoming, next_arrival)
                upcoming = next(arrivals, None)
                next_arrival = upcoming.arrival if upcoming is not None else math.inf
                continue
            if when >= until or (only_rest and not self.gateway.in_flight):
                break
            _, _, what, version = heappop(events)
            self.now = when
            if isinstance(what, Replica):
                if version == what.version:
                    self._advance(what, when)
            else:
                what(when)
        self.now = until

    def _arrive(self, request: Request, now: float) -> None:
        self.gateway.arrive(request)
        self._route(request, now)

    def _route(self, request: Request, now: float) -> None:
        replica = self.gateway.routing.choose()
        if replica is None:
            self.gateway.held.append((now + self.scenario.hold_seconds, request))
            self.at(now + self.scenario.hold_seconds, self._expire)
            return
        if not replica.engine.fits(request):
            self.gateway.end(request, Outcome.REFUSED)
            return
        request.variant = replica.variant.name
        replica.load += 1
        if replica.engine.submit(request, now):
            self._push(replica)

    def _push(self, replica: Replica) -> None:
        replica.version += 1
        if replica.engine.end != math.inf:
            self._count += 1
            heappush(self._events, (replica.engine.end, self._count, replica, replica.version))

    def _advance(self, replica: Replica, now: float) -> None:
        engine = replica.engine
        engine.advance()
        self._push(replica)
        if engine.first:
            for request in engine.first:
                self.gateway.first_token(request)
            engine.first.clear()
        if engine.done:
            for request in engine.done:
                self.gateway.end(request, Outcome.COMPLETED)
            replica.load -= len(engine.done)
            engine.done.clear()
            if not replica.load and replica.phase is Phase.DRAINING:
                self.fleet.finished_draining(replica, now)

    def _endpoints_changed(self, now: float) -> None:
        gateway = self.gateway
        gateway.routing.set(self.fleet.replicas, self._weights)
        if gateway.held and gateway.routing.is_open:
            waiting = list(gateway.held)
            gateway.held.clear()
            for _, request in waiting:
                self._route(request, now)

    def _expire(self, now: float) -> None:
        held = self.gateway.held
        while held and held[0][0] <= now:
            self.gateway.end(held.popleft()[1], Outcome.EXPIRED)

    # --- The loop that scales --------------------------------------------------------------------------------------------------

    def _scrape(self, now: float) -> None:
        faults = self.scenario.faults
        random = self._random
        every = self._scaler.scrape_seconds or self.scenario.scrape_seconds
        self.at(now + every, self._scrape)
        if any(window.holds(now) for window in faults.outages):
            return
        frozen = any(window.holds(now) for window in faults.frozen)
        jitter = min(self.scenario.scrape_jitter, every / 4)
        if random.random() >= faults.scrape_loss:
            self.at(now + random.uniform(0.0, jitter), lambda at: self._samples.append(self.gateway.sample(at)))
        for replica in self.fleet.replicas:
            if replica.serves and random.random() >= faults.scrape_loss:
                self.at(now + random.uniform(0.0, jitter), partial(_read, replica, frozen))

    def _decide(self, now: float) -> None:
        if not self._scaling:
            return
        self.at(now + self._scaler.interval_seconds, self._decide)
        wanted = self._scaler.decide(self.view(), now)
        before = dict(self.fleet.desired)
        if isinstance(self._scaler, Weighing):
            self._weights = dict(self._scaler.weights())
        for name, count in wanted.items():
            self.fleet.scale(self._variants[name], count, now)
        if isinstance(self._scaler, Weighing):
            self._endpoints_changed(now)
        if self.fleet.desired != before:
            self._decided.append(Decided(now, before, dict(self.fleet.desired)))

    def view(self) -> ScalerView:
        """What can be seen now."""
        variants = {}
        for variant in self.scenario.variants:
            truth = variant.truth
            variants[variant.name] = VariantView(
                name=variant.name,
                price_per_hour=variant.price_per_hour,
                devices=variant.devices,
                spot=variant.spot,
                minimum=variant.minimum,
                maximum=variant.maximum,
                kv_capacity_tokens=truth.kv_capacity_tokens,
                max_sequences=truth.max_sequences,
                max_batched_tokens=truth.max_batched_tokens,
                desired=self.fleet.desired[variant.name],
                pods=tuple(r.view() for r in self.fleet.replicas if r.variant.name == variant.name),
            )
        return ScalerView(
            variants=variants,
            gateway=tuple(self._samples),
            objectives=self.scenario.objectives,
            budget_per_hour=self.scenario.budget_per_hour,
            start_seconds=tuple(self.fleet.start_seconds[-64:]),
        )

    def _plan_faults(self) -> None:
        faults = self.scenario.faults
        for reclaim in faults.reclaims:
            variant = self._variants[reclaim.variant]
            self.at(reclaim.at, partial(self.fleet.reclaim, variant, reclaim.count))
        for out in faults.stock_outs:
            self.at(out.window.end, self.fleet.schedule)
        for at in faults.restarts:
            self.at(at, self._restart)

    def _restart(self, now: float) -> None:
        self._scaler = self._make_scaler()


def _read(replica: Replica, frozen: bool, now: float) -> None:
    if not replica.serves:
        return
    if not frozen:
        replica.frozen = None
        replica.samples.append(replica.sample(now))
        return
    if replica.frozen is None:
        replica.frozen = replica.samples[-1] if replica.samples else replica.sample(now)
    replica.samples.append(replace(replica.frozen, at=now))
