"""An engine as a process of its own, which can be killed, stopped, and told to answer in every wrong way.

`python -m tests.gateway.faulty_engine PORT`. The field `fault` of a request's body says how it is answered; it reaches
an engine because the gateway passes on every field that it does not know.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
ANSWER = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"words"},"finish_reason":"stop"}]}'


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


END = chunked(LAST) + b"0\r\n\r\n"


async def none(writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM_HEAD + chunked(EVENT) + END)


async def hang(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM_HEAD)
    while True:
        writer.write(chunked(EVENT))
        await writer.drain()
        await asyncio.sleep(0.02)


async def slow(writer: asyncio.StreamWriter) -> None:
    """Never silent for long, and long in all: a stream of bytes that come one by one."""
    for byte in STREAM_HEAD + chunked(EVENT) + END:
        writer.write(bytes((byte,)))
        await writer.drain()
        await asyncio.sleep(0.008)


async def no_http(writer: asyncio.StreamWriter) -> None:
    writer.write(bytes(range(256)) * 8)


async def half_a_head(writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM_HEAD[:40])


async def endless_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(10_000):
        writer.write(b"X-%d: %b\r\n" % (number, b"y" * 1000))
        await writer.drain()


async def broken_chunk(writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM_HEAD + chunked(EVENT))
    await writer.drain()
    await asyncio.sleep(0.2)  # the event first
    writer.write(b"zzz\r\nno chunk at all\r\n")
    await writer.drain()
    await asyncio.sleep(3600)


async def no_events(writer: asyncio.StreamWriter) -> None:
    """Bytes without an end of event, more than anything that is one."""
    writer.write(STREAM_HEAD)
    for _ in range(20):
        writer.write(chunked(b"x" * (1 << 20)))
        await writer.drain()
    await asyncio.sleep(3600)


async def not_json(writer: asyncio.StreamWriter) -> None:
    writer.write(JSON_HEAD + b"Content-Length: 4\r\n\r\n\xff\xfe{[")


async def too_short(writer: asyncio.StreamWriter) -> None:
    writer.write(JSON_HEAD + b"Content-Length: 1000\r\n\r\n" + ANSWER)


async def closed_half(writer: asyncio.StreamWriter) -> None:
    """Says that it sends no more in the middle of an answer, and goes on reading."""
    writer.write(STREAM_HEAD + chunked(EVENT) + chunked(EVENT)[:20])
    await writer.drain()
    writer.write_eof()
    await asyncio.sleep(3600)


async def closed_half_at_once(writer: asyncio.StreamWriter) -> None:
    writer.write_eof()
    await asyncio.sleep(3600)


FAULTS: dict[str, Callable[[asyncio.StreamWriter], Awaitable[None]]] = {
    fault.__name__: fault
    for fault in (
        none, hang, endless, slow, no_http, half_a_head, endless_head, broken_chunk, no_events, not_json, too_short,
        closed_half, closed_half_at_once,
    )
}  # fmt: skip


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            request = json.loads(await reader.readexactly(length))
            fault = request.get("fault", "none")
            if fault == "none" and not request.get("stream"):
                writer.write(JSON_HEAD + b"Content-Length: %d\r\n\r\n" % len(ANSWER) + ANSWER)
                continue
            await FAULTS[fault](writer)
            await writer.drain()
            if fault not in ("none", "not_json"):
                break
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def main(port: int) -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
