"""A user's extra arguments: they come last, so they must not take back what the operator decided."""

from __future__ import annotations

from collections.abc import Iterable

from inference_fleet.engines.config import Refusal


def flags_of(arguments: Iterable[str]) -> list[str]:
    """The flags in a command line: `--flag=value` without its value, negative numbers are values."""
    return [
        word.partition("=")[0]
        for word in arguments
        if word.startswith("-") and word != "-" and not word[1:].replace(".", "", 1).isdigit()
    ]


def taken_back(extra: Iterable[str], flags: Iterable[str], decided: frozenset[str]) -> Refusal | None:
    """Refuse the first of `flags` (the flags in `extra`, in the engine's canonical spelling) that the operator decides."""
    for given, flag in zip(flags_of(extra), flags, strict=True):
        if flag in decided:
            return Refusal(
                "ArgumentReserved",
                f"engine.extraArguments may not contain {given}: the operator decides it from the rest of the policy; take it out.",
            )
    return None
