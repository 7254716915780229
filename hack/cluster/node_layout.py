"""Names, addresses and files of a node cluster: what the outside and the inside of its namespaces both know."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from hack.tools.cache import cache
from hack.tools.progress import Failure

ADDRESS = "10.77.0.1"
"""The node's. Every cluster has a network of its own without a link outwards, so all can have the same."""

CONF = Path(__file__).parent / "conf"


@dataclass(frozen=True, slots=True)
class NodeLayout:
    name: str

    def __post_init__(self) -> None:
        # It becomes a host name, a cgroup and a folder.
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", self.name):
            raise Failure(f"a cluster's name is at most 32 lower-case letters, digits and dashes, not '{self.name}'")

    @property
    def state(self) -> Path:
        return cache() / "clusters" / f"node-{self.name}"

    @property
    def node(self) -> str:
        """Host name, and name of the Kubernetes node."""
        return f"inference-fleet-{self.name}"

    @property
    def cgroup(self) -> str:
        """The cgroup subtree, which the whole machine sees: two caches may have a cluster of the same name."""
        return f"{self.node}-{hashlib.sha256(str(self.state).encode()).hexdigest()[:8]}"

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def logs(self) -> Path:
        return self.state / "log"

    @property
    def kubeconfig(self) -> Path:
        return self.pki / "admin.conf"

    @property
    def audit_log(self) -> Path:
        return self.logs / "audit.log"

    @property
    def volumes(self) -> Path:
        return self.state / "volumes"

    def conf(self, name: str) -> Path:
        return self.state / "conf" / name

    def cgroups(self) -> list[Path]:
        """The cgroups that the cluster's pods live below: one, or with cgroup v1 one in each hierarchy."""
        root = Path("/sys/fs/cgroup")
        if (root / "cgroup.controllers").exists():
            return [root / self.cgroup]
        return [
            hierarchy / self.cgroup for hierarchy in root.iterdir() if hierarchy.is_dir() and not hierarchy.is_symlink()
        ]

    def write_configuration(self) -> None:
        """Fills the templates of `conf/node/` in."""
        self.conf("").mkdir(parents=True, exist_ok=True)
        values = {"@STATE@": str(self.state), "@NODE@": self.node, "@CGROUP@": self.cgroup, "@ADDRESS@": ADDRESS}
        for template in (*(CONF / "node").iterdir(), CONF / "audit-policy.yaml"):
            text = template.read_text()
            for name, value in values.items():
                text = text.replace(name, value)
            self.conf(template.name).write_text(text)
        (self.state / "cni").mkdir(exist_ok=True)
        self.conf("cni.conflist").rename(self.state / "cni" / "10-pods.conflist")

    def volume_manifests(self, count: int) -> str:
        """Local volumes for claims, each a folder of the node. Any of them takes a claim of up to 50 Gi."""
        documents = []
        for number in range(count):
            folder = self.volumes / f"{number:02}"
            folder.mkdir(parents=True, exist_ok=True)
            affinity = {
                "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [self.node]}]
            }
            documents.append(
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolume",
                    "metadata": {"name": f"local-{number:02}"},
                    "spec": {
                        "capacity": {"storage": "50Gi"},
                        "accessModes": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"],
                        "persistentVolumeReclaimPolicy": "Retain",
                        "storageClassName": "standard",
                        "local": {"path": str(folder)},
                        "nodeAffinity": {"required": {"nodeSelectorTerms": [affinity]}},
                    },
                }
            )
        return json.dumps({"apiVersion": "v1", "kind": "List", "items": documents})
