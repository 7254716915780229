"""How many devices of each class this policy may still take in this pass.

Stock is what the matching nodes offer, less what pods outside every policy hold, less what other policies hold or were promised
before us, less what our own variants hold. A promise of lower priority that nobody's pod occupies yet does not count: `priority`
decides who gets scarce devices. Stock that cannot be known (no right to read nodes) is None: placing is then allowed, surge is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from inference_fleet.api.accelerator import CapacityType
from inference_fleet.plan.observation import ClassView, VariantView


def devices_held(variant: VariantView) -> int:
    """Devices a variant has or will have without any further decision: its desired replicas, each with its devices."""
    if variant.identity is None:
        return 0
    return variant.desired_replicas * variant.identity.devices_per_replica


def free_devices(view: ClassView, priority: int, own: int) -> int | None:
    """Devices of `view` that a policy of `priority`, itself holding `own`, may still take. None: unknown. Never negative."""
    if view.spec.capacity.type is CapacityType.ELASTIC and view.spec.capacity.max_devices is not None:
        total: int | None = view.spec.capacity.max_devices
    else:
        total = view.allocatable_devices
    if total is None:
        return None
    taken = 0
    for claim in view.claims:
        taken += claim.devices if claim.priority >= priority else claim.held_devices
    return max(0, total - view.used_by_others - taken - own)


@dataclass(frozen=True, slots=True)
class Stock:
    """Free devices by class at this point of the pass; taking returns a new Stock."""

    free: Mapping[str, int | None]

    @classmethod
    def of(cls, classes: Mapping[str, ClassView], variants: Iterable[VariantView], priority: int) -> Stock:
        """The stock before anything new is taken; what our variants hold already is out of it."""
        own: dict[str, int] = {}
        for variant in variants:
            if variant.identity is not None:
                name = variant.identity.accelerator_class
                own[name] = own.get(name, 0) + devices_held(variant)
        return cls(MappingProxyType({n: free_devices(v, priority, own.get(n, 0)) for n, v in classes.items()}))

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
