"""The way to the engines: HTTP/1.1 over kept connections, parsed by httptools, which is Node's parser.

aiohttp's client costs more than everything else that is done for a request, and it does not tell the reader of a body
that what follows is no HTTP. Here a connection is an `asyncio.Protocol`, and what a parser finds is handed on at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic

import httptools

from inference_fleet.gateway.ports import Disconnected, TimedOut, Unreachable, UpstreamFailed

KEEP_ALIVE_SECONDS = 3.0
"""Engines close an idle connection after 5 seconds (llama.cpp, vLLM): ours must be gone before, or a request now and
then meets a connection that is just being closed."""

CLOSED_AT_ONCE_SECONDS = 1.0
"""An engine that closes a connection so soon after an answer does it because of the answer."""

MOST_CLOSERS = 1000
"""Addresses that are remembered as closing after each answer; then they are learned again."""

LONGEST_HEAD_BYTES = 64 << 10

HIGH_WATER_BYTES = 256 << 10
"""Once so much of an answer waits for a slow client, the engine is not read from any more."""

ONE_WRITE_BYTES = 64 << 10
"""Bodies up to this size are copied behind their head: that is cheaper than a second write."""


class _Connection(asyncio.Protocol):
    """One connection to an engine, for one exchange after the other.

    httptools calls the methods `on_…`.
    """

    def __init__(self, pool: HttpUpstream, address: str, read_seconds: float) -> None:
        self.address = address
        self.idle_since = 0.0
        self._pool = pool
        self._read_seconds = read_seconds
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._silence: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._paused = False
        self._busy = False
        self._begin()

    def _begin(self) -> None:
        self._last_data = self._loop.time()
        self._head_bytes = 0
        self._has_head = False
        self._until_closed = True
        self._complete = False
        self._reusable = True
        self._failure: Exception | None = None
        self._take: Callable[[bytes], bool] | None = None
        self._full = False
        self._parts: list[bytes] = []
        self._waiting_bytes = 0
        self.status = 0
        self.headers: dict[str, str] = {}

    # What the core asks for.

    async def ask(self, head: bytes, body: bytes) -> None:
        """Sends a request and waits for the head of its answer. Raises UpstreamFailed."""
        transport = self._transport
        if transport is None:
            raise Disconnected("closed")
        self._begin()
        self._busy = True
        if self._silence is None:
            self._silence = self._loop.call_later(self._read_seconds, self._look_for_silence)
        if len(body) <= ONE_WRITE_BYTES:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)
        while not self._has_head:
            if self._failure is not None:
                raise self._failure
            await self._wait()

    @property
    def silent(self) -> bool:
        """Whether nothing at all has come back for the request that was sent last."""
        return self._head_bytes == 0

    async def chunk(self) -> bytes:
        """See `UpstreamAnswer.chunk`."""
        while not self._parts:
            if self._is_over():
                return b""
            await self._wait()
        return self._collected()

    async def pipe(self, take: Callable[[bytes], bool], drained: Callable[[], Awaitable[None]]) -> None:
        """See `UpstreamAnswer.pipe`."""
        while True:
            if self._parts and not take(self._collected()):
                self._full = True
            if self._full:
                self._full = False
                await drained()
            elif not self._parts:
                if self._is_over():
                    return
                self._take = take
                try:
                    await self._wait()
                finally:
                    self._take = None

    def _is_over(self) -> bool:
        if self._failure is not None:
            raise self._failure
        return self._complete

    def _collected(self) -> bytes:
        """What waits to be handed on; then there is room for more."""
        parts, self._parts = self._parts, []
        self._waiting_bytes = 0
        if self._paused:
            self._paused = False
            self._last_data = self._loop.time()
            if self._transport is not None:
                self._transport.resume_reading()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def end(self) -> bool:
        """Ends the exchange; whether the connection can take another. Otherwise it is dropped."""
        self._busy = False
        transport = self._transport
        if transport is None:
            return False
        if not self._complete or not self._reusable or transport.get_write_buffer_size():
            transport.abort()
            return False
        self._parts = []
        return True

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # What the event loop tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if not self._busy:
            self.drop()  # nobody asked
            return
        self._last_data = self._loop.time()
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(Disconnected("the engine does not speak HTTP"))
            return
        if not self._has_head and self._head_bytes > LONGEST_HEAD_BYTES:
            self._fail(Disconnected("the engine's head does not end"))
            return
        take = self._take
        if take is not None:
            self._hand_on(take)
            return
        if self._waiting_bytes > HIGH_WATER_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        if self._waiter is not None and (self._parts or self._complete or self._has_head):
            self._wake()

    def _hand_on(self, take: Callable[[bytes], bool]) -> None:
        """Gives what came to the other side now: waking its task would cost as much as all the rest."""
        if self._parts:
            try:
                self._full = not take(self._collected())
            except Exception as error:
                self._failure = error
                self.drop()
                self._wake()
                return
        if self._full:
            self._take = None  # more may come in this very turn
        if self._complete or self._full:
            self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None
        if self._has_head and self._until_closed and error is None and self._failure is None:
            self._complete = True
        if not self._complete and self._failure is None:
            self._failure = Disconnected("the engine closed the connection")
        self._wake()
        self._pool.lost(self)
        # They know each other: nothing else would free them before the garbage collector comes.
        del self._parser

    def _fail(self, failure: UpstreamFailed) -> None:
        if self._failure is None and not self._complete:
            self._failure = failure
        self._reusable = False
        self.drop()
        self._wake()

    def _look_for_silence(self) -> None:
        """One timer for the life of a connection rather than one for every piece that arrives."""
        self._silence = None
        if not self._busy or self._complete:
            return  # the next exchange begins it anew
        now = self._loop.time()
        if self._paused:
            self._last_data = now  # it is the client who is slow
        left = self._last_data + self._read_seconds - now
        if left <= 0:
            self._fail(TimedOut("silence"))
        else:
            self._silence = self._loop.call_later(left, self._look_for_silence)

    # What the parser finds.

    def on_message_begin(self) -> None:
        if self._complete:
            self._reusable = False  # more than was asked for

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_head:
            return  # behind a body: of no use here
        title = name.decode("latin-1").title()
        self.headers[title] = value.decode("latin-1")
        if title in ("Content-Length", "Transfer-Encoding"):
            self._until_closed = False

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 and not self._has_head:
            self.status = status
            self._has_head = True

    def on_body(self, data: bytes) -> None:
        if not self._complete:
            self._parts.append(data)
            self._waiting_bytes += len(data)

    def on_message_complete(self) -> None:
        if self._has_head and not self._complete:
            self._complete = True
            self._reusable = self._parser.should_keep_alive()
        elif not self._has_head:
            self.headers = {}  # an interim answer: the real one follows
            self._until_closed = True


class HttpAnswer:
    """An engine's answer. `headers` has its names in title case: `Content-Type`."""

    __slots__ = ("_connection", "_pool", "headers", "status")

    def __init__(self, pool: HttpUpstream, connection: _Connection) -> None:
        self._pool = pool
        self._connection: _Connection | None = connection
        self.status = connection.status
        self.headers: Mapping[str, str] = connection.headers

    async def chunk(self) -> bytes:
        if self._connection is None:
            return b""
        data = await self._connection.chunk()
        if not data:
            self.close()
        return data

    async def pipe(self, take: Callable[[bytes], bool], drained: Callable[[], Awaitable[None]]) -> None:
        if self._connection is not None:
            await self._connection.pipe(take, drained)
            self.close()

    async def read(self) -> bytes:
        parts = []
        while part := await self.chunk():
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            self._pool.give_back(connection)


