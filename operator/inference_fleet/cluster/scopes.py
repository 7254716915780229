"""Which kinds are read, where, and by which selectors."""

from __future__ import annotations

from inference_fleet.cluster import kinds
from inference_fleet.cluster.kinds import Kind
from inference_fleet.cluster.memory import COMPONENT
from inference_fleet.cluster.settings import OperatorOptions
from inference_fleet.cluster.snapshot import Scope
from inference_fleet.naming import COMPONENT_LABEL, MANAGED_BY, MANAGED_BY_LABEL

OURS = f"{MANAGED_BY_LABEL}={MANAGED_BY}"
MEMORIES = f"{OURS},{COMPONENT_LABEL}={COMPONENT}"
EVERYTHING_BUT_MEMORIES = f"{OURS},{COMPONENT_LABEL}!={COMPONENT}"
"""Memories are written often, are large, and nobody waits for them."""

_NAMESPACED: tuple[tuple[Kind, str], ...] = (
    (kinds.POLICY, ""),
    (kinds.MODEL, ""),
    (kinds.DEPLOYMENT, OURS),
    (kinds.SERVICE, OURS),
    (kinds.CONFIG_MAP, EVERYTHING_BUT_MEMORIES),
    (kinds.SERVICE_ACCOUNT, OURS),
    (kinds.ROLE_BINDING, OURS),
    (kinds.DISRUPTION_BUDGET, OURS),
    (kinds.JOB, OURS),
)


def scopes(options: OperatorOptions) -> tuple[Scope, ...]:
    """The reflectors to run. In a namespaced install other people's pods are out of sight, and so is stock without nodes.

    Of excluded namespaces only the pods are seen, as other people's: they take devices.
    """
    places = options.namespaces or ("",)
    excluded = options.excluded
    found = [Scope(kind, place, selector, excluded=excluded) for kind, selector in _NAMESPACED for place in places]
    if options.clusterwide:
        found.append(Scope(kinds.POD, excluded=excluded))
    else:
        found += [Scope(kinds.POD, place, OURS) for place in places]
    if options.clusterwide or options.read_nodes:
        found += [
            Scope(kinds.ACCELERATOR_CLASS, optional=not options.clusterwide),
            Scope(kinds.NODE, optional=not options.clusterwide),
        ]
    return tuple(found)
