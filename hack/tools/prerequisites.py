"""Programs that must be on the machine, and the Debian packages that bring them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from hack.tools.progress import Failure, say

DEBIAN_PACKAGE = {
    "containerd": "containerd",
    "containerd-shim-runc-v2": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "nft": "nftables",
    "iptables": "iptables",
    "ip": "iproute2",
    "openssl": "openssl",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "debootstrap": "debootstrap",
    "busybox": "busybox-static",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
}
"""Program, or a file that the package brings, and its package on Debian 12."""

OTHERWISE = {
    "go": "Go 1.26 or newer builds the Kubernetes binaries: install it from https://go.dev/dl/",
    "docker": "the kind provider needs Docker: https://docs.docker.com/engine/install/",
    "kind": "the kind provider needs kind: https://kind.sigs.k8s.io/docs/user/quick-start/",
    "kubectl": "kubectl is missing: https://kubernetes.io/docs/tasks/tools/",
}


def present(program: str) -> bool:
    # System programs live in sbin, which is not on the PATH of every user.
    path = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
    return Path(program).exists() if program.startswith("/") else shutil.which(program, path=path) is not None


def need(*programs: str) -> None:
    """Makes sure of `programs`: as root on Debian by installing their packages, else by a sentence that says what to do."""
    missing = [program for program in programs if not present(program)]
    for program in missing:
        if program not in DEBIAN_PACKAGE:
            raise Failure(OTHERWISE.get(program, f"{program} is missing"))
    packages = sorted({DEBIAN_PACKAGE[program] for program in missing})
    if not packages:
        return
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    if not present("apt-get") or os.geteuid() != 0:
        how = f"as root: {' '.join(command)}" if present("apt-get") else "they have other names outside Debian"
        raise Failure(f"missing: {', '.join(missing)} (Debian packages {', '.join(packages)}; {how})")
    install(packages)
    still = [program for program in missing if not present(program)]
    if still:
        raise Failure(f"the packages {', '.join(packages)} are installed, and yet missing: {', '.join(still)}")


def install(packages: list[str]) -> None:
    """Installs Debian packages; the package lists are fetched only where the installation fails without."""
    say(f"installing Debian packages: {' '.join(packages)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120", *packages]
    first = subprocess.run(command, env=environment, capture_output=True, text=True)
    if first.returncode == 0:
        return
    subprocess.run(["apt-get", "update", "-qq"], env=environment, capture_output=True)
    second = subprocess.run(command, env=environment, capture_output=True, text=True)
    if second.returncode != 0:
        raise Failure(f"apt-get could not install {' '.join(packages)}:\n{second.stderr.strip()}")


def need_root(why: str) -> None:
    if os.geteuid() != 0:
        raise Failure(f"{why} needs root: run this with sudo, or in a container or virtual machine where you are root")
