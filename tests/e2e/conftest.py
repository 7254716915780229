"""A node with the operator installed by its chart, for all tests; a namespace with a key, for each.

Runs inside the node's network: `make test-e2e`, or hack/e2e tests/e2e/test_quickstart.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hack.cluster.binaries import HELM
from tests.e2e import objects
from tests.support.cluster import NodeCluster

REPOSITORY = Path(__file__).resolve().parents[2]
RELEASE = "inference-fleet"
OPERATOR = "inference-fleet"
"""Namespace of the release."""


class Fleet:
    """The cluster, and what tests do to a fleet in it."""

    def __init__(self, cluster: NodeCluster) -> None:
        self.cluster = cluster

    def helm(self, *words: str) -> str:
        done = self.cluster.run(HELM.path, *words)
        assert done.returncode == 0, f"helm {' '.join(words)}: {done.stderr}"
        return done.stdout

    def install(self, *values: str) -> str:
        """Installs or upgrades the release, and waits as a user would: `helm --wait`."""
        # The tag stays the same when the image changes: the annotation has the pod replaced.
        images = json.loads((self.cluster.node.layout.state / "images.json").read_text())
        stamp = f"podAnnotations.image={hash_of(images['localhost/inference-fleet:dev'])}"
        return self.helm(
            "upgrade", RELEASE, str(REPOSITORY / "charts" / "inference-fleet"), "--install", "--namespace", OPERATOR,
            "--create-namespace", "--values", str(REPOSITORY / "hack" / "demo" / "values.yaml"), "--set-string", stamp,
            "--wait", "--timeout", "120s", *values,
        )  # fmt: skip

    def scale_operator(self, replicas: int) -> None:
        self.cluster.kubectl("-n", OPERATOR, "scale", f"deployment/{RELEASE}", f"--replicas={replicas}")
        self.cluster.wait_for(
            f"{replicas} operator pods",
            lambda: len(self.cluster.list("pods", OPERATOR)) == replicas,
            90,
            OPERATOR,
        )
        if replicas:
            self.cluster.wait_rollout(RELEASE, OPERATOR)

    # -- a policy

    def ready(self, name: str, namespace: str, seconds: float = 180) -> dict[str, Any]:
        """Waits until a policy is Ready at its present generation."""

        def look() -> dict[str, Any]:
            found = self.cluster.get("inferencepolicy", name, namespace)
            assert found, f"there is no InferencePolicy {name}"
            status = found.get("status", {})
            shown = "\n".join(
                f"  {c['type']}={c['status']} {c['reason']}: {c['message']}" for c in status.get("conditions", [])
            )
            assert status.get("observedGeneration") == found["metadata"]["generation"], f"not observed yet\n{shown}"
            for kind in ("Ready", "UpToDate"):
                assert condition(found, kind).get("status") == "True", f"the conditions of {name}:\n{shown}"
            return found

        return self.cluster.wait_for(f"InferencePolicy {name} is Ready and up to date", look, seconds, namespace)

    def url(self, name: str, namespace: str) -> str:
        """The policy's door, by the Service's name."""
        return f"http://{name}-gateway.{namespace}.svc.cluster.local"

    def engines(self, name: str, namespace: str) -> list[dict[str, Any]]:
        """Engine Deployments of a policy."""
        return self.cluster.list("deployments", namespace, f"{labels_of(name)},inference-fleet.dev/component=engine")

    def pods(self, name: str, namespace: str, component: str = "engine") -> list[dict[str, Any]]:
        """Pods of a policy that are not on their way out."""
        found = self.cluster.list("pods", namespace, f"{labels_of(name)},inference-fleet.dev/component={component}")
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def patch(self, name: str, namespace: str, spec: Mapping[str, Any]) -> None:
        """A merge patch of a policy's spec: its list of models is replaced whole."""
        body = json.dumps({"spec": dict(spec)})
        self.cluster.kubectl("-n", namespace, "patch", "inferencepolicy", name, "--type=merge", "-p", body)

    def metrics(self, pod: Mapping[str, Any], port: int) -> str:
        """`/metrics` of a pod."""
        return self.cluster.fetch(f"http://{pod['status']['podIP']}:{port}/metrics")


def labels_of(policy: str) -> str:
    return f"inference-fleet.dev/policy={policy}"


def condition(found: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """A condition of an object; empty where it has none of that type."""
    conditions = found.get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == kind), {})


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.fixture(scope="session")
def node() -> Iterator[NodeCluster]:
    with NodeCluster.session() as cluster:
        if not cluster.inside:
            pytest.fail("these tests use the node's network: run them with `make test-e2e` or hack/e2e")
        yield cluster


@pytest.fixture(scope="session")
def fleet(node: NodeCluster) -> Fleet:
    """The operator installed by the chart, and the models server."""
    fleet = Fleet(node)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    node.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OPERATOR, "labels": labels}})
    node.kubectl("apply", "-f", REPOSITORY / "hack" / "demo" / "models.yaml")
    fleet.install()
    node.wait_rollout("models", "models")
    return fleet


@pytest.fixture
def namespace(fleet: Fleet) -> Iterator[str]:
    """A namespace whose pods must be restricted, with the keys' Secret. Its policies go with it, and their pods at once."""
    with fleet.cluster.namespace("fleet") as name:
        fleet.cluster.apply(objects.keys(), namespace=name)
        try:
            yield name
        finally:
            fleet.cluster.run("kubectl", "-n", name, "delete", "inferencepolicies", "--all", "--wait=false")
            # What is drained politely would still occupy the next test's processor.
            fleet.cluster.run("kubectl", "-n", name, "delete", "pods", "--all", "--grace-period=1", "--wait=false")


@pytest.fixture
def cpu(fleet: Fleet, namespace: str) -> Iterator[str]:
    """A CPU class of this test's own."""
    name = f"cpu-{namespace}"
    fleet.cluster.apply(objects.accelerator(name))
    yield name
    fleet.cluster.run("kubectl", "delete", "acceleratorclass", name, "--wait=false")
