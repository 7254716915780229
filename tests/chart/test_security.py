"""What the release may do, and what its pods may not: each rule is one that an auditor would look for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chart.conftest import Documents

Rule = dict[str, Any]

READ = {"get", "list", "watch"}
ALLOWED: dict[tuple[str, str], set[str]] = {
    ("inference-fleet.dev", "inferencepolicies"): READ,
    ("inference-fleet.dev", "inferencemodels"): READ,
    ("inference-fleet.dev", "acceleratorclasses"): READ,
    ("inference-fleet.dev", "inferencepolicies/status"): {"patch"},
    ("inference-fleet.dev", "inferencemodels/status"): {"patch"},
    ("inference-fleet.dev", "acceleratorclasses/status"): {"patch"},
    ("inference-fleet.dev", "inferencepolicies/finalizers"): {"update"},
    ("inference-fleet.dev", "inferencemodels/finalizers"): {"update"},
    ("apps", "deployments"): READ | {"create", "patch", "delete"},
    ("apps", "deployments/scale"): {"get", "patch"},
    ("batch", "jobs"): READ | {"create", "patch", "delete"},
    ("", "pods"): READ | {"patch"},
    ("", "configmaps"): READ | {"create", "patch", "delete"},
    ("", "services"): READ | {"create", "patch", "delete"},
    ("", "serviceaccounts"): READ | {"create", "patch", "delete"},
    ("", "nodes"): READ,
    ("policy", "poddisruptionbudgets"): READ | {"create", "patch", "delete"},
    ("rbac.authorization.k8s.io", "rolebindings"): READ | {"create", "patch", "delete"},
    ("rbac.authorization.k8s.io", "clusterroles"): {"bind"},
    ("events.k8s.io", "events"): {"create", "patch"},
    ("coordination.k8s.io", "leases"): {"create", "get", "update", "patch"},
    ("discovery.k8s.io", "endpointslices"): READ,
}
"""Everything that any role of the chart may grant. More is a failing test and a line in the security guide."""


def rules(documents: Documents) -> Iterator[tuple[str, Rule]]:
    for document in documents:
        if document["kind"] in {"Role", "ClusterRole"}:
            for rule in document["rules"]:
                yield f"{document['kind']}/{document['metadata']['name']}", rule


def test_no_role_grants_more_than_is_listed_here(rendered: Callable[..., Documents], values: Path) -> None:
    for role, rule in rules(rendered("--values", values)):
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                allowed = ALLOWED.get((group, resource), set())
                assert set(rule["verbs"]) <= allowed, f"{role} grants {rule['verbs']} on {group}/{resource}"


def test_no_wildcards_no_secrets_no_way_into_pods(rendered: Callable[..., Documents], values: Path) -> None:
    for role, rule in rules(rendered("--values", values)):
        words = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
        assert "*" not in words, role
        forbidden = {
            "secrets",
            "pods/exec",
            "pods/attach",
            "pods/portforward",
            "pods/log",
            "pods/ephemeralcontainers",
            "roles",
        }
        assert not words & (forbidden | {"escalate", "impersonate", "deletecollection"}), role


def test_only_the_gateways_role_can_be_bound(rendered: Callable[..., Documents], values: Path) -> None:
    granting = [(role, rule) for role, rule in rules(rendered("--values", values)) if "bind" in rule["verbs"]]
    assert granting
    for role, rule in granting:
        assert rule["resourceNames"] == ["inference-fleet-gateway"], role
        assert rule["resources"] == ["clusterroles"] and rule["verbs"] == ["bind"], role


def test_the_gateway_may_only_look_and_wake(rendered: Callable[..., Documents]) -> None:
    (role,) = [
        document
        for document in rendered()
        if document["kind"] == "ClusterRole" and document["metadata"]["name"] == "inference-fleet-gateway"
    ]
    granted = {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    looks = {(resource, verb) for resource in ("endpointslices", "configmaps") for verb in READ}
    assert granted == looks | {("configmaps", "patch")}


def test_a_namespaced_install_binds_nothing_cluster_wide_but_looking(rendered: Callable[..., Documents]) -> None:
    documents = rendered("--set", "watchNamespaces={chat}")
    bound = {document["roleRef"]["name"] for document in documents if document["kind"] == "ClusterRoleBinding"}
    for role, rule in rules(documents):
        if role.partition("/")[0] == "ClusterRole" and role.partition("/")[2] in bound:
            assert set(rule["verbs"]) <= READ, role
    namespaces = {document["metadata"]["namespace"] for document in documents if document["kind"] == "RoleBinding"}
    assert namespaces == {"chat", "fleet"}


def test_a_blind_install_makes_no_cluster_role_at_all(rendered: Callable[..., Documents]) -> None:
    blind = Path(__file__).parent / "values" / "namespaced-blind.yaml"
    kinds = {document["kind"] for document in rendered("--values", blind)}
    assert not {kind for kind in kinds if kind.startswith("Cluster") or kind == "CustomResourceDefinition"}


def test_pods_keep_to_the_restricted_standard(rendered: Callable[..., Documents], values: Path) -> None:
    (deployment,) = [document for document in rendered("--values", values) if document["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert all("hostPath" not in volume and "secret" not in volume for volume in pod["volumes"])
    for container in pod["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert not any("hostPort" in port for port in container["ports"])
        assert container["resources"]["limits"]["memory"] and container["resources"]["requests"]["cpu"]


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe", "readinessProbe"])
def test_the_operator_is_probed(rendered: Callable[..., Documents], probe: str) -> None:
    (deployment,) = [document for document in rendered() if document["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    wanted = "/readyz" if probe == "readinessProbe" else "/healthz"
    assert container[probe]["httpGet"] == {"path": wanted, "port": "http"}
    assert {"name": "http", "containerPort": 8080} in container["ports"]
