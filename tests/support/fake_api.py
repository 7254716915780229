"""A small API server for shell tests: lists by pages, watches with bookmarks, leases with conflicts, and faults on demand.

Unlike a mock, its resourceVersion moves with every write, and a watch replays from where it is asked to.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from aiohttp import web


class FakeApi:
    """Objects by path of their collection and key. `fault` may answer a request instead; None lets it through."""

    def __init__(self) -> None:
        self.version = 100
        self.objects: dict[str, dict[str, dict[str, Any]]] = {}
        self.log: list[tuple[int, str, str, dict[str, Any]]] = []
        """Version, event type, collection, object."""
        self.requests: list[tuple[str, str]] = []
        self.fault: Callable[[web.Request], web.Response | None] = lambda request: None
        self.silent = False
        """Watches deliver nothing, as over a dead connection."""
        self.oldest = 0
        """Watches from before this version are answered 410."""
        self.page = 2
        self.changed = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> FakeApi:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.changed.set()
        assert self._runner is not None
        await self._runner.cleanup()

    # -- what a test does to it

    def put(self, collection: str, name: str, namespace: str = "default", **parts: Any) -> dict[str, Any]:
        """Create or change an object behind everybody's back; watches show it."""
        self.version += 1
        held = self.objects.setdefault(collection, {})
        known = name in held
        metadata = {
            "name": name, "namespace": namespace, "uid": f"uid-{name}", "generation": 1,
            **parts.pop("metadata", {}), "resourceVersion": str(self.version),
        }  # fmt: skip
        held[name] = {"metadata": metadata, **parts}
        self._tell("MODIFIED" if known else "ADDED", collection, held[name])
        return held[name]

    def drop(self, collection: str, name: str, *, tell: bool = True) -> None:
        self.version += 1
        gone = self.objects[collection].pop(name)
        gone["metadata"]["resourceVersion"] = str(self.version)
        if tell:
            self._tell("DELETED", collection, gone)

    def _tell(self, kind: str, collection: str, obj: dict[str, Any]) -> None:
        self.log.append((self.version, kind, collection, json.loads(json.dumps(obj))))
        self.changed.set()
        self.changed = asyncio.Event()

    def fail_watches(self, collection: str, code: int) -> None:
        """Every watch of a collection gets an error event, again and again until `log` no longer has it."""
        self.version += 1
        self._tell("ERROR", collection, {"code": code, "reason": "Failed", "message": "as the test wants it"})

    def watches(self, collection: str) -> int:
        return sum(1 for method, path in self.requests if method == "WATCH" and path == collection)

    # -- answering

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        watch = request.query.get("watch") in ("1", "true")
        self.requests.append(("WATCH" if watch else request.method, path))
        faulty = self.fault(request)
        if faulty is not None:
            return faulty
        if watch:
            return await self._watch(request, path)
        collection, _, name = path.rpartition("/")
        if request.method == "GET" and collection in self.objects and path not in self.objects:
            found = self.objects[collection].get(name)
            return web.json_response(found) if found else status(404, "NotFound")
        if request.method == "GET":
            return self._list(request, path)
        if request.method == "POST":
            body = await request.json()
            if body["metadata"]["name"] in self.objects.get(path, {}):
                return status(409, "AlreadyExists")
            return web.json_response(self._store(path, body), status=201)
        known = self.objects.get(collection, {}).get(name)
        if known is None:
            return status(404, "NotFound")
        body = await request.json()
        wanted = body.get("metadata", {}).get("resourceVersion")
        if wanted not in (None, known["metadata"]["resourceVersion"]):
            return status(409, "Conflict")
        if request.method == "PATCH":
            body = {**known, **{k: {**known.get(k, {}), **v} for k, v in body.items() if isinstance(v, dict)}}
        return web.json_response(self._store(collection, body))

    def _store(self, collection: str, body: dict[str, Any]) -> dict[str, Any]:
        metadata = {k: v for k, v in body["metadata"].items() if k != "resourceVersion"}
        parts = {k: v for k, v in body.items() if k != "metadata"}
        return self.put(collection, metadata["name"], metadata=metadata, **parts)

    def _list(self, request: web.Request, path: str) -> web.Response:
        items = [self.objects[path][key] for key in sorted(self.objects.get(path, {}))]
        start = int(request.query.get("continue") or 0)
        limit = min(int(request.query.get("limit") or 500), self.page)
        more = start + limit < len(items)
        metadata = {"resourceVersion": str(self.version), "continue": str(start + limit) if more else ""}
        return web.json_response({"metadata": metadata, "items": items[start : start + limit]})

    async def _watch(self, request: web.Request, path: str) -> web.StreamResponse:
        since = int(request.query["resourceVersion"])
        if since < self.oldest:
            return status(410, "Expired")
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            changed = self.changed
            for at, kind, collection, obj in list(self.log):
                if collection == path and at > since and not self.silent:
                    await response.write(json.dumps({"type": kind, "object": obj}).encode() + b"\n")
                    since = at
            bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(max(since, self.version))}}}
            if not self.silent:
                since = max(since, self.version)
                await response.write(json.dumps(bookmark).encode() + b"\n")
            await changed.wait()
            if request.transport is None or request.transport.is_closing():
                return response


def status(code: int, reason: str) -> web.Response:
    return web.json_response(
        {"kind": "Status", "status": "Failure", "reason": reason, "message": reason, "code": code}, status=code
    )
