"""The real Kubernetes and its companions, built from Go modules into the cache: no registry, no release download.

A binary is valid when its stamp says the key wanted here: a hash of everything that decides its content. A binary
without a stamp is asked for the module version that Go wrote into it, and adopted if that is right.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from hack.tools.cache import binaries, locked
from hack.tools.prerequisites import need
from hack.tools.progress import Failure, say

MODULES = Path(__file__).parent / "go"
KUBERNETES = "1.37.2"
OLD_KUBERNETES = "1.29.15"
"""The oldest Kubernetes that this project supports: schemas are tested on its API server too."""


@dataclass(frozen=True, slots=True)
class Binary:
    """One program: the package it is built from, and how."""

    name: str
    package: str
    module: str
    version: str
    """Of the module that holds the package, as Go writes it into the binary."""
    folder: str | None = None
    """Folder under `go/` whose go.mod and go.sum pin everything; without one, the module's own go.mod does."""
    link: str = ""
    """Linker flags. The Kubernetes parts report v0.0.0 without theirs, and kwokctl then chooses wrong options."""

    def key(self) -> str:
        digest = hashlib.sha256(repr((self.package, self.version, self.link)).encode())
        if self.folder:
            for file in sorted((MODULES / self.folder).iterdir()):
                digest.update(file.name.encode() + b"\0" + file.read_bytes())
        return digest.hexdigest()[:32]

    @property
    def path(self) -> Path:
        return binaries() / self.name


def kubernetes(program: str, version: str = KUBERNETES, folder: str = "kubernetes", name: str = "") -> Binary:
    major, minor, _ = version.split(".")
    package = "k8s.io/component-base/version"
    link = f"-X {package}.gitVersion=v{version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
    return Binary(name or program, f"k8s.io/kubernetes/cmd/{program}", "k8s.io/kubernetes", f"v{version}", folder, link)


CONTROL_PLANE = (
    kubernetes("kube-apiserver"),
    kubernetes("kube-controller-manager"),
    kubernetes("kube-scheduler"),
    kubernetes("kubectl"),
    Binary("etcd", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3", "v3.6.16", "etcd"),
)
KWOK = tuple(Binary(name, f"sigs.k8s.io/kwok/cmd/{name}", "sigs.k8s.io/kwok", "v0.8.0") for name in ("kwok", "kwokctl"))
COREDNS = Binary("coredns", ".", "github.com/coredns/coredns", "v1.15.0", "coredns")
NODE = (kubernetes("kubelet"), kubernetes("kube-proxy"), COREDNS)
HELM = Binary("helm", "helm.sh/helm/v4/cmd/helm", "helm.sh/helm/v4", "v4.2.3")
SIMULATOR = Binary(
    "llm-d-inference-sim",
    "github.com/llm-d/llm-d-inference-sim/cmd/llm-d-inference-sim",
    "github.com/llm-d/llm-d-inference-sim",
    "v0.10.2",
    "inference-sim",
)
OLD_API_SERVER = kubernetes("kube-apiserver", OLD_KUBERNETES, "kubernetes-1.29", "kube-apiserver-1.29")
ALL = (*CONTROL_PLANE, *NODE, *KWOK, HELM, SIMULATOR, OLD_API_SERVER)


def build(*wanted: Binary) -> None:
    """Builds those of `wanted` that are missing or of another version; a nice neighbour while it does."""
    missing = [binary for binary in wanted if not valid(binary)]
    if not missing:
        return
    with locked("build"):
        missing = [binary for binary in missing if not valid(binary)]
        if missing:
            need("go")
        for number, binary in enumerate(missing, 1):
            say(f"building {binary.name} {binary.version} from Go modules ({number} of {len(missing)}; cold: minutes)")
            started = time.monotonic()
            compile_one(binary)
            say(f"  {binary.name}: {time.monotonic() - started:.0f} s")


def stamp(binary: Binary) -> Path:
    return binary.path.parent / ".stamps" / binary.name


def identity(path: Path) -> str:
    facts = path.stat()
    return f"{facts.st_size} {facts.st_mtime_ns}"


def valid(binary: Binary) -> bool:
    if not os.access(binary.path, os.X_OK):
        return False
    if not stamp(binary).exists() and built_from(binary):
        write_stamp(binary)
    try:
        return stamp(binary).read_text() == f"{binary.key()} {identity(binary.path)}"
    except OSError:
        return False


def built_from(binary: Binary) -> bool:
    """Whether the module and version that Go recorded in a binary are the wanted ones."""
    go = shutil.which("go")
    if go is None:
        return False
    facts = subprocess.run([go, "version", "-m", binary.path], capture_output=True, text=True).stdout
    return any(line.split()[1:3] == [binary.module, binary.version] for line in facts.splitlines()[1:])


def write_stamp(binary: Binary) -> None:
    stamp(binary).parent.mkdir(exist_ok=True)
    stamp(binary).write_text(f"{binary.key()} {identity(binary.path)}")


def compile_one(binary: Binary) -> None:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
    # Beside the target and renamed: a half-written binary is never seen.
    with tempfile.TemporaryDirectory(dir=binary.path.parent, prefix=".building-") as work:
        if binary.folder:
            source = shutil.copytree(MODULES / binary.folder, Path(work) / "module")
            made = Path(work) / binary.name
            flags = f"-s -w {binary.link}".strip()
            command = ["go", "build", "-trimpath", "-ldflags", flags, "-o", str(made), binary.package]
        else:
            source, made = Path(work), Path(work) / binary.package.rsplit("/", 1)[1]
            environment["GOBIN"] = work
            command = ["go", "install", f"{binary.package}@{binary.version}"]
        done = subprocess.run(
            ["nice", "-n", "10", *command], cwd=source, env=environment, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise Failure(f"{binary.name} does not build:\n{done.stderr[-4000:]}")
        stamp(binary).unlink(missing_ok=True)
        made.rename(binary.path)
    write_stamp(binary)
