"""The simulated gateway: picks a replica as the real one does, holds requests while none is ready, counts what clients felt."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from random import Random

from inference_fleet.simulator.replica import Replica
from inference_fleet.simulator.request import Outcome, Request
from inference_fleet.simulator.scenario import Objectives
from inference_fleet.simulator.view import TPOT_EDGES, TTFT_EDGES, GatewaySample, Phase


class Routing:
    """The ready replicas by variant. A variant is drawn by its share, then its least loaded replica (gateway/choose.py)."""

    def __init__(self, random: Random) -> None:
        """Nothing is ready."""
        self._random = random
        self._variants: list[tuple[float, list[Replica]]] = []
        self._total = 0.0

    def set(self, replicas: Sequence[Replica], weights: Mapping[str, float]) -> None:
        """Learns what is ready, and each variant's weight for one replica."""
        by_variant: dict[str, list[Replica]] = {}
        for replica in replicas:
            if replica.phase is Phase.READY:
                by_variant.setdefault(replica.variant.name, []).append(replica)
        self._variants = []
        for name, ready in by_variant.items():
            weight = weights.get(name, ready[0].variant.weight)
            if weight > 0:
                self._variants.append((weight * len(ready), ready))
        self._total = sum(weight for weight, _ in self._variants)

    @property
    def is_open(self) -> bool:
        """Whether anything is ready."""
        return bool(self._variants)

    def choose(self) -> Replica | None:
        """Where the next request goes; None: nothing is ready."""
        variants = self._variants
        if not variants:
            return None
        ready = variants[0][1]
        if len(variants) > 1:
            ticket = self._random.random() * self._total
            for weight, ready in variants:  # noqa: B007 - the last one stands where rounding ends the loop
                ticket -= weight
                if ticket < 0:
                    break
        best = ready[0]
        least = best.load
        for replica in ready:
            if replica.load < least:
                best = replica
                least = replica.load
        return best


class Book:
    """What became of every request, kept in arrays: seconds, and whether all objectives were met."""

    def __init__(self, objectives: Objectives) -> None:
        """Nothing has happened."""
        self.objectives = objectives
        self.arrived = array("d")
        """Every arrival that is scored, ended or not."""
        self.arrival = array("d")
        """Of those that ended, as are the following."""
        self.ttft = array("d")
        self.tpot = array("d")
        self.met = array("b")
        self.outcomes = dict.fromkeys(Outcome, 0)
        self.good_tokens = 0
        """Output tokens of requests that met their objectives."""
        self.output_tokens = 0
        """Of completed requests."""
        self.prompt_tokens = 0
        """Of completed requests."""
        self.cached_tokens = 0
        self.preemptions = 0

    def close(self, request: Request, outcome: Outcome, scored: bool = True) -> bool:
        """Writes a request down; returns whether it met its objectives. One that did not complete never does."""
        request.outcome = outcome
        met = False
        ttft = request.ttft if request.first_token_at >= 0 else -1.0
        tpot = -1.0
        if outcome is Outcome.COMPLETED:
            tpot = request.tpot
            aim = self.objectives
            met = (
                (aim.ttft is None or ttft <= aim.ttft)
                and (aim.tpot is None or tpot <= aim.tpot)
                and (aim.e2e is None or request.finished_at - request.arrival <= aim.e2e)
            )
        if not scored:
            return met
        self.outcomes[outcome] += 1
        if outcome is Outcome.COMPLETED:
            self.output_tokens += request.output
            self.prompt_tokens += request.prompt
            self.cached_tokens += request.cached
            self.good_tokens += request.output if met else 0
        self.preemptions += request.preemptions
        self.arrival.append(request.arrival)
        self.ttft.append(ttft)
        self.tpot.append(tpot)
        self.met.append(met)
        return met


class Gateway:
    """Counters as `/metrics` shows them, and the requests that wait for an engine."""

    def __init__(
        self,
        objectives: Objectives,
        random: Random,
        on_end: Callable[[Request], None] | None = None,
        warm_up: float = 0.0,
    ) -> None:
        """An empty gateway. `on_end` hears of every request that ended; those that arrived before `warm_up` are not booked."""
        self.routing = Routing(random)
        self.book = Book(objectives)
        self.held: deque[tuple[float, Request]] = deque()
        """Until when, and what: requests that wait for an engine, the oldest first."""
        self.arrivals = 0
        self.completed = 0
        self.failed = 0
        self.within = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self._ttft = [0] * (len(TTFT_EDGES) + 1)
        self._tpot = [0] * (len(TPOT_EDGES) + 1)
        self._on_end = on_end
        self._warm_up = warm_up

    def arrive(self, request: Request) -> None:
        """Counts a new request."""
        self.arrivals += 1
        self.prompt_tokens += request.prompt
        if request.arrival >= self._warm_up:
            self.book.arrived.append(request.arrival)

    def first_token(self, request: Request) -> None:
        """A client has its first token."""
        self._ttft[bisect_left(TTFT_EDGES, request.first_token_at - request.arrival)] += 1

    def end(self, request: Request, outcome: Outcome) -> None:
        """A request is over."""
        if outcome is Outcome.COMPLETED:
            self.completed += 1
            self.completion_tokens += request.output
            if request.output > 1:
                self._tpot[bisect_left(TPOT_EDGES, request.tpot)] += 1
        else:
            self.failed += 1
        if self.book.close(request, outcome, request.arrival >= self._warm_up):
            self.within += 1
        if self._on_end is not None:
            self._on_end(request)

    @property
    def in_flight(self) -> int:
        """Arrived and not over."""
        return self.arrivals - self.completed - self.failed

    def sample(self, now: float) -> GatewaySample:
        """What its `/metrics` would say now."""
        return GatewaySample(
            at=now,
            arrivals=self.arrivals,
            completed=self.completed,
            failed=self.failed,
            in_flight=self.in_flight,
            held=len(self.held),
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            within=self.within,
            judged=self.completed + self.failed,
            ttft=tuple(self._ttft),
            tpot=tuple(self._tpot),
        )
