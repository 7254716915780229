"""Engines that are killed, stopped, slow or talk nonsense, and clients that do: all real processes, real signals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import pytest_asyncio
from aiohttp import web

from tests.gateway import faulty_engine
from tests.gateway.harness import (
    CHAT,
    DONE,
    KEY,
    STORY,
    STREAM,
    Engine,
    Gateway,
    begin_stream,
    chunk,
    eventually,
    free_port,
    model,
    routes,
    run_engine,
    run_gateway,
    tells_story,
    usage_chunk,
    variant,
)

READ_SECONDS = 1.5
STALL_SECONDS = 3.0
LARGEST_BODY = 32 << 20
MB = 1 << 20


@dataclass(slots=True)
class EngineProcess:
    process: asyncio.subprocess.Process
    address: str


@contextlib.asynccontextmanager
async def run_engine_process(port: int | None = None) -> AsyncIterator[EngineProcess]:
    port = port or free_port()
    command = ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-m", "tests.gateway.faulty_engine", str(port)]
    process = await asyncio.create_subprocess_exec(*command)

    async def listens() -> bool:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return True
        return False

    try:
        await eventually(listens)
        yield EngineProcess(process, f"127.0.0.1:{port}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("gateway")
    arguments = ("--read-seconds", str(READ_SECONDS), "--stall-seconds", str(STALL_SECONDS), "--heartbeat-seconds", "1")
    async with run_gateway(folder, routes(model("small")), *arguments) as gateway:
        yield gateway


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def use(gateway: Gateway, *addresses: str, **changes: Any) -> None:
    """Routes to these engines."""
    document = routes(
        model("small", variant("v", *addresses), served=["chat-small"]), **{"maxBodyBytes": LARGEST_BODY, **changes}
    )
    await gateway.use_routes(document)


async def in_flight(gateway: Gateway) -> float:
    return await gateway.metric("inference_fleet_requests_in_flight")


async def quiet(gateway: Gateway) -> None:
    async def is_quiet() -> bool:
        return await in_flight(gateway) == 0

    await eventually(is_quiet)


async def outcomes(gateway: Gateway) -> list[str]:
    return [attempt["outcome"] for attempt in (await gateway.decisions())[0]["attempts"]]


def error_of(events: bytes) -> dict[str, Any]:
    """The error event that a stream ended with."""
    last = events.removesuffix(b"\n\n").rpartition(b"\n\n")[2]
    return dict(json.loads(last.removeprefix(b"data: "))["error"])


class TestEngines:
    async def test_one_that_is_killed_in_a_stream_ends_it_with_an_error(self, gateway: Gateway) -> None:
        async with run_engine(tells_story()) as other, run_engine_process() as engine:
            await use(gateway, engine.address)
            async with gateway.post("/v1/chat/completions", {**STREAM, "fault": "endless"}) as answer:
                assert (await answer.content.readuntil(b"\n\n")) == faulty_engine.EVENT
                await use(gateway, engine.address, other.address)
                engine.process.kill()
                rest = await answer.read()
            assert error_of(rest)["type"] == "server_error"
            assert b"[DONE]" not in rest
            assert other.bodies == []  # what was begun is not begun again elsewhere
            assert (await outcomes(gateway)) == ["broken"]
            # The dead one is left alone at once: nobody waits for the cluster to notice.
            for _ in range(5):
                assert (await gateway.ask("/v1/chat/completions", CHAT))[0] == 200
                assert await outcomes(gateway) == ["answered"]

    @pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
    async def test_one_that_is_killed_before_its_first_byte_costs_no_request(
        self, gateway: Gateway, stream: bool
    ) -> None:
        async with run_engine(tells_story()) as other, run_engine_process() as engine:
            await use(gateway, engine.address)
            body = {**CHAT, "stream": stream, "fault": "hang"}
            asked = asyncio.create_task(self.read(gateway, body))
            await asyncio.sleep(0.3)
            await use(gateway, engine.address, other.address)
            engine.process.kill()
            status, got = await asked
            assert status == 200
            assert (b"[DONE]" in got) == stream
            assert await outcomes(gateway) == ["disconnected", "answered"]

    @staticmethod
    async def read(gateway: Gateway, body: dict[str, Any]) -> tuple[int, bytes]:
        async with gateway.post("/v1/chat/completions", body) as answer:
            return answer.status, await answer.read()

    @pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
    async def test_one_that_hangs_is_given_up_and_its_request_not_repeated(
        self, gateway: Gateway, stream: bool
    ) -> None:
        async with run_engine(tells_story()) as other, run_engine_process() as engine:
            await use(gateway, engine.address)
            # Stopped, it still takes connections: the kernel does that for it.
            engine.process.send_signal(signal.SIGSTOP)
            asked = asyncio.create_task(self.read(gateway, {**CHAT, "stream": stream}))
            await asyncio.sleep(0.3)
            await use(gateway, engine.address, other.address)
            status, got = await asked
            assert (status, json.loads(got)["error"]["code"]) == (504, "upstream_timeout")
            assert other.bodies == []

    async def test_one_that_is_slow_is_waited_for(self, gateway: Gateway) -> None:
        async with run_engine_process() as engine:
            await use(gateway, engine.address)
            began = asyncio.get_running_loop().time()
            status, got = await self.read(gateway, {**STREAM, "fault": "slow"})
            assert asyncio.get_running_loop().time() - began > READ_SECONDS
            assert status == 200
            assert got.replace(b": keep-alive\n\n", b"") == faulty_engine.EVENT + faulty_engine.LAST

    @pytest.mark.parametrize("fault", ["no_http", "half_a_head", "endless_head", "closed_half_at_once"])
    @pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
    async def test_nonsense_instead_of_a_head_is_a_failed_engine(
        self, gateway: Gateway, fault: str, stream: bool
    ) -> None:
        async with run_engine_process() as engine, run_engine_process() as twin:
            await use(gateway, engine.address, twin.address)
            status, got = await self.read(gateway, {**CHAT, "stream": stream, "fault": fault})
            # Sent once more, since nothing had come, and no further.
            assert (status, json.loads(got)["error"]["code"]) == (502, "upstream_failed")
            assert await outcomes(gateway) == ["disconnected", "disconnected"]

    @pytest.mark.parametrize("fault", ["broken_chunk", "closed_half"])
    async def test_nonsense_after_the_first_event_is_an_error_event(self, gateway: Gateway, fault: str) -> None:
        async with run_engine(tells_story()) as other, run_engine_process() as engine:
            await use(gateway, engine.address)
            async with gateway.post("/v1/chat/completions", {**STREAM, "fault": fault}) as answer:
                got = await answer.read()
            assert got.startswith(faulty_engine.EVENT)
            assert error_of(got)["code"] == "upstream_failed"
            assert b"[DONE]" not in got
            assert other.bodies == []

    async def test_a_stream_of_no_events_is_bounded(self, gateway: Gateway) -> None:
        async with run_engine_process() as engine:
            await use(gateway, engine.address)
            status, got = await self.read(gateway, {**STREAM, "fault": "no_events"})
            assert status in (200, 502)
            assert b"upstream_failed" in got
            assert b"xxx" not in got

    async def test_a_whole_answer_that_is_cut_short_is_an_error(self, gateway: Gateway) -> None:
        async with run_engine_process() as engine, run_engine_process() as twin:
            await use(gateway, engine.address, twin.address)
            status, got = await self.read(gateway, {**CHAT, "fault": "too_short"})
            assert (status, json.loads(got)["error"]["code"]) == (502, "upstream_failed")

    async def test_an_answer_that_is_not_what_it_says_harms_nobody_else(self, gateway: Gateway) -> None:
        async with run_engine_process() as engine:
            await use(gateway, engine.address)
            assert await self.read(gateway, {**CHAT, "fault": "not_json"}) == (200, b"\xff\xfe{[")
            assert (await gateway.ask("/v1/chat/completions", CHAT))[0] == 200


class TestBytes:
    async def test_a_stream_that_is_split_at_every_byte(self, gateway: Gateway) -> None:
        whole = b"".join((*STORY[-2:], usage_chunk(), DONE))

        async def in_two(engine: Engine, request: web.Request) -> web.StreamResponse:
            at = json.loads(await request.read())["at"]
            response = await begin_stream(request)
            await response.write(whole[:at])
            await asyncio.sleep(0.03)
            await response.write(whole[at:])
            await response.write_eof()
            return response

        async with run_engine(in_two) as engine:
            await use(gateway, engine.address)
            few = asyncio.Semaphore(50)

            async def read(at: int) -> bytes:
                async with few, gateway.post("/v1/chat/completions", {**STREAM, "at": at}) as answer:
                    return bytes(await answer.read())

            positions = range(1, len(whole))
            got = await asyncio.gather(*(read(at) for at in positions))
        expected = b"".join((*STORY[-2:], DONE))
        assert [at for at, events in zip(positions, got, strict=True) if events != expected] == []

    async def test_a_request_that_is_split_at_every_byte(self, gateway: Gateway) -> None:
        body = json.dumps({**CHAT, "messages": [{"role": "user", "content": "ünï 🎈"}]}, ensure_ascii=False).encode()
        request = raw_request(body)
        async with run_engine(tells_story()) as engine:
            await use(gateway, engine.address)
            few = asyncio.Semaphore(50)

            async def status(at: int) -> int:
                async with few, connection(gateway) as (reader, writer):
                    writer.write(request[:at])
                    await asyncio.sleep(0.03)
                    writer.write(request[at:])
                    return int((await reader.readline()).split()[1])

            assert set(await asyncio.gather(*(status(at) for at in range(1, len(request))))) == {200}
            assert all(one["messages"][0]["content"] == "ünï 🎈" for one in engine.bodies)


def raw_request(body: bytes, *lines: bytes, length: int | None = None) -> bytes:
    head = (
        b"POST /v1/chat/completions HTTP/1.1",
        b"Host: x",
        b"Authorization: Bearer " + KEY.encode(),
        b"Content-Length: %d" % (len(body) if length is None else length),
        *lines,
        b"",
        b"",
    )
    return b"\r\n".join(head) + body


@contextlib.asynccontextmanager
async def connection(gateway: Gateway) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def resident_bytes(gateway: Gateway) -> int:
    # Behind setpriv there is no other process: it executes the gateway in its own place.
    return int(psutil.Process(gateway.process.pid).memory_info().rss)


class TestClients:
    async def test_one_that_takes_nothing_holds_back_the_engine_and_is_given_up(self, gateway: Gateway) -> None:
        sent = [0]
        block = b"".join(chunk("x" * 1000) for _ in range(60))

        async def gushes(engine: Engine, request: web.Request) -> web.StreamResponse:
            response = await begin_stream(request)
            while True:
                await response.write(block)
                sent[0] += len(block)

        clients = 20
        async with run_engine(gushes) as engine, contextlib.AsyncExitStack() as stack:
            await use(gateway, engine.address)
            before = resident_bytes(gateway)
            failed = await gateway.metric("inference_fleet_requests_total", code="499")
            for _ in range(clients):
                _, writer = await stack.enter_async_context(connection(gateway))
                # The kernel would take megabytes for the reader.
                raw: socket.socket = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(raw_request(json.dumps(STREAM).encode()))

            async def stands_still() -> bool:
                was = sent[0]
                await asyncio.sleep(0.3)
                return sent[0] == was > 0

            await eventually(stands_still)
            # An engine that went on would have sent gigabytes by now; what is under way is in the kernel's buffers.
            assert resident_bytes(gateway) - before < clients * 2 * MB
            # Others do not suffer.
            async with run_engine(tells_story()) as other:
                await use(gateway, other.address)
                assert (await gateway.ask("/v1/chat/completions", CHAT))[0] == 200

            async def given_up() -> bool:
                return engine.left == clients

            await eventually(given_up, STALL_SECONDS + 20)
            await quiet(gateway)
            assert await gateway.metric("inference_fleet_requests_total", code="499") == failed + clients

    async def test_one_that_does_not_finish_its_request_is_told_so(self, gateway: Gateway) -> None:
        async with connection(gateway) as (reader, writer):
            writer.write(raw_request(b'{"model":', length=1000))
            async with asyncio.timeout(STALL_SECONDS + 20):
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 408 ")
                assert b'"request_timeout"' in await reader.readuntil(b"}}")

    async def test_one_that_leaves_in_the_middle_of_its_request_is_forgotten(self, gateway: Gateway) -> None:
        async with connection(gateway) as (_, writer):
            writer.write(raw_request(b'{"model":', length=1000))
            await asyncio.sleep(0.2)
            writer.transport.abort()
        await quiet(gateway)

    async def test_one_that_sends_no_more_gets_its_answer_or_is_forgotten(self, gateway: Gateway) -> None:
        async with run_engine(tells_story(gap_seconds=0.1)) as engine, connection(gateway) as (reader, writer):
            await use(gateway, engine.address)
            writer.write(raw_request(json.dumps(STREAM).encode()))
            writer.write_eof()
            async with asyncio.timeout(20):
                await reader.read()
            await quiet(gateway)

    async def test_bodies_of_32_mib(self, gateway: Gateway) -> None:
        frame = json.dumps({**CHAT, "x": ""}).encode()
        largest = frame[:-2] + b"y" * (LARGEST_BODY - len(frame)) + frame[-2:]

        async def takes(engine: Engine, request: web.Request) -> web.StreamResponse:
            size = len(engine.bodies.pop()["x"])
            return web.json_response({"size": size})

        async with run_engine(takes) as engine:
            await use(gateway, engine.address)
            status, answer, _ = await gateway.ask("/v1/chat/completions", largest)
            assert (status, answer["size"]) == (200, LARGEST_BODY - len(frame))
            settled = resident_bytes(gateway)
            for _ in range(5):
                assert (await gateway.ask("/v1/chat/completions", largest))[0] == 200
            assert resident_bytes(gateway) - settled < 2 * LARGEST_BODY
            status, answer, _ = await gateway.ask("/v1/chat/completions", largest + b" ")
            assert (status, answer["error"]["code"]) == (413, "request_too_large")

    @pytest.mark.parametrize("chunks", [True, False], ids=["chunked", "with a length"])
    async def test_more_than_that_is_not_read(self, gateway: Gateway, chunks: bool) -> None:
        before = resident_bytes(gateway)
        async with connection(gateway) as (reader, writer):
            if chunks:
                head = raw_request(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
                piece = faulty_engine.chunked(b" " * MB)
            else:
                head, piece = raw_request(b"", length=1 << 40), b" " * MB
            writer.write(head)
            with contextlib.suppress(ConnectionError):
                for _ in range(200):
                    writer.write(piece)
                    await writer.drain()
            with contextlib.suppress(ConnectionError):
                answer = await reader.readline()
                assert answer.startswith(b"HTTP/1.1 413 ") or not answer
        assert resident_bytes(gateway) - before < 3 * LARGEST_BODY
        await quiet(gateway)

    @pytest.mark.parametrize(
        "flood",
        [
            b"".join(b"X-%d: y\r\n" % number for number in range(5000)),
            b"X-Long: " + b"y" * 100_000 + b"\r\n",
            b"y" * 1_000_000,
        ],
        ids=["many headers", "a long one", "one without an end"],
    )
    async def test_floods_of_headers_are_cut_off(self, gateway: Gateway, flood: bytes) -> None:
        before = resident_bytes(gateway)

        async def pour() -> bytes:
            async with connection(gateway) as (reader, writer):
                with contextlib.suppress(ConnectionError):
                    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + flood)
                    await writer.drain()
                    return await reader.readline()
            return b""

        async with asyncio.timeout(20):
            answers = await asyncio.gather(*(pour() for _ in range(20)))
        assert all(answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 ")) or not answer for answer in answers), answers
        assert resident_bytes(gateway) - before < 32 * MB
        async with gateway.session.get(f"{gateway.url}/health") as answer:
            assert answer.status == 200

    @pytest.mark.parametrize(
        "text", [b"\x00" * 100, b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/9.9\r\n\r\n", b"\r\n" * 100]
    )
    async def test_what_is_no_http_is_no_matter(self, gateway: Gateway, text: bytes) -> None:
        async with connection(gateway) as (reader, writer):
            writer.write(text)
            writer.write_eof()
            async with asyncio.timeout(10):
                await reader.read()
        async with gateway.session.get(f"{gateway.url}/health") as answer:
            assert answer.status == 200

    async def test_ten_thousand_idle_connections(self, gateway: Gateway) -> None:
        """As many as this machine's limit of open files allows, which a gateway in a pod has as well."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = hard if hard != resource.RLIM_INFINITY else 1 << 20
        count = min(10_000, most - 1_000)
        assert count >= 1_000, f"at most {hard} open files are allowed here: raise it by `ulimit -n`"
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE, (most, hard))
        opened: list[asyncio.StreamWriter] = []
        host, port = gateway.url.removeprefix("http://").split(":")
        before = resident_bytes(gateway)
        try:
            for _ in range(0, count, 500):
                new = await asyncio.gather(*(asyncio.open_connection(host, int(port)) for _ in range(500)))
                opened += [writer for _, writer in new]
            reader, writer = new[-1]
            async with run_engine(tells_story()) as engine:
                await use(gateway, engine.address)
                writer.write(raw_request(json.dumps(STREAM).encode()))
                async with asyncio.timeout(20):
                    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
                assert (await gateway.ask("/v1/chat/completions", CHAT))[0] == 200
            each = (resident_bytes(gateway) - before) / count
            assert each < 20_000
        finally:
            for writer in opened:
                writer.transport.abort()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

        async def closed() -> bool:
            return psutil.Process(gateway.process.pid).num_fds() < 200

        await eventually(closed)


async def test_it_has_come_through_all_that(gateway: Gateway) -> None:
    log = gateway.log.read_text()
    assert "Traceback" not in log
    assert "failed" not in log
    await quiet(gateway)
    with contextlib.suppress(aiohttp.ClientError):
        gateway.terminate()
        async with asyncio.timeout(20):
            assert await gateway.process.wait() == 0
