"""The operator lives with exactly the rights that the chart gives it, and those do not reach further."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.conftest import Helm
from tests.support.cluster import KwokCluster
from tests.support.fleet import Fleet, accelerator_class, add_gpu_node, cluster, inspected, model
from tests.support.running_operator import RunningOperator, running

__all__ = ["cluster"]

ACCOUNT = "inference-fleet"
GRANTS = {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}

SUBRESOURCES = {"exec", "log", "portforward", "token", "status", "scale"}
"""What follows a slash and is not the name of an object."""

NEVER = [
    ("get", "secrets"), ("list", "secrets"), ("watch", "secrets"), ("create", "secrets"), ("create", "pods"), ("delete", "pods"),
    ("create", "pods/exec"), ("get", "pods/log"), ("create", "pods/portforward"), ("create", "serviceaccounts/token"),
    ("update", "deployments.apps"), ("patch", "deployments.apps/status"), ("deletecollection", "deployments.apps"),
    ("deletecollection", "configmaps"), ("create", "statefulsets.apps"), ("create", "daemonsets.apps"),
    ("patch", "inferencepolicies.inference-fleet.dev"), ("delete", "inferencepolicies.inference-fleet.dev"),
    ("create", "inferencepolicies.inference-fleet.dev"), ("patch", "inferencemodels.inference-fleet.dev"),
    ("create", "persistentvolumeclaims"), ("create", "roles.rbac.authorization.k8s.io"),
    ("escalate", "roles.rbac.authorization.k8s.io"), ("get", "leases.coordination.k8s.io"),
]  # fmt: skip
"""In any namespace."""

NEVER_IN_THE_CLUSTER = [
    ("create", "clusterroles.rbac.authorization.k8s.io"), ("create", "clusterrolebindings.rbac.authorization.k8s.io"),
    ("bind", "clusterroles.rbac.authorization.k8s.io/cluster-admin"), ("escalate", "clusterroles.rbac.authorization.k8s.io"),
    ("impersonate", "users"), ("patch", "nodes"), ("delete", "namespaces"), ("create", "namespaces"),
    ("patch", "acceleratorclasses.inference-fleet.dev"), ("create", "customresourcedefinitions.apiextensions.k8s.io"),
    ("create", "validatingwebhookconfigurations.admissionregistration.k8s.io"),
]  # fmt: skip


class Installed:
    """The chart's rights in a namespace of their own, and an operator that has only those."""

    def __init__(self, cluster: KwokCluster, release: str, folder: Path, *settings: str) -> None:
        self.cluster, self.release, self.folder = cluster, release, folder
        words = [word for setting in settings for word in ("--set", setting)]
        text = Helm().run("template", ACCOUNT, Path("charts/inference-fleet"), "--namespace", release, *words).stdout
        self.grants = [d for d in yaml.safe_load_all(text) if d and d["kind"] in GRANTS]
        for document in self.grants:
            if not document["kind"].startswith("Cluster"):
                document["metadata"].setdefault("namespace", release)
        cluster.apply(*self.grants)

    def operator(self, *flags: str) -> RunningOperator:
        kubeconfig = self.cluster.service_account_kubeconfig(self.release, ACCOUNT, self.folder / "kubeconfig")
        own = (
            "--lease-name",
            ACCOUNT,
            "--lease-namespace",
            self.release,
            "--resync-seconds",
            "2",
            "--scrape-seconds",
            "3",
        )
        return RunningOperator(kubeconfig, self.folder, f"permissions-{uuid.uuid4().hex[:6]}", *own, *flags)

    def may(self, verb: str, resource: str, namespace: str, account: str = "") -> bool:
        who = account or f"system:serviceaccount:{self.release}:{ACCOUNT}"
        kind, _, rest = resource.partition("/")
        what = (kind, f"--subresource={rest}") if rest in SUBRESOURCES else (resource,)
        done = self.cluster.run("kubectl", "auth", "can-i", verb, *what, "-n", namespace, f"--as={who}")
        assert done.stdout.strip() in ("yes", "no"), done.stderr
        return done.stdout.strip() == "yes"

    def remove(self) -> None:
        listed = {
            "apiVersion": "v1",
            "kind": "List",
            "items": [d for d in self.grants if d["kind"].startswith("Cluster")],
        }
        kept = [d for d in listed["items"] if d["metadata"]["name"] != "inference-fleet-gateway"]
        self.cluster.run(
            "kubectl", "delete", "-f", "-", "--ignore-not-found", input=json.dumps({**listed, "items": kept})
        )


@pytest.fixture
def release(cluster: KwokCluster) -> Iterator[str]:
    with cluster.namespace("release") as name:
        yield name


@pytest.fixture
def fleet_of(cluster: KwokCluster) -> Iterator[Any]:
    with cluster.namespace("permitted") as namespace:
        add_gpu_node(cluster, f"gpu-{namespace}", namespace, gpus=4)
        cluster.apply(accelerator_class(namespace))
        yield lambda operator: Fleet(cluster, namespace, operator), namespace
        cluster.run("kubectl", "delete", "accel", namespace)
        cluster.remove_node(f"gpu-{namespace}")


