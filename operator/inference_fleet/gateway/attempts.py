"""Getting an engine to answer: choosing one, waiting for one, and trying another while nothing has come back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from inference_fleet.gateway import errors
from inference_fleet.gateway import metrics as m
from inference_fleet.gateway.choose import Choice, choose
from inference_fleet.gateway.endpoints import Endpoint, EndpointView
from inference_fleet.gateway.exchange import Exchange
from inference_fleet.gateway.hold import Changes, Waiting
from inference_fleet.gateway.ports import Disconnected, TimedOut, Unreachable, Upstream, UpstreamAnswer, UpstreamFailed
from inference_fleet.gateway.relay import failure_of
from inference_fleet.gateway.routes import Model, Routes, Variant

SURE_ATTEMPTS = 3
"""So many engines are tried even where the time to hold a request is over, or was 0 from the start."""

RESENDS = 1
"""How often a request is sent again after an engine took it and went away. A request that kills engines must not be
carried from one to the next."""

ENGINE_UNAVAILABLE = 503

SHORTEST_WAIT_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Table:
    """What is known of the fleet now."""

    routes: Callable[[], Routes]
    endpoints: EndpointView
    changes: Changes
    waiting: Waiting


@dataclass(slots=True)
class Taken:
    """An engine that has taken the request. `release` tells what came of it, once."""

    choice: Choice
    answer: UpstreamAnswer
    endpoints: EndpointView
    exchange: Exchange
    released: bool = False

    def release(self, outcome: str) -> None:
        if not self.released:
            self.released = True
            self.endpoints.ended(self.choice.endpoint)
            self.exchange.attempted(self.choice.variant.name, self.choice.endpoint.pod, outcome)

    def failed(self, outcome: str) -> None:
        """Nothing usable came of it: the answer is dropped and the engine is left alone for a while."""
        self.answer.close()
        self.release(outcome)
        self.eject()

    def eject(self) -> None:
        """Leaves the engine alone for a while."""
        self.endpoints.failed(self.choice.endpoint)


class Attempts:
    """The search of one request for an engine. `next` may be called again after `Taken.failed`."""

    def __init__(
        self,
        table: Table,
        upstream: Upstream,
        exchange: Exchange,
        model: str,
        random: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = table
        self._upstream = upstream
        self._exchange = exchange
        self._model = model
        self._random = random
        self._clock = clock
        self._deadline = clock() + table.routes().hold_seconds
        self._made = 0
        self._resends = 0

    async def next(self, target: str, headers: Mapping[str, str], body: Callable[[Variant], bytes]) -> Taken:
        """The head of an engine's answer, other than 503.

        Raises Refusal when no engine could be had in time.
        """
        while True:
            choice = await self._choice()
            self._made += 1
            taken = await self._send(choice, target, headers, body)
            if taken is None:
                continue
            if taken.answer.status != ENGINE_UNAVAILABLE:
                self._table.endpoints.answered(choice.endpoint)
                return taken
            taken.failed("unavailable")

    async def _send(
        self, choice: Choice, target: str, headers: Mapping[str, str], body: Callable[[Variant], bytes]
    ) -> Taken | None:
        """One attempt; None when the engine failed and another may be tried."""
        endpoints, endpoint = self._table.endpoints, choice.endpoint
        self._exchange.variant, self._exchange.endpoint = choice.variant.name, endpoint.pod
        endpoints.started(endpoint)
        try:
            answer = await self._upstream.post(endpoint.address, target, headers, body(choice.variant))
        except BaseException as error:
            endpoints.ended(endpoint)
            # Anything else is the client having left while the engine was being asked.
            outcome = error.outcome if isinstance(error, UpstreamFailed) else "abandoned"
            self._exchange.attempted(choice.variant.name, endpoint.pod, outcome)
            if not isinstance(error, UpstreamFailed):
                raise
            endpoints.failed(endpoint)
            if not self.may_resend(error):
                raise failure_of(error, "before it answered") from None
            return None
        return Taken(choice, answer, endpoints, self._exchange)

    def may_resend(self, error: UpstreamFailed) -> bool:
        """Whether the request may go to another engine after this failure, if nothing of an answer was passed on."""
        if isinstance(error, Unreachable):
            return True
        if isinstance(error, TimedOut) or not isinstance(error, Disconnected):
            return False
        self._resends += 1
        return self._resends <= RESENDS

    async def _choice(self) -> Choice:
        """An engine for the next attempt, waited for if need be. Raises Refusal."""
        table = self._table
        if self._made >= SURE_ATTEMPTS and self._clock() >= self._deadline:
            raise errors.unavailable(f"No replica of model `{self._model}` answered in time.")
        choice = self._choose()
        if choice is not None:
            return choice
        size = self._exchange.body_bytes
        if not table.waiting.has_room(size):
            raise errors.unavailable(f"Too many requests wait for a replica of model `{self._model}`.")
        table.waiting.enter(self._model, size)
        began = self._clock()
        try:
            while True:
                # Read before choosing: an ejection that ends between the two would otherwise be waited for in vain.
                returns = self._next_return()
                choice = self._choose()
                if choice is not None:
                    return choice
                now = self._clock()
                if now >= self._deadline:
                    raise errors.unavailable(f"Model `{self._model}` has no ready replica.")
                await table.changes.wait(max(min(self._deadline, returns) - now, SHORTEST_WAIT_SECONDS))
        finally:
            table.waiting.leave(self._model, size)
            self._exchange.held_seconds += self._clock() - began

    def _next_return(self) -> float:
        """When an ejected engine may be tried again, on the clock."""
        model = self._current()
        moment = self._table.endpoints.next_return(model) if model else None
        return float("inf") if moment is None else moment

    def _current(self) -> Model | None:
        """The model in the routes as they are now: they may have changed while the request was held."""
        return next((model for model in self._table.routes().models if model.name == self._model), None)

    def _choose(self) -> Choice | None:
        model = self._current()
        if model is None:
            raise errors.unknown_model(self._model)
        routes, endpoints = self._table.routes(), self._table.endpoints
        candidates: list[tuple[Variant, Sequence[Endpoint]]] = [
            (variant, endpoints.usable(routes, variant)) for variant in model.variants if variant.weight
        ]
        self._exchange.candidates = sum(len(usable) for _, usable in candidates)
        return choose(candidates, endpoints.load, self._random)


def report_held(metrics: m.Metrics) -> Callable[[str, int], None]:
    """Keeps the gauge of held requests."""
    return lambda model, held: metrics.set(m.HELD, model, held)
