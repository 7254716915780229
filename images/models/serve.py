#!/usr/bin/env python3
"""Gives out the files of a folder over HTTP, as a model hub's file store does: GET, HEAD, one byte range, entity tags.

Only Python's standard library, nothing is written, any user may run it. `FILE.sha256` beside a file (as `sha256sum`
writes it) becomes its entity tag, so a download that resumes after a change is noticed.
"""

from __future__ import annotations

import argparse
import email.utils
import os
import re
import signal
import sys
import urllib.parse
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO

RANGE = re.compile(r"bytes=(\d*)-(\d*)")
COPY_BYTES = 1 << 18


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """First and last byte that a Range header asks for; None where all of the file is to be sent.

    Several ranges, or ones not understood, mean all of the file, which HTTP allows. Raises ValueError for a range that
    holds none of the file's bytes.
    """
    match = RANGE.fullmatch(header.strip()) if header else None
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if first == "":  # the last bytes, as many as asked for
        if int(last) == 0 or size == 0:
            raise ValueError(header)
        return max(0, size - int(last)), size - 1
    if last and int(last) < int(first):
        return None
    if int(first) >= size:
        raise ValueError(header)
    return int(first), min(int(last) if last else size - 1, size - 1)


def entity_tag(path: Path) -> str:
    try:
        return f'"{path.with_name(f"{path.name}.sha256").read_text().split()[0]}"'
    except (OSError, IndexError):
        facts = path.stat()
        return f'"{facts.st_size:x}-{facts.st_mtime_ns:x}"'


class Files(BaseHTTPRequestHandler):
    """One connection. The folder is `server.root`."""

    protocol_version = "HTTP/1.1"
    server_version = "models"
    sys_version = ""
    server: Server

    def do_GET(self) -> None:
        self.answer(body=True)

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def answer(self, body: bool) -> None:
        name = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        if name == "/healthz":
            self.send_text("ok\n", body)
            return
        path = (self.server.root / name.lstrip("/")).resolve()
        if not path.is_relative_to(self.server.root):
            self.refuse(HTTPStatus.NOT_FOUND)
        elif path.is_dir():
            self.send_text("".join(f"{file.name}\n" for file in sorted(path.iterdir())), body)
        elif path.is_file():
            with path.open("rb") as file:
                self.send_file(path, file, body)
        else:
            self.refuse(HTTPStatus.NOT_FOUND)

    def send_file(self, path: Path, file: BinaryIO, body: bool) -> None:
        facts = os.fstat(file.fileno())
        tag, changed = entity_tag(path), email.utils.formatdate(facts.st_mtime, usegmt=True)
        if tag in self.headers.get("If-None-Match", ""):
            self.send_response(HTTPStatus.NOT_MODIFIED)
            self.send_header("ETag", tag)
            self.end_headers()
            return
        wanted = self.headers.get("Range")
        if self.headers.get("If-Range", tag) not in (tag, changed):
            wanted = None  # the file is another one than the client has the start of
        try:
            part = byte_range(wanted, facts.st_size)
        except ValueError:
            self.refuse(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, {"Content-Range": f"bytes */{facts.st_size}"})
            return
        first, last = part or (0, facts.st_size - 1)
        self.send_response(HTTPStatus.PARTIAL_CONTENT if part else HTTPStatus.OK)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(last - first + 1))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", tag)
        self.send_header("Last-Modified", changed)
        if part:
            self.send_header("Content-Range", f"bytes {first}-{last}/{facts.st_size}")
        self.end_headers()
        if body:
            file.seek(first)
            self.copy(file, last - first + 1)

    def copy(self, file: BinaryIO, count: int) -> None:
        while count > 0:
            data = file.read(min(COPY_BYTES, count))
            if not data:  # the file became shorter; the length that was promised cannot be kept
                self.close_connection = True
                return
            self.wfile.write(data)
            count -= len(data)

    def send_text(self, text: str, body: bool, status: HTTPStatus = HTTPStatus.OK) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def refuse(self, status: HTTPStatus, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": "0"}.items():
            self.send_header(name, value)
        self.end_headers()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], root: Path) -> None:
        self.root = root
        super().__init__(address, Files)

    def handle_error(self, request: object, client_address: object) -> None:
        error = sys.exception()
        if not isinstance(error, ConnectionError):  # a client that left is no news
            print(f"{client_address}: {error!r}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve the files of a folder, with byte ranges.")
    parser.add_argument("--root", type=Path, default=Path("/models"))
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8080)
    options = parser.parse_args()
    # As process 1 of a container a signal without a handler is ignored.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    with Server((options.host, options.port), options.root.resolve()) as server:
        print(f"serving {server.root} on port {server.server_address[1]}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
