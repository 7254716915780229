"""Process 1 of a node cluster's namespaces: starts every part of Kubernetes and restarts what dies.

Run by `node.py` as `unshare … python3 -m hack.cluster.node_init NAME`. Its network has no link outwards, so ports never
clash, pod and Service addresses cannot leave, and no rule, link or setting of the machine changes. When this process is
killed, the kernel ends every process and every pod, and removes the mounts and the network.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hack.cluster.node_layout import ADDRESS, NodeLayout
from hack.tools.progress import Failure, wait

KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""What kubelet insists on. It is shown these values instead of changing the whole machine's."""

VOLUMES = 16


def run(*command: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True)
    if check and done.returncode != 0:
        raise Failure(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done


class Init:
    """The parts of one cluster, as children of this process."""

    def __init__(self, layout: NodeLayout) -> None:
        self.layout = layout
        self.commands: dict[str, Sequence[str]] = {}
        self.running: dict[int, str] = {}

    def start(self, name: str, *arguments: str) -> None:
        self.commands[name] = (name, *arguments)
        with (self.layout.logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(self.commands[name], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.running[process.pid] = name

    def supervise(self) -> None:
        """Reaps what is left to process 1, and starts a part again that has ended. Never returns."""
        while True:
            pid, status = os.waitpid(-1, 0)
            name = self.running.pop(pid, None)
            if name is not None:
                print(f"{name} ended with status {status}, starting it again", flush=True)
                time.sleep(1)
                self.start(name, *self.commands[name][1:])


def prepare_mounts(layout: NodeLayout) -> None:
    run("hostname", layout.node)
    run("mount", "--make-rshared", "/")
    run("mount", "-t", "tmpfs", "tmpfs", "/run")
    for name in ("lib/kubelet", "lib/cni", "log/pods", "log/containers"):  # the default paths, but ours
        own = layout.state / "var" / name
        own.mkdir(parents=True, exist_ok=True)
        Path("/var", name).mkdir(parents=True, exist_ok=True)
        run("mount", "--bind", own, f"/var/{name}")
    run("mount", "--make-rshared", "/var/lib/kubelet")
    run("mount", "--bind", layout.conf("resolv.conf"), Path("/etc/resolv.conf").resolve())
    for name, value in KERNEL_SETTINGS.items():
        shown = layout.state / "sysctl" / name
        shown.parent.mkdir(parents=True, exist_ok=True)
        shown.write_text(f"{value}\n")
        run("mount", "--bind", shown, f"/proc/sys/{name}")


def prepare_network() -> None:
    run("ip", "link", "set", "lo", "up")
    # Not every kernel has dummy devices; a veth pair with both ends here serves.
    run("ip", "link", "add", "node0", "type", "veth", "peer", "name", "node0p")
    run("ip", "addr", "add", f"{ADDRESS}/24", "dev", "node0")
    run("ip", "link", "set", "node0", "up")
    run("ip", "link", "set", "node0p", "up")
    # A connection to a Service's address needs some route before it is rewritten; this one leads nowhere.
    run("ip", "route", "add", "default", "dev", "node0")
    run("sysctl", "-qw", "net.ipv4.ip_forward=1")
    run(
        "sysctl", "-qw", "net.bridge.bridge-nf-call-iptables=1", check=False
    )  # absent where the bridge is built otherwise


def prepare_cgroups(layout: NodeLayout) -> None:
    for cgroup in layout.cgroups():
        cgroup.mkdir(exist_ok=True)
        if (cgroup.parent / "cgroup.subtree_control").exists() and cgroup.parent.name != "unified":
            for controller in ("cpuset", "cpu", "io", "memory", "pids"):
                # One by one: a controller that is missing must not take the others with it.
                run("sh", "-c", f"echo +{controller} > {cgroup.parent}/cgroup.subtree_control", check=False)
        for name in ("cpuset.cpus", "cpuset.mems"):  # cgroup v1 leaves them empty, and then nothing can start there
            if (cgroup / name).exists() and not (cgroup / name).read_text().strip():
                (cgroup / name).write_text((cgroup.parent / name).read_text())


def start_control_plane(init: Init) -> None:
    pki, layout = init.layout.pki, init.layout
    init.start(
        "etcd", "--data-dir", f"{layout.state}/etcd", "--unsafe-no-fsync", "--log-level", "warn",
        "--listen-peer-urls", "http://127.0.0.1:2380", "--listen-client-urls", "http://127.0.0.1:2379",
        "--advertise-client-urls", "http://127.0.0.1:2379",
    )  # fmt: skip
    init.start("containerd", "--config", str(layout.conf("containerd.toml")))
    init.start(
        "kube-apiserver", "--etcd-servers", "http://127.0.0.1:2379", "--advertise-address", ADDRESS,
        "--secure-port", "6443", "--allow-privileged", "--client-ca-file", f"{pki}/ca.crt",
        "--tls-cert-file", f"{pki}/server.crt", "--tls-private-key-file", f"{pki}/server.key",
        "--kubelet-certificate-authority", f"{pki}/ca.crt", "--kubelet-client-certificate", f"{pki}/admin.crt",
        "--kubelet-client-key", f"{pki}/admin.key", "--kubelet-preferred-address-types", "InternalIP",
        "--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction",
        "--service-cluster-ip-range", "10.96.0.0/16",
        "--service-account-issuer", "https://kubernetes.default.svc.cluster.local",
        "--service-account-key-file", f"{pki}/sa.pub", "--service-account-signing-key-file", f"{pki}/sa.key",
        "--audit-policy-file", str(layout.conf("audit-policy.yaml")), "--audit-log-path", str(layout.audit_log),
        "--audit-log-maxsize", "200", "--audit-log-maxbackup", "1",
    )  # fmt: skip
    wait("containerd answers", lambda: run("ctr", "version", check=False).returncode == 0, 30)
    wait("the API server is ready", lambda: run("kubectl", "get", "--raw", "/readyz", check=False).returncode == 0, 120)
    init.start(
        "kube-controller-manager", "--kubeconfig", f"{pki}/controller-manager.conf", "--leader-elect=false",
        "--use-service-account-credentials", "--root-ca-file", f"{pki}/ca.crt",
        "--service-account-private-key-file", f"{pki}/sa.key",
        # With the default of 20 a second the first ServiceAccount appears five seconds late.
        "--kube-api-qps", "500", "--kube-api-burst", "1000",
    )  # fmt: skip
    init.start("kube-scheduler", "--kubeconfig", f"{pki}/scheduler.conf", "--leader-elect=false")


def start_node(init: Init) -> None:
    layout = init.layout
    init.start(
        "kubelet", "--config", str(layout.conf("kubelet.yaml")), "--kubeconfig", f"{layout.pki}/kubelet.conf",
        "--hostname-override", layout.node, "--node-ip", ADDRESS,
    )  # fmt: skip
    init.start("kube-proxy", "--config", str(layout.conf("kube-proxy.yaml")))
    apply = ["kubectl", "apply", "-f"]
    wait(
        "the cluster's own objects", lambda: run(*apply, layout.conf("bootstrap.yaml"), check=False).returncode == 0, 30
    )
    volumes = layout.conf("volumes.json")
    volumes.write_text(layout.volume_manifests(VOLUMES))
    run(*apply, volumes)
    init.start("coredns", "-conf", str(layout.conf("Corefile")))


def wait_ready(layout: NodeLayout) -> None:
    ready = ("kubectl", "wait", "--for=condition=Ready", f"node/{layout.node}", "--timeout=1s")
    wait("the node is Ready", lambda: run(*ready, check=False).returncode == 0, 120)
    account = ("kubectl", "get", "serviceaccount", "default")
    wait("the default ServiceAccount", lambda: run(*account, check=False).returncode == 0, 60)
    os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"
    lookup = ("getent", "hosts", "kubernetes.default.svc.cluster.local")
    wait("cluster DNS answers", lambda: run(*lookup, check=False).returncode == 0, 60)


def main(name: str) -> None:
    layout = NodeLayout(name)
    init = Init(layout)
    prepare_mounts(layout)
    prepare_network()
    prepare_cgroups(layout)
    start_control_plane(init)
    start_node(init)
    wait_ready(layout)
    (layout.state / "ready").touch()
    init.supervise()


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except Failure as failure:
        sys.exit(f"{failure}")
