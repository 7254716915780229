"""What the draft sidecars measured: tokens drafted and accepted, by variant. One that cannot be read is left out, never zero."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from inference_fleet.plan.observation import SpeculationView

DRAFT_PORT = 8011
CONTAINER = "draft"


def _count(document: Mapping[str, Any], name: str) -> int:
    value = document.get(name)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else 0


def read_speculation(text: bytes) -> SpeculationView:
    """From a sidecar's `/speculation`. Raises ValueError for anything else."""
    document = orjson.loads(text)
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    drafting = document.get("drafting")
    return SpeculationView(
        drafts=_count(document, "drafts"),
        draft_tokens=_count(document, "draftTokens"),
        accepted_tokens=_count(document, "acceptedTokens"),
        depth=_count(document, "depth"),
        drafting=drafting if isinstance(drafting, bool) else None,
    )


def together(views: Iterable[SpeculationView]) -> SpeculationView | None:
    """One variant's pods as one: sums; one pod that does not draft is news, whatever the others do."""
    pods = tuple(views)
    if not pods:
        return None
    said = {view.drafting for view in pods}
    return SpeculationView(
        drafts=sum(v.drafts for v in pods),
        draft_tokens=sum(v.draft_tokens for v in pods),
        accepted_tokens=sum(v.accepted_tokens for v in pods),
        depth=max(v.depth for v in pods),
        drafting=False if False in said else (True if True in said else None),
    )
