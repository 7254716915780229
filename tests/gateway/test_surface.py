"""What a client sees of the real process: paths, names, errors, identity. The engines are mocks."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
import pytest_asyncio

from tests.gateway.harness import (
    CHAT,
    KEY,
    STREAM,
    TENANT,
    Engine,
    Gateway,
    answers,
    model,
    routes,
    run_engine,
    run_gateway,
    tells_story,
    variant,
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[Engine]:
    async with run_engine(tells_story()) as engine:
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("gateway")
    document = routes(
        model("small", variant("small-1", engine.address), served=["chat-small", "fast"], default=True),
        model("asleep", variant("asleep-1")),
        holdSeconds=1,
        maxBodyBytes=100_000,
    )
    async with run_gateway(folder, document) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def usual_behaviour(engine: Engine) -> None:
    engine.behaviour = tells_story()


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_health_needs_no_key(gateway: Gateway) -> None:
    async with gateway.session.get(f"{gateway.url}/health") as answer:
        assert (answer.status, await answer.json()) == (200, {"status": "ok"})


async def test_ready_tells_revision_and_endpoints(gateway: Gateway) -> None:
    status, body = await gateway.ready()
    assert status == 200
    assert body["ready"] is True
    assert body["models"] == {"small": {"endpoints": 1}, "asleep": {"endpoints": 0}}
    assert await gateway.metric("inference_fleet_gateway_routes_info", revision=body["revision"]) == 1


async def test_admin_paths_are_not_on_the_clients_port(gateway: Gateway) -> None:
    for path in ("/metrics", "/ready", "/debug/decisions", "/", "/v2/chat/completions"):
        async with gateway.session.get(f"{gateway.url}{path}") as answer:
            assert answer.status == 404
            assert (await answer.json())["error"]["type"] == "invalid_request_error"


async def test_models_are_listed_as_clients_may_call_them(gateway: Gateway) -> None:
    client = openai.AsyncOpenAI(api_key=KEY, base_url=f"{gateway.url}/v1", max_retries=0)
    assert [one.id async for one in client.models.list()] == ["chat-small", "fast", "asleep"]
    assert (await client.models.retrieve("fast")).id == "fast"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("nobody")


@pytest.mark.parametrize("name", ["chat-small", "fast", "small", "chat"])
async def test_the_engine_is_told_its_own_name(gateway: Gateway, engine: Engine, name: str) -> None:
    status, body, _ = await gateway.ask("/v1/chat/completions", {**CHAT, "model": name})
    assert status == 200
    assert body["choices"][0]["message"]["content"] == "Once upon a time"
    assert engine.bodies[-1] == {**CHAT, "model": "small"}
    assert (await gateway.decisions())[0]["rule"] == ("Default" if name == "chat" else "Named")


async def test_no_key_no_answer(gateway: Gateway, engine: Engine) -> None:
    asked = len(engine.bodies)
    for key in (None, "sk-wrong", ""):
        status, body, headers = await gateway.ask("/v1/chat/completions", CHAT, key=key)
        assert status == 401
        assert body["error"]["code"] in ("missing_api_key", "invalid_api_key")
        assert headers["WWW-Authenticate"] == "Bearer"
    async with gateway.session.get(f"{gateway.url}/v1/models") as answer:
        assert answer.status == 401
    assert len(engine.bodies) == asked


async def test_an_unknown_key_does_not_get_its_body_read(gateway: Gateway) -> None:
    status, _, _ = await gateway.ask("/v1/chat/completions", b"x" * 200_000, key="sk-wrong")
    assert status == 401


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, None),
        (b'{"model":"chat-small","messages":"\xff"}', 400, None),
        (b"[]", 400, None),
        (b'{"messages":[]}', 400, "missing_model"),
        (b'{"model":"nobody"}', 404, "model_not_found"),
        (b'{"model":"chat-small","x":"' + b"x" * 100_000 + b'"}', 413, "request_too_large"),
    ],
)
async def test_what_a_client_gets_wrong(gateway: Gateway, body: bytes, status: int, code: str | None) -> None:
    judged = await gateway.metric("inference_fleet_objective_requests_total")
    got, answer, headers = await gateway.ask("/v1/chat/completions", body)
    assert (got, answer["error"]["code"], answer["error"]["type"]) == (status, code, "invalid_request_error")
    assert headers["Content-Type"] == "application/json"
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert await gateway.metric("inference_fleet_objective_requests_total") == judged


async def test_a_body_without_a_length_is_bounded_as_well(gateway: Gateway) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 10_000

    headers = {"Authorization": f"Bearer {KEY}"}
    async with gateway.session.post(f"{gateway.url}/v1/completions", data=endless(), headers=headers) as answer:
        assert answer.status == 413


async def test_a_compressed_body_is_bounded_by_what_it_unpacks_to(gateway: Gateway, engine: Engine) -> None:
    big = gzip.compress(json.dumps({**CHAT, "x": "x" * 1_000_000}).encode())
    assert len(big) < 100_000
    assert (await gateway.ask("/v1/chat/completions", big, **{"Content-Encoding": "gzip"}))[0] == 413
    small = gzip.compress(json.dumps(CHAT).encode())
    assert (await gateway.ask("/v1/chat/completions", small, **{"Content-Encoding": "gzip"}))[0] == 200
    assert engine.bodies[-1]["model"] == "small"
    broken = await gateway.ask("/v1/chat/completions", b"no gzip", **{"Content-Encoding": "gzip"})
    assert broken[0] == 400


async def test_a_large_body_that_is_allowed_arrives_whole(gateway: Gateway, engine: Engine) -> None:
    messages = [{"role": "user", "content": "ü" * 14_000}]
    status, _, _ = await gateway.ask("/v1/chat/completions", {**CHAT, "messages": messages})
    assert status == 200
    assert engine.bodies[-1]["messages"] == messages


async def test_wrong_methods_are_told(gateway: Gateway) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    async with gateway.session.get(f"{gateway.url}/v1/chat/completions", headers=headers) as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "POST")
    assert (await gateway.ask("/v1/models", {}))[0] == 405


async def test_a_request_id_is_taken_or_made_echoed_and_forwarded(gateway: Gateway, engine: Engine) -> None:
    _, _, headers = await gateway.ask(
        "/v1/chat/completions", CHAT, **{"X-Request-Id": "req-7", "traceparent": "00-1-2-01"}
    )
    assert headers["X-Request-Id"] == "req-7"
    assert engine.headers[-1]["X-Request-Id"] == "req-7"
    assert engine.headers[-1]["traceparent"] == "00-1-2-01"
    _, _, headers = await gateway.ask("/v1/chat/completions", {"model": "nobody"}, **{"X-Request-Id": "bad id"})
    assert headers["X-Request-Id"] != "bad id"
    assert len(headers["X-Request-Id"]) == 32


async def test_keys_and_cookies_stay_at_the_door(gateway: Gateway, engine: Engine) -> None:
    engine.behaviour = answers({"ok": True}, headers={"Set-Cookie": "session=1", "X-Internal": "1"})
    for _ in range(2):
        _, _, headers = await gateway.ask("/v1/chat/completions", CHAT, Cookie="a=b")
        assert "Set-Cookie" not in headers
        assert "X-Internal" not in headers
        assert KEY not in str(engine.headers[-1])
        assert "Cookie" not in engine.headers[-1]


async def test_other_paths_pass_with_their_query(gateway: Gateway, engine: Engine) -> None:
    engine.behaviour = answers({"object": "list", "data": [], "usage": {"prompt_tokens": 5, "total_tokens": 5}})
    before = await gateway.metric("inference_fleet_tokens_total", kind="prompt", tenant=TENANT)
    status, body, _ = await gateway.ask("/v1/embeddings?x=1%262", {"model": "fast", "input": ["a", "b"]})
    assert (status, body["object"]) == (200, "list")
    assert engine.paths[-1] == "/v1/embeddings?x=1%262"
    assert engine.bodies[-1] == {"model": "small", "input": ["a", "b"]}
    assert await gateway.metric("inference_fleet_tokens_total", kind="prompt", tenant=TENANT) == before + 5
    assert (await gateway.ask("/v1/rerank", {"model": "fast"}))[0] == 200
    assert engine.paths[-1] == "/v1/rerank"


async def test_paths_cannot_climb_out(gateway: Gateway, engine: Engine) -> None:
    asked = len(engine.paths)
    for path in ("/v1/../metrics", "/v1/%2e%2e/metrics", "/v1/..%2fmetrics"):
        reader_status = await raw_status(gateway, path)
        assert reader_status == 404
    assert len(engine.paths) == asked


async def raw_status(gateway: Gateway, path: str) -> int:
    """The status of a POST whose path nobody tidies up on the way."""
    import asyncio

    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(CHAT)
    writer.write(
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])


@pytest.mark.parametrize(
    ("status", "body", "want", "said"),
    [
        (400, {"error": {"message": "too long", "type": "invalid_request_error", "code": 400}}, 400, "too long"),
        (400, {"object": "error", "message": "vLLM of old"}, 400, "vLLM of old"),
        (422, {"detail": [{"msg": "field required"}]}, 422, "field required"),
        (404, {"error": {"message": "File Not Found"}}, 400, "File Not Found"),
        (501, {"error": {"message": "no embeddings"}}, 400, "no embeddings"),
        (401, {"error": "engine key"}, 502, "status 401"),
        (302, {}, 502, "status 302"),
        (500, b"<html>oops</html>", 500, "oops"),
        (429, {"error": {"message": "busy"}}, 429, "busy"),
    ],
)
async def test_errors_of_engines(
    gateway: Gateway, engine: Engine, status: int, body: object, want: int, said: str
) -> None:
    engine.behaviour = answers(body, status=status)
    for request in (CHAT, STREAM):
        got, answer, headers = await gateway.ask("/v1/chat/completions", request)
        assert got == want
        assert said in answer["error"]["message"]
        assert headers["Content-Type"] == "application/json"
        assert ("Retry-After" in headers) == (want == 429)


async def test_the_engines_own_retry_after_is_kept(gateway: Gateway, engine: Engine) -> None:
    engine.behaviour = answers({"error": {"message": "busy"}}, status=429, headers={"Retry-After": "3"})
    assert (await gateway.ask("/v1/chat/completions", CHAT))[2]["Retry-After"] == "3"


async def test_a_declared_model_without_replicas_is_503_after_the_hold(gateway: Gateway) -> None:
    shed = await gateway.metric("inference_fleet_objective_requests_total", objective="whole")
    within = await gateway.metric("inference_fleet_objective_within_total", objective="whole")
    status, answer, headers = await gateway.ask("/v1/chat/completions", {**CHAT, "model": "asleep"})
    assert (status, answer["error"]["code"], headers["Retry-After"]) == (503, "model_unavailable", "10")
    decision = (await gateway.decisions())[0]
    assert 900 <= decision["heldMilliseconds"] <= 5000
    assert await gateway.metric("inference_fleet_objective_requests_total", objective="whole") == shed + 1
    assert await gateway.metric("inference_fleet_objective_within_total", objective="whole") == within
    assert await gateway.metric("inference_fleet_requests_held", model="asleep") == 0


async def test_the_books_name_tenants_but_hold_no_prompts_and_no_keys(gateway: Gateway, engine: Engine) -> None:
    secret = "the-secret-of-the-prompt"
    body = {**CHAT, "messages": [{"role": "user", "content": secret}]}
    before = await gateway.metric("inference_fleet_requests_total", tenant=TENANT, model="small", code="200")
    await gateway.ask("/v1/chat/completions", body)
    async with gateway.post("/v1/chat/completions", {**body, "stream": True}) as answer:
        await answer.read()
    engine.behaviour = answers(b"{", status=500)
    await gateway.ask("/v1/chat/completions", body)
    await gateway.ask("/v1/chat/completions", json.dumps(body).encode()[:-1])
    assert (
        await gateway.metric("inference_fleet_requests_total", tenant=TENANT, model="small", code="200") == before + 2
    )
    decisions = await gateway.decisions()
    assert decisions[1]["tenant"] == TENANT
    assert decisions[1]["variant"] == "small-1"
    async with gateway.session.get(f"{gateway.admin_url}/metrics") as answer:
        shown = await answer.text()
    for text in (shown, json.dumps(decisions), gateway.log.read_text()):
        assert secret not in text
        assert KEY not in text


async def test_the_official_client_sees_the_errors_it_knows(gateway: Gateway) -> None:
    client = openai.AsyncOpenAI(api_key=KEY, base_url=f"{gateway.url}/v1", max_retries=0)
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="nobody", messages=[])
    assert missing.value.code == "model_not_found"
    assert missing.value.request_id
    with pytest.raises(openai.InternalServerError) as asleep:
        await client.chat.completions.create(model="asleep", messages=[])
    assert asleep.value.status_code == 503
    stranger = openai.AsyncOpenAI(api_key="sk-wrong", base_url=f"{gateway.url}/v1", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        await stranger.models.list()