class HttpUpstream:
    """Sends requests over plain HTTP. A generation may take as long as it takes; only silence has a limit."""

    def __init__(self, connect_seconds: float, read_seconds: float) -> None:
        self._connect_seconds = connect_seconds
        self._read_seconds = read_seconds
        self._idle: dict[str, list[_Connection]] = {}
        self._closers: set[str] = set()
        """Engines that close a connection after an answer without saying so, as llama.cpp does after each stream: what is
        sent on such a connection a moment later is lost. Learned from the first that does."""
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    async def post(self, address: str, target: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        used = self._take(address)
        connection = used or await self._connect(address)
        try:
            await connection.ask(_head(address, target, headers, len(body)), body)
        except BaseException as error:
            connection.drop()
            if used is not None and isinstance(error, Disconnected) and connection.silent:
                # The next attempt, which is the last, must not meet the same.
                self._closes(address)
            raise
        return HttpAnswer(self, connection)

    def _take(self, address: str) -> _Connection | None:
        """The connection that was used last: the others get old and are closed."""
        idle = self._idle.get(address)
        if not idle:
            return None
        connection = idle.pop()
        if connection.idle_since > monotonic() - KEEP_ALIVE_SECONDS:
            return connection
        connection.drop()
        return None

    async def _connect(self, address: str) -> _Connection:
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(self._connect_seconds):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(self, address, self._read_seconds), host.strip("[]"), int(port)
                )
        except (OSError, ValueError, OverflowError) as error:  # a TimeoutError is an OSError
            raise Unreachable(type(error).__name__) from None
        return connection

    def give_back(self, connection: _Connection) -> None:
        """Takes a connection whose exchange is over."""
        if not connection.end():
            return
        if self._closed or connection.address in self._closers:
            connection.drop()
            return
        connection.idle_since = monotonic()
        self._idle.setdefault(connection.address, []).append(connection)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(KEEP_ALIVE_SECONDS / 2, self._close_old)

    def _close_old(self) -> None:
        self._sweep = None
        oldest = monotonic() - KEEP_ALIVE_SECONDS
        for address, idle in list(self._idle.items()):
            while idle and idle[0].idle_since <= oldest:
                idle.pop(0).drop()
            if not idle:
                del self._idle[address]
        if self._idle:
            self._sweep = asyncio.get_running_loop().call_later(KEEP_ALIVE_SECONDS / 2, self._close_old)

    def lost(self, connection: _Connection) -> None:
        """Forgets a connection that is gone."""
        idle = self._idle.get(connection.address)
        if idle and connection in idle:
            idle.remove(connection)
            if monotonic() - connection.idle_since < CLOSED_AT_ONCE_SECONDS:
                self._closes(connection.address)

    def _closes(self, address: str) -> None:
        """From now on every request to this engine gets a connection of its own."""
        if len(self._closers) >= MOST_CLOSERS:
            self._closers.clear()
        self._closers.add(address)
        for connection in self._idle.pop(address, []):
            connection.drop()

    async def close(self) -> None:
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for idle in self._idle.values():
            for connection in idle:
                connection.drop()
        self._idle = {}


def _head(address: str, target: str, headers: Mapping[str, str], length: int) -> bytes:
    """A request's head. Raises ValueError where a value would begin a line of its own."""
    lines = [f"POST {target} HTTP/1.1", f"Host: {address}", *[f"{name}: {value}" for name, value in headers.items()]]
    text = "\r\n".join(lines)
    breaks = len(lines) - 1
    if text.count("\n") != breaks or text.count("\r") != breaks:
        raise ValueError("a line break inside a header")
    return f"{text}\r\nContent-Length: {length}\r\n\r\n".encode("utf-8", "surrogateescape")
