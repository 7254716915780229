"""The operator as a process of its own, against a cluster of a test."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

USER_AGENT = "inference-fleet-operator"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class RunningOperator:
    """Started by `start`, ended by `stop` (SIGTERM) or `kill` (SIGKILL); may be started again."""

    def __init__(self, kubeconfig: Path, folder: Path, name: str, *flags: str) -> None:
        self.log = folder / f"{name}.log"
        self.port = free_port()
        self._words = [
            sys.executable, "-m", "inference_fleet.cli", "operator", "--kubeconfig", str(kubeconfig),
            "--lease-name", name, "--port", str(self.port), "--image", "inference-fleet:test", *flags,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self.ends = 0
        """How often a test ended it."""

    def start(self, seconds: float = 30) -> RunningOperator:
        self.launch()
        return self.await_ready(seconds)

    def launch(self) -> None:
        """Start without waiting for anything."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._words, stdout=log, stderr=log, env=dict(os.environ))

    def await_ready(self, seconds: float = 30) -> RunningOperator:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not self.alive:
                break
            if "inference_fleet.kernel: serving" in self.log.read_text() and self.get("/readyz")[0] == 200:
                return self
            time.sleep(0.1)
        raise AssertionError(f"the operator is not ready:\n{self.tail()}")

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def stop(self, seconds: float = 30) -> int:
        """SIGTERM; the exit status."""
        self.ends += 1
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        status = self._process.wait(seconds)
        self.log.rename(self.log.with_suffix(f".{time.monotonic_ns()}.log"))
        self.log.touch()
        self._process = None
        return status

    def kill(self) -> None:
        self.ends += 1
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None
            self.log.rename(self.log.with_suffix(f".{time.monotonic_ns()}.log"))
            self.log.touch()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def status(self) -> int | None:
        """With which it ended by itself; None while it runs."""
        return self._process.poll() if self._process is not None else None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text().splitlines()[-lines:]) if self.log.exists() else ""


@contextlib.contextmanager
def running(kubeconfig: Path, folder: Path, name: str, *flags: str) -> Iterator[RunningOperator]:
    operator = RunningOperator(kubeconfig, folder, name, *flags)
    try:
        yield operator.start()
    finally:
        operator.kill()
