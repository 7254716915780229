"""A real API server, the newest and the oldest supported, takes what the chart renders and what manifests/ holds, strictly."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from hack.cluster.api_server import VERSIONS, ApiServer
from tests.chart.conftest import CHART, REPOSITORY, Documents, Helm
from tests.support.cluster import Cluster

MANIFESTS = sorted((REPOSITORY / "manifests").glob("*.yaml"))
NAMESPACES = ("fleet", "chat", "search", "quickstart", "draft-example")


@pytest.fixture(scope="module", params=sorted(VERSIONS))
def api(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """etcd and an API server, with the CustomResourceDefinitions and the namespaces of all value sets."""
    server = ApiServer(request.param)
    server.start()
    try:
        cluster = Cluster(server)
        cluster.kubectl("apply", "-f", REPOSITORY / "crds")
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        for name in NAMESPACES:
            cluster.kubectl("create", "namespace", name)
        yield cluster
    finally:
        server.stop()


def strictly(cluster: Cluster, text: str) -> str:
    return cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", input=text)


def test_takes_the_chart(api: Cluster, rendered: Callable[..., Documents], values: Path) -> None:
    documents = [document for document in rendered("--values", values) if document["kind"] != "ServiceMonitor"]
    said = strictly(api, json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))
    assert len(said.splitlines()) == len(documents), said


def test_helm_installs_upgrades_and_leaves_the_definitions(api: Cluster, helm: Helm, tmp_path: Path) -> None:
    """Without nodes nothing can become ready: what Helm writes and leaves is looked at."""
    place = ("--namespace", "fleet", "--kubeconfig", api.kubeconfig)
    for words in (("install",), ("upgrade", "--set", "replicaCount=2")):
        done = helm.run(words[0], "inference-fleet", CHART, *words[1:], *place, "--wait=hookOnly", "--take-ownership")
        assert done.returncode == 0, done.stderr
    assert (
        json.loads(api.kubectl("-n", "fleet", "get", "deployment", "inference-fleet", "-o", "json"))["spec"]["replicas"]
        == 2
    )
    done = helm.run("uninstall", "inference-fleet", *place)
    assert done.returncode == 0, done.stderr
    assert "inferencepolicies" in done.stdout, "what is kept is said"
    assert len(api.list("crd")) == 3
    assert not api.list("deployment", "fleet") and not api.list(
        "clusterrole", selector="app.kubernetes.io/managed-by=Helm"
    )


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_takes_each_example(api: Cluster, path: Path) -> None:
    documents = list(yaml.safe_load_all(path.read_text()))
    namespaces = {document["metadata"]["name"] for document in documents if document["kind"] == "Namespace"}
    for name in namespaces:
        api.kubectl(
            "apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        )
    said = strictly(api, path.read_text())
    assert len(said.splitlines()) == len(documents), said


def test_an_example_with_an_unknown_field_would_be_refused(api: Cluster) -> None:
    documents = list(yaml.safe_load_all((REPOSITORY / "manifests" / "cpu-quickstart.yaml").read_text()))
    policy = next(document for document in documents if document["kind"] == "InferencePolicy")
    policy["spec"]["models"][0]["contextTokenz"] = 1
    said = api.refused("apply", "--dry-run=server", "--validate=strict", "-f", "-", input=json.dumps(policy))
    assert "contextTokenz" in said
