"""A JSON answer out of a stream of chunks. Pure.

llama.cpp stops generating for a client that has left only when it notices in time, and without a stream it often does
not. So the gateway asks for a stream whatever the client asked, and puts the answer together here: the same fields that
the engine's own JSON would have had.
"""

from __future__ import annotations

from typing import Any

import orjson

from inference_fleet.gateway import sse
from inference_fleet.gateway.usage import Tokens, UsageReports

_PER_CHUNK = frozenset({"choices", "usage", "object", "error"})


class Incomplete(Exception):
    """The stream ended before the answer was whole."""


class EngineError(Exception):
    """The engine reported a failure inside the stream. `status` is the engine's own, 500 where it gave none."""

    def __init__(self, error: dict[str, Any]) -> None:
        code = error.get("code")
        self.status = code if isinstance(code, int) and 400 <= code < 600 else 500
        self.body = orjson.dumps({"error": error})
        super().__init__(f"status {self.status}")


class Assembler:
    """Takes events as they come; `chat` tells chat completions from text completions, `choices` is the request's n."""

    def __init__(self, *, chat: bool, choices: int) -> None:
        self._chat = chat
        self._top: dict[str, Any] = {}
        self._choices: dict[int, _Choice] = {}
        self._usage = UsageReports(choices)
        self._done = False

    def feed(self, event: bytes) -> bool:
        """Takes one event; whether it carried generated output. Raises EngineError."""
        data = sse.data_of(event)
        if data.strip() == b"[DONE]":
            self._done = True
            return False
        chunk = sse.loads(data)
        if not isinstance(chunk, dict):
            return False  # a comment, or the `null` that llama.cpp sends before some batches
        error = chunk.get("error")
        if error:
            raise EngineError(error if isinstance(error, dict) else {"message": str(error), "type": "server_error"})
        self._top.update((key, value) for key, value in chunk.items() if key not in _PER_CHUNK)
        choices = chunk.get("choices") or []
        usage = chunk.get("usage")
        if isinstance(usage, dict) and not choices:
            self._usage.closing(usage)
        has_token = False
        for part in choices:
            index = part.get("index", 0)
            choice = self._choices.get(index)
            if choice is None:
                choice = self._choices[index] = _Choice()
            has_token |= choice.add(part)
            if isinstance(usage, dict):
                self._usage.of_choice(index, usage)
        return has_token

    def tokens(self) -> Tokens | None:
        return self._usage.tokens()

    def answer(self) -> bytes:
        """The JSON body. Raises Incomplete when the closing event or a choice's end is missing."""
        if (
            not self._done
            or not self._choices
            or any(choice.finish_reason is None for choice in self._choices.values())
        ):
            raise Incomplete
        whole = {
            **self._top,
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": [
                choice.as_chat(index) if self._chat else choice.as_text(index)
                for index, choice in sorted(self._choices.items())
            ],
        }
        usage = self._usage.merged()
        if usage is not None:
            whole["usage"] = usage
        return orjson.dumps(whole)


class _Choice:
    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self._texts: dict[str, list[str]] = {}
        self._others: dict[str, Any] = {}
        self._tools: dict[int, dict[str, Any]] = {}
        self._logprobs: dict[str, Any] | None = None
        self._extra: dict[str, Any] = {}

    def add(self, part: dict[str, Any]) -> bool:
        """Takes one chunk of this choice; whether it carried generated output."""
        has_token = False
        for key, value in part.items():
            if key == "delta":
                has_token |= self._add_delta(value or {})
            elif key == "text":
                if value:
                    self._texts.setdefault("text", []).append(value)
                    has_token = True
            elif key == "logprobs":
                self._logprobs = _extended(self._logprobs, value)
            elif key == "finish_reason":
                self.finish_reason = value or self.finish_reason
            elif key != "index" and value is not None:
                self._extra[key] = value
        return has_token

    def _add_delta(self, delta: dict[str, Any]) -> bool:
        has_token = False
        for key, value in delta.items():
            if value is None or key == "role":
                continue
            if key == "tool_calls":
                for call in value:
                    self._add_tool_call(call)
                has_token |= bool(value)
            elif isinstance(value, str):
                self._texts.setdefault(key, []).append(value)
                has_token |= bool(value)
            else:
                self._others[key] = value
        return has_token

    def _add_tool_call(self, call: dict[str, Any]) -> None:
        index = call.get("index", len(self._tools))
        whole = self._tools.setdefault(index, {"function": {"name": "", "arguments": ""}})
        for key, value in call.items():
            if key == "function" and isinstance(value, dict):
                function = whole["function"]
                function["name"] = function["name"] or value.get("name") or ""
                function["arguments"] += value.get("arguments") or ""
            elif key != "index" and value:
                whole[key] = value

    def as_chat(self, index: int) -> dict[str, Any]:
        texts = {key: "".join(parts) for key, parts in self._texts.items()}
        content = texts.pop("content", "")
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content or (None if self._tools else ""),
            **texts,
            **self._others,
        }
        if self._tools:
            message["tool_calls"] = [{"type": "function", **call} for _, call in sorted(self._tools.items())]
        choice = {"index": index, "message": message, "finish_reason": self.finish_reason, **self._extra}
        if self._logprobs is not None:
            choice["logprobs"] = self._logprobs
        return choice

    def as_text(self, index: int) -> dict[str, Any]:
        return {
            "index": index,
            "text": "".join(self._texts.get("text", ())),
            "logprobs": self._logprobs,
            "finish_reason": self.finish_reason,
            **self._extra,
        }


def _extended(known: dict[str, Any] | None, more: Any) -> dict[str, Any] | None:
    """Log probabilities of one more chunk: lists grow, whatever their names are."""
    if not isinstance(more, dict):
        return known
    known = {} if known is None else known
    for key, value in more.items():
        if isinstance(value, list):
            known.setdefault(key, []).extend(value)
        else:
            known.setdefault(key, value)
    return known
