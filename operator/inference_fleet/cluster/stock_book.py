"""Stock of all classes, counted from the snapshots at most about once a second, whatever the number of passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from inference_fleet.cluster import kinds
from inference_fleet.cluster.observe import held_devices, usages_of
from inference_fleet.cluster.seen import ClassSeen, DeploymentSeen, NodeSeen, PodSeen
from inference_fleet.cluster.snapshot import Snapshots
from inference_fleet.cluster.stock import Usage

FRESH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Counted:
    """Usage of each class (absent where nodes cannot be read), and devices that policies' pods occupy: class → policy → devices."""

    usages: Mapping[str, Usage] = field(default_factory=dict)
    held: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


class StockBook:
    """Counts again when something that matters changed (`changed`), but not more often than about once a second."""

    def __init__(self, snapshots: Snapshots, clock: Callable[[], float]) -> None:
        self._snapshots = snapshots
        self._clock = clock
        self._dirty = True
        self._counted = Counted()
        self._counted_at = 0.0

    def changed(self) -> None:
        """A node, a pod, a Deployment or a class changed."""
        self._dirty = True

    def current(self, *, fresh: bool = False) -> Counted:
        """The counts; `fresh`: as of now, however recently they were taken."""
        now = self._clock()
        if self._dirty and (fresh or now - self._counted_at >= FRESH_SECONDS):
            self._counted, self._counted_at, self._dirty = self._count(), now, False
        return self._counted

    def _count(self) -> Counted:
        pods = tuple(p for p in self._snapshots.all(kinds.POD) if isinstance(p, PodSeen))
        deployments = tuple(d for d in self._snapshots.all(kinds.DEPLOYMENT) if isinstance(d, DeploymentSeen))
        held = held_devices(deployments, pods)
        if not self._snapshots.known(kinds.NODE):
            return Counted(held=held)
        nodes = tuple(n for n in self._snapshots.all(kinds.NODE) if isinstance(n, NodeSeen))
        classes = tuple(c for c in self._snapshots.all(kinds.ACCELERATOR_CLASS) if isinstance(c, ClassSeen))
        return Counted(usages_of(classes, nodes, pods), held)
