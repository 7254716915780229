"""Quantities as nodes and pods state them, which is every form Kubernetes allows, in whole units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Any

_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}


def amount(text: object) -> Decimal:
    """The value of a quantity such as `4`, `500m`, `16Gi`, `1e3`; 0 for what is not one (the API server refuses those)."""
    plain = str(text).strip()
    number = plain.rstrip("numkKMGTPEi")
    suffix = plain[len(number) :]
    try:
        return Decimal(number) * _SUFFIXES.get(suffix, Decimal(0))
    except InvalidOperation:
        return Decimal(0)


def whole(resource: str, text: object) -> int:
    """`cpu` in milli-cores, everything else in its own unit, rounded up."""
    value = amount(text) * (1000 if resource == "cpu" else 1)
    return int(value.to_integral_value(ROUND_CEILING))


def amounts(resources: Mapping[str, object] | None) -> dict[str, int]:
    """A resource list in whole units: cpu, memory and extended resources; others are left out."""
    return {
        name: whole(name, text) for name, text in (resources or {}).items() if name in ("cpu", "memory") or "/" in name
    }


def _sum(lists: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in lists:
        for name, value in one.items():
            total[name] = total.get(name, 0) + value
    return total


def _largest(*lists: Mapping[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0) for one in lists) for name in {name for one in lists for name in one}}


def pod_requests(spec: Mapping[str, Any]) -> dict[str, int]:
    """What a pod takes from its node, by the scheduler's rule.

    Containers and native sidecars together, or the largest init container with the sidecars started before it, whichever is
    more; plus the overhead of the runtime class. Source: KEP-753, "Resources calculation for scheduling and pod admission".
    """
    containers = [amounts((c.get("resources") or {}).get("requests")) for c in spec.get("containers") or []]
    sidecars: dict[str, int] = {}
    starting: dict[str, int] = {}
    for container in spec.get("initContainers") or []:
        own = amounts((container.get("resources") or {}).get("requests"))
        if container.get("restartPolicy") == "Always":
            sidecars = _sum((sidecars, own))
            starting = _largest(starting, sidecars)
        else:
            starting = _largest(starting, _sum((sidecars, own)))
    running = _sum([*containers, sidecars])
    return _sum((_largest(running, starting), amounts(spec.get("overhead"))))
