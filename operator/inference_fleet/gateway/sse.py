"""Server-sent events at the level of bytes: where events end, and the few facts the gateway needs from them.

Nothing is decoded on the way. What is passed on is always a whole number of events, so that a comment or an error can
be put in between at any time, and a client never sees half a character because a packet ended there.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

EVENT_END = re.compile(rb"\r?\n\r?\n|\r\r")

LONGEST_EVENT_BYTES = 16 << 20
"""More than this without an end of event is no event stream."""

_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_DATA_LINE = re.compile(rb"(?:\r\n|\n|\r|^)data:? ?([^\r\n]*)")


class NotAnEventStream(ValueError):
    """An event that does not end."""


class EventSplitter:
    """Cuts a stream of bytes at the ends of events, however the bytes arrive."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> bytes:
        """All whole events that are complete with `chunk`, as one piece; b"" while the first is still incomplete.

        Raises NotAnEventStream when an event grows past LONGEST_EVENT_BYTES.
        """
        rest = self._rest
        data = rest + chunk if rest else chunk
        # Engines write whole events and end them with two line feeds: then there is nothing to search for.
        if data.endswith(b"\n\n"):
            self._rest = b""
            return data
        end = _last_end(data, max(len(rest) - 3, 0))
        self._rest = data[end:]
        if len(self._rest) > LONGEST_EVENT_BYTES:
            raise NotAnEventStream(f"an event is longer than {LONGEST_EVENT_BYTES} bytes")
        return data[:end]

    @property
    def rest(self) -> bytes:
        """Bytes of an event that has not ended."""
        return self._rest


def _last_end(data: bytes, start: int) -> int:
    end = 0
    for match in EVENT_END.finditer(data, start):
        end = match.end()
    return end


def split_events(block: bytes) -> list[bytes]:
    """The events of a piece that `EventSplitter` returned, each with its end."""
    events = []
    start = 0
    for match in EVENT_END.finditer(block):
        events.append(block[start : match.end()])
        start = match.end()
    if start < len(block):
        events.append(block[start:])  # an empty line more than needed
    return events


def data_of(event: bytes) -> bytes:
    """The data of an event: its `data` lines joined by line feeds; b"" for a comment."""
    if event.startswith(b"data: ") and event.find(b"\n") >= len(event) - 2 and b"\r" not in event:
        return event[6:-2]
    return b"\n".join(_DATA_LINE.findall(event))


def is_done(event: bytes) -> bool:
    """Whether this is OpenAI's closing event."""
    return data_of(event).strip() == b"[DONE]"


def is_error(event: bytes) -> bool:
    """Whether an engine reports a failure by this event."""
    if b'"error"' not in event:
        return False
    value = loads(data_of(event))
    return isinstance(value, dict) and bool(value.get("error"))


def may_hold_facts(block: bytes) -> bool:
    """A cheap test that lets most pieces pass unopened: usage, the closing event or an error may be in there.

    Inside JSON strings quotes are escaped, so that no generated text looks like these.
    """
    return b"[DONE]" in block or b'"error"' in block or (b'"usage"' in block and _USAGE.search(block) is not None)


def usage_of(event: bytes) -> tuple[dict[str, Any], bool] | None:
    """Token counts in an event, and whether the event carries nothing else (no choices); None without counts."""
    if _USAGE.search(event) is None:
        return None
    value = loads(data_of(event))
    if not isinstance(value, dict):
        return None
    usage = value.get("usage")
    if not isinstance(usage, dict):
        # The Responses API wraps it.
        response = value.get("response")
        usage = response.get("usage") if isinstance(response, dict) else None
        return (usage, False) if isinstance(usage, dict) else None
    return usage, value.get("choices") == []


def choice_index(event: bytes) -> int:
    """The choice that a chunk belongs to."""
    choices = (loads(data_of(event)) or {}).get("choices") or [{}]
    index = choices[0].get("index", 0)
    return index if isinstance(index, int) else 0


def has_token(event: bytes) -> bool:
    """Whether an event carries generated output: text, reasoning or a tool call, and not the assistant's role only."""
    value = loads(data_of(event))
    if not isinstance(value, dict):
        return False
    choices = value.get("choices")
    if not isinstance(choices, list):
        # Not chat and not text completion: any typed delta counts.
        return bool(value.get("delta"))
    return any(_choice_has_token(choice) for choice in choices if isinstance(choice, dict))


def _choice_has_token(choice: dict[str, Any]) -> bool:
    if choice.get("text"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(value for key, value in delta.items() if key != "role")


def loads(data: bytes) -> Any:
    """JSON, or None where it is none: a stranger's event is passed on, not judged."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
