"""An HTTP server for weight files that misbehaves on demand: the hub's protocol, ranges or none, drops, refusals, slowness."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it arrived."""

    path: str
    range: str
    authorization: str


@dataclass
class Manners:
    """How the server behaves. Changed by tests while it runs."""

    ranges: bool = True
    length: bool = True
    drop_after: list[int] = field(default_factory=list)
    """Bytes of body after which each next file request breaks off; empty: none does."""
    statuses: list[int] = field(default_factory=list)
    """Status codes to answer file requests with first, one each."""
    token: str = ""
    """Needed for everything where set."""
    seconds_per_block: float = 0.0
    redirect_to: str = ""
    """Prefix that file requests are sent on to."""
    gate: threading.Event | None = None
    """Where set, bodies stop half way until it is."""
    page_size: int = 1000


class WeightsServer:
    """Files by path, and hub repositories by name (one commit each)."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.repositories: dict[str, tuple[str, dict[str, bytes]]] = {}
        self.manners = Manners()
        self.seen: list[Seen] = []
        self.bytes_sent = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add_repository(self, name: str, files: Mapping[str, bytes]) -> str:
        """Publish a repository; the commit is a hash of its content."""
        commit = hashlib.sha1(b"".join(path.encode() + content for path, content in sorted(files.items()))).hexdigest()
        self.repositories[name] = (commit, dict(files))
        return commit

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        authorization = request.headers.get("Authorization", "")
        self.seen.append(Seen(request.path, request.headers.get("Range", ""), authorization))
        if self.manners.token and authorization != f"Bearer {self.manners.token}":
            self._plain(request, 401, b"", {"X-Error-Message": "Invalid credentials in Authorization header"})
            return
        path = unquote(parts.path)
        if path.startswith("/api/models/"):
            self._api(request, path.removeprefix("/api/models/"), parts.query)
            return
        content = self._content(path)
        if content is None:
            self._plain(request, 404, b"", {"X-Error-Message": "Entry not found"})
        elif self.manners.redirect_to:
            self._plain(request, 302, b"", {"Location": self.manners.redirect_to + request.path})
        elif self.manners.statuses:
            self._plain(request, self.manners.statuses.pop(0), b"", {"Retry-After": "1"})
        else:
            self._file(request, content)

    def _content(self, path: str) -> bytes | None:
        if path in self.files:
            return self.files[path]
        for name, (commit, files) in self.repositories.items():
            prefix = f"/{name}/resolve/{commit}/"
            if path.startswith(prefix):
                return files.get(path.removeprefix(prefix))
        return None

    def _api(self, request: BaseHTTPRequestHandler, path: str, query: str) -> None:
        for name, (commit, files) in self.repositories.items():
            if path in (f"{name}/revision/main", f"{name}/revision/{commit}", f"{name}/revision/refs/pr/1"):
                self._plain(request, 200, json.dumps({"id": name, "sha": commit}).encode())
                return
            if path == f"{name}/tree/{commit}":
                start = int(query.partition("cursor=")[2] or 0)
                entries = [self._entry(file, content) for file, content in sorted(files.items())]
                page, rest = entries[start : start + self.manners.page_size], start + self.manners.page_size
                headers = {}
                if rest < len(entries):
                    headers["Link"] = f'<{self.url}/api/models/{path}?recursive=1&cursor={rest}>; rel="next"'
                self._plain(request, 200, json.dumps(page).encode(), headers)
                return
        self._plain(request, 404, b"", {"X-Error-Message": "Repository not found"})

    @staticmethod
    def _entry(path: str, content: bytes) -> dict[str, object]:
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        entry: dict[str, object] = {"type": "file", "path": path, "size": len(content), "oid": blob}
        if path.endswith((".safetensors", ".gguf")):
            entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
        return entry

    def _file(self, request: BaseHTTPRequestHandler, content: bytes) -> None:
        wanted = request.headers.get("Range", "")
        start, status, headers = 0, 200, {}
        body = content
        if wanted and self.manners.ranges:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start = int(first)
            if start >= len(content):
                self._plain(request, 416, b"", {"Content-Range": f"bytes */{len(content)}"})
                return
            end = min(int(last) if last else len(content) - 1, len(content) - 1)
            body, status = content[start : end + 1], 206
            headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
        self._send(request, status, body, headers)

    def _send(self, request: BaseHTTPRequestHandler, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        drop = self.manners.drop_after.pop(0) if self.manners.drop_after else None
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        if self.manners.length:
            request.send_header("Content-Length", str(len(body)))
        else:
            request.close_connection = True
        request.end_headers()
        limit = len(body) if drop is None else min(drop, len(body))
        try:
            step = 16384 if self.manners.gate is None else max(1, min(16384, len(body) // 4))
            for begin in range(0, limit, step):
                if self.manners.gate is not None and begin >= len(body) // 2:
                    self.manners.gate.wait(30)
                if self.manners.seconds_per_block:
                    time.sleep(self.manners.seconds_per_block)
                block = body[begin : min(begin + step, limit)]
                request.wfile.write(block)
                self.bytes_sent += len(block)
        except OSError:
            pass
        if drop is not None:
            request.close_connection = True

    @staticmethod
    def _plain(
        request: BaseHTTPRequestHandler, status: int, body: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        request.send_response(status)
        for name, value in (headers or {}).items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)


@contextmanager
def weights_server(prepare: Callable[[WeightsServer], None] | None = None) -> Iterator[WeightsServer]:
    """A running server; ended on leaving."""
    server = WeightsServer()
    if prepare is not None:
        prepare(server)
    server.start()
    try:
        yield server
    finally:
        server.stop()
