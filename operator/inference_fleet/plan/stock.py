"""How many devices of each class this policy may still take in this pass.

Stock is what the matching nodes offer, less what pods outside every policy hold, less what other policies hold or were promised
before us, less what our own variants hold. A promise of lower priority that nobody's pod occupies yet does not count: `priority`
decides who gets scarce devices. Stock that cannot be known (no right to read nodes) is None: placing is then allowed, surge is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from inference_fleet.api.accelerator import CapacityType
from inference_fleet.plan.observation import ClassView, VariantView


def devices_held(variant: VariantView) -> int:
    """Devices a variant has or will have without any further decision: its desired replicas, each with its devices."""
    if variant.identity is None:
        return 0
    return variant.desired_replicas * variant.identity.devices_per_replica


def _total(view: ClassView) -> int | None:
    if view.spec.capacity.type is CapacityType.ELASTIC and view.spec.capacity.max_devices is not None:
        return view.spec.capacity.max_devices
    return view.allocatable_devices


def free_devices(view: ClassView, priority: int, own: int) -> int | None:
    """Devices of `view` that a policy of `priority`, itself holding `own`, may still take. None: unknown. Never negative."""
    total = _total(view)
    if total is None:
        return None
    taken = 0
    for claim in view.claims:
        taken += claim.devices if claim.priority >= priority else claim.held_devices
    free = max(0, total - view.used_by_others - taken - own)
    # What a higher priority would take if it were its turn now is not free, although it has not taken it yet.
    for claim in sorted(
        (c for c in view.claims if c.wanted_devices and c.priority > priority), key=lambda c: -c.priority
    ):
        free -= min(free, claim.wanted_devices) // claim.wanted_at_once * claim.wanted_at_once
    return free


def owed_devices(view: ClassView, priority: int, own: int, occupied: int) -> int:
    """How many devices that a policy of `priority` was promised, and that its pods do not occupy yet, go to higher priorities.

    `own` is all it claims, `occupied` what its pods occupy: that is never taken away. Policies of its own priority owe each other
    nothing: who was promised first waits first.
    """
    total, waiting = _total(view), own - occupied
    higher = sum(max(0, claim.devices - claim.held_devices) for claim in view.claims if claim.priority > priority)
    if total is None or higher == 0 or waiting <= 0:
        return 0
    unoccupied = total - view.used_by_others - occupied - sum(claim.held_devices for claim in view.claims)
    return waiting - min(waiting, max(0, unoccupied - higher))


@dataclass(frozen=True, slots=True)
class Stock:
    """Free devices by class at this point of the pass; taking returns a new Stock."""

    free: Mapping[str, int | None]
    owed: Mapping[str, int] = field(default_factory=dict)
    """Devices by class that were promised to us and are to be given up (see `owed_devices`)."""

    @classmethod
    def of(cls, classes: Mapping[str, ClassView], variants: Iterable[VariantView], priority: int) -> Stock:
        """The stock before anything new is taken; what our variants hold already is out of it."""
        own: dict[str, int] = {}
        occupied: dict[str, int] = {}
        for variant in variants:
            if variant.identity is not None:
                name, per_replica = variant.identity.accelerator_class, variant.identity.devices_per_replica
                own[name] = own.get(name, 0) + devices_held(variant)
                occupied[name] = occupied.get(name, 0) + per_replica * sum(pod.scheduled for pod in variant.pods)
        return cls(
            free=MappingProxyType({n: free_devices(v, priority, own.get(n, 0)) for n, v in classes.items()}),
            owed=MappingProxyType(
                {n: owed_devices(v, priority, own.get(n, 0), occupied.get(n, 0)) for n, v in classes.items()}
            ),
        )

    def of_class(self, name: str) -> int | None:
        """Free devices of a class; None where unknown, 0 where there is no such class."""
        return self.free.get(name, 0)

    def allows(self, name: str, devices: int) -> bool:
        """Whether that many devices can be taken; unknown stock allows."""
        free = self.of_class(name)
        return free is None or free >= devices

    def replicas(self, name: str, devices_per_replica: int, wanted: int) -> int:
        """The most replicas up to `wanted` that the stock holds."""
        free = self.of_class(name)
        return wanted if free is None else min(wanted, free // max(1, devices_per_replica))

    def take(self, name: str, devices: int) -> Stock:
        """The stock after taking; a negative number gives back."""
        free = self.of_class(name)
        if free is None:
            return self
        return replace(self, free=MappingProxyType({**self.free, name: max(0, free - devices)}))

    def give_up(self, name: str, devices: int) -> Stock:
        """The stock after that many of the devices that we owe were given up. They are not free: others were promised them."""
        return replace(self, owed=MappingProxyType({**self.owed, name: max(0, self.owed.get(name, 0) - devices)}))
