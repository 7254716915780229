"""Token counts of one answer, out of however many reports its engine sends. Pure.

vLLM and OpenAI send one report in an event without choices. llama.cpp sends one per choice: for chat in events without
choices, for text completions with each choice's last chunk. With `continuous_usage_stats` every chunk carries the counts
so far, and a closing report follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Tokens:
    prompt: int
    """Cached ones included."""
    cached: int
    completion: int


class UsageReports:
    """Collects the reports of one answer; `choices` is the request's `n`."""

    def __init__(self, choices: int) -> None:
        self._choices = choices
        self._closing: list[dict[str, Any]] = []
        self._by_choice: dict[int, dict[str, Any]] = {}

    def closing(self, usage: dict[str, Any]) -> None:
        """A report in an event of its own."""
        self._closing.append(usage)

    def of_choice(self, index: int, usage: dict[str, Any]) -> None:
        """A report in a chunk of a choice; a later one replaces it."""
        self._by_choice[index] = usage

    def merged(self) -> dict[str, Any] | None:
        """One report for the whole answer; None when there was none."""
        reports = self._closing or list(self._by_choice.values())
        if len(reports) <= 1:
            return reports[0] if reports else None
        # Each choice of one prompt reports the same prompt again.
        prompt = sum(_count(report, "prompt_tokens") for report in reports) // self._choices
        cached = sum(_cached(report) for report in reports) // self._choices
        completion = sum(_count(report, "completion_tokens") for report in reports)
        return {
            "completion_tokens": completion,
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def tokens(self) -> Tokens | None:
        merged = self.merged()
        return None if merged is None else tokens_of(merged)


def tokens_of(usage: dict[str, Any]) -> Tokens:
    """Counts of one report, in OpenAI's names of either API, or Anthropic's."""
    prompt = _count(usage, "prompt_tokens") or _count(usage, "input_tokens")
    completion = _count(usage, "completion_tokens") or _count(usage, "output_tokens")
    return Tokens(prompt, _cached(usage), completion)


def _count(usage: dict[str, Any], key: str) -> int:
    value = usage.get(key)
    return value if isinstance(value, int) and value > 0 else 0


def _cached(usage: dict[str, Any]) -> int:
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    return _count(details, "cached_tokens") if isinstance(details, dict) else 0
