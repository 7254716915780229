"""One request in the simulated world: what it asks for, and what became of it."""

from __future__ import annotations

from enum import IntEnum


class Outcome(IntEnum):
    """How a request ended."""

    OPEN = 0
    COMPLETED = 1
    REFUSED = 2
    """Longer than any engine's memory: refused at the door."""
    EXPIRED = 3
    """Held at the gateway for as long as it may be, and no engine became ready."""
    KILLED = 4
    """Its engine was gone after the first token and before the last."""


class Request:
    """Lengths in tokens, times in seconds of virtual time; -1: has not happened."""

    __slots__ = (
        "arrival",
        "cached",
        "finished_at",
        "first_token_at",
        "hashes",
        "number",
        "outcome",
        "output",
        "preemptions",
        "prompt",
        "retries",
        "variant",
    )

    def __init__(self, number: int, arrival: float, prompt: int, output: int, hashes: tuple[int, ...] = ()) -> None:
        """A request that nobody has seen yet. `hashes`: ids of its prompt's whole blocks of 512 tokens (Mooncake)."""
        self.number = number
        self.arrival = arrival
        self.prompt = prompt
        self.output = output
        self.hashes = hashes
        self.first_token_at = -1.0
        self.finished_at = -1.0
        self.outcome = Outcome.OPEN
        self.variant = ""
        self.cached = 0
        self.preemptions = 0
        self.retries = 0

    @property
    def ttft(self) -> float:
        """Seconds from the arrival at the gateway to the first token."""
        return self.first_token_at - self.arrival

    @property
    def tpot(self) -> float:
        """Mean seconds between later tokens; 0 where there is but one."""
        return (self.finished_at - self.first_token_at) / (self.output - 1) if self.output > 1 else 0.0
