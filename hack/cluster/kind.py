"""A cluster by kind, for machines with Docker. The other providers need neither."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from hack.cluster.node_layout import CONF
from hack.tools import cache
from hack.tools.prerequisites import need
from hack.tools.progress import Failure, say


def docker_answers() -> bool:
    try:
        return subprocess.run(["docker", "info"], capture_output=True, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


class Kind:
    """The kind cluster called `inference-fleet-NAME`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cluster = f"inference-fleet-{name}"

    @property
    def kubeconfig(self) -> Path:
        return cache.cache() / "clusters" / f"kind-{self.name}" / "kubeconfig"

    def environment(self) -> dict[str, str]:
        path = f"{os.environ.get('PATH', '')}:{cache.binaries()}"
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "PATH": path}

    def kind(self, *words: str | Path) -> str:
        command = ["kind", *map(str, words)]
        done = subprocess.run(
            command, env=self.environment(), stdout=subprocess.PIPE, text=True
        )  # its progress is shown
        if done.returncode != 0:
            raise Failure(f"failed: {' '.join(command)}")
        return done.stdout

    def exists(self) -> bool:
        return self.cluster in self.kind("get", "clusters").split()

    def up(self, fake_gpus: int | None = None, fresh: bool = False) -> None:
        need("docker", "kind")
        if not docker_answers():
            raise Failure("the kind provider needs a running Docker; --provider node and --provider kwok do not")
        self.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        if fresh and self.exists():
            self.kind("delete", "cluster", "--name", self.cluster)
        if not self.exists():
            self.kind("create", "cluster", "--name", self.cluster, "--config", CONF / "kind.yaml", "--wait", "120s")
        self.kind("export", "kubeconfig", "--name", self.cluster)
        if fake_gpus is not None:
            patch = f'{{"status":{{"capacity":{{"nvidia.com/gpu":"{fake_gpus}"}}}}}}'
            node = f"{self.cluster}-control-plane"
            command = ["kubectl", "patch", "node", node, "--subresource=status", "--type=merge", "-p", patch]
            if subprocess.run(command, env=self.environment()).returncode != 0:
                raise Failure("the node does not take the fake devices")
        say(f"cluster '{self.name}' (kind) is up; KUBECONFIG={self.kubeconfig}")

    def down(self) -> None:
        need("docker", "kind")
        self.kind("delete", "cluster", "--name", self.cluster)

    def load_image(self, archive: Path) -> None:
        self.kind("load", "image-archive", archive, "--name", self.cluster)
