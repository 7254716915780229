"""Whether a request met the policy's objectives, judged from the client's side. Pure.

The rules:

- A request that failed (5xx, 429, a stream cut after its first byte, no replica in time) is within nothing that judges
  it.
- A client that left before the first token is as unserved as one that got an error; one that left after it is judged
  by the time to its first token only.
- A request the client got wrong (400, 401, 404, 413 and the like) says nothing about the fleet and is not judged.
- Times to and between tokens judge only requests whose tokens the gateway sees, whatever became of them: streams, and
  answers that the engine streams to the gateway. The time between tokens needs two tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from inference_fleet.gateway.routes import Metric, Objective


class End(Enum):
    """How a request ended."""

    COMPLETE = auto()
    FAILED = auto()
    ABORTED = auto()
    """The client left."""
    REFUSED = auto()
    """The client's own mistake."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One ended request. Times in seconds since it arrived; None for what did not happen."""

    end: End
    tokens_visible: bool
    first_token: float | None
    last_token: float | None
    whole: float
    completion_tokens: int | None

    @property
    def per_output_token(self) -> float | None:
        """(last - first) / (tokens - 1); None below two tokens."""
        if self.first_token is None or self.last_token is None or not self.completion_tokens:
            return None
        if self.completion_tokens < 2:
            return None
        return (self.last_token - self.first_token) / (self.completion_tokens - 1)


def judge(outcome: Outcome, objectives: Iterable[Objective]) -> Iterator[tuple[str, bool]]:
    """(objective, within) for every objective that judges this request."""
    for objective in objectives:
        within = _within(outcome, objective)
        if within is not None:
            yield objective.name, within


def _within(outcome: Outcome, objective: Objective) -> bool | None:
    if outcome.end is End.REFUSED:
        return None
    if objective.metric is not Metric.END_TO_END_LATENCY and not outcome.tokens_visible:
        return None
    if outcome.end is End.FAILED:
        return False
    if outcome.end is End.ABORTED:
        if outcome.first_token is None:
            return False
        if objective.metric is not Metric.TIME_TO_FIRST_TOKEN:
            return None
    value = _measured(outcome, objective.metric)
    return None if value is None else value <= objective.limit_seconds


def _measured(outcome: Outcome, metric: Metric) -> float | None:
    if metric is Metric.TIME_TO_FIRST_TOKEN:
        return outcome.first_token
    if metric is Metric.TIME_PER_OUTPUT_TOKEN:
        return outcome.per_output_token
    return outcome.whole
