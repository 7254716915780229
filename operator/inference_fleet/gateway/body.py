"""What the gateway must know of a request's body, and the body as the engine gets it.

The body is parsed and written again rather than spliced. Parsing cannot be avoided (a broken body is refused here, not
by an engine), and writing costs less than finding the place in the bytes would; it also leaves exactly one reading of
the body: a repeated key, which two parsers may understand differently, does not reach the engine twice. Numbers are
kept, but for integers beyond 64 bits, which become floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from inference_fleet.gateway.errors import bad_request

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
GENERATING = frozenset({CHAT, COMPLETIONS})
"""Paths whose streams are OpenAI's chunks, closed by `[DONE]`."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A request as the client sent it."""

    path: str
    model: str
    stream: bool
    wants_usage: bool
    choices: int
    """`n`: answers asked for per prompt."""
    value: dict[str, Any]

    @property
    def generates(self) -> bool:
        return self.path in GENERATING


def parse(path: str, body: bytes) -> Parsed:
    """Reads a body.

    Raises Refusal 400.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        # The position only: the message of the parser is free of content, and stays so here.
        raise bad_request(f"The body is not valid JSON (line {error.lineno}, column {error.colno}).") from None
    if not isinstance(value, dict):
        raise bad_request("The body must be a JSON object.")
    model = value.get("model")
    if not isinstance(model, str) or not model:
        raise bad_request("`model` is missing or not a string.", code="missing_model", param="model")
    stream = value.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise bad_request("`stream` must be true or false.", param="stream")
    options = value.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise bad_request("`stream_options` must be an object.", param="stream_options")
    choices = value.get("n")
    return Parsed(
        path=path,
        model=model,
        stream=bool(stream),
        wants_usage=bool(options and options.get("include_usage")),
        choices=choices if isinstance(choices, int) and choices > 0 else 1,
        value=value,
    )


def for_engine(parsed: Parsed, model: str, *, stream: bool) -> bytes:
    """The body for an engine that calls the model `model`.

    `stream` may ask for a stream where the client did not. Every stream of a generating path is asked to report its
    usage: otherwise a stream's tokens could not be counted.
    """
    value = {**parsed.value, "model": model}
    if parsed.generates:
        if stream:
            value["stream"] = True
            value["stream_options"] = {**(value.get("stream_options") or {}), "include_usage": True}
        else:
            # Engines refuse the options of a stream that is none.
            value.pop("stream_options", None)
    return orjson.dumps(value)
