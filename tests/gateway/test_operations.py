"""The real process while its world changes: endpoints come and go, routes and keys change, it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.gateway.harness import (
    CHAT,
    DONE,
    KEY,
    STORY,
    STREAM,
    Engine,
    Gateway,
    answers,
    drops,
    eventually,
    free_port,
    model,
    routes,
    run_engine,
    run_gateway,
    tells_story,
    variant,
    write_key,
)


@contextlib.asynccontextmanager
async def engines(*names: str) -> AsyncIterator[dict[str, Engine]]:
    """Engines that answer with their name."""
    async with contextlib.AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(run_engine(answers({"engine": name}))) for name in names}


async def who(gateway: Gateway, times: int = 1, **body: object) -> list[str]:
    found = []
    for _ in range(times):
        status, answer, _ = await gateway.ask("/v1/chat/completions", {**CHAT, **body})
        assert status == 200, answer
        found.append(answer["engine"])
    return found


async def test_a_held_request_is_served_when_an_endpoint_appears(tmp_path: Path) -> None:
    async with (
        engines("a") as one,
        run_gateway(tmp_path, routes(model("small", variant("v"), served=["chat-small"]))) as gateway,
    ):
        asked = asyncio.create_task(gateway.ask("/v1/chat/completions", CHAT))

        async def held() -> bool:
            return await gateway.metric("inference_fleet_requests_held", model="small") == 1

        await eventually(held)
        assert await gateway.metric("inference_fleet_requests_in_flight", model="small") == 1
        gateway.write_routes(routes(model("small", variant("v", one["a"].address), served=["chat-small"])))
        status, answer, _ = await asked
        assert (status, answer["engine"]) == (200, "a")
        assert await gateway.metric("inference_fleet_requests_held", model="small") == 0


async def test_a_held_request_whose_client_leaves_is_forgotten(tmp_path: Path) -> None:
    async with run_gateway(
        tmp_path, routes(model("small", variant("v"), served=["chat-small"]), holdSeconds=60)
    ) as gateway:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await gateway.ask("/v1/chat/completions", CHAT)

        async def gone() -> bool:
            return await gateway.metric("inference_fleet_requests_total", code="499") == 1

        await eventually(gone)
        assert await gateway.metric("inference_fleet_requests_held") == 0
        assert await gateway.metric("inference_fleet_objective_within_total") == 0
        assert await gateway.metric("inference_fleet_objective_requests_total", objective="whole") == 1


async def test_an_engine_that_is_not_there_costs_no_request(tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    async with engines("a", "loading", "dying") as three:
        three["loading"].behaviour = answers({"error": {"message": "Loading model"}}, status=503)
        three["dying"].behaviour = drops()
        for bad in (nobody, three["loading"].address, three["dying"].address):
            folder = tmp_path / bad
            folder.mkdir()
            document = routes(model("small", variant("v", three["a"].address, bad), served=["chat-small"]))
            async with run_gateway(folder, document) as gateway:
                assert await who(gateway, 20) == ["a"] * 20
                assert await gateway.metric("inference_fleet_upstream_attempts_total", outcome="answered") == 20


async def test_a_restarted_engine_is_used_again(tmp_path: Path) -> None:
    port = free_port()
    document = routes(model("small", variant("v", f"127.0.0.1:{port}"), served=["chat-small"]))
    async with run_gateway(tmp_path, document) as gateway:
        for name in ("a", "b"):
            async with run_engine(answers({"engine": name}), port):
                assert await who(gateway, 3) == [name] * 3
        assert (await gateway.ready())[1]["models"] == {"small": {"endpoints": 1}}


async def test_weights_draining_pods_and_models_change_while_it_runs(tmp_path: Path) -> None:
    async with engines("a", "b") as two:
        a, b = two["a"].address, two["b"].address

        def split(left: int, right: int, **changes: object) -> dict[str, object]:
            return routes(
                model("small", variant("va", a, weight=left), variant("vb", b, weight=right), served=["chat-small"]),
                **changes,
            )

        async with run_gateway(tmp_path, split(100, 0)) as gateway:
            assert set(await who(gateway, 10)) == {"a"}
            await gateway.use_routes(split(0, 100))
            assert set(await who(gateway, 10)) == {"b"}
            await gateway.use_routes(split(50, 50))
            assert set(await who(gateway, 30)) == {"a", "b"}
            await gateway.use_routes(split(50, 50, drain=[b]))
            assert set(await who(gateway, 20)) == {"a"}
            assert (await gateway.ready())[1]["models"] == {"small": {"endpoints": 1}}
            revision = (await gateway.ready())[1]["revision"]

            gateway.routes_file.write_text('{"revision": "broken"')

            async def refused() -> bool:
                return await gateway.metric("inference_fleet_gateway_channel_errors_total", resource="routes") >= 1

            await eventually(refused)
            assert (await gateway.ready())[1]["revision"] == revision
            gateway.routes_file.unlink()
            assert set(await who(gateway, 5)) == {"a"}

            await gateway.use_routes(routes(model("new", variant("vb", b), served=["chat-new"])))
            assert (await gateway.ask("/v1/chat/completions", CHAT))[0] == 404
            assert await who(gateway, model="chat-new") == ["b"]


async def test_what_is_in_flight_on_a_draining_pod_goes_on(tmp_path: Path) -> None:
    async with run_engine(tells_story(gap_seconds=0.3)) as engine:

        def document(**changes: object) -> dict[str, object]:
            return routes(model("small", variant("v", engine.address), served=["chat-small"]), holdSeconds=0, **changes)

        async with run_gateway(tmp_path, document()) as gateway:
            async with gateway.post("/v1/chat/completions", STREAM) as answer:
                first = await answer.content.readuntil(b"\n\n")
                await gateway.use_routes(document(drain=[engine.address]))
                status, _, headers = await gateway.ask("/v1/chat/completions", CHAT)
                assert (status, headers["Retry-After"]) == (503, "10")
                assert first + await answer.read() == b"".join((*STORY, DONE))
            assert len(engine.bodies) == 1


async def test_keys_change_while_it_runs(tmp_path: Path) -> None:
    async with engines("a") as one:
        document = routes(model("small", variant("v", one["a"].address), served=["chat-small"]))
        async with run_gateway(tmp_path, document) as gateway:
            assert (await gateway.ask("/v1/chat/completions", CHAT, key="sk-new"))[0] == 401
            write_key(tmp_path / "keys", "beta", "sk-new")

            async def status(key: str) -> int:
                return int((await gateway.ask("/v1/chat/completions", CHAT, key=key))[0])

            async def known() -> bool:
                return await status("sk-new") == 200

            await eventually(known)
            assert await gateway.metric("inference_fleet_requests_total", tenant="beta", code="200") >= 1
            (tmp_path / "keys" / "acme").unlink()

            async def unknown() -> bool:
                return await status(KEY) == 401

            await eventually(unknown)


async def test_without_a_key_directory_nobody_has_to_authenticate(tmp_path: Path) -> None:
    async with engines("a") as one:
        document = routes(model("small", variant("v", one["a"].address), served=["chat-small"]))
        async with run_gateway(tmp_path, document, keys=False) as gateway:
            assert (await gateway.ask("/v1/chat/completions", CHAT, key=None))[0] == 200
            assert await gateway.metric("inference_fleet_requests_total", tenant="anonymous") == 1


async def test_sigterm_cuts_nobody_off(tmp_path: Path) -> None:
    async with run_engine(tells_story(gap_seconds=0.4)) as engine:
        document = routes(
            model("small", variant("v", engine.address), served=["chat-small"]),
            model("gathered", variant("w", engine.address, engine="LlamaCpp")),
        )
        async with run_gateway(tmp_path, document, "--accept-seconds", "1") as gateway:

            async def stream() -> bytes:
                async with gateway.post("/v1/chat/completions", STREAM) as answer:
                    return bytes(await answer.read())

            async def whole() -> int:
                return int((await gateway.ask("/v1/chat/completions", {**CHAT, "model": "gathered"}))[0])

            streams = [asyncio.create_task(stream()) for _ in range(20)]
            wholes = [asyncio.create_task(whole()) for _ in range(5)]
            # Idle, and must not keep the process from ending.
            _, writer = await asyncio.open_connection(*gateway.url.removeprefix("http://").split(":"))

            async def all_asked() -> bool:
                return len(engine.bodies) == 25

            await eventually(all_asked)
            began = time.monotonic()
            gateway.terminate()

            async def not_ready() -> bool:
                status, body = await gateway.ready()
                return status == 503 and body["ready"] is False

            await eventually(not_ready)
            # For a little while more new requests still come in, from proxies that have not heard yet.
            async with gateway.post("/v1/chat/completions", STREAM) as answer:
                assert answer.headers["Connection"] == "close"
                assert await answer.read() == b"".join((*STORY, DONE))
            assert await asyncio.gather(*streams) == [b"".join((*STORY, DONE))] * 20
            assert await asyncio.gather(*wholes) == [200] * 5
            async with asyncio.timeout(20):
                assert await gateway.process.wait() == 0
            assert time.monotonic() - began >= 1
            assert "stopped, 0 requests were cut" in gateway.log.read_text()
            with pytest.raises(aiohttp.ClientConnectionError):
                await gateway.ask("/v1/chat/completions", CHAT)
            writer.close()


async def test_a_request_that_does_not_end_is_cut_at_the_bound(tmp_path: Path) -> None:
    async with run_engine(tells_story(gap_seconds=20)) as engine:
        document = routes(model("small", variant("v", engine.address), served=["chat-small"]))
        async with run_gateway(tmp_path, document, "--accept-seconds", "0", "--drain-seconds", "1") as gateway:
            asked = asyncio.create_task(gateway.ask("/v1/chat/completions", STREAM))

            async def arrived() -> bool:
                return len(engine.bodies) == 1

            await eventually(arrived)
            gateway.terminate()
            async with asyncio.timeout(10):
                assert await gateway.process.wait() == 0
            with pytest.raises(aiohttp.ClientError):
                await asked


def make_certificate(directory: Path, name: str) -> None:
    directory.mkdir(exist_ok=True)
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name},IP:127.0.0.1",
         "-keyout", directory / "tls.key.new", "-out", directory / "tls.crt.new"],
        check=True, capture_output=True,
    )  # fmt: skip
    for file in ("tls.crt", "tls.key"):
        (directory / f"{file}.new").rename(directory / file)


async def test_tls_and_a_renewed_certificate(tmp_path: Path) -> None:
    tls = tmp_path / "tls"
    make_certificate(tls, "first.example")
    async with run_engine(tells_story()) as engine:
        document = routes(model("small", variant("v", engine.address), served=["chat-small"]))
        async with run_gateway(tmp_path, document, "--tls-directory", str(tls), scheme="https") as gateway:
            host, port = gateway.url.removeprefix("https://").split(":")

            async def trusted() -> bool:
                context = ssl.create_default_context(cafile=tls / "tls.crt")
                with contextlib.suppress(ssl.SSLError):
                    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
                    writer.close()
                    return True
                return False

            assert await trusted()
            async with gateway.post("/v1/chat/completions", STREAM) as answer:
                assert await answer.read() == b"".join((*STORY, DONE))
            (tls / "tls.key").write_text("half a renewal")
            await asyncio.sleep(0.5)
            assert (await gateway.ask("/v1/chat/completions", CHAT))[0] == 200
            make_certificate(tls, "second.example")
            await eventually(trusted)


async def test_two_replicas_need_nothing_of_each_other(tmp_path: Path) -> None:
    async with engines("a", "b") as two:
        document = routes(model("small", variant("v", *(one.address for one in two.values())), served=["chat-small"]))
        folders = [tmp_path / "one", tmp_path / "two"]
        for folder in folders:
            folder.mkdir()
        async with run_gateway(folders[0], document) as first, run_gateway(folders[1], document) as second:
            found = await asyncio.gather(who(first, 20), who(second, 20))
            assert {name for names in found for name in names} == {"a", "b"}


async def test_a_gateway_without_routes_is_not_ready(tmp_path: Path) -> None:
    async with (
        run_gateway(tmp_path, routes(), keys=False) as ready,
        ready.session.get(f"{ready.admin_url}/ready") as answer,
    ):
        assert answer.status == 200
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "routes.json").write_text("{}")
    async with run_gateway(folder, {"policy": "chat"}, keys=False) as gateway:
        status, body = await gateway.ready()
        assert (status, body["ready"], body["revision"]) == (503, False, "")
        assert (await gateway.ask("/v1/chat/completions", CHAT))[0] == 503
