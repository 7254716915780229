"""The local control plane that the other cluster tests stand on does what they take for granted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import KwokCluster, OldApiServer


@pytest.fixture(scope="module")
def cluster() -> Iterator[KwokCluster]:
    with KwokCluster.session() as cluster:
        yield cluster


def config_map(name: str, **data: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def gpu_deployment(name: str, replicas: int) -> dict[str, object]:
    container = {"name": "engine", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def test_reports_the_versions_it_is_built_from(cluster: KwokCluster) -> None:
    versions = json.loads(cluster.kubectl("version", "-o", "json"))
    assert versions["serverVersion"]["gitVersion"] == "v1.37.2"
    assert versions["clientVersion"]["gitVersion"] == "v1.37.2"


def test_starting_again_leaves_a_healthy_cluster_alone(cluster: KwokCluster) -> None:
    before = cluster.get("namespace", "kube-system")
    cluster.start()
    assert before is not None
    assert cluster.get("namespace", "kube-system")["metadata"]["uid"] == before["metadata"]["uid"]  # type: ignore[index]


def test_scarce_devices_are_given_out_until_there_are_no_more(cluster: KwokCluster) -> None:
    cluster.add_node("harness-gpu", gpus=2)
    try:
        with cluster.namespace(level="privileged") as namespace:
            cluster.apply(gpu_deployment("engines", 3), namespace=namespace)

            def two_run_one_waits() -> bool:
                pods = cluster.list("pods", namespace)
                phases = sorted(pod["status"]["phase"] for pod in pods)
                assert phases == ["Pending", "Running", "Running"], f"phases {phases}"
                return True

            cluster.wait_for("two of three pods have a device", two_run_one_waits, 30, namespace)
    finally:
        cluster.remove_node("harness-gpu")


def test_counts_the_writes_of_one_user_and_nothing_else(cluster: KwokCluster, tmp_path: Path) -> None:
    with cluster.namespace() as namespace:
        cluster.kubectl("-n", namespace, "create", "serviceaccount", "writer")
        cluster.kubectl(
            "-n", namespace, "create", "rolebinding", "w", "--clusterrole=edit", f"--serviceaccount={namespace}:writer"
        )
        kubeconfig = cluster.service_account_kubeconfig(namespace, "writer", tmp_path / "kubeconfig")
        user = f"system:serviceaccount:{namespace}:writer"
        as_writer = ("--kubeconfig", kubeconfig, "-n", namespace)
        marker = cluster.marker()

        cluster.kubectl(*as_writer, "get", "configmaps")
        cluster.kubectl(*as_writer, "create", "configmap", "dry", "--dry-run=server")
        cluster.kubectl("-n", namespace, "create", "configmap", "of-another")
        assert cluster.writes_since(marker, user=user) == []

        cluster.kubectl(*as_writer, "create", "configmap", "one")
        cluster.refused(*as_writer, "delete", "namespace", namespace)
        writes = cluster.writes_since(marker, user=user)
        assert [(write.verb, write.resource, write.name, write.code) for write in writes] == [
            ("create", "configmaps", "one", 201),
            ("delete", "namespaces", namespace, 403),
        ]
        assert [write.name for write in cluster.writes_since(marker, user_agent="kubectl")] == [
            "of-another",
            "one",
            namespace,
        ]


def test_restricted_namespaces_refuse_pods_with_rights(cluster: KwokCluster) -> None:
    with cluster.namespace() as namespace:
        refusal = cluster.refused("-n", namespace, "run", "greedy", "--image=none", "--privileged")
        assert 'violates PodSecurity "restricted' in refusal


def test_a_wait_that_fails_shows_what_was_seen(cluster: KwokCluster) -> None:
    with cluster.namespace() as namespace:

        def never() -> bool:
            raise AssertionError("the last thing seen")

        with pytest.raises(AssertionError, match=r"something: not after 0\.1 s\nthe last thing seen\n== pods"):
            cluster.wait_for("something", never, seconds=0.1, namespace=namespace)


def test_the_oldest_supported_api_server_answers() -> None:
    with OldApiServer.session() as old:
        assert json.loads(old.kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"] == "v1.29.15"
        marker = old.marker()
        old.apply(config_map("kept", key="value"), namespace="default")
        found = old.get("configmap", "kept", "default")
        assert found is not None and found["data"] == {"key": "value"}
        assert [write.verb for write in old.writes_since(marker)] == ["create"]
