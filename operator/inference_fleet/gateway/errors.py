"""Errors as an OpenAI client expects them: a status, and `{"error": {message, type, param, code}}`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

RETRY_AFTER_SECONDS = 10
"""What a client is asked to wait for a model that has no ready replica: a start takes longer, a retry costs little."""


@dataclass(eq=False)
class Refusal(Exception):
    """An answer that is an error. `status` is HTTP's; no field may hold a key or a part of a prompt."""

    status: int
    message: str
    type: str
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        return orjson.dumps(
            {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}
        )

    def event(self) -> bytes:
        """The same as a server-sent event, for an answer that has begun."""
        return b"data: " + self.body() + b"\n\n"


def bad_request(message: str, *, code: str | None = None, param: str | None = None) -> Refusal:
    return Refusal(400, message, "invalid_request_error", code, param)


def missing_key() -> Refusal:
    return Refusal(
        401,
        "No API key was given. Send it as `Authorization: Bearer KEY`.",
        "invalid_request_error",
        "missing_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


def wrong_key() -> Refusal:
    return Refusal(
        401,
        "The API key is not known.",
        "invalid_request_error",
        "invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


def unknown_model(name: str) -> Refusal:
    return Refusal(
        404, f"The model `{name[:128]}` does not exist here.", "invalid_request_error", "model_not_found", "model"
    )


def unknown_path() -> Refusal:
    return Refusal(404, "There is nothing at this path.", "invalid_request_error", "unknown_url")


def wrong_method(allowed: str) -> Refusal:
    return Refusal(405, f"Only {allowed} is served at this path.", "invalid_request_error", headers={"Allow": allowed})


def too_large(limit_bytes: int) -> Refusal:
    return Refusal(
        413, f"The request's body is larger than {limit_bytes} bytes.", "invalid_request_error", "request_too_large"
    )


def too_slow() -> Refusal:
    return Refusal(408, "The request's body did not come in time.", "invalid_request_error", "request_timeout")


def unavailable(message: str) -> Refusal:
    return Refusal(
        503,
        message,
        "server_error",
        "model_unavailable",
        headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
    )


def bad_gateway(message: str) -> Refusal:
    return Refusal(502, message, "server_error", "upstream_failed")


def timed_out(message: str) -> Refusal:
    return Refusal(504, message, "server_error", "upstream_timeout")


def internal() -> Refusal:
    return Refusal(500, "The gateway failed to handle this request.", "server_error", "internal_error")
