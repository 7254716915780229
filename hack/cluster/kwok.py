"""A real control plane with KWOK's fake nodes: pods become Ready without any process. For API and scale tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from hack.cluster import binaries
from hack.cluster.node_layout import CONF
from hack.tools import cache
from hack.tools.progress import Failure, say

SERVICE_ADDRESSES = "10.96.0.0/16"
"""By itself kwokctl leaves room for 254 Services."""


class Kwok:
    """The KWOK cluster called `name`. Needs no root: every part is a process of this user, on a free port."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def state(self) -> Path:
        return cache.cache() / "clusters" / f"kwok-{self.name}"

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        return self.state / "clusters" / self.name / "logs" / "audit.log"

    @property
    def pki(self) -> Path:
        return self.state / "clusters" / self.name / "pki"

    def environment(self) -> dict[str, str]:
        path = f"{cache.binaries()}:{os.environ.get('PATH', '')}"
        # kwokctl reads its configuration from $HOME too; a user's own must not change this cluster.
        own = {"KWOK_WORKDIR": str(self.state), "KUBECONFIG": str(self.kubeconfig)}
        return {**os.environ, "PATH": path, **own}

    def run(self, *words: str | Path, text: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(list(map(str, words)), input=text, env=self.environment(), capture_output=True, text=True)

    def kwokctl(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return self.run(cache.binaries() / "kwokctl", "--name", self.name, *words)

    def healthy(self) -> bool:
        return self.kubeconfig.exists() and self.run("kubectl", "get", "--raw", "/readyz").returncode == 0

    def up(self, fake_gpus: int | None = None, fresh: bool = False) -> None:
        with cache.locked(f"kwok-{self.name}"):
            if not fresh and self.healthy():
                say(f"cluster '{self.name}' (kwok) is up")
            else:
                self.start()
            if fake_gpus is not None:
                self.node("gpu-0", gpus=fake_gpus)

    def start(self) -> None:
        started = time.monotonic()
        binaries.build(*binaries.CONTROL_PLANE, *binaries.KWOK)
        self.stop()
        self.state.mkdir(parents=True)
        say(f"starting cluster '{self.name}' (kwok)")
        folder = cache.binaries()
        parts = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
        flags = [f"--{part}-binary={folder / part}" for part in parts]
        done = self.kwokctl(
            "create", "cluster", "--runtime", "binary", *flags, f"--kwok-controller-binary={folder / 'kwok'}",
            "--kubeconfig", self.kubeconfig, "--secure-port", "--disable-qps-limits", "--wait", "120s",
            "--kube-audit-policy", CONF / "audit-policy.yaml",
            "--extra-args", f"kube-apiserver=service-cluster-ip-range={SERVICE_ADDRESSES}",
        )  # fmt: skip
        if done.returncode != 0:
            raise Failure(f"kwokctl did not create the cluster:\n{done.stderr[-3000:]}")
        say(
            f"cluster '{self.name}' (kwok) is up after {time.monotonic() - started:.1f} s; KUBECONFIG={self.kubeconfig}"
        )

    def down(self) -> None:
        with cache.locked(f"kwok-{self.name}"):
            self.stop()
        say(f"cluster '{self.name}' (kwok) is down")

    def stop(self) -> None:
        if (self.state / "clusters" / self.name).exists():
            done = self.kwokctl("delete", "cluster", "--kubeconfig", self.kubeconfig)
            if done.returncode != 0:
                raise Failure(f"kwokctl did not delete the cluster:\n{done.stderr[-3000:]}")
        if self.state.exists():
            shutil.rmtree(self.state)

    def node(
        self,
        name: str,
        gpus: int = 0,
        cpu: str = "64",
        memory: str = "512Gi",
        labels: dict[str, str] | None = None,
        taints: Sequence[dict[str, str]] = (),
    ) -> None:
        """Makes a fake node, or changes what it offers. KWOK keeps it Ready and runs nothing on it."""
        document = fake_node(name, gpus, cpu, memory, labels or {}, taints)
        for extra in ((), ("--subresource=status",)):
            manager = ("--server-side", "--force-conflicts", "--field-manager=local-cluster")
            done = self.run("kubectl", "apply", *manager, *extra, "-f", "-", text=json.dumps(document))
            if done.returncode != 0:
                raise Failure(f"node {name}: {done.stderr.strip()}")


def fake_node(
    name: str, gpus: int, cpu: str, memory: str, labels: dict[str, str], taints: Sequence[dict[str, str]]
) -> dict[str, object]:
    amounts = {"cpu": cpu, "memory": memory, "pods": "250"}
    if gpus:
        amounts["nvidia.com/gpu"] = str(gpus)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "type": "kwok",
                **labels,
            },
        },
        "spec": {"taints": list(taints)},
        "status": {"capacity": amounts, "allocatable": amounts},
    }
