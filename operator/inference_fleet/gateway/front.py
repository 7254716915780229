"""The core of the gateway: a request in, an answer out. Knows no HTTP library."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote

import orjson

from inference_fleet.gateway import body as request_body
from inference_fleet.gateway import engine_answer, errors, keys, sse
from inference_fleet.gateway.assemble import Assembler, EngineError, Incomplete
from inference_fleet.gateway.attempts import Attempts, Table, Taken
from inference_fleet.gateway.body import Parsed
from inference_fleet.gateway.exchange import CLIENT_LEFT, Exchange, Ledger
from inference_fleet.gateway.ports import Answer, Ask, Disconnected, Upstream, UpstreamFailed
from inference_fleet.gateway.relay import Passage, RelayedStream, failure_of
from inference_fleet.gateway.routes import Model, Variant

log = logging.getLogger(__name__)

JSON = {"Content-Type": "application/json"}
EVENT_STREAM = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    # nginx would collect a stream into its buffers otherwise.
    "X-Accel-Buffering": "no",
}

STREAMED_TO_US = "LlamaCpp"
"""Engine that must be asked for a stream even where the client wants none: see `assemble`."""

FORWARDED_HEADERS = ("traceparent", "tracestate")
"""What passes to an engine beside our own headers. Never the client's key."""

KEPT_HEADERS = ("Content-Type", "Content-Encoding")
"""What passes back with an answer that is relayed whole."""


@dataclass(frozen=True, slots=True)
class Front:
    """`first_seconds` is how long a stream's head waits for its first event, so that another engine can still be tried;
    after that the client gets the head, and heartbeats."""

    table: Table
    upstream: Upstream
    ledger: Ledger
    keys: Callable[[], keys.Keys | None]
    random: Callable[[], float]
    first_seconds: float

    async def answer(self, ask: Ask) -> Answer:
        """Never raises but for cancellation, which means that the client has left."""
        if ask.path == "/health":
            return Answer(200, JSON, b'{"status":"ok"}')
        exchange = self.ledger.begin(ask.request_id, ask.path)
        try:
            answer = await self._answer(ask, exchange)
        except errors.Refusal as refusal:
            answer = refused(refusal)
        except (asyncio.CancelledError, ConnectionError):
            exchange.end(CLIENT_LEFT)
            raise
        except Exception as error:
            # The kind and the place, not the message: that may quote the request.
            place = "".join(traceback.format_tb(error.__traceback__))
            log.error("request %s failed: %s\n%s", ask.request_id, type(error).__name__, place)
            answer = refused(errors.internal())
        if answer.stream is None:
            exchange.end(answer.status)
        return answer

    async def _answer(self, ask: Ask, exchange: Exchange) -> Answer:
        if not ask.path.startswith("/v1/"):
            raise errors.unknown_path()
        exchange.tenant = keys.authenticate(self.keys(), ask.headers)
        if not self.table.routes().revision:
            raise errors.unavailable("The gateway has no routes yet.")
        if ask.path == "/v1/models" or ask.path.startswith("/v1/models/"):
            if ask.method != "GET":
                raise errors.wrong_method("GET")
            return self._models(ask.path[len("/v1/models/") :])
        if ask.method != "POST":
            raise errors.wrong_method("POST")
        # It goes on to an engine, where it must not mean anything outside /v1/.
        if ".." in ask.path or "%" in ask.path:
            raise errors.unknown_path()
        body = await ask.read_body(self.table.routes().max_body_bytes)
        exchange.body_bytes = len(body)
        parsed = request_body.parse(ask.path, body)
        model = self.table.routes().resolve(parsed.model)
        if model is None:
            raise errors.unknown_model(parsed.model)
        exchange.accepted(model.name, rule_of(model, parsed.model))
        exchange.stream = parsed.stream
        exchange.tokens_visible = parsed.stream or (
            parsed.generates and any(variant.engine == STREAMED_TO_US for variant in model.variants)
        )
        return await _Request(self, ask, exchange, parsed, model).answer()

    def _models(self, name: str) -> Answer:
        routes = self.table.routes()
        if name:
            model = routes.resolve(unquote(name))
            if model is None:
                raise errors.unknown_model(unquote(name))
            return Answer(200, JSON, orjson.dumps(listed(unquote(name), model)))
        data = [listed(public, model) for model in routes.models for public in model.public_names]
        return Answer(200, JSON, orjson.dumps({"object": "list", "data": data}))


