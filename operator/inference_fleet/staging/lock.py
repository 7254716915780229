"""One stager a folder: pods that share a ReadWriteMany claim wait for the first instead of fetching the same weights twice."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_NAME = ".inference-fleet.lock"
POLL_SECONDS = 1.0
REMIND_POLLS = 60


@contextmanager
def folder_lock(folder: Path, log: Callable[[str], None], sleep: Callable[[float], None]) -> Iterator[str]:
    """Hold the folder; yields the suffix for partial files.

    The lock is the kernel's (flock), so it ends with its holder, however that ends. On a file system without locks the suffix names
    this process instead: two stagers then fetch twice, but never write into one another's file.
    """
    descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        yield ".part" if _acquire(descriptor, folder, log, sleep) else f".{socket.gethostname()}-{os.getpid()}.part"
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, folder: Path, log: Callable[[str], None], sleep: Callable[[float], None]) -> bool:
    """True when held, False where the file system has no locks."""
    polls = 0
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                return False
        if polls % REMIND_POLLS == 0:
            log(f"waiting for another process that is staging into {folder}")
        polls += 1
        sleep(POLL_SECONDS)
