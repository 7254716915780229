"""The real process in front of the real llama.cpp, by OpenAI's own client, unchanged."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

from tests.gateway.harness import KEY, TENANT, Gateway, eventually, free_port, model, routes, run_gateway, variant
from tests.support.llama import LlamaServer, llama_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGES: list[Any] = [{"role": "user", "content": "Say hello to the world in one short sentence."}]
SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "colour",
        "schema": {
            "type": "object",
            "properties": {"colour": {"type": "string", "enum": ["red", "blue"]}},
            "required": ["colour"],
            "additionalProperties": False,
        },
    },
}
LONG: dict[str, Any] = {
    "model": "chat-small",
    "messages": [{"role": "user", "content": "Tell a very long story."}],
    "max_tokens": 600,
    "ignore_eos": True,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("llama")
    with llama_server("-c", "4096", "-np", "4", "--metrics", "--alias", "small", folder=folder) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(server: LlamaServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("gateway")
    address = server.url.removeprefix("http://")
    document = routes(
        model("small", variant("small-1", address, engine="LlamaCpp"), served=["chat-small"], default=True)
    )
    async with run_gateway(folder, document) as gateway:
        yield gateway


@pytest.fixture
def client(gateway: Gateway) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key=KEY, base_url=f"{gateway.url}/v1", max_retries=0)


@pytest.fixture
def direct(server: LlamaServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="none", base_url=f"{server.url}/v1", max_retries=0)


def shape(value: Any) -> Any:
    """Names and kinds, without what differs from run to run."""
    if isinstance(value, dict):
        return {key: shape(part) for key, part in value.items()}
    if isinstance(value, list):
        return [shape(part) for part in value]
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__


async def raw(client: openai.AsyncOpenAI, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await client.post(path, cast_to=object, body=body)
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/chat/completions", {"messages": MESSAGES, "max_tokens": 12}),
        ("/chat/completions", {"messages": MESSAGES, "max_tokens": 4, "logprobs": True, "top_logprobs": 2}),
        ("/chat/completions", {"messages": MESSAGES, "max_tokens": 12, "stop": ["world"]}),
        ("/chat/completions", {"messages": MESSAGES, "max_tokens": 40, "response_format": SCHEMA}),
        ("/completions", {"prompt": "Once upon", "max_tokens": 8}),
        ("/completions", {"prompt": "Once upon", "max_tokens": 4, "logprobs": 2}),
    ],
    ids=["chat", "chat with logprobs", "chat with a stop word", "chat with a schema", "text", "text with logprobs"],
)
async def test_a_gathered_answer_is_the_engines_own(
    client: openai.AsyncOpenAI, direct: openai.AsyncOpenAI, path: str, body: dict[str, Any]
) -> None:
    body = {**body, "model": "small", "temperature": 0, "seed": 1, "cache_prompt": False}
    want, got = await raw(direct, path, body), await raw(client, path, body)
    assert shape(got) == shape(want)
    for name in ("choices", "usage", "object", "model"):
        assert got[name] == want[name]


async def test_several_choices_and_several_prompts(client: openai.AsyncOpenAI) -> None:
    chat = await client.chat.completions.create(model="chat-small", messages=MESSAGES, max_tokens=3, n=2)
    assert [choice.index for choice in chat.choices] == [0, 1]
    assert chat.usage is not None
    assert chat.usage.completion_tokens == 6
    text = await client.completions.create(model="chat-small", prompt=["Once", "Two words"], max_tokens=3)
    assert [(choice.index, choice.finish_reason) for choice in text.choices] == [(0, "length"), (1, "length")]
    assert text.usage is not None
    assert text.usage.completion_tokens == 6


async def test_a_stream_says_what_the_answer_says(client: openai.AsyncOpenAI, gateway: Gateway) -> None:
    kinds = {"temperature": 0, "max_tokens": 12}
    whole = await client.chat.completions.create(model="chat-small", messages=MESSAGES, **kinds)  # type: ignore[call-overload]
    before = await gateway.metric("inference_fleet_tokens_total", kind="completion", tenant=TENANT)
    parts, finish, usage = [], [], []
    stream = await client.chat.completions.create(model="chat", messages=MESSAGES, stream=True, **kinds)  # type: ignore[call-overload]
    async for part in stream:
        usage.append(part.usage)
        parts += [choice.delta.content or "" for choice in part.choices]
        finish += [choice.finish_reason for choice in part.choices if choice.finish_reason]
    assert "".join(parts) == whole.choices[0].message.content
    assert finish == [whole.choices[0].finish_reason]
    assert set(usage) == {None}
    after = await gateway.metric("inference_fleet_tokens_total", kind="completion", tenant=TENANT)
    assert after == before + whole.usage.completion_tokens
    assert (await gateway.decisions())[0]["firstTokenMilliseconds"] > 0


async def test_a_stream_with_its_counts(client: openai.AsyncOpenAI) -> None:
    stream = await client.completions.create(
        model="chat-small", prompt="Once", max_tokens=5, stream=True, stream_options={"include_usage": True}
    )
    counts = [part.usage.completion_tokens async for part in stream if part.usage]
    assert counts == [5]


async def test_bytes_of_characters_come_whole(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="chat-small", stream=True, max_tokens=24,
        messages=[{"role": "user", "content": "Repeat: 🎈 ünïcødé 漢字 🎈"}],
    )  # fmt: skip
    text = "".join([choice.delta.content or "" async for part in stream for choice in part.choices])
    assert "�" not in text


async def test_errors_of_the_engine_reach_the_client(client: openai.AsyncOpenAI) -> None:
    long: list[Any] = [{"role": "user", "content": "word " * 3000}]
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="context size"):
            await client.chat.completions.create(model="chat-small", messages=long, stream=stream)
    with pytest.raises(openai.BadRequestError, match="embeddings"):
        await client.embeddings.create(model="chat-small", input="x")


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [one.id async for one in client.models.list()] == ["chat-small"]


def active(server: LlamaServer) -> tuple[float, float]:
    """Requests that llama.cpp works on, and how often it has decoded."""
    text = server.get("/metrics")
    values = dict(re.findall(r"^llamacpp:(\w+) (\S+)$", text, re.MULTILINE))
    return float(values["requests_processing"]) + float(values["requests_deferred"]), float(values["n_decode_total"])


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_stops_the_engine(
    client: openai.AsyncOpenAI, gateway: Gateway, server: LlamaServer, stream: bool
) -> None:
    aborted = await gateway.metric("inference_fleet_requests_total", code="499")
    before = active(server)[1]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2), gateway.post("/v1/chat/completions", {**LONG, "stream": stream}) as answer:
            await answer.read()
    # Not looked at faster than once a second: llama.cpp would not notice then, whatever the gateway does.
    for _ in range(5):
        await asyncio.sleep(1)
        processing, decoded = await asyncio.to_thread(active, server)
        if not processing:
            break
    assert processing == 0
    assert 0 < decoded - before < 590
    await asyncio.sleep(1)
    assert (await asyncio.to_thread(active, server))[1] == decoded
    assert await gateway.metric("inference_fleet_requests_total", code="499") == aborted + 1


async def test_a_client_that_left_after_the_first_token_is_judged_by_that_alone(gateway: Gateway) -> None:
    async def counts(name: str) -> dict[str, float]:
        return {
            objective: await gateway.metric(f"inference_fleet_objective_{name}_total", objective=objective)
            for objective in ("first-token", "per-token", "whole")
        }

    judged, within = await counts("requests"), await counts("within")
    async with gateway.post("/v1/chat/completions", {**LONG, "stream": True}) as answer:
        while b'"content":"' not in await answer.content.readuntil(b"\n\n"):
            pass
        answer.close()

    async def entered() -> bool:
        return (await counts("requests"))["first-token"] == judged["first-token"] + 1

    await eventually(entered)
    assert await counts("requests") == {**judged, "first-token": judged["first-token"] + 1}
    assert await counts("within") == {**within, "first-token": within["first-token"] + 1}


async def test_embeddings(tmp_path: Path) -> None:
    with llama_server("-c", "512", "--alias", "small", "--embeddings", "--pooling", "mean", folder=tmp_path) as server:
        address = server.url.removeprefix("http://")
        document = routes(model("small", variant("small-1", address, engine="LlamaCpp"), served=["embed"]))
        async with run_gateway(tmp_path, document) as gateway:
            client = openai.AsyncOpenAI(api_key=KEY, base_url=f"{gateway.url}/v1", max_retries=0)
            answer = await client.embeddings.create(model="embed", input=["a cat", "a dog"])
            assert [len(one.embedding) for one in answer.data] == [576, 576]
            assert await gateway.metric("inference_fleet_tokens_total", kind="prompt") == answer.usage.prompt_tokens > 0


async def test_requests_are_held_while_an_engine_loads(tmp_path: Path) -> None:
    port = free_port()
    document = routes(
        model("small", variant("small-1", f"127.0.0.1:{port}", engine="LlamaCpp"), served=["chat-small"]),
        holdSeconds=60,
    )
    async with run_gateway(tmp_path, document) as gateway:
        asked = asyncio.create_task(
            gateway.ask("/v1/chat/completions", {"model": "chat-small", "messages": MESSAGES, "max_tokens": 2})
        )
        await asyncio.sleep(0.5)
        with llama_server("-c", "512", "--alias", "small", "--port", str(port), folder=tmp_path, wait=False):
            status, answer, _ = await asked
        assert status == 200, json.dumps(answer)
