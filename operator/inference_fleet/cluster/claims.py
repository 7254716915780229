"""Who holds which devices: one ledger for all policies, in memory, rebuilt from the Deployments at start.

A pass over a policy reads the claims of all others, decides, and enters its own before another pass that touches one of the same
classes may begin (`Turns`). So two policies never both take the last device.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType

from inference_fleet.plan.observation import Claim
from inference_fleet.plan.outcome import Want

NOTHING: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Entry:
    """One policy's claims: devices by class, its priority, and what it would take more if there were more."""

    devices: Mapping[str, int]
    priority: int
    wants: Mapping[str, Want] = field(default_factory=dict)


NO_ENTRY = Entry(NOTHING, 0)
NO_WANT = Want(0, 1)


@dataclass(slots=True)
class Ledger:
    """The claims of every policy, by `namespace/name`."""

    entries: dict[str, Entry] = field(default_factory=dict)
    _claims: dict[str, dict[str, Claim]] = field(default_factory=dict)
    """Class → policy → its claim, made anew only where it differs: with a thousand policies each pass reads a thousand of them."""
    _held: dict[str, Mapping[str, int]] = field(default_factory=dict)

    def enter(self, policy: str, entry: Entry) -> frozenset[str]:
        """Replace a policy's claims; the classes of which it now claims another number, or at another priority."""
        before = self.entries.get(policy, NO_ENTRY)
        if entry.devices or entry.wants:
            self.entries[policy] = entry
        else:
            self.entries.pop(policy, None)
        for name in before.devices.keys() | entry.devices.keys() | before.wants.keys() | entry.wants.keys():
            self._claim(name, policy)
        return _changed(before, entry)

    def drop(self, policy: str) -> frozenset[str]:
        """A policy is gone; the classes whose devices that frees."""
        before = self.entries.pop(policy, NO_ENTRY)
        for name in before.devices.keys() | before.wants.keys():
            self._claim(name, policy)
        return frozenset(before.devices)

    def _claim(self, accelerator_class: str, policy: str) -> None:
        claims = self._claims.setdefault(accelerator_class, {})
        entry = self.entries.get(policy, NO_ENTRY)
        devices, want = entry.devices.get(accelerator_class, 0), entry.wants.get(accelerator_class, NO_WANT)
        if not devices and not want.devices:
            claims.pop(policy, None)
            return
        held = self._held.get(accelerator_class, NOTHING).get(policy, 0)
        claims[policy] = Claim(
            policy, accelerator_class, max(devices, held), entry.priority, held, want.devices, want.at_once
        )

    def of_others(self, policy: str, accelerator_class: str, held: Mapping[str, int]) -> tuple[Claim, ...]:
        """What every other policy claims of a class. `held`: devices that each one's pods occupy now, by policy."""
        before = self._held.get(accelerator_class, NOTHING)
        if before is not held:
            self._held[accelerator_class] = held
            for name in before.keys() | held.keys():
                if before.get(name, 0) != held.get(name, 0):
                    self._claim(accelerator_class, name)
        return tuple(claim for claim in self._claims.get(accelerator_class, {}).values() if claim.policy != policy)

    def total(self, accelerator_class: str) -> int:
        """Devices of a class that all policies claim together."""
        return sum(entry.devices.get(accelerator_class, 0) for entry in self.entries.values())

    def concerned(self, policy: str, accelerator_class: str) -> frozenset[str]:
        """The others who must look again when this policy's claims on a class changed: those who want more of it, and those of
        lower priority who claim some, and may have to give way."""
        priority = self.entries.get(policy, NO_ENTRY).priority
        return frozenset(
            name
            for name, entry in self.entries.items()
            if name != policy
            and (
                accelerator_class in entry.wants
                or (entry.priority < priority and entry.devices.get(accelerator_class, 0) > 0)
            )
        )

    def unsatisfied(self, accelerator_class: str, held: Mapping[str, int]) -> frozenset[str]:
        """The policies for which it matters how many devices there are: they want more, or do not hold all that they claim."""
        return frozenset(
            name
            for name, entry in self.entries.items()
            if accelerator_class in entry.wants or entry.devices.get(accelerator_class, 0) > held.get(name, 0)
        )


def _changed(before: Entry, after: Entry) -> frozenset[str]:
    old = before.devices
    if old and before.priority != after.priority:
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
