"""Who holds which devices: one ledger for all policies, in memory, rebuilt from the Deployments at start.

A pass over a policy reads the claims of all others, decides, and enters its own before another pass that touches one of the same
classes may begin (`Turns`). So two policies never both take the last device.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from inference_fleet.plan.observation import Claim


@dataclass(frozen=True, slots=True)
class Entry:
    """One policy's claims: devices by class, and its priority."""

    devices: Mapping[str, int]
    priority: int


@dataclass(slots=True)
class Ledger:
    """The claims of every policy, by `namespace/name`."""

    entries: dict[str, Entry] = field(default_factory=dict)

    def enter(self, policy: str, entry: Entry) -> frozenset[str]:
        """Replace a policy's claims; the classes of which it now claims another number, or at another priority."""
        before = self.entries.get(policy)
        if entry.devices:
            self.entries[policy] = entry
        else:
            self.entries.pop(policy, None)
        return _changed(before, entry)

    def drop(self, policy: str) -> frozenset[str]:
        """A policy is gone; the classes whose devices that frees."""
        before = self.entries.pop(policy, None)
        return frozenset(before.devices) if before is not None else frozenset()

    def of_others(self, policy: str, accelerator_class: str, held: Mapping[str, int]) -> tuple[Claim, ...]:
        """What every other policy claims of a class. `held`: devices that each one's pods occupy now, by policy."""
        return tuple(
            Claim(
                policy=name,
                accelerator_class=accelerator_class,
                devices=max(entry.devices[accelerator_class], held.get(name, 0)),
                priority=entry.priority,
                held_devices=held.get(name, 0),
            )
            for name, entry in sorted(self.entries.items())
            if name != policy and entry.devices.get(accelerator_class)
        )

    def total(self, accelerator_class: str) -> int:
        """Devices of a class that all policies claim together."""
        return sum(entry.devices.get(accelerator_class, 0) for entry in self.entries.values())

    def policies_of(self, classes: Iterable[str]) -> frozenset[str]:
        """The policies that claim something of these classes."""
        wanted = frozenset(classes)
        return frozenset(name for name, entry in self.entries.items() if wanted & entry.devices.keys())


def _changed(before: Entry | None, after: Entry) -> frozenset[str]:
    old = before.devices if before is not None else {}
    if before is not None and before.priority != after.priority:
        return frozenset(old) | frozenset(after.devices)
    return frozenset(
        name for name in old.keys() | after.devices.keys() if old.get(name, 0) != after.devices.get(name, 0)
    )


class Turns:
    """Serializes passes that touch a class. Turns are taken in the order of names, so that no two passes wait for each other."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}

    @asynccontextmanager
    async def of(self, classes: Iterable[str]) -> AsyncIterator[None]:
        """Hold the turn of all these classes."""
        taken: list[asyncio.Lock] = []
        try:
            for name in sorted(set(classes)):
                lock = self._locks.setdefault(name, asyncio.Lock())
                await lock.acquire()
                taken.append(lock)
            yield
        finally:
            for lock in reversed(taken):
                lock.release()
