"""What there is of an accelerator class: counted from nodes and pods, pure.

On a class with a resource name a device is one unit of that resource. On a CPU class the requests for one device are the device:
a node holds as many as both its cores and its memory allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from inference_fleet.api.accelerator import AcceleratorClassSpec, TolerationOperator
from inference_fleet.cluster.amounts import whole
from inference_fleet.cluster.seen import NodeSeen, PodSeen
from inference_fleet.naming import POLICY_LABEL


@dataclass(frozen=True, slots=True)
class Usage:
    """Devices on the matching nodes, and what other pods hold of them."""

    allocatable: int
    used_by_others: int


def _tolerated(spec: AcceleratorClassSpec, taint: tuple[str, str, str]) -> bool:
    key, value, effect = taint
    if effect == "PreferNoSchedule":
        return True
    for toleration in spec.tolerations:
        if toleration.effect is not None and toleration.effect.value != effect:
            continue
        if toleration.key is not None and toleration.key != key:
            continue
        if toleration.operator is TolerationOperator.EXISTS or (toleration.value or "") == value:
            return True
    return False


def matches(spec: AcceleratorClassSpec, node: NodeSeen) -> bool:
    """Whether a pod of this class could be put on the node: labels, taints, Ready and not cordoned."""
    wanted = spec.node_selector or {}
    return (
        node.usable
        and all(node.meta.labels.get(key) == value for key, value in wanted.items())
        and all(_tolerated(spec, taint) for taint in node.taints)
    )


def _devices_in(spec: AcceleratorClassSpec, amounts: Mapping[str, int]) -> int:
    """How many devices of a class some amount of resources makes."""
    if spec.resource_name is not None:
        return max(0, amounts.get(spec.resource_name, 0))
    requests = spec.requests_per_device
    if requests is None or requests.cpu is None or requests.memory is None:
        return 0
    by_cpu = amounts.get("cpu", 0) // max(1, whole("cpu", requests.cpu))
    by_memory = amounts.get("memory", 0) // max(1, whole("memory", requests.memory))
    return max(0, min(by_cpu, by_memory))


def usage(spec: AcceleratorClassSpec, nodes: Iterable[NodeSeen], pods: Iterable[PodSeen]) -> Usage:
    """Devices of a class over all matching nodes, and those that pods outside every policy hold."""
    matching = {node.meta.name: node for node in nodes if matches(spec, node)}
    taken: dict[str, dict[str, int]] = {}
    for pod in pods:
        if pod.node in matching and not pod.finished and not (pod.ours and POLICY_LABEL in pod.meta.labels):
            on_node = taken.setdefault(pod.node, {})
            for name, value in pod.requests.items():
                on_node[name] = on_node.get(name, 0) + value
    allocatable = others = 0
    for name, node in matching.items():
        whole_node = _devices_in(spec, node.allocatable)
        left = {key: value - taken.get(name, {}).get(key, 0) for key, value in node.allocatable.items()}
        allocatable += whole_node
        others += whole_node - min(whole_node, _devices_in(spec, left))
    return Usage(allocatable, others)
