"""Real clusters for tests: a control plane with fake nodes, a real node, an old API server.

    from tests.support.cluster import KwokCluster

    @pytest.fixture(scope="session")
    def cluster():
        with KwokCluster.session() as cluster:
            yield cluster

A session uses a cluster that is up and leaves it up; one that it had to start, it ends (unless INFERENCE_FLEET_KEEP is
set). INFERENCE_FLEET_CLUSTER chooses another name than `e2e`, so that two checkouts do not meet.

Tests that use addresses, DNS names or Services of a node cluster run inside its network:
`hack/cluster/cluster in --provider node --name e2e .venv/bin/python -m pytest …`. NodeCluster works from there too.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from hack.cluster.api_server import ApiServer
from hack.cluster.kwok import Kwok
from hack.cluster.node import INSIDE, Node
from hack.images.catalog import IMAGES, models_image
from tests.support.audit import AuditLog, Marker, Write

Found = TypeVar("Found")

Objects = list[dict[str, Any]]
Writes = list[Write]

NAME = "e2e"
REMIND_SECONDS = 10.0


class Provider(Protocol):
    """What a cluster of `hack/cluster` is to a test."""

    @property
    def kubeconfig(self) -> Path: ...

    @property
    def audit_log(self) -> Path: ...

    def run(self, *words: str | Path, text: str | None = None) -> subprocess.CompletedProcess[str]: ...


def session_name() -> str:
    return os.environ.get(INSIDE) or os.environ.get("INFERENCE_FLEET_CLUSTER") or NAME


class Cluster:
    """kubectl, waiting, namespaces and the count of writes, the same for every kind of cluster."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self.audit = AuditLog(provider.audit_log)

    @property
    def kubeconfig(self) -> Path:
        """As an administrator. Of a node cluster: of use only inside its network."""
        return self.provider.kubeconfig

    def run(self, *words: str | Path, input: str | None = None) -> subprocess.CompletedProcess[str]:  # noqa: A002
        """Runs a command with this cluster's KUBECONFIG (in a node cluster: inside its network); judges nothing."""
        return self.provider.run(*words, text=input)

    def kubectl(self, *words: str | Path, input: str | None = None) -> str:  # noqa: A002
        """What kubectl prints; AssertionError with what it complains of, when it fails."""
        done = self.run("kubectl", *words, input=input)
        if done.returncode != 0:
            raise AssertionError(f"kubectl {' '.join(map(str, words))}: {done.stderr.strip()}")
        return done.stdout

    def refused(self, *words: str | Path, input: str | None = None) -> str:  # noqa: A002
        """What kubectl complains of; AssertionError when it succeeds."""
        done = self.run("kubectl", *words, input=input)
        if done.returncode == 0:
            raise AssertionError(f"kubectl {' '.join(map(str, words))} was to be refused, and was not: {done.stdout}")
        return done.stderr

    def apply(self, *documents: Mapping[str, Any], namespace: str | None = None) -> None:
        place = ("-n", namespace) if namespace else ()
        listed = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        self.kubectl("apply", *place, "-f", "-", input=json.dumps(listed))

    def get(self, kind: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """The object; None where there is none of that name."""
        place = ("-n", namespace) if namespace else ()
        text = self.kubectl("get", kind, name, *place, "--ignore-not-found", "-o", "json")
        return json.loads(text) if text.strip() else None

    def list(self, kind: str, namespace: str | None = None, selector: str = "") -> Objects:
        """All objects of a kind, of all namespaces unless one is given."""
        place = ("-n", namespace) if namespace else ("-A",)
        items: Objects = json.loads(self.kubectl("get", kind, *place, "-l", selector, "-o", "json"))["items"]
        return items

    @contextlib.contextmanager
    def namespace(self, prefix: str = "test", level: str = "restricted") -> Iterator[str]:
        """A new namespace that enforces a level of Pod Security; deleted afterwards, without waiting for its end."""
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        labels = {"pod-security.kubernetes.io/enforce": level}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        try:
            yield name
        finally:
            self.run("kubectl", "delete", "namespace", name, "--wait=false")

    def service_account_kubeconfig(self, namespace: str, account: str, target: Path) -> Path:
        """Writes a kubeconfig that speaks as a ServiceAccount: with its rights, and with its name in the audit log."""
        token = self.kubectl("-n", namespace, "create", "token", account, "--duration=8h").strip()
        # Flattened: the authority's certificate itself, not the name of a file.
        document = json.loads(self.kubectl("config", "view", "--raw", "--flatten", "--minify", "-o", "json"))
        document["users"][0]["user"] = {"token": token}
        target.write_text(json.dumps(document))
        target.chmod(0o600)
        return target

    # -- counting writes

    def marker(self) -> Marker:
        return self.audit.marker()

    def writes_since(self, marker: Marker, user: str | None = None, user_agent: str | None = None) -> Writes:
        """What was written to the API since the marker, without leases and dry runs; see AuditLog.writes_since."""
        return self.audit.writes_since(marker, user, user_agent)

    # -- waiting

    def wait_for(
        self, what: str, look: Callable[[], Found], seconds: float = 60, namespace: str | None = None
    ) -> Found:
        """Looks until there is something true, and returns it; says every ten seconds that it still waits.

        AssertionError after `seconds`, with the namespace's pods, events and the ends of its logs. An AssertionError
        from `look` means not yet, and its text is shown if it is the last.
        """
        start = time.monotonic()
        remind = start + REMIND_SECONDS
        while True:
            complaint = ""
            try:
                if found := look():
                    return found
            except AssertionError as error:
                complaint = f"\n{error}"
            now = time.monotonic()
            if now - start > seconds:
                shown = f"\n{self.describe(namespace)}" if namespace else ""
                raise AssertionError(f"{what}: not after {seconds:g} s{complaint}{shown}")
            if now > remind:
                print(
                    f"still waiting: {what} ({now - start:.0f} s of at most {seconds:g})", file=sys.stderr, flush=True
                )
                remind = now + REMIND_SECONDS
            time.sleep(0.2)

    def wait_condition(
        self, kind: str, name: str, condition: str, status: str = "True", seconds: float = 60,
        namespace: str | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Waits for a condition of an object to have a status; returns the object."""

        def look() -> dict[str, Any]:
            found = self.get(kind, name, namespace)
            assert found, f"there is no {kind} {name}"
            conditions = found.get("status", {}).get("conditions", [])
            shown = "\n".join(f"  {c['type']}={c['status']} {c.get('reason')}: {c.get('message')}" for c in conditions)
            matches = any(c["type"] == condition and c["status"] == status for c in conditions)
            assert matches, f"the conditions of {kind} {name}:\n{shown}"
            return found

        return self.wait_for(f"{kind} {name} has {condition}={status}", look, seconds, namespace)

    def wait_rollout(self, deployment: str, namespace: str, seconds: float = 120) -> None:
        """Waits until a Deployment runs what it says, with every replica ready."""

        def look() -> bool:
            found = self.get("deployment", deployment, namespace)
            assert found, f"there is no Deployment {deployment}"
            status, wanted = found.get("status", {}), found["spec"]["replicas"]
            assert status.get("observedGeneration") == found["metadata"]["generation"], "not observed yet"
            counts = {key: status.get(key, 0) for key in ("replicas", "updatedReplicas", "readyReplicas")}
            assert set(counts.values()) == {wanted}, f"{counts}, wanted {wanted}"
            return True

        self.wait_for(f"Deployment {deployment} is rolled out", look, seconds, namespace)

    def logs(self, pod: str, namespace: str, container: str | None = None, lines: int = 200) -> str:
        which = ("-c", container) if container else ("--all-containers", "--prefix")
        return self.run("kubectl", "-n", namespace, "logs", pod, *which, f"--tail={lines}").stdout

    def describe(self, namespace: str) -> str:
        """What a person would look at first: pods, events, why containers wait, the ends of the logs."""
        parts = ["== pods", self.run("kubectl", "-n", namespace, "get", "pods", "-o", "wide").stdout]
        parts += ["== events", self.run("kubectl", "-n", namespace, "get", "events", "--sort-by=.lastTimestamp").stdout]
        done = self.run("kubectl", "-n", namespace, "get", "pods", "-o", "json")
        for pod in json.loads(done.stdout)["items"] if done.returncode == 0 else []:
            name, status = pod["metadata"]["name"], pod.get("status", {})
            for container in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
                state = {key: value for key, value in container["state"].items() if key != "running"}
                parts.append(f"== {name} {container['name']} restarts={container['restartCount']} {state or ''}")
                previous = self.run(
                    "kubectl", "-n", namespace, "logs", name, "-c", container["name"], "-p", "--tail=20"
                )
                if previous.returncode == 0 and container["restartCount"]:
                    parts += ["-- before the restart:", previous.stdout]
                parts.append(self.logs(name, namespace, container["name"], lines=30))
        return "\n".join(parts)


class KwokCluster(Cluster):
    """A control plane with fake nodes."""

    def __init__(self, name: str | None = None) -> None:
        self.kwok = Kwok(name or session_name())
        super().__init__(self.kwok)

    @classmethod
    @contextlib.contextmanager
    def session(cls, name: str | None = None) -> Iterator[Self]:
        cluster = cls(name)
        reused = cluster.kwok.healthy()
        cluster.start()
        try:
            yield cluster
        finally:
            if not reused and not os.environ.get("INFERENCE_FLEET_KEEP"):
                cluster.stop()

    def start(self, fresh: bool = False) -> None:
        self.kwok.up(fresh=fresh)

    def stop(self) -> None:
        self.kwok.down()

    def add_node(
        self,
        name: str,
        gpus: int = 0,
        cpu: str = "64",
        memory: str = "512Gi",
        labels: dict[str, str] | None = None,
        taints: Sequence[dict[str, str]] = (),
    ) -> None:
        """A fake node with `nvidia.com/gpu` capacity; called again, it changes what the node offers."""
        self.kwok.node(name, gpus, cpu, memory, labels, taints)

    def remove_node(self, name: str) -> None:
        self.kubectl("delete", "node", name, "--ignore-not-found")


class NodeCluster(Cluster):
    """A real node. Its commands run inside its network, wherever the test runs."""

    def __init__(self, name: str | None = None) -> None:
        self.node = Node(name or session_name())
        super().__init__(NodeProvider(self.node))

    @classmethod
    @contextlib.contextmanager
    def session(cls, name: str | None = None) -> Iterator[Self]:
        cluster = cls(name)
        reused = cluster.inside or cluster.node.healthy()
        cluster.start()
        try:
            yield cluster
        finally:
            if not reused and not os.environ.get("INFERENCE_FLEET_KEEP"):
                cluster.stop()

    @property
    def inside(self) -> bool:
        """Whether this very process runs in the cluster's network."""
        return os.environ.get(INSIDE) == self.node.name

    def start(self, fresh: bool = False, fake_gpus: int | None = None) -> None:
        if not self.inside:
            self.node.up(fake_gpus, fresh)
        elif fake_gpus is not None:
            self.node.fake_gpus(fake_gpus)

    def stop(self) -> None:
        if not self.inside:
            self.node.down()

    def load_images(self, *names: str, extra_models: Path | None = None) -> None:
        """Packs the images of these names (see `images/pack --help`) as far as they changed, and loads them."""
        for name in names:
            image = models_image(extra_models) if name == "models" else IMAGES[name]()
            self.node.load_image(image.archive())

    def fetch(self, url: str, *curl: str, seconds: float = 30) -> str:
        """The body of a URL inside the cluster, by curl; AssertionError on an HTTP error."""
        done = self.run("curl", "-sS", "--fail-with-body", "-m", str(seconds), *curl, url)
        if done.returncode != 0:
            raise AssertionError(f"{url}: {done.stderr.strip()} {done.stdout[:500]}")
        return done.stdout


class NodeProvider:
    """A Node as Cluster wants it."""

    def __init__(self, node: Node) -> None:
        self.node = node

    @property
    def kubeconfig(self) -> Path:
        return self.node.layout.kubeconfig

    @property
    def audit_log(self) -> Path:
        return self.node.layout.audit_log

    def run(self, *words: str | Path, text: str | None = None) -> subprocess.CompletedProcess[str]:
        return self.node.run(*words, text=text)


class OldApiServer(Cluster):
    """etcd and the API server of the oldest supported Kubernetes, 1.29: for what schemas it accepts and refuses.

    There are no controllers: nothing is scheduled, collected or defaulted by one.
    """

    VERSION = "1.29"

    def __init__(self) -> None:
        self.server = ApiServer(self.VERSION)
        super().__init__(self.server)

    @classmethod
    @contextlib.contextmanager
    def session(cls) -> Iterator[Self]:
        cluster = cls()
        cluster.server.start()
        cluster.audit = AuditLog(cluster.server.audit_log)  # its folder is made at the start
        try:
            yield cluster
        finally:
            cluster.server.stop()
