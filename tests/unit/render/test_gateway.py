"""The gateway's objects."""

from __future__ import annotations

from typing import Any

from inference_fleet.naming import gateway_name
from inference_fleet.render.gateway import render_gateway
from inference_fleet.render.manifests import Manifest
from tests.unit.render.samples import SETTINGS, policy, spec

KEYS = {"authentication": {"type": "APIKeys", "secretRef": {"name": "keys"}}}
TLS = {"tls": {"secretName": "certificate"}}


def rendered(gateway: dict[str, Any] | None = None) -> dict[str, Manifest]:
    return {item["kind"]: item for item in render_gateway(policy(), spec(gateway), SETTINGS)}


def container(gateway: dict[str, Any] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = rendered(gateway)["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    return found


def test_objects_in_the_order_in_which_they_can_be_applied() -> None:
    assert list(rendered()) == ["ServiceAccount", "RoleBinding", "Deployment", "Service"]
    assert {item["metadata"]["name"] for item in rendered().values()} == {"chat-gateway"}


def test_several_replicas_survive_a_drained_node() -> None:
    assert list(rendered({"replicas": 3}))[-1] == "PodDisruptionBudget"
    budget = rendered({"replicas": 3})["PodDisruptionBudget"]["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"] == rendered()["Deployment"]["spec"]["selector"]


def test_replicas_are_never_in_the_payload() -> None:
    assert "replicas" not in rendered({"replicas": 3})["Deployment"]["spec"]
    assert rendered({"replicas": 3})["Deployment"] == rendered({"replicas": 1})["Deployment"]


def test_it_may_do_what_one_cluster_role_says_and_nothing_else() -> None:
    binding = rendered()["RoleBinding"]
    assert binding["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "inference-fleet-gateway",
    }
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "chat-gateway", "namespace": "apps"}]
    pod = rendered()["Deployment"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "chat-gateway"
    assert pod["automountServiceAccountToken"] is True


def test_plain_http() -> None:
    ports = rendered()["Service"]["spec"]["ports"]
    assert [(p["name"], p["port"], p["targetPort"]) for p in ports] == [("http", 80, "http")]
    assert container()["args"] == [
        "gateway", "--policy", "chat", "--namespace", "apps", "--port", "8080", "--admin-port", "9090"
    ]  # fmt: skip
    assert [(p["name"], p["containerPort"]) for p in container()["ports"]] == [("http", 8080), ("admin", 9090)]


def test_the_admin_port_is_not_in_the_service() -> None:
    """Tenants' figures and decisions are not for whoever can reach the API."""
    assert 9090 not in [p["port"] for p in rendered()["Service"]["spec"]["ports"]]


def test_tls_and_keys_are_mounted_by_the_kubelet() -> None:
    both = {**KEYS, **TLS}
    ports = rendered(both)["Service"]["spec"]["ports"]
    assert [(p["name"], p["port"], p["targetPort"]) for p in ports] == [("https", 443, "https")]
    words = container(both)["args"]
    assert words[words.index("--keys-directory") + 1] == "/etc/inference-fleet/keys"
    assert words[words.index("--tls-directory") + 1] == "/etc/inference-fleet/tls"
    volumes = {v["name"]: v for v in rendered(both)["Deployment"]["spec"]["template"]["spec"]["volumes"]}
    assert volumes["keys"]["secret"]["secretName"] == "keys"
    assert volumes["tls"]["secret"]["secretName"] == "certificate"
    assert all(m.get("readOnly") for m in container(both)["volumeMounts"] if m["name"] in ("keys", "tls"))


def test_the_service_as_declared() -> None:
    service = rendered({"service": {"type": "LoadBalancer", "annotations": {"lb.example/scheme": "internal"}}})[
        "Service"
    ]
    assert service["spec"]["type"] == "LoadBalancer"
    assert service["metadata"]["annotations"]["lb.example/scheme"] == "internal"


def test_streams_may_end_before_it_does() -> None:
    pod = rendered()["Deployment"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= 600
    assert rendered()["Deployment"]["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_memory_grows_with_the_bodies_that_are_allowed() -> None:
    small, large = container({"maxBodyBytes": 1024}), container({"maxBodyBytes": 2**30})
    assert small["resources"]["limits"]["memory"] == "513Mi"
    assert large["resources"]["limits"]["memory"] == f"{512 + 16 * 1024}Mi"


def test_the_longest_policy_name_still_gives_names_of_services() -> None:
    assert gateway_name("p" * 50) == "p" * 50 + "-gateway"
    assert len(gateway_name("p" * 50)) <= 63
