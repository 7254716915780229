"""An engine that answers at once and costs next to nothing, so that what is in front of it can be measured.

`python -m hack.bench.gateway_engine PORT CHUNKS GAP_SECONDS`: any POST is answered by a chat completion, or by CHUNKS
events, GAP_SECONDS apart, where the body asks for a stream (one event where `max_tokens` is 1). Any GET is answered by 200.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys

import httptools
import uvloop

ONE_TOKEN = re.compile(rb'"max_tokens":\s*1\b')

IDENTITY = {"id": "chatcmpl-7", "created": 1, "model": "m"}
USAGE = {"prompt_tokens": 200, "completion_tokens": 100, "total_tokens": 300}


def event(**fields: object) -> bytes:
    text = json.dumps({**IDENTITY, "object": "chat.completion.chunk", **fields}, separators=(",", ":"))
    return b"data: " + text.encode() + b"\n\n"


TOKEN = event(choices=[{"index": 0, "delta": {"content": " token"}, "logprobs": None, "finish_reason": None}])
CLOSING = event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
COUNTS = event(choices=[], usage=USAGE)
WHOLE = json.dumps(
    {
        **IDENTITY,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "t" * 800}, "finish_reason": "stop"}],
        "usage": USAGE,
    }
).encode()


def chunked(*events: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in events)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: "
ANSWER = HEAD + b"application/json\r\nContent-Length: %d\r\n\r\n" % len(WHOLE) + WHOLE
STREAM_HEAD = HEAD + b"text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
ONE = chunked(TOKEN)


class Engine(asyncio.Protocol):
    def __init__(self, chunks: int, gap_seconds: float) -> None:
        self.chunks = chunks
        self.gap_seconds = gap_seconds
        self.parser = httptools.HttpRequestParser(self)
        self.body: list[bytes] = []
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self.body.append(data)

    def on_message_complete(self) -> None:
        body, self.body = b"".join(self.body), []
        if self.transport is None:
            return
        if b'"stream":true' not in body:
            self.transport.write(ANSWER)
            return
        end = chunked(CLOSING, *([COUNTS] if b'"include_usage":true' in body else []), b"data: [DONE]\n\n")
        self.tell(1 if ONE_TOKEN.search(body) else self.chunks, STREAM_HEAD + ONE, end + b"0\r\n\r\n")

    def tell(self, left: int, now: bytes, end: bytes) -> None:
        """Sends `now`, and later the other tokens."""
        if self.transport is None:
            return
        if left == 1:
            self.transport.write(now + end)
            return
        self.transport.write(now)
        asyncio.get_running_loop().call_later(self.gap_seconds, self.tell, left - 1, ONE, end)


async def main(port: int, chunks: int, gap_seconds: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Engine(chunks, gap_seconds), "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
