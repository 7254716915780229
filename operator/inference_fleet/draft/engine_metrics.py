"""One reading of an engine's `/metrics`, in this package's own words. What the engine does not show is None, never zero."""

from __future__ import annotations

from dataclasses import dataclass

from inference_fleet.engines.contract import Metrics
from inference_fleet.signals.exposition import Samples, parse

LLAMA_CPP_BUSY_SLOTS = "llamacpp:n_busy_slots_per_decode"
"""Gauge: slots that took part in a decoding step, on average since the server started."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What an engine had counted at `at` seconds (of any steady clock). Counters begin anew when the engine does."""

    at: float
    running: float | None = None
    waiting: float | None = None
    generation_tokens: float | None = None
    """Tokens generated; llama.cpp counts a request's only when it ends."""
    steps: float | None = None
    """Decoding steps, of however many requests."""
    slot_steps: float | None = None
    """Decoding steps, each counted once for every request in it: moves while requests run. None where it is not needed, because
    `generation_tokens` itself does (vLLM)."""
    drafts: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    accepted_per_position: tuple[float, ...] = ()


def read_snapshot(names: Metrics, text: str, at: float) -> Snapshot:
    """From the text of `/metrics`. Raises ValueError for text in another format.

    vLLM shows each series once an engine process (label `engine`): they are added up.
    """
    samples = parse(text)
    return Snapshot(
        at=at,
        running=_sum(samples, names.running),
        waiting=_sum(samples, names.waiting),
        generation_tokens=_sum(samples, names.generation_tokens),
        steps=None if names.steps is None else _sum(samples, names.steps),
        slot_steps=_slot_steps(samples, names),
        drafts=_sum(samples, names.drafts),
        draft_tokens=_sum(samples, names.draft_tokens),
        accepted_tokens=_sum(samples, names.accepted_tokens),
        accepted_per_position=_positions(samples.by_label(names.accepted_per_position, "position")),
    )


def _sum(samples: Samples, name: str) -> float | None:
    series = samples.values.get(name)
    return sum(series.values()) if series else None


def _slot_steps(samples: Samples, names: Metrics) -> float | None:
    """llama.cpp: steps × busy slots a step, a total. Its error is that of the gauge's six digits; differences of it do not add up
    errors, but a single one may even be negative on a server that has run for months."""
    if names.steps is None or not names.generation_tokens.startswith("llamacpp:"):
        return None
    steps, busy = _sum(samples, names.steps), _sum(samples, LLAMA_CPP_BUSY_SLOTS)
    return None if steps is None or busy is None else steps * busy


def _positions(by_position: dict[str, float]) -> tuple[float, ...]:
    numbered = {int(position): value for position, value in by_position.items() if position.isdigit()}
    return tuple(numbered.get(position, 0.0) for position in range(max(numbered, default=-1) + 1))
