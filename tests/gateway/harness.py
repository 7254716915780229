"""The real gateway as a process, and engines that do on cue what real ones do rarely."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

START_SECONDS = 30.0
POLL_SECONDS = 0.05

KEY = "sk-acme-secret"
TENANT = "acme"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def write_key(directory: Path, tenant: str, *keys: str) -> None:
    directory.mkdir(exist_ok=True)
    (directory / tenant).write_text("".join(hashlib.sha256(key.encode()).hexdigest() + "\n" for key in keys))


def variant(name: str, *endpoints: str, weight: int = 100, engine: str = "VLLM") -> dict[str, Any]:
    return {
        "name": name, "service": name, "port": 8000, "weight": weight, "engine": engine, "endpoints": list(endpoints)
    }  # fmt: skip


def model(name: str, *variants: dict[str, Any], served: Sequence[str] = (), default: bool = False) -> dict[str, Any]:
    return {
        "name": name, "servedNames": list(served), "contextTokens": 8192, "default": default,
        "variants": list(variants),
    }  # fmt: skip


def routes(*models: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A routing table of policy `chat`, its revision as the operator makes it."""
    document = {
        "policy": "chat",
        "namespace": "default",
        "holdSeconds": 5,
        "maxBodyBytes": 1 << 20,
        "windowSeconds": 300,
        "objectives": [
            {"name": "first-token", "metric": "TimeToFirstToken", "percentile": 95, "milliseconds": 60_000},
            {"name": "per-token", "metric": "TimePerOutputToken", "percentile": 95, "milliseconds": 60_000},
            {"name": "whole", "metric": "EndToEndLatency", "percentile": 95, "milliseconds": 60_000},
        ],
        "models": list(models),
        "drain": [],
        **changes,
    }
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return {"revision": hashlib.sha256(canonical.encode()).hexdigest()[:12], **document}


async def eventually(check: Callable[[], Awaitable[Any]], seconds: float = 20.0) -> Any:
    """The first true answer of `check`; fails with the last one when there is none in time."""
    value: Any = None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not (value := await check()):  # noqa: ASYNC110 - another process changes it
                await asyncio.sleep(POLL_SECONDS)
            return value
    raise AssertionError(f"not within {seconds} s; the last answer was {value!r}")


