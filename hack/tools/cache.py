"""Where built things and running clusters are kept: outside the tree, so that several checkouts share them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def cache() -> Path:
    """`$INFERENCE_FLEET_CACHE`, by default `~/.cache/inference-fleet`; made if it is not there."""
    chosen = os.environ.get("INFERENCE_FLEET_CACHE") or "~/.cache/inference-fleet"
    path = Path(chosen).expanduser().absolute()
    path.mkdir(parents=True, exist_ok=True)
    return path


def binaries() -> Path:
    path = cache() / "bin"
    path.mkdir(exist_ok=True)
    return path


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """One process at a time does what `name` says; the others wait, and say that they do."""
    folder = cache() / "locks"
    folder.mkdir(exist_ok=True)
    with (folder / name).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process that holds the lock '{name}'", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
