"""Elastic classes that are out of stock: pods that have waited for a node longer than an autoscaler usually takes to bring one.

Nobody says so but the clock: a cloud that has no more of a kind of machine shows only as a pod that stays Pending. Until the usual
time has passed a Pending pod on such a class is expected, and nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

from inference_fleet.api.accelerator import CapacityType
from inference_fleet.plan.observation import ClassView, Observation, PodView, VariantView


@dataclass(frozen=True, slots=True)
class StockOut:
    """A variant that waits in vain."""

    message: str
    ready_replicas: int
    """With some it is kept and waits on; with none another accelerator is looked for."""


NO_STOCK_OUTS: Mapping[str, StockOut] = MappingProxyType({})


USUAL_SECONDS = 600
"""How long a node takes to come where the class does not say."""


def _usual_seconds(view: ClassView) -> int:
    return view.spec.capacity.provisioning_seconds or USUAL_SECONDS


def is_elastic(view: ClassView | None) -> bool:
    """Whether nodes of a class are brought on demand."""
    return view is not None and view.spec.capacity.type is CapacityType.ELASTIC


def _waiting(observation: Observation) -> Iterable[tuple[VariantView, ClassView, PodView]]:
    """Pods of elastic classes that have no node."""
    for variant in observation.variants:
        view = observation.classes.get(variant.identity.accelerator_class) if variant.identity is not None else None
        if view is not None and is_elastic(view):
            yield from ((variant, view, pod) for pod in variant.pods if not pod.scheduled and not pod.deleting)


def stock_outs(observation: Observation, now: datetime) -> Mapping[str, StockOut]:
    """By variant."""
    found: dict[str, StockOut] = {}
    for variant, view, pod in _waiting(observation):
        waited = (now - pod.created).total_seconds()
        usual = _usual_seconds(view)
        if waited >= usual:
            message = (
                f"Pod {pod.name} has waited longer for a node of the elastic class {view.name!r} than the {usual} s that one "
                f"usually takes: it is out of stock. List another accelerator, or wait."
            )
            found.setdefault(variant.name, StockOut(message, variant.ready_replicas))
    return MappingProxyType(found)


def next_look_seconds(observation: Observation, now: datetime) -> float | None:
    """When the next pod will have waited too long, if it gets no node; None where none waits, or all have."""
    left = (_usual_seconds(view) - (now - pod.created).total_seconds() for _, view, pod in _waiting(observation))
    return min((max(1.0, seconds) for seconds in left if seconds > 0), default=None)
