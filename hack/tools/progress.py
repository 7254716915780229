"""What a command says while it works, and the one way in which it waits."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

REMIND_SECONDS = 10.0


class Failure(Exception):
    """Something a user can act on. Its text is all that is shown: no traceback."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def wait(what: str, done: Callable[[], object], seconds: float, every: float = 0.1, quiet: bool = False) -> None:
    """Waits until `done()` is true, saying what for, how long it took, and every ten seconds that it still waits.

    Raises Failure after `seconds`. An exception from `done` ends the wait at once.
    """
    start = time.monotonic()
    remind = start + REMIND_SECONDS
    while not done():
        now = time.monotonic()
        if now - start > seconds:
            raise Failure(f"{what}: not after {seconds:g} s")
        if now > remind:
            say(f"  still waiting: {what} ({now - start:.0f} s of at most {seconds:g})")
            remind = now + REMIND_SECONDS
        time.sleep(every)
    if not quiet:
        say(f"  {what}: {time.monotonic() - start:.1f} s")