def live_and_die(place: Fleet) -> None:
    """Inspect, create, scale up, roll, scale down, delete."""
    place.cluster.apply(model("tiny"), namespace=place.namespace)
    place.wait(
        "an inspection is tried",
        lambda: place.cluster.list("job", place.namespace, "inference-fleet.dev/component=inspect"),
    )
    inspected(place.cluster, place.namespace, "tiny")
    place.declare(gateway={"authentication": {"type": "None"}, "replicas": 2})
    place.condition("chat", "Ready")
    place.replicas(2)
    place.wait("two replicas", lambda: place.engine()["spec"]["replicas"] == 2)
    place.condition("chat", "UpToDate")
    place.patch("ipol", "chat", {"op": "replace", "path": "/spec/models/0/contextTokens", "value": 1024})
    place.wait("the rollout begins", lambda: place.engine()["metadata"]["generation"] > 2)
    place.condition("chat", "UpToDate", seconds=60)
    # Gateway pods that are not Ready show nothing that a drain would wait for.
    patch = '{"status":{"conditions":[{"type":"Ready","status":"False"}]}}'
    for pod in place.cluster.list("pod", place.namespace, "inference-fleet.dev/component=gateway"):
        name = pod["metadata"]["name"]
        place.cluster.kubectl("-n", place.namespace, "patch", "pod", name, "--subresource=status", "-p", patch)
    place.replicas(1)
    place.wait("one replica", lambda: place.engine()["spec"]["replicas"] == 1)
    events = place.cluster.list("events.events.k8s.io", place.namespace)
    assert [e for e in events if e["reportingController"].startswith("inference-fleet")], "its events are written"
    assert place.get("configmap", "chat-memory") is not None
    place.cluster.kubectl("-n", place.namespace, "delete", "ipol", "chat")
    place.wait("its children are gone", lambda: not place.engines() and not place.get("deployment", "chat-gateway"))
    log = place.operator.log.read_text().lower()
    assert [line for line in log.splitlines() if "forbidden" in line or "traceback" in line or " 403 " in line] == []


def test_clusterwide_it_lives_with_the_charts_rights_and_they_reach_no_further(
    cluster: KwokCluster, release: str, fleet_of: Any, tmp_path: Path
) -> None:
    installed = Installed(cluster, release, tmp_path)
    fleet, namespace = fleet_of
    try:
        operator = installed.operator()
        try:
            place = fleet(operator.start())
            live_and_die(place)
            claimed = (cluster.get("accel", namespace) or {})["status"]["devices"]
            assert claimed["allocatable"] == 4
        finally:
            operator.kill()
        assert [f"{v} {r}" for v, r in NEVER if installed.may(v, r, namespace)] == []
        assert [f"{v} {r}" for v, r in NEVER_IN_THE_CLUSTER if installed.may(v, r, namespace)] == []
        # No way round it: a binding to another role is refused whatever verbs it has on bindings.
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "more"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": release}],
        }  # fmt: skip
        kubeconfig = tmp_path / "kubeconfig"
        words = ("--kubeconfig", kubeconfig, "-n", namespace, "create", "-f", "-")
        assert "forbidden" in cluster.refused(*words, input=json.dumps(binding)).lower()
    finally:
        installed.remove()


def test_in_one_namespace_nothing_of_another_is_reached(
    cluster: KwokCluster, release: str, fleet_of: Any, tmp_path: Path
) -> None:
    fleet, namespace = fleet_of
    installed = Installed(cluster, release, tmp_path, f"watchNamespaces={{{namespace}}}")
    try:
        with cluster.namespace("other") as other:
            operator = installed.operator("--namespace", namespace)
            try:
                live_and_die(fleet(operator.start()))
            finally:
                operator.kill()
            allowed = [("get", "deployments.apps"), ("list", "pods"), ("create", "configmaps"), ("list", "services"),
                       ("list", "inferencepolicies.inference-fleet.dev"), ("patch", "deployments.apps/scale")]  # fmt: skip
            assert [f"{v} {r}" for v, r in allowed if not installed.may(v, r, namespace)] == []
            assert [f"{v} {r}" for v, r in [*allowed, *NEVER] if installed.may(v, r, other)] == []
            assert [f"{v} {r}" for v, r in NEVER if installed.may(v, r, namespace)] == []
            assert not installed.may("patch", "acceleratorclasses.inference-fleet.dev/status", other)
    finally:
        installed.remove()


def test_a_gateway_reads_routes_and_endpoints_of_its_namespace_and_nothing_else(
    cluster: KwokCluster, release: str, fleet_of: Any, tmp_path: Path
) -> None:
    fleet, namespace = fleet_of
    installed = Installed(cluster, release, tmp_path)
    try:
        with running(cluster.kubeconfig, tmp_path, f"permissions-{uuid.uuid4().hex[:6]}") as operator:
            place = fleet(operator)
            cluster.apply(model("tiny"), namespace=namespace)
            inspected(cluster, namespace, "tiny")
            place.declare()
            place.condition("chat", "Ready")
            gateway = f"system:serviceaccount:{namespace}:chat-gateway"
            allowed = [("get", "configmaps"), ("watch", "configmaps"), ("patch", "configmaps"),
                       ("list", "endpointslices.discovery.k8s.io"), ("watch", "endpointslices.discovery.k8s.io")]  # fmt: skip
            assert [f"{v} {r}" for v, r in allowed if not installed.may(v, r, namespace, gateway)] == []
            assert [f"{v} {r}" for v, r in allowed if installed.may(v, r, release, gateway)] == []
            never = [*NEVER, ("create", "configmaps"), ("delete", "configmaps"), ("update", "configmaps"), ("list", "pods"),
                     ("get", "services"), ("patch", "endpointslices.discovery.k8s.io"), ("get", "deployments.apps"),
                     ("patch", "deployments.apps/scale"), ("get", "inferencepolicies.inference-fleet.dev")]  # fmt: skip
            assert [f"{v} {r}" for v, r in never if installed.may(v, r, namespace, gateway)] == []
            # An engine's pod has no token at all.
            template = place.engine()["spec"]["template"]["spec"]
            assert template["automountServiceAccountToken"] is False
    finally:
        installed.remove()
