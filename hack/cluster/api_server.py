"""An API server with its etcd and nothing else: enough to ask a given Kubernetes version what it accepts."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from hack.cluster import binaries
from hack.cluster.binaries import Binary
from hack.cluster.node_layout import CONF
from hack.cluster.pki import Authority
from hack.tools import cache
from hack.tools.prerequisites import need
from hack.tools.progress import Failure, say, wait

ETCD = next(binary for binary in binaries.CONTROL_PLANE if binary.name == "etcd")
KUBECTL = next(binary for binary in binaries.CONTROL_PLANE if binary.name == "kubectl")
VERSIONS: dict[str, Binary] = {"1.29": binaries.OLD_API_SERVER, "1.37": binaries.CONTROL_PLANE[0]}


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in sockets]


class ApiServer:
    """Runs from `start` to `stop`; its folder is temporary, its processes end with this one."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.binary = VERSIONS[version]
        self.state = Path()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def kubeconfig(self) -> Path:
        return self.state / "pki" / "admin.conf"

    @property
    def audit_log(self) -> Path:
        return self.state / "audit.log"

    def start(self) -> None:
        started = time.monotonic()
        need("openssl", "setpriv")
        binaries.build(ETCD, KUBECTL, self.binary)
        self.state = Path(tempfile.mkdtemp(prefix=f"inference-fleet-api-{self.version}-"))
        try:
            self.launch()
        except BaseException:
            self.stop()
            raise
        say(f"API server {self.binary.version} is up after {time.monotonic() - started:.1f} s")

    def launch(self) -> None:
        pki = self.state / "pki"
        authority = Authority(pki)
        authority.service_account_keys()
        authority.certificate("server", "/CN=kube-apiserver", "IP:127.0.0.1,DNS:localhost")
        authority.certificate("admin", "/O=system:masters/CN=admin")
        client, peer, port = free_ports(3)
        authority.kubeconfig("admin", f"https://127.0.0.1:{port}")
        etcd = f"http://127.0.0.1:{client}"
        self.run_part(
            ETCD.path, "--data-dir", str(self.state / "etcd"), "--unsafe-no-fsync", "--log-level", "warn",
            "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
            "--listen-peer-urls", f"http://127.0.0.1:{peer}", "--initial-advertise-peer-urls",
            f"http://127.0.0.1:{peer}", "--initial-cluster", f"default=http://127.0.0.1:{peer}",
        )  # fmt: skip
        self.run_part(
            self.binary.path, "--etcd-servers", etcd, "--bind-address", "127.0.0.1", "--secure-port", str(port),
            "--client-ca-file", f"{pki}/ca.crt", "--tls-cert-file", f"{pki}/server.crt",
            "--tls-private-key-file", f"{pki}/server.key", "--authorization-mode", "RBAC",
            "--service-cluster-ip-range", "10.96.0.0/16", "--endpoint-reconciler-type", "none",
            "--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", f"{pki}/sa.pub",
            "--service-account-signing-key-file", f"{pki}/sa.key",
            "--audit-policy-file", str(CONF / "audit-policy.yaml"), "--audit-log-path", str(self.audit_log),
        )  # fmt: skip
        wait(f"API server {self.version} is ready", self.ready, 120)

    def run_part(self, program: Path, *arguments: str) -> None:
        with (self.state / f"{program.name}.log").open("wb") as log:
            # Ends when this process does, however that ends.
            command = ["setpriv", "--pdeathsig", "KILL", "--", str(program), *arguments]
            process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.processes[program.name] = process

    def ready(self) -> bool:
        for name, process in self.processes.items():
            if process.poll() is not None:
                log = (self.state / f"{name}.log").read_text(errors="replace")
                raise Failure(f"{name} ended:\n{log[-2000:]}")
        return self.run("kubectl", "get", "--raw", "/readyz").returncode == 0

    def run(self, *words: str | Path, text: str | None = None) -> subprocess.CompletedProcess[str]:
        path = f"{cache.binaries()}:{os.environ.get('PATH', '')}"
        environment = {**os.environ, "PATH": path, "KUBECONFIG": str(self.kubeconfig)}
        return subprocess.run(list(map(str, words)), input=text, env=environment, capture_output=True, text=True)

    def stop(self) -> None:
        for process in reversed(self.processes.values()):
            process.kill()
            process.wait()
        self.processes.clear()
        shutil.rmtree(self.state, ignore_errors=True)


@contextlib.contextmanager
def api_server(version: str) -> Iterator[ApiServer]:
    server = ApiServer(version)
    server.start()
    try:
        yield server
    finally:
        server.stop()
