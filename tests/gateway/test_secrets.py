"""No key and no prompt in any log, metric or decision, at the most talkative log level and on every path that fails."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from tests.gateway.harness import (
    DONE,
    STORY,
    Behaviour,
    Engine,
    Gateway,
    answers,
    breaks_after,
    drops,
    eventually,
    model,
    routes,
    run_engine,
    run_gateway,
    says,
    tells_story,
    variant,
    write_key,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = "sk-MARKER-of-a-key"
WRONG_KEY = "sk-MARKER-of-a-wrong-key"
PROMPT = "MARKER-of-a-prompt ünï"
ANSWER = "MARKER-of-an-answer"
COOKIE = "session=MARKER-of-a-cookie"
MARKER = "MARKER"

CHAT: dict[str, Any] = {"model": "small", "user": PROMPT, "messages": [{"role": "user", "content": PROMPT}]}
GATHERED = {**CHAT, "model": "gathered"}
SPOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"' + ANSWER.encode() + b'"},"finish_reason":null}]}\n\n'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[Engine]:
    async with run_engine(tells_story(), host="0.0.0.0") as engine:
        yield engine


def table(engine: Engine, host: int) -> dict[str, Any]:
    address = f"127.0.0.{host}:{engine.address.rpartition(':')[2]}"
    return routes(
        model("small", variant("small-1", address)),
        model("gathered", variant("gathered-1", address, engine="LlamaCpp")),
        model("asleep", variant("asleep-1")),
        holdSeconds=1,
        maxBodyBytes=10_000,
    )


HOSTS = itertools.count(2)


async def behave(gateway: Gateway, engine: Engine, behaviour: Behaviour) -> None:
    """From now on the engine does this; at another address, so that no failure before it is held against it."""
    engine.behaviour = behaviour
    await gateway.use_routes(table(engine, next(HOSTS)))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("gateway")
    write_key(folder / "keys", "marked", KEY)
    arguments = ("--log-level", "debug", "--read-seconds", "1", "--stall-seconds", "1")
    environment = {**os.environ, "PYTHONASYNCIODEBUG": "1", "PYTHONDEVMODE": "1"}
    async with run_gateway(folder, table(engine, 1), *arguments, environment=environment) as gateway:
        yield gateway


async def everything_shown(gateway: Gateway) -> str:
    async with gateway.session.get(f"{gateway.admin_url}/metrics") as answer:
        metrics = await answer.text()
    ready = json.dumps((await gateway.ready())[1])
    return "\n".join((metrics, ready, json.dumps(await gateway.decisions()), gateway.log.read_text()))


async def ask(gateway: Gateway, body: Any, path: str = "/v1/chat/completions", **headers: str) -> int:
    """A request with the key, whatever becomes of it; its status, 0 where there is none."""
    with contextlib.suppress(Exception):
        async with gateway.post(path, body, key=KEY, Cookie=COOKIE, **headers) as answer:
            await answer.read()
            return int(answer.status)
    return 0


async def raw(
    gateway: Gateway, *lines: str, body: bytes = b"", first: str = "POST /v1/chat/completions HTTP/1.1"
) -> None:
    """Sends these header lines as they are."""
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write("\r\n".join((first, "Host: x", *lines, "", "")).encode("utf-8", "surrogateescape") + body)
    writer.write_eof()
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(15):
            await reader.read()
    writer.close()


async def test_what_succeeds(gateway: Gateway, engine: Engine) -> None:
    engine.behaviour = tells_story()
    for body in (CHAT, {**CHAT, "stream": True}, GATHERED, {**GATHERED, "stream": True}):
        assert await ask(gateway, body) == 200
    engine.behaviour = says(SPOKEN, *STORY, DONE)
    assert await ask(gateway, {**CHAT, "stream": True}) == 200
    engine.behaviour = answers({"object": "list", "data": [PROMPT], "usage": {"prompt_tokens": 1}})
    assert await ask(gateway, {"model": "small", "input": PROMPT}, f"/v1/embeddings?api_key={KEY}") == 200


async def test_what_a_client_gets_wrong(gateway: Gateway) -> None:
    whole = json.dumps(CHAT).encode()
    assert await ask(gateway, whole[:-3]) == 400
    assert await ask(gateway, whole.replace(b"user", b"\xff\xfe")) == 400
    assert await ask(gateway, {**CHAT, "stream": PROMPT}) == 400
    assert await ask(gateway, {**CHAT, "stream_options": PROMPT}) == 400
    assert await ask(gateway, {**CHAT, "model": PROMPT}) == 404
    assert await ask(gateway, {**CHAT, "x": "x" * 20_000}) == 413
    assert await ask(gateway, {**CHAT, "model": "asleep"}) == 503
    assert await ask(gateway, whole, **{"Content-Encoding": "gzip"}) == 400
    assert await ask(gateway, whole, **{"Content-Encoding": "br"}) in (0, 400)
    for key in (WRONG_KEY, KEY + "x"):
        async with gateway.post("/v1/chat/completions", CHAT, key=key) as answer:
            assert answer.status == 401
        async with gateway.post("/v1/messages", CHAT, key=None, **{"x-api-key": key}) as answer:
            assert answer.status == 401


async def test_what_is_no_http(gateway: Gateway) -> None:
    authorization = f"Authorization: Bearer {KEY}"
    await raw(gateway, authorization + "\x00\x01")
    await raw(gateway, authorization + "\udcff\udcfe", "Content-Length: 0")
    await raw(gateway, f"Authorization Bearer {KEY}")
    await raw(gateway, f"Autho rization: Bearer {KEY}")
    await raw(gateway, authorization, f"Content-Length: {KEY}")
    await raw(gateway, authorization, "Transfer-Encoding: chunked", body=PROMPT.encode() + b"\r\n")
    await raw(gateway, authorization, "Transfer-Encoding: chunked", body=b"5\r\n" + PROMPT.encode())
    await raw(gateway, authorization, "Content-Length: 100000", body=PROMPT.encode())
    await raw(gateway, authorization, "X: " + KEY * 1000)
    await raw(gateway, first=f"{KEY} / HTTP/1.1")
    await raw(gateway, first=f"GET /{KEY} {PROMPT} HTTP/1.1")
    await raw(gateway, first=f"GET http://{KEY}:{PROMPT}/v1/models HTTP/1.1")
    await raw(gateway, f"Host: {KEY}", "Expect: " + KEY, authorization, "Content-Length: 0")


async def test_what_an_engine_gets_wrong(gateway: Gateway, engine: Engine) -> None:
    said = {"error": {"message": f"cannot take {PROMPT}", "type": "invalid_request_error"}}
    for status in (400, 401, 404, 429, 500, 503):
        for behaviour in (answers(said, status=status), answers(PROMPT.encode(), status=status)):
            await behave(gateway, engine, behaviour)
            await asyncio.gather(*(ask(gateway, body) for body in (CHAT, {**CHAT, "stream": True})))
    for behaviour in (
        drops(),
        breaks_after(SPOKEN),
        breaks_after(SPOKEN[:40]),
        says(SPOKEN),
        says(SPOKEN, b"data: " + json.dumps(said).encode() + b"\n\n"),
        says(b"data: {" + PROMPT.encode() + b"\n\n", SPOKEN, DONE),
        says(b'data: {"choices":"' + ANSWER.encode() + b'","usage":{"a":"' + ANSWER.encode() + b'"}}\n\n', DONE),
        says(SPOKEN, SPOKEN, gap_seconds=0.7),
    ):
        await behave(gateway, engine, behaviour)
        await asyncio.gather(*(ask(gateway, body) for body in (CHAT, {**CHAT, "stream": True}, GATHERED)))


async def test_what_is_not_even_an_answer(gateway: Gateway, engine: Engine) -> None:
    async def nonsense(engine: Engine, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(f"HTTP/1.1 200 {ANSWER}\r\nX {ANSWER}\r\n\r\n".encode())
        await asyncio.sleep(0.1)
        request.transport.abort()
        return web.Response()

    await behave(gateway, engine, nonsense)
    bodies = (CHAT, {**CHAT, "stream": True}, GATHERED)
    assert set(await asyncio.gather(*(ask(gateway, body) for body in bodies))) <= {502, 503}


async def test_a_client_that_leaves(gateway: Gateway, engine: Engine) -> None:
    await behave(gateway, engine, tells_story(gap_seconds=0.5))
    for body in (CHAT, {**CHAT, "stream": True}, GATHERED):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.7), gateway.post("/v1/chat/completions", body, key=KEY) as answer:
                await answer.read()

    async def left() -> bool:
        return await gateway.metric("inference_fleet_requests_total", code="499") >= 2

    await eventually(left)


async def test_nothing_of_it_is_written_anywhere(gateway: Gateway) -> None:
    shown = await everything_shown(gateway)
    assert MARKER not in shown
    assert '"tenant": "marked"' in shown  # it did look
    gateway.terminate()
    async with asyncio.timeout(20):
        await gateway.process.wait()
    assert MARKER not in gateway.log.read_text()
