"""What speculation achieves: a pure fold over readings of the engine's counters.

Counters may begin anew at any reading (the engine restarted; this sidecar lives on): what is reported goes on from where it was.
Nothing is concluded from a reading that lacks a figure.

Tokens per second are kept by concurrency, because that decides whether drafting pays far more than acceptance does. A bucket is
named by its upper end: 1, 2, 4 (three or four requests), 8, … An interval counts only if both its ends are in one bucket. llama.cpp
counts a request's tokens at its end, so between readings its decoding steps are counted instead, and turned into tokens by the
tokens a step that all readings together gave.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from inference_fleet.draft.engine_metrics import Snapshot

IDLE_DRAFT_TOKENS = 64
"""So many tokens generated without a single draft mean that the engine does not speculate, whatever it was told."""

LONGEST_INTERVAL_SECONDS = 30.0
"""Readings further apart than this say nothing about the time between them."""

MEMORY_SECONDS = 900.0
"""A bucket that has seen more than this forgets half: figures follow what the traffic is like now."""

LEAST_SECONDS = 10.0
"""A bucket that has seen less than this is not reported."""

LARGEST_BUCKET = 4096
POSITIONS = 64


@dataclass(frozen=True, slots=True)
class Pace:
    """Time spent in one bucket, and what was done in it: tokens, or steps where the engine counts tokens late."""

    seconds: float = 0.0
    work: float = 0.0

    def add(self, seconds: float, work: float) -> Pace:
        """With one more interval."""
        pace = Pace(self.seconds + seconds, self.work + work)
        return Pace(pace.seconds / 2, pace.work / 2) if pace.seconds > MEMORY_SECONDS else pace


@dataclass(frozen=True, slots=True)
class Measurement:
    """Everything seen since this sidecar started. None: not yet known."""

    last: Snapshot | None = None
    drafts: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    accepted_per_position: tuple[float, ...] = ()
    generation_tokens: float = 0.0
    slot_steps: float = 0.0
    tokens_without_draft: float = 0.0
    drafting: bool | None = None
    paces: Mapping[int, Pace] = field(default_factory=dict)

    @property
    def acceptance(self) -> float | None:
        """Accepted over drafted tokens, 0 to 1."""
        return _ratio(self.accepted_tokens, self.draft_tokens)

    @property
    def mean_accepted_length(self) -> float | None:
        """Accepted tokens a draft; every draft also gives the one token that the target adds."""
        return _ratio(self.accepted_tokens, self.drafts)

    @property
    def acceptance_per_position(self) -> tuple[float, ...]:
        """Share of drafts whose guess at each place stood; empty where nothing was drafted."""
        drafts = self.drafts
        return tuple(count / drafts for count in self.accepted_per_position) if drafts else ()

    @property
    def tokens_per_second(self) -> Mapping[int, float]:
        """By concurrency; buckets that saw too little are left out."""
        tokens_a_unit = _ratio(self.generation_tokens, self.slot_steps) if self.slot_steps else 1.0
        if not tokens_a_unit:
            return {}
        return {
            bucket: tokens_a_unit * pace.work / pace.seconds
            for bucket, pace in sorted(self.paces.items())
            if pace.seconds >= LEAST_SECONDS
        }


def bucket_of(running: float) -> int | None:
    """The smallest power of two that is not below; None where nothing runs."""
    if not running >= 1:
        return None
    return int(min(LARGEST_BUCKET, 2 ** math.ceil(math.log2(running))))


def fold(before: Measurement, now: Snapshot) -> Measurement:
    """The measurement with one more reading. Readings must come in the order of their times."""
    last = before.last
    first = last is None or _restarted(last, now)
    base = Snapshot(at=now.at) if first or last is None else last
    drafts = _growth(base.drafts, now.drafts, first)
    tokens = _growth(base.generation_tokens, now.generation_tokens, first) or 0.0
    steps = 0.0 if now.slot_steps is None else now.slot_steps - (base.slot_steps or 0.0)
    idle = _idle_tokens(before, drafts, tokens)
    return replace(
        before,
        last=now,
        drafts=_total(before.drafts, drafts),
        draft_tokens=_total(before.draft_tokens, _growth(base.draft_tokens, now.draft_tokens, first)),
        accepted_tokens=_total(before.accepted_tokens, _growth(base.accepted_tokens, now.accepted_tokens, first)),
        accepted_per_position=_positions(before.accepted_per_position, base, now),
        generation_tokens=before.generation_tokens + tokens,
        slot_steps=before.slot_steps + steps,
        tokens_without_draft=idle,
        drafting=_drafting(before, now, drafts, idle),
        paces=before.paces if first or last is None else _paces(before.paces, last, now, tokens, steps),
    )


def _restarted(last: Snapshot, now: Snapshot) -> bool:
    """A counter that fell was begun anew, and with it all the others."""
    pairs = (
        (last.generation_tokens, now.generation_tokens),
        (last.steps, now.steps),
        (last.drafts, now.drafts),
        (last.draft_tokens, now.draft_tokens),
        (last.accepted_tokens, now.accepted_tokens),
    )
    return any(old is not None and new is not None and new < old for old, new in pairs)


def _growth(old: float | None, new: float | None, first: bool) -> float | None:
    """How much a counter grew; all of it at the first reading. None where it was not shown."""
    if new is None:
        return None
    return new if first or old is None else max(0.0, new - old)


def _total(before: float | None, growth: float | None) -> float | None:
    return before if growth is None else (before or 0.0) + growth


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _positions(before: tuple[float, ...], base: Snapshot, now: Snapshot) -> tuple[float, ...]:
    places = min(POSITIONS, max(len(before), len(now.accepted_per_position)))

    def at(counts: tuple[float, ...], place: int) -> float:
        return counts[place] if place < len(counts) else 0.0

    return tuple(
        at(before, place) + max(0.0, at(now.accepted_per_position, place) - at(base.accepted_per_position, place))
        for place in range(places)
    )


def _idle_tokens(before: Measurement, drafts: float | None, tokens: float) -> float:
    if drafts is None:
        return before.tokens_without_draft
    return 0.0 if drafts > 0 else before.tokens_without_draft + tokens


def _drafting(before: Measurement, now: Snapshot, drafts: float | None, idle: float) -> bool | None:
    if drafts is None or now.generation_tokens is None:
        return before.drafting
    if drafts > 0:
        return True
    return False if idle >= IDLE_DRAFT_TOKENS else before.drafting


def _paces(
    before: Mapping[int, Pace], last: Snapshot, now: Snapshot, tokens: float, steps: float
) -> Mapping[int, Pace]:
    seconds = now.at - last.at
    if last.running is None or now.running is None or not 0 < seconds <= LONGEST_INTERVAL_SECONDS:
        return before
    bucket = bucket_of(now.running)
    if bucket is None or bucket != bucket_of(last.running):
        return before
    if now.slot_steps is None:
        if now.generation_tokens is None or last.generation_tokens is None:
            return before
        work = tokens
    else:
        work = steps
    return {**before, bucket: before.get(bucket, Pace()).add(seconds, work)}
