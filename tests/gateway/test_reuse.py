"""Kept connections to engines that keep them, and to engines that close them without a word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from inference_fleet.gateway.ports import Disconnected
from inference_fleet.gateway.upstream import HttpUpstream

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
ANSWER = HEAD + b"6\r\nhello\n\r\n0\r\n\r\n"


@asynccontextmanager
async def engine(after: Callable[[asyncio.StreamWriter], Awaitable[bool]]) -> AsyncIterator[tuple[str, list[int]]]:
    """Answers at once; then `after` says whether the connection goes on. Yields the address and a count of connections."""
    connections: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(0)
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(2)
                writer.write(ANSWER)
                await writer.drain()
                if not await after(writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server:
        yield f"{host}:{port}", connections


async def ask(upstream: HttpUpstream, address: str) -> bytes:
    answer = await upstream.post(address, "/v1/x", {}, b"{}")
    return await answer.read()


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.02])
async def test_an_engine_that_closes_after_each_answer_costs_at_most_one_attempt_a_client(delay: float) -> None:
    """llama.cpp ends a stream's connection without `Connection: close`; clients ask again in that very moment."""

    async def close(_: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(delay)
        return False

    clients, lost = 6, 0
    upstream = HttpUpstream(5, 5)

    async def loop() -> None:
        nonlocal lost
        for _ in range(40):
            try:
                data = await ask(upstream, address)
            except Disconnected:
                lost += 1
                data = await ask(upstream, address)  # the one resend there is
            assert data == b"hello\n"

    async with engine(close) as (address, _):
        await asyncio.gather(*(loop() for _ in range(clients)))
        await upstream.close()
    assert lost <= clients


async def test_an_engine_that_keeps_connections_is_not_asked_for_new_ones() -> None:
    async def keep(_: asyncio.StreamWriter) -> bool:
        return True

    upstream = HttpUpstream(5, 5)
    async with engine(keep) as (address, connections):
        for _ in range(20):
            assert await ask(upstream, address) == b"hello\n"
        await upstream.close()
        assert len(connections) == 1
