"""The way to the engines, on real sockets: what becomes of a connection, whatever an engine does with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest
import pytest_asyncio

from inference_fleet.gateway import upstream
from inference_fleet.gateway.ports import Disconnected, TimedOut, Unreachable
from inference_fleet.gateway.upstream import HttpAnswer, HttpUpstream

OK = b"HTTP/1.1 200 OK\r\n"
JSON = OK + b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


@dataclass(slots=True)
class Peer:
    """Answers every request with `answer`; `requests` holds what came, per connection."""

    address: str = ""
    answer: bytes = JSON
    then: Callable[[asyncio.StreamWriter], Awaitable[None]] | None = None
    connections: list[list[bytes]] = field(default_factory=list)
    ended: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests: list[bytes] = []
        self.connections.append(requests)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                requests.append(head + await reader.readexactly(length))
                writer.write(self.answer)
                if self.then is not None:
                    await self.then(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.ended += 1
            writer.close()


@contextlib.asynccontextmanager
async def run_peer(host: str = "127.0.0.1") -> AsyncIterator[Peer]:
    peer = Peer()
    server = await asyncio.start_server(peer.serve, host, 0)
    port = server.sockets[0].getsockname()[1]
    peer.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        yield peer
    finally:
        server.close()


@pytest_asyncio.fixture
async def peer() -> AsyncIterator[Peer]:
    async with run_peer() as peer:
        yield peer


@pytest_asyncio.fixture
async def way() -> AsyncIterator[HttpUpstream]:
    way = HttpUpstream(connect_seconds=2, read_seconds=0.5)
    yield way
    await way.close()


async def ask(way: HttpUpstream, peer: Peer, body: bytes = b"{}") -> HttpAnswer:
    return await way.post(peer.address, "/v1/x?y=1", {"X-Request-Id": "r1"}, body)


async def closes(writer: asyncio.StreamWriter) -> None:
    await writer.drain()
    writer.close()


async def waits(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(30)


async def connections_after_two(way: HttpUpstream, peer: Peer) -> int:
    for _ in range(2):
        answer = await ask(way, peer)
        assert (answer.status, await answer.read()) == (200, b"{}")
        await asyncio.sleep(0.02)
    return len(peer.connections)


async def test_a_request_is_what_was_asked_for(way: HttpUpstream, peer: Peer) -> None:
    answer = await ask(way, peer, b'{"a":1}')
    assert answer.headers["Content-Type"] == "application/json"
    head, _, body = peer.connections[0][0].partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"POST /v1/x?y=1 HTTP/1.1",
        b"Host: " + peer.address.encode(),
        b"X-Request-Id: r1",
        b"Content-Length: 7",
    ]
    assert body == b'{"a":1}'


async def test_a_connection_serves_one_request_after_the_other(way: HttpUpstream, peer: Peer) -> None:
    assert await connections_after_two(way, peer) == 1


async def test_requests_at_once_have_connections_of_their_own(way: HttpUpstream, peer: Peer) -> None:
    answers = await asyncio.gather(*(ask(way, peer) for _ in range(20)))
    assert len(peer.connections) == 20
    assert [await answer.read() for answer in answers] == [b"{}"] * 20


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Connection: close\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        JSON + b"more",
        JSON + JSON,
    ],
    ids=["said so", "HTTP/1.0", "more than an answer", "two answers"],
)
async def test_a_connection_in_doubt_is_not_used_again(way: HttpUpstream, peer: Peer, answer: bytes) -> None:
    peer.answer = answer
    assert await connections_after_two(way, peer) == 2


async def test_bytes_that_nobody_asked_for_end_a_connection(way: HttpUpstream, peer: Peer) -> None:
    async def speaks_again(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.01)
        writer.write(JSON)

    peer.then = speaks_again
    assert await connections_after_two(way, peer) == 2


async def test_an_old_connection_is_closed_and_not_used(
    way: HttpUpstream, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "KEEP_ALIVE_SECONDS", 0.01)
    assert await connections_after_two(way, peer) == 2
    await asyncio.sleep(0.1)
    assert peer.ended == 2


async def test_a_connection_that_the_engine_closed_is_not_used(way: HttpUpstream, peer: Peer) -> None:
    async def closes_a_little_later(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.005)
        writer.close()

    peer.then = closes_a_little_later
    assert await connections_after_two(way, peer) == 2


async def test_an_answer_that_was_not_taken_whole_ends_its_connection(way: HttpUpstream, peer: Peer) -> None:
    peer.answer, peer.then = OK + b"Content-Length: 9\r\n\r\nhalf", waits
    answer = await ask(way, peer)
    assert await answer.chunk() == b"half"
    answer.close()
    assert await answer.chunk() == b""
    peer.answer, peer.then = JSON, None
    assert await (await ask(way, peer)).read() == b"{}"
    assert len(peer.connections) == 2


async def test_interim_answers_are_passed_over(way: HttpUpstream, peer: Peer) -> None:
    peer.answer = b"HTTP/1.1 103 Early Hints\r\nContent-Type: x\r\nLink: y\r\n\r\n" + JSON
    answer = await ask(way, peer)
    assert (answer.status, await answer.read()) == (200, b"{}")
    assert set(answer.headers) == {"Content-Type", "Content-Length"}


@pytest.mark.parametrize(
    ("answer", "whole"),
    [
        (OK + b"\r\nuntil the end", True),
        (OK + b"Content-Length: 100\r\n\r\nuntil the end", False),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nd\r\nuntil the end\r\n", False),
    ],
    ids=["without a length", "with a length", "chunked"],
)
async def test_where_an_answer_ends(way: HttpUpstream, peer: Peer, answer: bytes, whole: bool) -> None:
    peer.answer, peer.then = answer, closes
    got = await ask(way, peer)
    # What came is handed on before what went wrong is told.
    assert await got.chunk() == b"until the end"
    if whole:
        assert await got.chunk() == b""
    else:
        with pytest.raises(Disconnected):
            await got.chunk()


async def test_what_came_before_nonsense_is_not_lost(way: HttpUpstream, peer: Peer) -> None:
    peer.answer = OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\ngood\r\nzzz\r\n"
    answer = await ask(way, peer)
    assert await answer.chunk() == b"good"
    with pytest.raises(Disconnected):
        await answer.chunk()


@pytest.mark.parametrize("begun", [b"", OK[:9], OK + b"Content-Length: 9\r\n\r\n"], ids=["nothing", "half", "head"])
async def test_silence_is_given_up(way: HttpUpstream, peer: Peer, begun: bytes) -> None:
    peer.answer, peer.then = begun, waits
    with pytest.raises(TimedOut):
        await (await ask(way, peer)).chunk()


async def test_a_reader_that_pauses_holds_the_engine_back_and_is_no_silence(way: HttpUpstream, peer: Peer) -> None:
    size = 64 << 20
    sent = 0

    async def pours(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        for _ in range(size >> 16):
            writer.write(b"x" * (1 << 16))
            await writer.drain()
            sent += 1 << 16

    peer.answer, peer.then = OK + b"Content-Length: %d\r\n\r\n" % size, pours
    answer = await ask(way, peer)
    await asyncio.sleep(1.2)  # more than the silence that is borne
    assert sent < 32 << 20  # the kernel's buffers are large
    assert len(await answer.read()) == size


async def test_pieces_are_handed_on_as_they_come_until_the_taker_is_full(way: HttpUpstream, peer: Peer) -> None:
    size = 16 << 20
    peer.answer = OK + b"Content-Length: %d\r\n\r\n" % size + b"x" * size
    taken: list[int] = []
    waits = 0

    def take(data: bytes) -> bool:
        taken.append(len(data))
        return len(taken) % 10 != 0

    async def drained() -> None:
        nonlocal waits
        waits += 1
        before = len(taken)
        await asyncio.sleep(0.01)
        assert len(taken) == before

    await (await ask(way, peer)).pipe(take, drained)
    assert sum(taken) == size
    assert waits == len(taken) // 10


@pytest.mark.parametrize("when", [1, 3])
async def test_a_taker_that_fails_ends_the_exchange(way: HttpUpstream, peer: Peer, when: int) -> None:
    async def drips(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"1\r\nx\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    peer.answer, peer.then = OK + b"Transfer-Encoding: chunked\r\n\r\n", drips
    taken: list[bytes] = []

    def take(data: bytes) -> bool:
        taken.append(data)
        if len(taken) == when:
            raise KeyError("why")
        return True

    answer = await ask(way, peer)
    with pytest.raises(KeyError):
        await answer.pipe(take, lambda: asyncio.sleep(0))
    answer.close()
    await asyncio.sleep(0.1)
    assert peer.ended == 1


async def test_an_answer_that_breaks_is_handed_on_to_where_it_broke(way: HttpUpstream, peer: Peer) -> None:
    peer.answer = OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\ngood\r\nzzz\r\n"
    taken: list[bytes] = []

    def take(data: bytes) -> bool:
        taken.append(data)
        return True

    answer = await ask(way, peer)
    with pytest.raises(Disconnected):
        await answer.pipe(take, lambda: asyncio.sleep(0))
    assert taken == [b"good"]


async def test_a_large_body_goes_whole(way: HttpUpstream, peer: Peer) -> None:
    await (await ask(way, peer, b"b" * (10 << 20))).read()
    assert peer.connections[0][0].count(b"b") == 10 << 20


async def test_an_answer_before_the_body_was_taken_ends_the_connection(way: HttpUpstream) -> None:
    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await asyncio.sleep(1)
        writer.close()

    server = await asyncio.start_server(refuses, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    answer = await way.post(address, "/", {}, b"b" * (40 << 20))
    assert (answer.status, await answer.read()) == (413, b"")
    assert way._idle == {}
    server.close()


async def test_a_request_that_is_cancelled_drops_its_connection(way: HttpUpstream, peer: Peer) -> None:
    peer.answer, peer.then = b"", None
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await ask(way, peer)
    await asyncio.sleep(0.05)
    assert peer.ended == 1


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1", "no host:80", "127.0.0.1:http", "127.0.0.1:99999", ""])
async def test_where_nobody_is_nothing_was_asked(way: HttpUpstream, address: str) -> None:
    with pytest.raises(Unreachable):
        await way.post(address, "/", {}, b"")


async def test_other_address_families(way: HttpUpstream) -> None:
    async with run_peer("::1") as peer:
        assert await (await ask(way, peer)).read() == b"{}"


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nX-Evil: 1", "a\rX"])
async def test_a_value_cannot_begin_a_line(way: HttpUpstream, peer: Peer, value: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        await way.post(peer.address, "/", {"traceparent": value}, b"")
    assert peer.connections in ([], [[]])
