"""Clients of a gateway, each asking again as soon as it is answered; prints what it cost the gateway as JSON.

`python -m hack.bench.gateway_load JSON`, with a JSON object of the fields of `Load`.

Processor time is user and system time of the process and its children, as the kernel counts it. Unlike requests per
second it says the same on a busy machine.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from random import Random

import httptools
import psutil
import uvloop


@dataclass(frozen=True, slots=True)
class Load:
    ports: list[int]
    """One for a load; several take turns, request by request, by one client: for latencies that can be compared."""
    stream: bool
    seconds: float
    pid: int = 0
    """The gateway's process."""
    clients: int = 1
    key: str = ""
    prompt_bytes: int = 1600
    max_tokens: int = 100


@dataclass(slots=True)
class Result:
    requests: int = 0
    failed: int = 0
    chunks: int = 0
    cpu_seconds: float = 0.0
    rss_mb: float = 0.0
    seconds: float = 0.0
    first_ms: dict[int, float] = field(default_factory=dict)
    """Median time to the first piece of the body, by port."""


def request(load: Load) -> bytes:
    messages = [{"role": "user", "content": "p" * load.prompt_bytes}]
    value = {"model": "m", "messages": messages, "stream": load.stream, "max_tokens": load.max_tokens}
    body = json.dumps(value, separators=(",", ":")).encode()
    key = f"Authorization: Bearer {load.key}\r\n" if load.key else ""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\n{key}"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Client(asyncio.Protocol):
    """One connection. httptools calls the methods `on_…`."""

    def __init__(self, request: bytes, stream: bool) -> None:
        self.request = request
        self.stream = stream
        self.parser = httptools.HttpResponseParser(self)
        self.transport: asyncio.Transport | None = None
        self.answered: asyncio.Future[None] | None = None
        self.asked = self.first = 0.0
        self.pieces: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        if self.answered is not None and not self.answered.done():
            self.answered.set_exception(ConnectionResetError())

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        if not self.pieces:
            self.first = time.perf_counter()
        self.pieces.append(data)

    def on_message_complete(self) -> None:
        if self.answered is not None and not self.answered.done():
            self.answered.set_result(None)

    async def ask(self) -> tuple[bool, int]:
        """One exchange: whether it was right, and its chunks."""
        assert self.transport is not None
        self.pieces = []
        self.answered = asyncio.get_running_loop().create_future()
        self.asked = time.perf_counter()
        self.transport.write(self.request)
        await self.answered
        body = b"".join(self.pieces)
        right = self.parser.get_status_code() == 200 and body.count(b"[DONE]") == int(self.stream)
        return right, body.count(b'"chat.completion.chunk"') if self.stream else 0


async def connect(load: Load, port: int) -> Client:
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(lambda: Client(request(load), load.stream), "127.0.0.1", port)
    return client


def spent(pid: int) -> float:
    process = psutil.Process(pid)
    return sum(float(sum(one.cpu_times()[:2])) for one in (process, *process.children(recursive=True)))


def resident_mb(pid: int) -> float:
    process = psutil.Process(pid)
    return sum(float(one.memory_info().rss) for one in (process, *process.children(recursive=True))) / 1e6


async def in_turn(load: Load) -> Result:
    """All ports in turn, by one client, in another order each time."""
    order = Random(3)
    clients = [(port, await connect(load, port)) for port in load.ports]
    times: dict[int, list[float]] = {port: [] for port in load.ports}
    result = Result()
    end = time.perf_counter() + load.seconds
    while time.perf_counter() < end:
        order.shuffle(clients)
        for port, client in clients:
            right, _ = await client.ask()
            result.requests += 1
            result.failed += not right
            times[port].append((client.first - client.asked) * 1e3)
    result.first_ms = {port: statistics.median(values) for port, values in times.items()}
    return result


async def together(load: Load) -> Result:
    """All clients at one port."""
    result = Result()
    clients = [await connect(load, load.ports[0]) for _ in range(load.clients)]

    async def go_on(client: Client, end: float) -> None:
        while time.perf_counter() < end:
            right, chunks = await client.ask()
            result.requests += 1
            result.failed += not right
            result.chunks += chunks

    async def phase(seconds: float) -> None:
        end = time.perf_counter() + seconds
        await asyncio.gather(*(go_on(client, end) for client in clients))

    await phase(0.5)
    result = Result()
    began, before = time.perf_counter(), spent(load.pid)
    await phase(load.seconds)
    result.cpu_seconds = spent(load.pid) - before
    result.seconds = time.perf_counter() - began
    result.rss_mb = resident_mb(load.pid)
    return result


async def main(load: Load) -> None:
    print(json.dumps(asdict(await (in_turn(load) if len(load.ports) > 1 else together(load)))))


if __name__ == "__main__":
    uvloop.run(main(Load(**json.loads(sys.argv[1]))))
