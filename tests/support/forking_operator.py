"""Operators that start in no time: a parent has imported everything, and forks a child for each one.

Killing an operator two hundred times is a matter of minutes so, not of an hour. A child is the operator as `inference-fleet
operator` runs it; only the import is shared.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path


class ForkingOperators:
    """Starts operators as `start` is called; kills them as `kill` is called."""

    def __init__(self, log: Path, *words: str) -> None:
        self.log = log
        self._words = words
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forking_operator"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lives: set[int] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> ForkingOperators:
        self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        for pid in tuple(self._lives):
            self.kill(pid)
        assert self._parent.stdin is not None
        self._parent.stdin.close()
        self._parent.wait(10)

    def _answer(self) -> str:
        assert self._parent.stdout is not None
        line = self._parent.stdout.readline()
        assert line, "the parent of the operators has ended"
        return line.strip()

    def start(self, *words: str) -> int:
        """A new operator; its process id."""
        assert self._parent.stdin is not None
        order = {"log": str(self.log), "words": ["operator", *self._words, *words]}
        with self._lock:
            self._parent.stdin.write(json.dumps(order) + "\n")
            self._parent.stdin.flush()
            pid = int(self._answer())
        self._lives.add(pid)
        return pid

    def kill(self, pid: int) -> None:
        """SIGKILL, and wait until it is gone."""
        strike(pid)
        while running(pid):
            time.sleep(0.005)
        self._lives.discard(pid)


def strike(pid: int) -> None:
    """SIGKILL, if it still runs."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def running(pid: int) -> bool:
    """Whether there is such a process. Its parent collects what has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _serve() -> None:
    import gc

    from inference_fleet import cli

    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        status = 1
        try:
            status = cli.main(order["words"])
        finally:
            os._exit(status)


if __name__ == "__main__":
    _serve()
