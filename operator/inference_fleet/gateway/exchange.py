"""One request from its arrival to its end: what happened to it and when, and the books it is entered in at the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from inference_fleet.gateway import metrics as m
from inference_fleet.gateway.objectives import End, Outcome, judge
from inference_fleet.gateway.routes import Objective
from inference_fleet.gateway.usage import Tokens

CLIENT_LEFT = 499
DECISIONS_KEPT = 256


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request to an engine, and what came of it: see the metric of attempts."""

    variant: str
    endpoint: str
    outcome: str


class Ledger:
    """Where ended requests are counted: metrics, objectives, the last decisions. Times are on `clock`, in seconds."""

    def __init__(self, metrics: m.Metrics, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self.metrics = metrics
        self.clock = clock
        self._wall = wall
        self._decisions: deque[tuple[float, Exchange, int, Outcome]] = deque(maxlen=DECISIONS_KEPT)
        self.open = 0
        """Requests that have not ended."""
        self.objectives: tuple[Objective, ...] = ()

    def set_objectives(self, objectives: tuple[Objective, ...]) -> None:
        """What requests that end from now on are judged by. Series begin at 0: an absent one is no evidence."""
        self.objectives = objectives
        for objective in objectives:
            self.metrics.count(m.OBJECTIVE_REQUESTS, objective.name, by=0)
            self.metrics.count(m.OBJECTIVE_WITHIN, objective.name, by=0)

    def begin(self, request_id: str, path: str) -> Exchange:
        self.open += 1
        return Exchange(ledger=self, request_id=request_id, path=path, arrived=self.clock())

    def enter(self, exchange: Exchange, code: int, outcome: Outcome) -> None:
        metrics, model = self.metrics, exchange.model
        tenant = metrics.tenant(exchange.tenant)
        metrics.count(m.REQUESTS, model, tenant, str(code))
        if model:
            metrics.add(m.IN_FLIGHT, model, -1)
            self._enter_times(model, outcome)
            for objective, within in judge(outcome, self.objectives):
                metrics.count(m.OBJECTIVE_REQUESTS, objective)
                if within:
                    metrics.count(m.OBJECTIVE_WITHIN, objective)
        if exchange.tokens is not None:
            metrics.count(m.TOKENS, model, tenant, "prompt", by=exchange.tokens.prompt)
            metrics.count(m.TOKENS, model, tenant, "cached", by=exchange.tokens.cached)
            metrics.count(m.TOKENS, model, tenant, "completion", by=exchange.tokens.completion)
        elif exchange.chunks:
            metrics.count(m.TOKENS, model, tenant, "completion", by=exchange.chunks)
        self._decisions.append((self._wall(), exchange, code, outcome))

    def _enter_times(self, model: str, outcome: Outcome) -> None:
        if outcome.first_token is not None:
            self.metrics.observe(m.FIRST_TOKEN, model, outcome.first_token)
        if outcome.end is End.COMPLETE:
            self.metrics.observe(m.END_TO_END, model, outcome.whole)
            if (per_token := outcome.per_output_token) is not None:
                self.metrics.observe(m.PER_TOKEN, model, per_token)

    def decisions(self) -> list[dict[str, Any]]:
        """The last ended requests, the newest first. No prompt, answer or key is in them."""
        return [_decision(*entry) for entry in reversed(self._decisions)]


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One request. Whoever handles it notes what happens and calls `end` once; a second call does nothing."""

    ledger: Ledger
    request_id: str
    path: str
    arrived: float
    tenant: str = ""
    model: str = ""
    rule: str = ""
    stream: bool = False
    tokens_visible: bool = False
    variant: str = ""
    endpoint: str = ""
    candidates: int = 0
    body_bytes: int = 0
    held_seconds: float = 0.0
    attempts: list[Attempt] = field(default_factory=list)
    first_token: float | None = None
    last_token: float | None = None
    tokens: Tokens | None = None
    chunks: int = 0
    """Chunks with choices that were passed on."""
    ended: bool = False

    def accepted(self, model: str, rule: str) -> None:
        self.model = model
        self.rule = rule
        self.ledger.metrics.add(m.IN_FLIGHT, model, 1)

    def attempted(self, variant: str, endpoint: str, outcome: str) -> None:
        self.attempts.append(Attempt(variant, endpoint, outcome))
        self.ledger.metrics.count(m.ATTEMPTS, variant, outcome)

    def token(self) -> None:
        """Generated output has arrived now."""
        self.last_token = self.ledger.clock()
        if self.first_token is None:
            self.first_token = self.last_token

    def end(self, code: int, end: End | None = None) -> None:
        """Enters the request in the books. Without `end` the code tells."""
        if self.ended:
            return
        self.ended = True
        self.ledger.open -= 1

        def since(moment: float | None) -> float | None:
            return None if moment is None else moment - self.arrived

        outcome = Outcome(
            end=end or end_of(code),
            tokens_visible=self.tokens_visible,
            first_token=since(self.first_token),
            last_token=since(self.last_token),
            whole=self.ledger.clock() - self.arrived,
            completion_tokens=self.tokens.completion if self.tokens else None,
        )
        self.ledger.enter(self, code, outcome)


def _decision(ended: float, exchange: Exchange, code: int, outcome: Outcome) -> dict[str, Any]:
    """An entry as it is shown; `ended` is Unix time."""
    return {
        "time": round(ended, 3),
        "requestId": exchange.request_id,
        "path": exchange.path,
        "tenant": exchange.tenant,
        "model": exchange.model,
        "rule": exchange.rule,
        "variant": exchange.variant,
        "endpoint": exchange.endpoint,
        "candidates": exchange.candidates,
        "attempts": [
            {"variant": one.variant, "endpoint": one.endpoint, "outcome": one.outcome} for one in exchange.attempts
        ],
        "heldMilliseconds": round(exchange.held_seconds * 1000),
        "stream": exchange.stream,
        "code": code,
        "end": outcome.end.name,
        "firstTokenMilliseconds": None if outcome.first_token is None else round(outcome.first_token * 1000, 1),
        "milliseconds": round(outcome.whole * 1000, 1),
        "tokens": None
        if exchange.tokens is None
        else {
            "prompt": exchange.tokens.prompt,
            "cached": exchange.tokens.cached,
            "completion": exchange.tokens.completion,
        },
    }


def end_of(code: int) -> End:
    """What a status means for the objectives: 429 is the fleet's failure, other 4xx the client's."""
    if code < 400:
        return End.COMPLETE
    if code == CLIENT_LEFT:
        return End.ABORTED
    return End.REFUSED if code < 500 and code != 429 else End.FAILED
