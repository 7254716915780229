"""What came of a run: attainment, latency, money, and how calm it was."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

from inference_fleet.api.money import format_money
from inference_fleet.simulator.gateway import Book
from inference_fleet.simulator.replica import Bill
from inference_fleet.simulator.request import Outcome
from inference_fleet.simulator.scenario import Scenario

WORST_WINDOW_SECONDS = 300.0
WORST_WINDOW_REQUESTS = 20
"""Windows with fewer arrivals say nothing about a percentage."""


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision that changed something."""

    at: float
    before: Mapping[str, int]
    after: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one run. Percentages 0 to 100, seconds, money as text."""

    requests: int
    completed: int
    attainment_percent: float
    """Requests that completed and met every objective, of all that arrived."""
    worst_five_minutes_percent: float
    ttft_p50: float
    ttft_p99: float
    tpot_p99: float
    average_replicas: float
    """Over the time scored, draining ones left out."""
    device_hours: float
    money: str
    currency: str
    money_per_million_good_tokens: str | None
    """Of output tokens whose request met its objectives; absent where there are none."""
    scale_events: int
    direction_changes_per_hour: float
    killed: int
    expired: int
    refused: int
    unfinished: int
    preemptions: int
    cached_percent: float
    """Prompt tokens found in a prefix cache."""
    over_budget_seconds: float | None
    """Time with committed spend above the budget; absent without one."""

    def to_json(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Result:
    """Everything that is worth looking at afterwards."""

    scenario: Scenario
    book: Book
    bills: Sequence[Bill]
    commitments: Sequence[tuple[float, Decimal]]
    rates: Sequence[tuple[float, Decimal]]
    counts: Sequence[tuple[float, Mapping[str, int]]]
    decisions: Sequence[Decided]
    open_requests: int
    """Still unanswered when the tail was over."""
    arrivals: int

    @property
    def money(self) -> Decimal:
        """What was billed until the end of the scored time."""
        return sum((bill.amount for bill in self.bills), Decimal(0))

    @property
    def attainment(self) -> float:
        """0 to 1."""
        return sum(self.book.met) / self.arrivals if self.arrivals else 1.0

    def totals(self) -> list[tuple[float, int]]:
        """Replicas of all variants over time."""
        return [(at, sum(counts.values())) for at, counts in self.counts]

    def average_replicas(self, start: float | None = None, end: float | None = None) -> float:
        """Mean over a span of the scored time."""
        start = self.scenario.warm_up if start is None else start
        end = self.scenario.duration if end is None else end
        return _integral(self.totals(), start, end) / (end - start)

    def attainment_by_window(self, seconds: float = WORST_WINDOW_SECONDS) -> dict[int, tuple[int, int]]:
        """Window number → requests that arrived in it, and those that met everything; one that never ended did not."""
        arrived = Counter(int(at // seconds) for at in self.book.arrived)
        good = Counter(int(at // seconds) for at, met in zip(self.book.arrival, self.book.met, strict=True) if met)
        return {number: (count, good[number]) for number, count in arrived.items()}

    def summary(self) -> Summary:
        """The figures."""
        book = self.book
        money = self.money
        windows = [good / n for n, good in self.attainment_by_window().values() if n >= WORST_WINDOW_REQUESTS]
        ttft = sorted(value for value in book.ttft if value >= 0)
        tpot = sorted(value for value in book.tpot if value >= 0)
        hours = (self.scenario.duration - self.scenario.warm_up) / 3600
        decisions = [d for d in self.decisions if d.at >= self.scenario.warm_up]
        budget = self.scenario.budget_per_hour
        return Summary(
            requests=self.arrivals,
            completed=book.outcomes[Outcome.COMPLETED],
            attainment_percent=round(100 * self.attainment, 3),
            worst_five_minutes_percent=round(100 * min(windows, default=1.0), 2),
            ttft_p50=round(quantile(ttft, 0.5), 4),
            ttft_p99=round(quantile(ttft, 0.99), 4),
            tpot_p99=round(quantile(tpot, 0.99), 5),
            average_replicas=round(self.average_replicas(), 3),
            device_hours=round(sum(bill.device_hours for bill in self.bills), 3),
            money=format_money(money),
            currency=self.scenario.currency,
            money_per_million_good_tokens=(
                format_money(money * 1_000_000 / book.good_tokens) if book.good_tokens else None
            ),
            scale_events=len(decisions),
            direction_changes_per_hour=round(direction_changes(decisions) / hours, 2),
            killed=book.outcomes[Outcome.KILLED],
            expired=book.outcomes[Outcome.EXPIRED],
            refused=book.outcomes[Outcome.REFUSED],
            unfinished=self.open_requests,
            preemptions=book.preemptions,
            cached_percent=round(100 * book.cached_tokens / book.prompt_tokens, 2) if book.prompt_tokens else 0.0,
            over_budget_seconds=None
            if budget is None
            else _time_above(self.commitments, budget, self.scenario.duration),
        )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share is at or below; NaN of nothing."""
    if not ordered:
        return math.nan
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def direction_changes(decisions: Sequence[Decided]) -> int:
    """How often the total number of replicas turned from growing to shrinking or back."""
    turns = 0
    last = 0
    for decided in decisions:
        change = sum(decided.after.values()) - sum(decided.before.values())
        if change and last and (change > 0) != (last > 0):
            turns += 1
        last = change or last
    return turns


def _integral(steps: Sequence[tuple[float, int]], start: float, end: float) -> float:
    total = 0.0
    for (at, value), following in zip(steps, [*(t for t, _ in steps[1:]), math.inf], strict=True):
        total += value * max(0.0, min(following, end) - max(at, start))
    return total


def _time_above(steps: Sequence[tuple[float, Decimal]], limit: Decimal, end: float) -> float:
    ends = [*(t for t, _ in steps[1:]), end]
    return sum(max(0.0, min(until, end) - at) for (at, value), until in zip(steps, ends, strict=True) if value > limit)
