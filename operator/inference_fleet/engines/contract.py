"""What every engine's file states about its engine: metric names, probes, and how to see that nothing is in flight any more."""

from __future__ import annotations

from dataclasses import dataclass

HTTP_PORT = 8000
"""Port of the engine's own API, `/health` and `/metrics` (docs/designs/001-seams.md)."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """Names in the engine's `/metrics`, as recorded from the version. None: the engine has no such metric.

    A name that is no longer there is a failing contract test, never a zero.
    """

    running: str
    """Gauge: requests being worked on."""
    waiting: str
    """Gauge: requests accepted and not yet begun."""
    generation_tokens: str
    """Counter: tokens generated. llama.cpp moves it only when a request ends."""
    prompt_tokens: str
    """Counter: prompt tokens processed."""
    cached_prompt_tokens: str | None
    """Counter: prompt tokens that were found in the cache."""
    steps: str | None
    """Counter or histogram count that moves with every decoding step, while requests are still running."""
    drafts: str
    """Counter: times that tokens were guessed."""
    draft_tokens: str
    """Counter: tokens guessed."""
    accepted_tokens: str
    """Counter: guessed tokens that stood."""
    accepted_per_position: str
    """Counter with label `position`: guessed tokens that stood, by place in the guess."""
    time_to_first_token: str | None
    """Histogram in seconds."""
    time_per_output_token: str | None
    """Histogram in seconds, one figure a request."""
    key_value_cache_usage: str | None
    """Gauge: share of the KV cache in use, 0 to 1."""
    preemptions: str | None
    """Counter: sequences put back for want of KV memory."""

    @property
    def in_flight(self) -> tuple[str, str]:
        """The gauges whose sum is zero when an engine may be stopped without cutting anyone off."""
        return self.running, self.waiting


@dataclass(frozen=True, slots=True)
class Probe:
    """An HTTP probe on the engine's port."""

    path: str
    period_seconds: int
    timeout_seconds: int
    failure_threshold: int

    @property
    def budget_seconds(self) -> int:
        """How long it may fail before the kubelet acts."""
        return self.period_seconds * self.failure_threshold


@dataclass(frozen=True, slots=True)
class Probes:
    """Startup: until the weights are loaded. Readiness: takes requests. Liveness: answers at all.

    Liveness is gentle: a restart loses every request in flight and the time to load.
    """

    startup: Probe
    readiness: Probe
    liveness: Probe


def startup_probe(path: str, weight_bytes: int, fixed_seconds: int) -> Probe:
    """A startup probe that allows `fixed_seconds` and the reading of the weights at `LOAD_BYTES_PER_SECOND`."""
    budget = fixed_seconds + -(-weight_bytes // LOAD_BYTES_PER_SECOND)
    return Probe(path, STARTUP_PERIOD_SECONDS, 3, -(-budget // STARTUP_PERIOD_SECONDS))


LOAD_BYTES_PER_SECOND = 50_000_000
"""How slowly weights may be read into the engine before it is taken for stuck: 50 MB/s, less than a network volume gives cold.
A budget that is too long delays only the restart of an engine that hangs while loading; one too short never lets it start."""

STARTUP_PERIOD_SECONDS = 5
