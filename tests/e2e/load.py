"""Streaming clients that judge every answer: finished with a reason and [DONE], failed, or cut off."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.e2e.objects import KEY

PROMPTS = ("Count from one to ten.", "Name three colours.", "What is water?", "Say hello in French.", "Describe a cat.")


@dataclass(slots=True)
class Tally:
    """What came of the streams so far."""

    whole: int = 0
    tokens: int = 0
    failures: list[str] = field(default_factory=list)
    """Requests that got no stream: status and body, or what went wrong with the connection."""
    cuts: list[str] = field(default_factory=list)
    """Streams that began and did not end with a finish_reason and [DONE]."""
    reasons: Counter[str] = field(default_factory=Counter)
    slowest_first_token_seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.whole} whole streams ({self.tokens} pieces, {dict(self.reasons)}), {len(self.failures)} failed,"
            f" {len(self.cuts)} cut, slowest first piece {self.slowest_first_token_seconds:.1f} s"
        )


class Load:
    """`clients` loops that ask for a stream, read it to its end, judge it, and ask again."""

    def __init__(self, url: str, model: str, clients: int = 4, tokens: int = 12, key: str = KEY) -> None:
        self.url = f"{url}/v1/chat/completions"
        self.model = model
        self.clients = clients
        self.tokens = tokens
        self.headers = {"Authorization": f"Bearer {key}"}
        self.tally = Tally()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="load", daemon=True)

    @contextmanager
    def running(self, at_least: int = 100, seconds: float = 300) -> Iterator[Tally]:
        """Runs while the block does, and on until `at_least` streams were judged, however the block's change went."""
        self._thread.start()
        try:
            self._until(self.clients, seconds)  # the change comes while streams are under way
            yield self.tally
            self._until(at_least, seconds)
        finally:
            self._stop.set()
            self._thread.join(120)
        assert not self._thread.is_alive(), f"a stream neither ended nor failed: {self.tally}"

    def judged(self) -> int:
        """Streams that came to some end."""
        return self.tally.whole + len(self.tally.failures) + len(self.tally.cuts)

    def _until(self, count: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.judged() < count:
            assert time.monotonic() < deadline, (
                f"only {self.judged()} of {count} streams in {seconds:g} s: {self.tally}"
            )
            time.sleep(0.2)

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=150)
        async with aiohttp.ClientSession(timeout=timeout, headers=self.headers) as session:
            await asyncio.gather(*(self._client(session, number) for number in range(self.clients)))

    async def _client(self, session: aiohttp.ClientSession, number: int) -> None:
        while not self._stop.is_set():
            number += 1
            await self._one(session, PROMPTS[number % len(PROMPTS)])

    async def _one(self, session: aiohttp.ClientSession, prompt: str) -> None:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": self.tokens,
            "stream": True,
        }
        began, started = time.monotonic(), False
        try:
            async with session.post(self.url, json=body) as response:
                if response.status != 200:
                    stamp = f"{time.strftime('%H:%M:%S', time.gmtime())} {response.headers.get('x-request-id', '')}"
                    self.tally.failures.append(f"{stamp} {response.status} {(await response.text())[:300]}")
                    return
                judge = Judge()
                async for line in response.content:
                    if judge.read(line) and not started:
                        started = True
                        waited = time.monotonic() - began
                        self.tally.slowest_first_token_seconds = max(self.tally.slowest_first_token_seconds, waited)
                self._judged(judge, response.headers.get("x-request-id", ""))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            said = f"{type(error).__name__}: {error}"
            (self.tally.cuts if started else self.tally.failures).append(said)

    def _judged(self, judge: Judge, request: str) -> None:
        if judge.whole:
            self.tally.whole += 1
            self.tally.tokens += judge.pieces
            self.tally.reasons[judge.reason] += 1
        else:
            self.tally.cuts.append(f"{request}: {judge}")


@dataclass(slots=True)
class Judge:
    """Reads a stream's lines and says in the end whether it was whole."""

    pieces: int = 0
    reason: str = ""
    done: bool = False
    error: str = ""
    last: str = ""

    @property
    def whole(self) -> bool:
        """A reason, then [DONE], and no error event."""
        return bool(self.reason) and self.done and not self.error

    def read(self, line: bytes) -> bool:
        """Whether this line carried text."""
        if not line.startswith(b"data:"):
            return False
        data = line[5:].strip()
        self.last = data[-200:].decode(errors="replace")
        if data == b"[DONE]":
            self.done = True
            return False
        event: dict[str, Any] = json.loads(data)
        if "error" in event:
            self.error = json.dumps(event["error"])[:300]
            return False
        carried = False
        for choice in event.get("choices", []):
            self.reason = choice.get("finish_reason") or self.reason
            if (choice.get("delta") or {}).get("content"):
                self.pieces += 1
                carried = True
        return carried
