"""A user's extra arguments: they come last and win, so they must not take back what the operator counts with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inference_fleet.api.arguments import Reserved
from inference_fleet.engines.config import Refusal


def taken_back(extra: Sequence[str], reserved: Iterable[Reserved]) -> Refusal | None:
    """Refuse the first argument that is reserved. The API refuses most of them before; this knows the rest."""
    for group in reserved:
        found = group.found(extra)
        if found:
            return Refusal("ArgumentReserved", f"engine.extraArguments has {', '.join(found)}: {group.message}.")
    return None
