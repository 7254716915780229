"""A proxy between the operator and the API server that misbehaves on demand, while both go on.

    with FaultProxy(cluster.kubeconfig) as proxy:
        proxy.write_kubeconfig(path)           # for the operator: plain HTTP in, TLS with the administrator's rights out
        with proxy.fault(Refuse(503), path="/deployments"):
            ...                                # what asks for Deployments is refused
        proxy.cut_watches()

It speaks HTTP, so that it can tell a watch from a list and one event from another, and runs in a thread of its own, so that a
test may be written without asyncio.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import yaml
from aiohttp import web

Result = TypeVar("Result")

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "upgrade", "host", "content-length", "accept-encoding"}
REASONS = {
    401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired", 429: "TooManyRequests",
    500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout",
}  # fmt: skip
ALL = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as far as a fault chooses by it."""

    method: str
    path: str
    query: str
    agent: str

    @property
    def watch(self) -> bool:
        return "watch=" in self.query

    @property
    def write(self) -> bool:
        """Whether it changes something that is not a Lease."""
        return self.method != "GET" and "/leases" not in self.path

    def __str__(self) -> str:
        return f"{'WATCH' if self.watch else self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answered with an error of the API server's own shape."""

    status: int
    retry_after: int | None = None


@dataclass(frozen=True, slots=True)
class Delay:
    """Forwarded, but only after a while."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Silence:
    """Accepted and never answered; broken off when the fault ends. Streams that run already deliver nothing more."""


@dataclass(frozen=True, slots=True)
class Break:
    """Forwarded; the answer breaks off in the middle of its body."""

    after_bytes: int = 40


@dataclass(frozen=True, slots=True)
class Mute:
    """Watches keep running and swallow the events that `drops` chooses, bookmarks among them: they are lost for good."""

    drops: Callable[[Mapping[str, Any]], bool] = lambda event: True


@dataclass(frozen=True, slots=True)
class Hold:
    """Kept on the way until the fault ends, then forwarded, whether or not the client still waits."""


@dataclass(frozen=True, slots=True)
class Strike:
    """Something happens to the client at this very moment: before the API server has the request, or after it answered."""

    blow: Callable[[], None]
    after: bool = False


Fault = Refuse | Delay | Silence | Break | Mute | Hold | Strike


@dataclass(slots=True, eq=False)
class Rule:
    """A fault and which requests it hits. `hits` counts them."""

    fault: Fault
    path: str = ALL
    """A regular expression that is searched in `path?query`."""
    method: str = ALL
    """A regular expression: `PATCH|PUT`."""
    watch: bool | None = None
    write: bool | None = None
    agent: str = ALL
    """How the client's User-Agent begins."""
    skip: int = 0
    times: int | None = None
    hits: int = 0
    asked: list[Asked] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    """Of requests that were held or struck: what the API server answered in the end."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def concerns(self, asked: Asked) -> bool:
        return (
            re.search(self.path, f"{asked.path}?{asked.query}") is not None
            and re.fullmatch(self.method or ".*", asked.method) is not None
            and self.watch in (None, asked.watch)
            and self.write in (None, asked.write)
            and asked.agent.startswith(self.agent)
        )

    def take(self, asked: Asked) -> bool:
        """Whether it hits this request; counts it if it does."""
        if not self.concerns(asked) or (self.times is not None and self.hits >= self.times):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.hits += 1
        self.asked.append(asked)
        return True


@dataclass(slots=True, eq=False)
class Stream:
    """A watch that runs."""

    asked: Asked
    request: web.Request
    response: web.StreamResponse
    delivered: int = 0

    def abort(self) -> None:
        if self.request.transport is not None:
            self.request.transport.abort()

    async def expire(self) -> None:
        error = {"type": "ERROR", "object": status_object(410)}
        await self.response.write(json.dumps(error).encode() + b"\n")
        self.abort()


def status_object(status: int) -> dict[str, Any]:
    return {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": status,
        "reason": REASONS.get(status, ""), "message": f"injected: {status}",
    }  # fmt: skip


class FaultProxy:
    """Listens on a port of the loopback interface. `user`: as whom the API server and its audit log see what comes through it."""

    def __init__(self, kubeconfig: Path, user: str = "") -> None:
        self._upstream, self._tls = _connection(kubeconfig)
        self._user = user
        self._rules: tuple[Rule, ...] = ()
        self._streams: set[Stream] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None
        self.port = 0
        self.log: list[tuple[float, Asked]] = []
        """Every request, with the time at which it came."""

    # -- life

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        self._do(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _do(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _start(self) -> None:
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = int(self._runner.addresses[0][1])

    async def _stop(self) -> None:
        for stream in tuple(self._streams):
            stream.abort()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    def write_kubeconfig(self, path: Path) -> Path:
        """For a client that shall come through here. It needs no credentials."""
        document = {
            "apiVersion": "v1", "kind": "Config", "current-context": "proxy",
            "clusters": [{"name": "proxy", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "proxy", "user": {}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
        }  # fmt: skip
        path.write_text(json.dumps(document))
        return path

    # -- what a test does to it

    def add(self, fault: Fault, **choice: Any) -> Rule:
        """Begin a fault; see `Rule` for how to choose what it hits. Of the rules that fit a request the newest counts."""
        rule = Rule(fault, **choice)

        async def begin() -> None:
            self._rules = (rule, *self._rules)

        self._do(begin())
        return rule

    def end(self, rule: Rule) -> None:
        """End a fault: what is held goes on its way, what was silent is broken off."""

        async def finish() -> None:
            self._rules = tuple(other for other in self._rules if other is not rule)
            rule.ended.set()
            if isinstance(rule.fault, Silence):
                for stream in tuple(self._streams):
                    if rule.concerns(stream.asked):
                        stream.abort()  # it lost events: it may not go on as if nothing had been

        self._do(finish())

    def clear(self) -> None:
        """End all faults."""
        for rule in self._rules:
            self.end(rule)

    @contextmanager
    def fault(self, fault: Fault, **choice: Any) -> Iterator[Rule]:
        """A fault for as long as the block runs."""
        rule = self.add(fault, **choice)
        try:
            yield rule
        finally:
            self.end(rule)

    def cut_watches(self, path: str = ALL) -> int:
        """Break off every watch whose path fits; how many there were."""
        return self._do(self._each_stream(path, lambda stream: stream.abort()))

    def expire_watches(self, path: str = ALL) -> int:
        """Every watch whose path fits is told that its resourceVersion is gone (410), and ended."""

        async def expire() -> int:
            chosen = [s for s in self._streams if re.search(path, s.asked.path)]
            for stream in chosen:
                await stream.expire()
            return len(chosen)

        return self._do(expire())

    async def _each_stream(self, path: str, act: Callable[[Stream], None]) -> int:
        chosen = [s for s in self._streams if re.search(path, s.asked.path)]
        for stream in chosen:
            act(stream)
        return len(chosen)

    def watches(self, path: str = ALL, agent: str = ALL) -> int:
        """How many watches run."""
        chosen = [s for s in tuple(self._streams) if re.search(path, s.asked.path) and s.asked.agent.startswith(agent)]
        return len(chosen)

    def running(self) -> list[str]:
        """The watches that run, by path and client."""
        return [f"{s.asked.path} ({s.asked.agent})" for s in tuple(self._streams)]

    def asked_since(self, since: float, path: str = ALL, *, watch: bool | None = None) -> list[Asked]:
        """Requests after a moment of `time.monotonic()`."""
        return [a for at, a in self.log if at >= since and watch in (None, a.watch) and re.search(path, a.path)]

    # -- between

    def _rule(self, asked: Asked) -> Rule | None:
        return next((r for r in self._rules if not isinstance(r.fault, Mute) and r.take(asked)), None)

    def _swallowed(self, asked: Asked, line: bytes) -> bool:
        for rule in self._rules:
            if isinstance(rule.fault, Silence) and rule.concerns(asked):
                return True
            if isinstance(rule.fault, Mute) and rule.concerns(asked) and rule.fault.drops(json.loads(line)):
                rule.hits += 1
                return True
        return False

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        agent = request.headers.get("User-Agent", "")
        asked = Asked(request.method, request.path, request.query_string, agent)
        self.log.append((time.monotonic(), asked))
        body = await request.read()
        rule = self._rule(asked)
        fault = rule.fault if rule is not None else None
        if rule is None:
            return await self._forward(request, asked, body)
        match fault:
            case Refuse(status, retry_after):
                headers = {"Retry-After": str(retry_after)} if retry_after is not None else {}
                return web.json_response(status_object(status), status=status, headers=headers)
            case Delay(seconds):
                await asyncio.sleep(seconds)
                return await self._forward(request, asked, body)
            case Silence():
                await rule.ended.wait()
                return _aborted(request)
            case Break(after_bytes):
                return await self._forward(request, asked, body, limit=after_bytes)
            case Hold():
                return await asyncio.shield(asyncio.create_task(self._late(request, asked, body, rule)))
            case Strike(blow, after):
                if not after:
                    blow()
                    return _aborted(request)
                answer = await self._forward(request, asked, body)
                rule.answers.append(answer.status)
                blow()
                return _aborted(request)
        raise AssertionError(fault)

    async def _late(self, request: web.Request, asked: Asked, body: bytes, rule: Rule) -> web.StreamResponse:
        await rule.ended.wait()
        answer = await self._forward(request, asked, body)
        rule.answers.append(answer.status)
        return answer

    async def _forward(
        self, request: web.Request, asked: Asked, body: bytes, limit: int | None = None
    ) -> web.StreamResponse:
        assert self._session is not None
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP_BY_HOP}
        headers["Accept-Encoding"] = "identity"  # events are told apart by reading them
        if self._user:
            headers |= {"Impersonate-User": self._user, "Impersonate-Group": "system:masters"}
        url = f"{self._upstream}{request.path_qs}"
        try:
            async with self._session.request(
                request.method, url, headers=headers, data=body or None, allow_redirects=False
            ) as answer:
                kept = {k: v for k, v in answer.headers.items() if k.lower() not in HOP_BY_HOP}
                if asked.watch and answer.status == 200 and limit is None:
                    return await self._relay(request, asked, answer, kept)
                data = await (answer.content.readany() if asked.watch and limit is not None else answer.read())
                if limit is None:
                    return web.Response(status=answer.status, headers=kept, body=data)
                return await self._broken(request, answer.status, kept, data, limit)
        except aiohttp.ClientError:
            return _aborted(request)

    async def _broken(
        self, request: web.Request, status: int, headers: Mapping[str, str], data: bytes, limit: int
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=status, headers={**headers, "Content-Length": str(len(data))})
        await response.prepare(request)
        await response.write(data[: min(limit, len(data) // 2)])
        await asyncio.sleep(0.05)  # what was written is to arrive
        return _aborted(request)

    async def _relay(
        self, request: web.Request, asked: Asked, answer: aiohttp.ClientResponse, headers: Mapping[str, str]
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers=headers)
        await response.prepare(request)
        stream = Stream(asked, request, response)
        self._streams.add(stream)
        partial = b""
        try:
            async for chunk in answer.content.iter_any():
                *lines, partial = (partial + chunk).split(b"\n")
                for line in lines:
                    if not self._swallowed(asked, line):
                        await response.write(line + b"\n")
                        stream.delivered += 1
                if request.transport is None or request.transport.is_closing():
                    break
        except (aiohttp.ClientError, ConnectionError):
            pass
        finally:
            self._streams.discard(stream)
        return response


def _aborted(request: web.Request) -> web.StreamResponse:
    """Break the connection off: whatever is returned from here reaches nobody."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=502)


def _connection(kubeconfig: Path) -> tuple[str, ssl.SSLContext]:
    """Address and TLS of the current context, which must name its certificates by files."""
    document = yaml.safe_load(kubeconfig.read_text())
    chosen = next(c for c in document["contexts"] if c["name"] == document["current-context"])["context"]
    cluster = next(c for c in document["clusters"] if c["name"] == chosen["cluster"])["cluster"]
    user = next(u for u in document["users"] if u["name"] == chosen["user"])["user"]
    tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
    tls.load_cert_chain(user["client-certificate"], user["client-key"])
    return str(cluster["server"]).rstrip("/"), tls