@dataclass(slots=True)
class Gateway:
    """A running gateway. `log` holds what it writes."""

    process: asyncio.subprocess.Process
    url: str
    admin_url: str
    log: Path
    routes_file: Path
    session: aiohttp.ClientSession

    def write_routes(self, document: Mapping[str, Any]) -> None:
        self.routes_file.write_text(json.dumps(document))

    async def use_routes(self, document: Mapping[str, Any]) -> None:
        """Changes the routes and waits until the gateway shows the revision."""
        self.write_routes(document)

        async def shown() -> bool:
            return bool((await self.ready())[1]["revision"] == document["revision"])

        await eventually(shown)

    async def ready(self) -> tuple[int, dict[str, Any]]:
        async with self.session.get(f"{self.admin_url}/ready") as answer:
            return answer.status, await answer.json()

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's series that have these labels."""
        async with self.session.get(f"{self.admin_url}/metrics") as answer:
            text = await answer.text()
        return sum(
            value for found, value in parse_metrics(text) if found[0] == name and labels.items() <= found[1].items()
        )

    async def decisions(self) -> list[dict[str, Any]]:
        async with self.session.get(f"{self.admin_url}/debug/decisions") as answer:
            return list((await answer.json())["decisions"])

    def post(self, path: str, body: Any, *, key: str | None = KEY, **headers: str) -> Any:
        """A request as a context manager, like aiohttp's; `body` is sent as JSON unless it is bytes."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        all_headers = {"Content-Type": "application/json", **headers}
        if key is not None:
            all_headers["Authorization"] = f"Bearer {key}"
        return self.session.post(f"{self.url}{path}", data=data, headers=all_headers)

    async def ask(
        self, path: str, body: Any, *, key: str | None = KEY, **headers: str
    ) -> tuple[int, Any, Mapping[str, str]]:
        """Status, JSON and headers of an answer."""
        async with self.post(path, body, key=key, **headers) as answer:
            return answer.status, json.loads(await answer.read()), answer.headers

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)


def parse_metrics(text: str) -> Iterator[tuple[tuple[str, dict[str, str]], float]]:
    from prometheus_client.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield (sample.name, sample.labels), sample.value


@contextlib.asynccontextmanager
async def run_gateway(
    folder: Path,
    document: Mapping[str, Any] | None,
    *arguments: str,
    keys: bool = True,
    scheme: str = "http",
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Gateway]:
    """A gateway of policy `chat`; with `document` None it takes its routes from the cluster."""
    port, admin_port = free_port(), free_port()
    routes_file, log = folder / "routes.json", folder / "gateway.log"
    command = [
        "setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-m", "inference_fleet.gateway",
        "--policy", "chat", "--host", "127.0.0.1", "--port", str(port), "--admin-port", str(admin_port),
        "--poll-seconds", "0.1", "--accept-seconds", "0.5",
    ]  # fmt: skip
    if document is not None:
        routes_file.write_text(json.dumps(document))
        command += ["--routes-file", str(routes_file)]
    if keys:
        write_key(folder / "keys", TENANT, KEY)
        command += ["--keys-directory", str(folder / "keys")]
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, *arguments, stdout=output, stderr=output, env=None if environment is None else dict(environment)
        )
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=False)) as session:
        gateway = Gateway(
            process, f"{scheme}://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}", log, routes_file, session
        )

        async def serves() -> bool:
            assert process.returncode is None, f"the gateway ended:\n{log.read_text()}"
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{gateway.admin_url}/health") as answer:
                    return answer.status == 200
            return False

        try:
            await eventually(serves, START_SECONDS)
            yield gateway
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


Behaviour = Callable[["Engine", web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class Engine:
    """An engine in the test's own process. `behaviour` answers; what was asked and who left is kept."""

    address: str
    behaviour: Behaviour
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    left: int = 0
    """Requests whose client went away before the answer was whole."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(request.headers.copy())
        self.paths.append(request.raw_path)
        self.bodies.append(json.loads(await request.read()))
        try:
            return await self.behaviour(self, request)
        except (asyncio.CancelledError, ConnectionError):
            self.left += 1
            raise


@contextlib.asynccontextmanager
async def run_engine(behaviour: Behaviour, port: int | None = None, host: str = "127.0.0.1") -> AsyncIterator[Engine]:
    port = port or free_port()
    engine = Engine(f"{host}:{port}", behaviour)
    application = web.Application(client_max_size=1 << 28)
    application.router.add_route("POST", "/{tail:.*}", engine.handle)
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    try:
        yield engine
    finally:
        await runner.cleanup()


def chunk(content: str | None = None, index: int = 0, finish: str | None = None, **extra: Any) -> bytes:
    """One chunk of a chat completion as an event."""
    delta = {} if content is None else {"content": content}
    value = {
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": [{"index": index, "delta": delta, "finish_reason": finish}], **extra,
    }  # fmt: skip
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def usage_chunk(prompt: int = 7, completion: int = 3, cached: int = 2) -> bytes:
    value = {
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [],
        "usage": {
            "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        },
    }  # fmt: skip
    return b"data: " + json.dumps(value).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
STORY = (chunk("Once "), chunk("upon "), chunk("a time, ünïcødé 🎈"), chunk(finish="stop"))


async def begin_stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


def says(*events: bytes, gap_seconds: float = 0.0) -> Behaviour:
    """Streams these events, `gap_seconds` before each."""

    async def behave(engine: Engine, request: web.Request) -> web.StreamResponse:
        response = await begin_stream(request)
        for event in events:
            await asyncio.sleep(gap_seconds)
            await response.write(event)
        await response.write_eof()
        return response

    return behave


def answers(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Behaviour:
    """Answers with JSON, or with bytes as they are."""

    async def behave(engine: Engine, request: web.Request) -> web.StreamResponse:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        return web.Response(status=status, body=body, headers={"Content-Type": "application/json", **(headers or {})})

    return behave


def tells_story(gap_seconds: float = 0.0) -> Behaviour:
    """What an engine does: a stream where one is asked for, with the counts where they are asked for; else JSON."""

    async def behave(engine: Engine, request: web.Request) -> web.StreamResponse:
        body = engine.bodies[-1]
        if body.get("stream"):
            wants_usage = (body.get("stream_options") or {}).get("include_usage")
            return await says(*STORY, *([usage_chunk()] if wants_usage else []), DONE, gap_seconds=gap_seconds)(
                engine, request
            )
        message = {"role": "assistant", "content": "Once upon a time"}
        return await answers(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1,
                "model": "m",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
            }
        )(engine, request)

    return behave


def breaks_after(*events: bytes) -> Behaviour:
    """Streams these events and then drops the connection."""

    async def behave(engine: Engine, request: web.Request) -> web.StreamResponse:
        response = await begin_stream(request)
        for event in events:
            await response.write(event)
        await asyncio.sleep(0.05)  # the bytes first
        assert request.transport is not None
        request.transport.abort()
        return response

    return behave


def drops() -> Behaviour:
    """Takes the request and drops the connection without a byte."""

    async def behave(engine: Engine, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    return behave


CHAT = {"model": "chat-small", "messages": [{"role": "user", "content": "Tell me a story."}]}
STREAM = {**CHAT, "stream": True}
