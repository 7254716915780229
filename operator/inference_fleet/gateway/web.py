"""aiohttp's server as the clients' door: a thin shell around `Front`.

`web.Server` rather than an `Application`: there is nothing to route here that `Front` does not route, and the router is
a third of the cost of a small request.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from inference_fleet.gateway import errors
from inference_fleet.gateway.front import Front
from inference_fleet.gateway.ports import Answer, Ask, Stream

HEARTBEAT = b": keep-alive\n\n"

FULL_BYTES = 64 << 10
"""So much waits to be sent to a client before its engine is held back."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:+/=@-]{1,128}")


def request_id_of(given: str | None) -> str:
    """The client's id, where it is one that can safely be logged and sent on; else a new one."""
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    # Unique is enough; nobody is kept out by not guessing it.
    return f"{random.getrandbits(128):032x}"


class _OpenStream:
    """A stream to a client, and when it last got something. See `ports.Client`.

    aiohttp has sent the head. Pieces go to the transport from here: its own way for them is made for coroutines, which
    are not awaited where a piece arrives.
    """

    __slots__ = ("_chunked", "_now", "_protocol", "_transport", "sent", "writing")

    def __init__(self, request: web.BaseRequest) -> None:
        self._protocol = request.protocol
        self._transport = request.transport
        self._chunked = request.version >= aiohttp.HttpVersion11
        self._now = asyncio.get_running_loop().time
        self.sent = self._now()
        self.writing = False

    def write(self, data: bytes) -> bool:
        transport = self._transport
        if transport is None or transport.is_closing():
            return True  # the client has left, and this request is about to be cancelled
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        self.sent = self._now()
        return transport.get_write_buffer_size() <= FULL_BYTES

    async def drained(self) -> None:
        self.writing = True
        await self._protocol._drain_helper()
        self.writing = False
        self.sent = self._now()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Door:
    """Handles the clients' requests. `closing` tells whether connections are to be given up after their answer.

    `stall_seconds` is how long a client may leave its body unsent or its stream untaken: it keeps an engine's slot.
    """

    def __init__(self, front: Front, heartbeat_seconds: float, stall_seconds: float) -> None:
        self._front = front
        self._heartbeat_seconds = heartbeat_seconds
        self._stall_seconds = stall_seconds
        self._streams: set[_OpenStream] = set()
        self.closing = False

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        request_id = request_id_of(request.headers.get("x-request-id"))
        target = request.rel_url
        ask = Ask(
            method=request.method,
            path=target.raw_path,
            target=target.raw_path_qs,
            headers=request.headers,
            read_body=body_reader(request, self._stall_seconds),
            request_id=request_id,
        )
        answer = await self._front.answer(ask)
        headers = {**answer.headers, "X-Request-Id": request_id, "Server": "inference-fleet"}
        if answer.stream is not None:
            return await self._send(request, answer, answer.stream, headers)
        response = web.Response(status=answer.status, headers=headers, body=answer.body)
        # After a body that was not read to its end there is no telling where the next request begins.
        if self.closing or not request.content.at_eof() or request.content.exception() is not None:
            response.force_close()
        return response

    async def _send(
        self, request: web.BaseRequest, answer: Answer, stream: Stream, headers: dict[str, str]
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers=headers)
        if self.closing:
            response.force_close()
        opened = _OpenStream(request)
        try:
            await response.prepare(request)
            self._streams.add(opened)
            await stream.run(opened)
            self._streams.discard(opened)
            await response.write_eof()
        finally:
            self._streams.discard(opened)
            stream.close()
        return response

    async def beat(self) -> None:
        """Sends a comment on every stream that has been silent for long, so that no proxy on the way gives it up; and
        gives up clients that take nothing of what is there for them.

        Between two pieces of a stream there is always an end of event, so a comment fits there. One task for all
        streams, because a timer for each piece would cost more than passing the piece on.
        """
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(self._heartbeat_seconds / 3)
            now = clock()
            for opened in [one for one in self._streams if one.sent <= now - self._heartbeat_seconds]:
                if opened.writing:
                    if opened.sent <= now - self._stall_seconds:
                        opened.abort()
                else:
                    # The bytes of a comment are few: where a slow client's buffer is full, they do not matter.
                    opened.write(HEARTBEAT)


def body_reader(request: web.BaseRequest, stall_seconds: float) -> Callable[[int], Awaitable[bytes]]:
    """Reads a body up to a limit that is known only when the request is there; a client may pause for so long."""
    content = request.content

    async def parts_within(limit_bytes: int, patience: asyncio.Timeout | None) -> list[bytes]:
        parts: list[bytes] = []
        size = 0
        while part := await content.readany():
            size += len(part)
            if size > limit_bytes:
                raise errors.too_large(limit_bytes)
            parts.append(part)
            if patience is not None:
                patience.reschedule(asyncio.get_running_loop().time() + stall_seconds)
        return parts

    async def read(limit_bytes: int) -> bytes:
        if (request.content_length or 0) > limit_bytes:
            raise errors.too_large(limit_bytes)
        try:
            if content.is_eof():  # it came with the head
                parts = await parts_within(limit_bytes, None)
            else:
                async with asyncio.timeout(stall_seconds) as patience:
                    parts = await parts_within(limit_bytes, patience)
        except TimeoutError:
            raise errors.too_slow() from None
        except (aiohttp.ClientPayloadError, web.RequestPayloadError, HttpProcessingError):
            raise errors.bad_request("The body's encoding is broken.") from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    return read