def listed(name: str, model: Model) -> dict[str, object]:
    """A model as `/v1/models` shows it. `max_model_len` is vLLM's name for the context, which clients look for."""
    # The weights' age is not known here, and OpenAI's clients insist on a number.
    entry: dict[str, object] = {"id": name, "object": "model", "created": 0, "owned_by": "inference-fleet"}
    return {**entry, "max_model_len": model.context_tokens} if model.context_tokens else entry


def rule_of(model: Model, requested: str) -> str:
    """Why this model, for the decisions."""
    return "Named" if requested == model.name or requested in model.served_names else "Default"


def refused(refusal: errors.Refusal) -> Answer:
    return Answer(refusal.status, {**JSON, **refusal.headers}, refusal.body())


@dataclass(slots=True)
class _Request:
    """One accepted request on its way to an engine and back."""

    front: Front
    ask: Ask
    exchange: Exchange
    parsed: Parsed
    model: Model

    async def answer(self) -> Answer:
        attempts = Attempts(
            self.front.table,
            self.front.upstream,
            self.exchange,
            self.model.name,
            self.front.random,
            self.front.ledger.clock,
        )
        headers = self._headers()
        while True:
            taken = await attempts.next(self.ask.target, headers, self._body)
            try:
                return await self._take(taken)
            except UpstreamFailed as error:
                taken.failed(error.outcome)
                # Once something of an answer has come, it is generated: another engine would do it all again.
                if self.exchange.first_token is not None or not attempts.may_resend(error):
                    raise failure_of(error, "before its answer was complete") from None
            except BaseException:
                taken.answer.close()
                taken.release("abandoned")
                raise

    def _headers(self) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json" if self.parsed.stream else "application/json",
            "Accept-Encoding": "identity",
            "X-Request-Id": self.ask.request_id,
        }
        for name in FORWARDED_HEADERS:
            if value := self.ask.headers.get(name):
                headers[name] = value
        return headers

    def _is_assembled(self, variant: Variant) -> bool:
        return self.parsed.generates and not self.parsed.stream and variant.engine == STREAMED_TO_US

    def _body(self, variant: Variant) -> bytes:
        stream = self.parsed.stream or self._is_assembled(variant)
        return request_body.for_engine(self.parsed, self.model.name, stream=stream)

    async def _take(self, taken: Taken) -> Answer:
        """The client's answer out of an engine's. Raises UpstreamFailed while nothing has been passed on."""
        answer = taken.answer
        if answer.status != 200:
            body = await answer.read()
            taken.release("refused")
            return engine_answer.refusal(answer.status, answer.headers, body)
        if not answer.headers.get("Content-Type", "").startswith("text/event-stream"):
            return await self._whole(taken)
        if self._is_assembled(taken.choice.variant):
            return await self._assembled(taken)
        passage = Passage(
            self.exchange,
            generates=self.parsed.generates,
            keep_usage=self.parsed.wants_usage,
            choices=self.parsed.choices,
        )
        stream = RelayedStream(answer, self.exchange, passage, taken.release, taken.eject)
        await stream.first(self.front.first_seconds)
        return Answer(200, EVENT_STREAM, stream=stream)

    async def _whole(self, taken: Taken) -> Answer:
        body = await taken.answer.read()
        taken.release("answered")
        self.exchange.tokens = engine_answer.tokens(body)
        given = taken.answer.headers
        return Answer(200, {**JSON, **{name: given[name] for name in KEPT_HEADERS if name in given}}, body)

    async def _assembled(self, taken: Taken) -> Answer:
        assembler = Assembler(chat=self.parsed.path == request_body.CHAT, choices=self.parsed.choices)
        splitter = sse.EventSplitter()
        try:
            while chunk := await taken.answer.chunk():
                for event in sse.split_events(splitter.feed(chunk)):
                    if assembler.feed(event):
                        self.exchange.token()
                        self.exchange.chunks += 1
            body = assembler.answer()
        except EngineError as error:
            taken.answer.close()
            taken.release("refused")
            return engine_answer.refusal(error.status, {}, error.body)
        except Incomplete:
            raise Disconnected("the engine ended its stream in the middle") from None
        except sse.NotAnEventStream as error:
            raise UpstreamFailed(str(error)) from None
        taken.answer.close()
        taken.release("answered")
        self.exchange.tokens = assembler.tokens()
        return Answer(200, JSON, body)
