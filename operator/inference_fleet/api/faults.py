"""What is wrong with a resource, in sentences that name the field as it is written in YAML."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from inference_fleet.api.crd import Kind, schema


def sentences(error: ValidationError, kind: Kind, within: Sequence[str] = ()) -> tuple[str, ...]:
    """One sentence for each fault, such as `spec.models[0].bathcing: unknown field; did you mean batching?`.

    `within` is where in the resource the value lies that was validated: `("spec",)` for a spec alone.
    """
    faults = error.errors(include_url=False, include_context=False)
    return tuple(_sentence(fault, kind, within) for fault in faults if not _follows(fault, faults))


def _follows(fault: Any, faults: Sequence[Any]) -> bool:
    """Whether a list is only too short because the items that are wrong were not counted."""
    place = fault["loc"]
    inside = (other["loc"] for other in faults if len(other["loc"]) > len(place))
    return fault["type"] == "too_short" and any(location[: len(place)] == place for location in inside)


def _sentence(fault: Any, kind: Kind, within: Sequence[str]) -> str:
    location = (*within, *fault["loc"])
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
    if fault["type"] == "missing":
        said = "required"
    elif fault["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(location[-1]), _fields(kind, location[:-1]), n=1, cutoff=0.5)
        said = f"unknown field; did you mean {near[0]}?" if near else "unknown field"
    else:
        said = fault["msg"]
    return f"{where}: {said}" if where else said


def _fields(kind: Kind, location: Sequence[str | int]) -> list[str]:
    """The fields that the object at a location may have."""
    node = schema(kind)
    for part in location:
        if isinstance(part, int):
            node = node.get("items", {})
        else:
            node = node.get("properties", {}).get(part) or node.get("additionalProperties") or {}
    return list(node.get("properties", {}))
