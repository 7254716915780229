"""What outlives the process: one bounded ConfigMap for each policy. A restart or a new leader goes on instead of starting blind.

It holds what the plan must remember (drains under way), the marks of our last applies (so that an unchanged world is not written to
again), and the events last said.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from inference_fleet.naming import labels, memory_name
from inference_fleet.plan.outcome import Memory, UpgradeAsked

KEY = "memory.json"
FORMAT = 1
LARGEST_BYTES = 256 * 1024
MOST_DRAINS = 1000
MOST_MARKS = 1000
MOST_SAID = 64
LONGEST_WAIT_SECONDS = 600.0
COMPONENT = "memory"


@dataclass(frozen=True, slots=True)
class Remembered:
    """One policy's memory as a value."""

    plan: Memory = field(default_factory=Memory)
    applied: Mapping[str, str] = field(default_factory=dict)
    """uid → mark after our last apply."""
    said: frozenset[str] = frozenset()
    """Digests of the events of the last pass."""
    resource_version: str = ""
    """Of the ConfigMap it was read from; not part of what is written."""


def encode(remembered: Remembered) -> str:
    """As text, always the same for the same value, never more than 256 KiB: marks are what is given up first."""
    document = {
        "format": FORMAT,
        "drains": {k: v.isoformat() for k, v in sorted(remembered.plan.drains.items())[:MOST_DRAINS]},
        **({"upgrade": asdict(remembered.plan.upgrade)} if remembered.plan.upgrade is not None else {}),
        "said": sorted(remembered.said)[:MOST_SAID],
        "applied": dict(sorted(remembered.applied.items())[:MOST_MARKS]),
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    if len(text.encode()) > LARGEST_BYTES:
        text = json.dumps({**document, "applied": {}}, sort_keys=True, separators=(",", ":"))
    return text


def decode(text: str) -> Remembered:
    """From text; what cannot be read is forgotten, which costs a write or two and loses no decision."""
    try:
        document = json.loads(text)
        drains = {str(k): datetime.fromisoformat(v) for k, v in document.get("drains", {}).items()}
        if any(at.tzinfo is None for at in drains.values()):
            drains = {}
        asked = document.get("upgrade")
        return Remembered(
            plan=Memory(drains=drains, upgrade=UpgradeAsked(**asked) if asked else None),
            applied={str(k): str(v) for k, v in document.get("applied", {}).items()},
            said=frozenset(str(s) for s in document.get("said", [])),
        )
    except (AttributeError, TypeError, ValueError):
        return Remembered()


def manifest(namespace: str, policy: str, policy_uid: str, text: str) -> dict[str, Any]:
    """The ConfigMap, owned by its policy."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": memory_name(policy),
            "namespace": namespace,
            "labels": dict(labels(policy, COMPONENT)),
            "ownerReferences": [
                {
                    "apiVersion": "inference-fleet.dev/v1alpha1",
                    "kind": "InferencePolicy",
                    "name": policy,
                    "uid": policy_uid,
                    "controller": True,
                    "blockOwnerDeletion": False,
                }
            ],
        },
        "data": {KEY: text},
    }


def read_all(config_maps: Iterable[Mapping[str, Any]]) -> dict[str, Remembered]:
    """Memories by the uid of the policy that owns them."""
    found: dict[str, Remembered] = {}
    for item in config_maps:
        for owner in item["metadata"].get("ownerReferences") or []:
            if owner.get("kind") == "InferencePolicy":
                remembered = decode((item.get("data") or {}).get(KEY, ""))
                at = str(item["metadata"].get("resourceVersion", ""))
                found[str(owner.get("uid", ""))] = replace(remembered, resource_version=at)
    return found


@dataclass(slots=True)
class Keeper:
    """When one policy's memory is due to be written, and over what. Times are monotonic seconds."""

    written: str
    written_at: float
    resource_version: str = ""
    """Of the ConfigMap; empty: there is none, as far as is known."""

    def due(self, text: str, now: float, *, acted: bool) -> bool:
        """At once after something was done; what else changed waits up to ten minutes."""
        if text == self.written:
            return False
        return acted or now - self.written_at >= LONGEST_WAIT_SECONDS

    def wrote(self, text: str, now: float, resource_version: str) -> None:
        """A write was answered."""
        self.written, self.written_at, self.resource_version = text, now, resource_version
