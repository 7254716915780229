"""Many requests of every kind, and a gateway that is afterwards what it was before.

Some thousand in the tier; `make soak` sends 200,000.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import psutil

from tests.gateway.harness import (
    CHAT,
    DONE,
    STORY,
    STREAM,
    Engine,
    Gateway,
    eventually,
    model,
    routes,
    run_engine,
    run_gateway,
    tells_story,
    variant,
)

REQUESTS = 200_000 if os.environ.get("SOAK") else 5_000
WARM_UP = 2_000
"""Requests before the first look at the memory: buffers, connections and the last decisions fill up."""
CLIENTS = 24
GROWTH_BYTES = 6 << 20
"""What an allocator may add by chance. A leak of 100 bytes a request is 20 MB in the long run."""
WHOLE = b"".join((*STORY, DONE))


async def one(gateway: Gateway, random: Random) -> str:
    """A request of some kind; which it was."""
    kind = random.choices(
        ("stream", "whole", "gathered", "leaves", "no key", "no JSON", "no model", "large"), (40, 30, 10, 8, 4, 3, 3, 2)
    )[0]
    path = "/v1/chat/completions"
    match kind:
        case "stream":
            async with gateway.post(path, STREAM) as answer:
                assert (answer.status, await answer.read()) == (200, WHOLE)
        case "whole" | "gathered" | "large":
            body: dict[str, Any] = {**CHAT, "model": "gathered"} if kind == "gathered" else CHAT
            status, value, _ = await gateway.ask(path, {**body, "x": "x" * 300_000} if kind == "large" else body)
            assert status == 200
            assert value["choices"][0]["message"]["content"].startswith("Once upon a time")
        case "leaves":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(random.uniform(0, 0.01)), gateway.post(path, STREAM) as answer:
                    await answer.read()
        case "no key":
            assert (await gateway.ask(path, CHAT, key=f"sk-{random.random()}"))[0] == 401
        case "no JSON":
            assert (await gateway.ask(path, b'{"model":'))[0] == 400
        case "no model":
            assert (await gateway.ask(path, {**CHAT, "model": f"m-{random.random()}"}))[0] == 404
    return kind


async def send(gateway: Gateway, engine: Engine, requests: int, random: Random) -> None:
    left = requests
    began = said = time.monotonic()

    async def client() -> None:
        nonlocal left, said
        while left > 0:
            left -= 1
            with contextlib.suppress(aiohttp.ServerDisconnectedError):
                await one(gateway, random)
            if len(engine.bodies) > 1000:
                for kept in (engine.bodies, engine.headers, engine.paths):
                    del kept[:-100]
            if time.monotonic() - said > 15:
                said = time.monotonic()
                rss = psutil.Process(gateway.process.pid).memory_info().rss / 1e6
                print(f"  {requests - left} of {requests} requests, {said - began:.0f} s, {rss:.1f} MB", flush=True)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))


async def test_memory_stays_flat_and_nothing_is_left_behind(tmp_path: Path) -> None:
    random = Random(11)
    async with run_engine(tells_story()) as engine:
        document = routes(
            model("small", variant("v", engine.address), served=["chat-small"]),
            model("gathered", variant("g", engine.address, engine="LlamaCpp")),
        )
        async with run_gateway(tmp_path, document) as gateway:
            process = psutil.Process(gateway.process.pid)
            await send(gateway, engine, WARM_UP, random)
            before, files = process.memory_info().rss, process.num_fds()
            await send(gateway, engine, REQUESTS - WARM_UP, random)

            async def quiet() -> bool:
                return await gateway.metric("inference_fleet_requests_in_flight") == 0

            await eventually(quiet)
            after = process.memory_info().rss
            print(f"  {REQUESTS} requests: {before / 1e6:.1f} MB, then {after / 1e6:.1f} MB")
            assert after - before < GROWTH_BYTES
            assert process.num_fds() <= files + CLIENTS
            assert await gateway.metric("inference_fleet_requests_total", code="500") == 0
            assert await gateway.metric("inference_fleet_requests_total", code="502") == 0
            assert "Traceback" not in gateway.log.read_text()
