"""A real one-node Kubernetes without Docker: containerd, kubelet and the control plane in namespaces of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hack.cluster import binaries
from hack.cluster.node_layout import ADDRESS, NodeLayout
from hack.cluster.pki import Authority
from hack.images.catalog import BUSYBOX, PAUSE
from hack.tools import cache
from hack.tools.prerequisites import need, need_root
from hack.tools.progress import Failure, say, wait

PROGRAMS = (
    "containerd", "containerd-shim-runc-v2", "ctr", "runc", "nft", "iptables", "ip", "openssl", "unshare", "nsenter",
    "setpriv", "/usr/lib/cni/bridge",
)  # fmt: skip
INSIDE = "INFERENCE_FLEET_INSIDE"
"""Set to the cluster's name for a command that runs in its namespaces."""

API = f"https://{ADDRESS}:6443"
NAMESPACES = ("--mount", "--net", "--pid", "--ipc", "--uts")


class Node:
    """The node cluster called `name`: started, stopped and entered from outside."""

    def __init__(self, name: str) -> None:
        self.layout = NodeLayout(name)
        self.name = name

    # -- running or not

    def unshare_pid(self) -> int | None:
        """The process whose only child is process 1 of the namespaces; None where nothing runs."""
        try:
            pid = int((self.layout.state / "unshare.pid").read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        # The number may have been given to another process since.
        return pid if b"hack.cluster.node_init" in command and self.name.encode() in command else None

    def init_pid(self) -> int | None:
        pid = self.unshare_pid()
        try:
            return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]) if pid else None
        except (OSError, IndexError):
            return None

    def healthy(self) -> bool:
        if self.init_pid() is None or not (self.layout.state / "ready").exists():
            return False
        ready = self.run("kubectl", "get", "node", self.layout.node, "-o", "jsonpath={.status.conditions[-1:].status}")
        return ready.returncode == 0 and ready.stdout == "True"

    # -- up and down

    def up(self, fake_gpus: int | None = None, fresh: bool = False) -> None:
        """Starts the cluster; one that is up and healthy is left as it is, unless `fresh`."""
        need_root("a cluster of provider node")
        with cache.locked(f"node-{self.name}"):
            if not fresh and self.healthy():
                say(f"cluster '{self.name}' is up")
            else:
                if self.unshare_pid() is not None and not fresh:
                    say(f"cluster '{self.name}' is not healthy, starting it afresh")
                self.start()
            if fake_gpus is not None:
                self.fake_gpus(fake_gpus)

    def start(self) -> None:
        started = time.monotonic()
        need(*PROGRAMS)
        binaries.build(*binaries.CONTROL_PLANE, *binaries.NODE)
        archives = [PAUSE.archive(), BUSYBOX.archive()]
        self.stop()
        say(f"starting cluster '{self.name}'")
        self.layout.logs.mkdir(parents=True)
        self.layout.write_configuration()
        self.write_pki()
        self.launch()
        for archive in archives:
            self.load_image(archive)
        say(f"cluster '{self.name}' is up after {time.monotonic() - started:.1f} s")

    def write_pki(self) -> None:
        authority = Authority(self.layout.pki)
        authority.service_account_keys()
        service = ",".join(
            f"DNS:kubernetes{end}" for end in ("", ".default", ".default.svc", ".default.svc.cluster.local")
        )
        authority.certificate(
            "server", "/CN=kube-apiserver", f"IP:{ADDRESS},IP:127.0.0.1,IP:10.96.0.1,DNS:localhost,{service}"
        )
        authority.certificate("admin", "/O=system:masters/CN=admin")
        authority.certificate("controller-manager", "/CN=system:kube-controller-manager")
        authority.certificate("scheduler", "/CN=system:kube-scheduler")
        names = f"IP:{ADDRESS},DNS:{self.layout.node}"
        authority.certificate("kubelet", f"/O=system:nodes/CN=system:node:{self.layout.node}", names)
        authority.certificate("proxy", "/CN=system:kube-proxy")
        authority.certificate("coredns", "/CN=system:coredns")
        for name in ("admin", "controller-manager", "scheduler", "kubelet", "proxy", "coredns"):
            authority.kubeconfig(name, API)

    def launch(self) -> None:
        log = self.layout.logs / "init.log"
        flags = (*NAMESPACES, "--fork", "--kill-child", "--mount-proc")
        with log.open("ab") as output:
            process = subprocess.Popen(
                ["unshare", *flags, sys.executable, "-u", "-m", "hack.cluster.node_init", self.name],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                cwd="/", env={**self.environment(), "PYTHONPATH": str(cache.REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"},
            )  # fmt: skip
        (self.layout.state / "unshare.pid").write_text(str(process.pid))
        shown = 0

        def ready() -> bool:
            nonlocal shown
            lines = log.read_text(errors="replace").splitlines()
            for line in lines[shown:]:
                say(line)
            shown = len(lines)
            if process.poll() is not None:
                raise Failure(f"the cluster did not start; its logs are in {self.layout.logs}\n{self.last_words()}")
            return (self.layout.state / "ready").exists()

        try:
            wait("Kubernetes", ready, 300)
        except BaseException:
            self.stop(keep_state=True)
            raise

    def last_words(self) -> str:
        tails = []
        for log in sorted(self.layout.logs.glob("*.log")):
            if log != self.layout.audit_log:
                lines = log.read_text(errors="replace").splitlines()[-3:]
                tails.append("\n".join([f"--- {log.name}", *(line[:400] for line in lines)]))
        return "\n".join(tails)

    def down(self) -> None:
        if self.layout.state.exists():
            need_root("a cluster of provider node")
            with cache.locked(f"node-{self.name}"):
                self.stop()
        say(f"cluster '{self.name}' (node) is down")

    def stop(self, keep_state: bool = False) -> None:
        """Ends every process and pod, and removes the cgroups and, unless `keep_state`, everything it wrote."""
        unshare = self.unshare_pid()
        if unshare is not None:
            os.kill(self.init_pid() or unshare, signal.SIGKILL)
            wait("everything in the namespaces has ended", lambda: not alive(unshare), 60, quiet=True)
        wait("its cgroups are removed", self.remove_cgroups, 30, quiet=True)
        if not keep_state and self.layout.state.exists():
            shutil.rmtree(self.layout.state)

    def remove_cgroups(self) -> bool:
        gone = True
        for top in self.layout.cgroups():
            for folder, _, _ in os.walk(top, topdown=False):
                try:
                    Path(folder).rmdir()
                except OSError:  # a dying process may hold its cgroup for a moment
                    gone = False
        return gone

    # -- inside

    def environment(self) -> dict[str, str]:
        path = f"{cache.binaries()}:{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
        return {**os.environ, "PATH": path, "KUBECONFIG": str(self.layout.kubeconfig), INSIDE: self.name}

    def command(self, *words: str | Path) -> list[str]:
        """`words` as a command that runs in the cluster's namespaces, from wherever this process is."""
        if os.environ.get(INSIDE) == self.name:
            return list(map(str, words))
        init = self.init_pid()
        if init is None:
            raise Failure(
                f"cluster '{self.name}' is not up: hack/cluster/cluster up --provider node --name {self.name}"
            )
        enter = ["nsenter", "-t", str(init), *NAMESPACES, f"--wdns={Path.cwd()}", "--"]
        # nsenter waits outside for the command inside. Either way an end is an end for both: nsenter goes with this
        # process, and the command with nsenter.
        outer, inner = ["setpriv", "--pdeathsig", "KILL", "--"], ["setpriv", "--pdeathsig", "TERM", "--"]
        return [*outer, *enter, *inner, *map(str, words)]

    def run(
        self, *words: str | Path, text: str | None = None, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command inside, captures what it says, and judges nothing."""
        environ = {**self.environment(), **(environment or {})}
        return subprocess.run(self.command(*words), input=text, env=environ, capture_output=True, text=True)

    def replace_this_process_by(self, words: Sequence[str]) -> int:
        """Runs a command inside with this terminal; passes signals on; returns its exit status."""
        process = subprocess.Popen(self.command(*words), env=self.environment())

        def forward(number: int, _: object) -> None:
            for child in children(process.pid) or [process.pid]:
                os.kill(child, number)

        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, forward)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the command as well
        status = process.wait()
        return status if status >= 0 else 128 - status

    def load_image(self, archive: Path) -> None:
        """Imports a docker-archive, unless the very same images are there already."""
        record = self.layout.state / "images.json"
        loaded = json.loads(record.read_text()) if record.exists() else {}
        images = archived_images(archive)
        if all(loaded.get(name) == identity for name, identity in images.items()):
            return
        started = time.monotonic()
        done = self.run("ctr", "-n", "k8s.io", "images", "import", archive.absolute())
        if done.returncode != 0:
            raise Failure(f"{archive} cannot be loaded: {done.stderr.strip()}")
        record.write_text(json.dumps({**loaded, **images}))
        say(f"  loaded {', '.join(images)}: {time.monotonic() - started:.1f} s")

    def fake_gpus(self, count: int) -> None:
        """Has the node offer `count` of nvidia.com/gpu, which the scheduler counts like real ones."""
        amount = {"nvidia.com/gpu": str(count)}
        patch = json.dumps({"status": {"capacity": amount, "allocatable": amount}})
        target = ("patch", "node", self.layout.node, "--subresource=status", "--type=merge", "-p", patch)
        done = self.run("kubectl", *target)
        if done.returncode != 0:
            raise Failure(f"the node does not take {count} fake devices: {done.stderr.strip()}")
        say(f"  the node offers nvidia.com/gpu: {count}")


def alive(pid: int) -> bool:
    try:
        # A process that has ended stays visible until its parent asks; this may be its parent.
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass
    return Path(f"/proc/{pid}").exists()


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def archived_images(archive: Path) -> dict[str, str]:
    """Names and configuration digests of the images in a docker-archive."""
    with tarfile.open(archive) as tar:
        manifest = tar.extractfile("manifest.json")
        if manifest is None:
            raise Failure(f"{archive} is not a docker-archive")
        entries = json.load(manifest)
    return {name: entry["Config"] for entry in entries for name in entry["RepoTags"]}
