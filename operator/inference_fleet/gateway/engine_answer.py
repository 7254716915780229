"""What an engine answered whole: its token counts, and its errors in the shape and with the statuses that clients
expect of this gateway. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from inference_fleet.gateway import errors, sse
from inference_fleet.gateway.ports import Answer
from inference_fleet.gateway.usage import Tokens, tokens_of

LONGEST_QUOTE = 500
"""Characters quoted of an error that is not JSON."""


def tokens(body: bytes) -> Tokens | None:
    """Token counts of a JSON answer; None where it has none."""
    if b'"usage"' not in body:
        return None
    value = sse.loads(body)
    usage = value.get("usage") if isinstance(value, dict) else None
    return tokens_of(usage) if isinstance(usage, dict) else None


def refusal(status: int, headers: Mapping[str, str], body: bytes) -> Answer:
    """The client's answer to a status of an engine that is not 200.

    404 from an engine is not the client's 404, which says that nobody declares the model; 501 (llama.cpp without
    embeddings) is nothing a client should try again; and a key that an engine misses is not the client's key.
    """
    if status in (404, 501):
        return _answer(errors.bad_request(f"The model's engine does not serve this: {_message(body)}"))
    if status < 400 or status in (401, 403, 407):
        return _answer(errors.bad_gateway(f"The engine answered with status {status}."))
    extra = {}
    if status in (429, 503):
        extra["Retry-After"] = headers.get("Retry-After") or str(errors.RETRY_AFTER_SECONDS)
    value = sse.loads(body)
    if isinstance(value, dict) and isinstance(value.get("error"), dict):
        return Answer(status, {"Content-Type": "application/json", **extra}, body)
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return _answer(errors.Refusal(status, _message(body), kind, headers=extra))


def _answer(refusal: errors.Refusal) -> Answer:
    return Answer(refusal.status, {"Content-Type": "application/json", **refusal.headers}, refusal.body())


def _message(body: bytes) -> str:
    value = sse.loads(body)
    if isinstance(value, dict):
        error = value.get("error")
        found = error.get("message") if isinstance(error, dict) else value.get("message") or value.get("detail")
        if isinstance(found, str):
            return found
        if found is not None:
            return orjson.dumps(found).decode()[:LONGEST_QUOTE]
    return body[:LONGEST_QUOTE].decode("utf-8", "replace") or "no message"
