"""What the core needs from the HTTP libraries around it, and gives to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol


class UpstreamFailed(Exception):
    """An engine did not answer to the end."""

    outcome = "broken"


class Unreachable(UpstreamFailed):
    """No connection was made: the engine has seen nothing."""

    outcome = "unreachable"


class Disconnected(UpstreamFailed):
    """The connection ended before the answer did."""

    outcome = "disconnected"


class TimedOut(UpstreamFailed):
    """Nothing came for longer than the read timeout."""

    outcome = "timed_out"


class UpstreamAnswer(Protocol):
    """An engine's answer, its head read."""

    status: int
    headers: Mapping[str, str]

    async def chunk(self) -> bytes:
        """The bytes that came in since, at least one; b"" at the end. May be cancelled without losing bytes.

        Raises UpstreamFailed.
        """

    async def read(self) -> bytes:
        """The whole rest. Raises UpstreamFailed."""

    async def pipe(self, take: Callable[[bytes], bool], drained: Callable[[], Awaitable[None]]) -> None:
        """Calls `take` with the bytes at the moment they come, until the end.

        Where `take` says that it is full, it is not called again before `drained` returns, and the engine is held back.
        Raises UpstreamFailed, and what `take` and `drained` raise.
        """

    def close(self) -> None:
        """Ends the exchange at once. Before the end of the answer this drops the connection: engines stop by that."""


class Upstream(Protocol):
    """The way to the engines."""

    async def post(self, address: str, target: str, headers: Mapping[str, str], body: bytes) -> UpstreamAnswer:
        """Sends a request to `host:port`. Raises UpstreamFailed; cancelling drops the connection."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A client's request; its body is read only when it is known who asks."""

    method: str
    path: str
    target: str
    """Path and query as they were sent."""
    headers: Mapping[str, str]
    read_body: Callable[[int], Awaitable[bytes]]
    """The body, at most so many bytes of it. Raises Refusal 413 beyond."""
    request_id: str


class Client(Protocol):
    """Who takes a stream."""

    def write(self, data: bytes) -> bool:
        """Sends a piece; False where no more should be sent before `drained` returns."""

    async def drained(self) -> None:
        """Returns when more can be taken."""


class Stream(Protocol):
    """An answer that comes in pieces, each a whole number of events."""

    async def run(self, client: Client) -> None:
        """Sends everything to a client."""

    def close(self) -> None:
        """To be called in every case; before the end it means that the client has left."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client gets: `body`, or `stream`."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    stream: Stream | None = None
