"""Streams through the real process: every byte at once and untouched, whole events, honest ends. Mock engines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio
from aiohttp import web

from tests.gateway.harness import (
    DONE,
    KEY,
    STORY,
    STREAM,
    Engine,
    Gateway,
    begin_stream,
    breaks_after,
    chunk,
    drops,
    eventually,
    model,
    routes,
    run_engine,
    run_gateway,
    says,
    tells_story,
    usage_chunk,
    variant,
)

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":null},"finish_reason":null}]}\n\n'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[Engine]:
    async with run_engine(tells_story()) as engine:
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("gateway")
    document = routes(
        model("small", variant("small-1", engine.address), served=["chat-small"]),
        model("gathered", variant("gathered-1", engine.address, engine="LlamaCpp")),
    )
    async with run_gateway(folder, document, "--heartbeat-seconds", "0.6", "--read-seconds", "3") as gateway:
        yield gateway


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def read(gateway: Gateway, body: object = STREAM, path: str = "/v1/chat/completions") -> bytes:
    async with gateway.post(path, body) as answer:
        assert answer.status == 200, await answer.text()
        return bytes(await answer.read())


async def test_a_stream_is_passed_on_byte_by_byte_as_it_was(gateway: Gateway, engine: Engine) -> None:
    events = (ROLE, *STORY, b": ping\n\n", usage_chunk(), DONE)
    engine.behaviour = says(*events)
    body = {**STREAM, "stream_options": {"include_usage": True}}
    async with gateway.post("/v1/chat/completions", body) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        assert answer.headers["Cache-Control"] == "no-cache"
        assert answer.headers["X-Accel-Buffering"] == "no"
        assert await answer.read() == b"".join(events)


async def test_counts_are_asked_for_and_kept_from_who_did_not_ask(gateway: Gateway, engine: Engine) -> None:
    engine.behaviour = tells_story()
    before = {
        kind: await gateway.metric("inference_fleet_tokens_total", kind=kind)
        for kind in ("prompt", "cached", "completion")
    }
    assert await read(gateway) == b"".join((*STORY, DONE))
    assert engine.bodies[-1]["stream_options"] == {"include_usage": True}
    options = {"include_usage": False, "own": 1}
    assert await read(gateway, {**STREAM, "stream_options": options}) == b"".join((*STORY, DONE))
    assert engine.bodies[-1]["stream_options"] == {"include_usage": True, "own": 1}
    for kind, each in (("prompt", 7), ("cached", 2), ("completion", 3)):
        assert await gateway.metric("inference_fleet_tokens_total", kind=kind) == before[kind] + 2 * each


async def test_counts_in_the_same_packet_as_text_are_taken_out_alone(gateway: Gateway, engine: Engine) -> None:
    engine.behaviour = says(b"".join((*STORY, usage_chunk(), DONE)))
    assert await read(gateway) == b"".join((*STORY, DONE))


async def test_counts_that_come_with_a_choice_stay(gateway: Gateway, engine: Engine) -> None:
    # llama.cpp's text completions: the last chunk has both.
    last = b'data: {"choices":[{"text":"","index":0,"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n'
    first = b'data: {"choices":[{"text":"a","index":0,"finish_reason":null}]}\n\n'
    engine.behaviour = says(first, last, DONE)
    assert await read(gateway, {**STREAM, "prompt": "x"}, "/v1/completions") == first + last + DONE
    assert (await gateway.decisions())[0]["tokens"] == {"prompt": 1, "cached": 0, "completion": 2}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
async def test_a_stream_that_arrives_in_crumbs(gateway: Gateway, engine: Engine, size: int) -> None:
    whole = b"".join((*STORY[-2:], usage_chunk(), DONE))
    engine.behaviour = says(*(whole[at : at + size] for at in range(0, len(whole), size)))
    assert await read(gateway) == b"".join((*STORY[-2:], DONE))


async def test_events_are_passed_on_as_they_come(gateway: Gateway, engine: Engine) -> None:
    release = [asyncio.Event() for _ in STORY]

    async def step_by_step(engine: Engine, request: web.Request) -> web.StreamResponse:
        response = await begin_stream(request)
        for event, gate in zip(STORY, release, strict=True):
            await response.write(event)
            await gate.wait()
        await response.write(DONE)
        return response

    engine.behaviour = step_by_step
    async with gateway.post("/v1/chat/completions", STREAM) as answer:
        for event, gate in zip(STORY, release, strict=True):
            async with asyncio.timeout(5):
                assert await next_event(answer.content) == event
            gate.set()
        assert await answer.read() == DONE


async def next_event(content: object) -> bytes:
    """The next event that is no heartbeat."""
    while (event := await content.readuntil(b"\n\n")).startswith(b":"):  # type: ignore[attr-defined]
        pass
    return bytes(event)


async def test_silence_is_filled_with_comments_between_events_only(gateway: Gateway, engine: Engine) -> None:
    half = len(STORY[0]) // 2

    async def halting(engine: Engine, request: web.Request) -> web.StreamResponse:
        response = await begin_stream(request)
        await asyncio.sleep(1.5)  # a long prefill
        await response.write(STORY[0])
        await response.write(STORY[0][:half])
        await asyncio.sleep(1.5)
        await response.write(STORY[0][half:])
        await response.write(STORY[-1] + DONE)
        return response

    engine.behaviour = halting
    got = await read(gateway)
    assert got.count(b": keep-alive\n\n") >= 2
    assert got.index(b": keep-alive\n\n") == 0
    assert got.replace(b": keep-alive\n\n", b"") == STORY[0] * 2 + STORY[-1] + DONE


async def test_a_failure_before_the_first_event_is_tried_again(gateway: Gateway, engine: Engine) -> None:
    tries = 0

    async def second_time_lucky(engine: Engine, request: web.Request) -> web.StreamResponse:
        nonlocal tries
        tries += 1
        # The first time a head and half an event, then nothing.
        return await (breaks_after(STORY[0][:9]) if tries == 1 else tells_story())(engine, request)

    engine.behaviour = second_time_lucky
    assert await read(gateway) == b"".join((*STORY, DONE))
    assert tries == 2
    assert [attempt["outcome"] for attempt in (await gateway.decisions())[0]["attempts"]] == [
        "disconnected",
        "answered",
    ]


@pytest.mark.parametrize(
    "events",
    [(ROLE, STORY[0]), (ROLE, STORY[0], STORY[1][:20])],
    ids=["between events", "inside an event"],
)
async def test_a_failure_after_the_first_event_is_an_error_event_without_done(
    gateway: Gateway, engine: Engine, events: tuple[bytes, ...]
) -> None:
    engine.behaviour = breaks_after(*events)
    asked = len(engine.bodies)
    failed = await gateway.metric("inference_fleet_requests_total", code="502")
    judged = await gateway.metric("inference_fleet_objective_requests_total")
    within = await gateway.metric("inference_fleet_objective_within_total")
    got = await read(gateway)
    whole = ROLE + STORY[0]
    assert got.startswith(whole)
    error = json.loads(got[len(whole) :].removeprefix(b"data: "))
    assert error["error"]["type"] == "server_error"
    assert b"[DONE]" not in got
    assert len(engine.bodies) == asked + 1
    assert await gateway.metric("inference_fleet_requests_total", code="502") == failed + 1
    assert await gateway.metric("inference_fleet_objective_requests_total") == judged + 3
    assert await gateway.metric("inference_fleet_objective_within_total") == within
    await is_back(gateway, engine)


async def test_a_stream_that_just_stops_is_a_failure(gateway: Gateway, engine: Engine) -> None:
    engine.behaviour = says(*STORY)
    got = await read(gateway)
    assert b'"error"' in got
    assert b"[DONE]" not in got


async def test_an_engine_that_reports_an_error_in_its_stream(gateway: Gateway, engine: Engine) -> None:
    error = b'data: {"error":{"message":"out of memory","type":"server_error","code":500}}\n\n'
    engine.behaviour = says(STORY[0], error, DONE)
    assert await read(gateway) == STORY[0] + error
    assert (await gateway.decisions())[0]["code"] == 502


async def test_an_engine_that_falls_silent_is_given_up(gateway: Gateway, engine: Engine) -> None:
    async def silent(engine: Engine, request: web.Request) -> web.StreamResponse:
        response = await begin_stream(request)
        await response.write(STORY[0])
        await asyncio.sleep(30)
        return response

    engine.behaviour = silent
    got = await read(gateway)
    assert b"upstream_timeout" in got
    assert b"[DONE]" not in got


async def test_the_null_before_batches_is_dropped(gateway: Gateway, engine: Engine) -> None:
    engine.behaviour = says(b"data: null\n\n", *STORY, DONE)
    assert await read(gateway) == b"".join((*STORY, DONE))


async def test_other_streams_need_no_done(gateway: Gateway, engine: Engine) -> None:
    events = (
        b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"a"}\n\n',
        b"event: response.completed\n"
        b'data: {"type":"response.completed","response":{"usage":{"input_tokens":3,"output_tokens":4}}}\n\n',
    )
    engine.behaviour = says(*events)
    assert await read(gateway, STREAM, "/v1/responses") == b"".join(events)
    assert (await gateway.decisions())[0]["tokens"] == {"prompt": 3, "cached": 0, "completion": 4}


@pytest.mark.parametrize("name", ["chat-small", "gathered"])
async def test_a_client_that_leaves_stops_the_engine(gateway: Gateway, engine: Engine, name: str) -> None:
    engine.behaviour = tells_story(gap_seconds=0.5)
    left, aborted = engine.left, await gateway.metric("inference_fleet_requests_total", code="499")
    for stream in (True, False) if name == "gathered" else (True,):
        with pytest.raises(TimeoutError):
            async with (
                asyncio.timeout(0.8),
                gateway.post("/v1/chat/completions", {**STREAM, "model": name, "stream": stream}) as answer,
            ):
                await answer.read()
        left, aborted = left + 1, aborted + 1

        async def stopped(left: int = left, aborted: float = aborted) -> bool:
            return engine.left == left and await gateway.metric("inference_fleet_requests_total", code="499") == aborted

        await eventually(stopped)
    assert await gateway.metric("inference_fleet_requests_in_flight") == 0


async def test_a_client_that_leaves_a_whole_answer_stops_the_engine(gateway: Gateway, engine: Engine) -> None:
    async def slow(engine: Engine, request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    engine.behaviour = slow
    left = engine.left
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5), gateway.post("/v1/chat/completions", {**STREAM, "stream": False}):
            pass

    async def stopped() -> bool:
        return engine.left == left + 1

    await eventually(stopped)


async def test_after_a_storm_of_clients_that_leave_nothing_is_left(gateway: Gateway, engine: Engine) -> None:
    engine.behaviour = tells_story(gap_seconds=0.05)
    random = Random(7)

    async def visit(number: int) -> bool:
        body = {**STREAM, "model": "gathered" if number % 2 else "chat-small", "stream": number % 4 < 2}
        try:
            async with asyncio.timeout(random.uniform(0.01, 0.8)), gateway.post("/v1/chat/completions", body) as answer:
                return bool(await answer.read())
        except TimeoutError:
            return False

    began = {code: await gateway.metric("inference_fleet_requests_total", code=code) for code in ("200", "499")}
    served = await asyncio.gather(*(visit(number) for number in range(200)))

    async def quiet() -> bool:
        return await gateway.metric("inference_fleet_requests_in_flight") == 0

    await eventually(quiet)
    ended = {
        code: await gateway.metric("inference_fleet_requests_total", code=code) - was for code, was in began.items()
    }
    assert 0 < sum(served) <= ended["200"]
    assert 0 < ended["499"] <= 200 - sum(served)
    # Load that was counted for one who left would stay for ever, and turn the choice away from the endpoint.
    assert (await gateway.ask("/v1/chat/completions", {**STREAM, "stream": False}))[0] == 200


async def test_a_slow_reader_does_not_lose_or_reorder(gateway: Gateway, engine: Engine) -> None:
    events = [chunk(f"{number:06} " + "x" * 2000) for number in range(2000)]
    engine.behaviour = says(*events, DONE)
    got = bytearray()
    async with gateway.post("/v1/chat/completions", STREAM) as answer:
        await asyncio.sleep(0.5)
        while part := await answer.content.read(100_000):
            got += part
            await asyncio.sleep(0.005)
    assert bytes(got).replace(b": keep-alive\n\n", b"") == b"".join(events) + DONE


async def test_a_gathered_answer(gateway: Gateway, engine: Engine) -> None:
    engine.behaviour = tells_story()
    status, answer, headers = await gateway.ask(
        "/v1/chat/completions", {**STREAM, "model": "gathered", "stream": False}
    )
    assert status == 200
    assert headers["Content-Type"] == "application/json"
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["content"] == "Once upon a time, ünïcødé 🎈"
    assert answer["usage"]["total_tokens"] == 10
    assert engine.bodies[-1]["stream"] is True
    assert (await gateway.decisions())[0]["firstTokenMilliseconds"] is not None


async def test_a_gathered_answer_that_breaks_is_an_error_and_is_not_made_twice(
    gateway: Gateway, engine: Engine
) -> None:
    for behaviour in (breaks_after(STORY[0]), says(*STORY)):
        engine.behaviour = behaviour
        asked = len(engine.bodies)
        status, answer, _ = await gateway.ask("/v1/chat/completions", {**STREAM, "model": "gathered", "stream": False})
        assert (status, answer["error"]["code"]) == (502, "upstream_failed")
        assert len(engine.bodies) == asked + 1
        await is_back(gateway, engine)


async def test_a_gathered_answer_whose_engine_reports_an_error(gateway: Gateway, engine: Engine) -> None:
    engine.behaviour = says(STORY[0], b'data: {"error":{"message":"no","type":"invalid_request_error","code":400}}\n\n')
    status, answer, _ = await gateway.ask("/v1/chat/completions", {**STREAM, "model": "gathered", "stream": False})
    assert (status, answer["error"]["message"]) == (400, "no")


async def test_a_request_that_kills_engines_is_not_carried_around(gateway: Gateway, engine: Engine) -> None:
    engine.behaviour = drops()
    asked = len(engine.bodies)
    status, _, _ = await gateway.ask("/v1/chat/completions", {**STREAM, "stream": False})
    assert status == 502
    assert len(engine.bodies) == asked + 2
    await is_back(gateway, engine)


async def is_back(gateway: Gateway, engine: Engine) -> None:
    """Ends the ejection that a failure brought, by an answer."""
    engine.behaviour = tells_story()
    assert (await gateway.ask("/v1/chat/completions", {**STREAM, "stream": False}))[0] == 200


async def test_a_client_of_http_1_0_gets_the_stream_until_the_end_of_its_connection(
    gateway: Gateway, engine: Engine
) -> None:
    engine.behaviour = tells_story()
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(STREAM)
    writer.write(
        f"POST /v1/chat/completions HTTP/1.0\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
        f"{body}".encode()
    )
    head, _, got = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert b"chunked" not in head
    assert got == b"".join((*STORY, DONE))
