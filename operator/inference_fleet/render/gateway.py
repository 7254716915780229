"""The gateway of a policy: Deployment, Service, its identity and what that identity may do, and a PodDisruptionBudget."""

from __future__ import annotations

from inference_fleet.api.gateway import Gateway
from inference_fleet.api.policy import InferencePolicySpec
from inference_fleet.naming import COMPONENT_LABEL, POLICY_LABEL, gateway_name
from inference_fleet.plan.observation import OperatorSettings, PolicyView
from inference_fleet.render.amounts import MIB, mebibytes
from inference_fleet.render.manifests import Manifest, metadata, stamped
from inference_fleet.render.security import pod_isolation
from inference_fleet.render.weights import SCRATCH_DIRECTORY, empty_directory, mount, our_container

PORT = 8080
ADMIN_PORT = 9090
KEYS_DIRECTORY = "/etc/inference-fleet/keys"
TLS_DIRECTORY = "/etc/inference-fleet/tls"

LONGEST_STREAM_SECONDS = 600
GRACE_MARGIN_SECONDS = 30
"""After the last stream has ended: closing connections."""

MEMORY_BYTES = 512 * MIB
BODIES_AT_ONCE = 16
"""Largest request bodies that are held in memory together before the limit is met."""

SCRATCH_BYTES = 64 * MIB


def render_gateway(policy: PolicyView, spec: InferencePolicySpec, settings: OperatorSettings) -> tuple[Manifest, ...]:
    """Everything that a policy's gateway consists of, in the order it is to be applied.

    The Deployment has no `spec.replicas`: `with_replicas` adds `spec.gateway.replicas` for its creation.
    """
    objects = [
        _service_account(policy),
        _role_binding(policy, settings.gateway_cluster_role),
        _deployment(policy, spec.gateway, settings.image),
        _service(policy, spec.gateway),
    ]
    if spec.gateway.replicas > 1:
        objects.append(_disruption_budget(policy))
    return tuple(stamped(item) for item in objects)


def _selector(policy: PolicyView) -> dict[str, str]:
    return {POLICY_LABEL: policy.name, COMPONENT_LABEL: "gateway"}


def _service_account(policy: PolicyView) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(policy, gateway_name(policy.name), "gateway"),
        "automountServiceAccountToken": False,
    }


def _role_binding(policy: PolicyView, cluster_role: str) -> Manifest:
    name = gateway_name(policy.name)
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": metadata(policy, name, "gateway"),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": cluster_role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": policy.namespace}],
    }


def _deployment(policy: PolicyView, gateway: Gateway, image: str) -> Manifest:
    described = metadata(policy, gateway_name(policy.name), "gateway")
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": described,
        "spec": {
            "selector": {"matchLabels": _selector(policy)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "minReadySeconds": 3,
            "progressDeadlineSeconds": 600,
            "revisionHistoryLimit": 2,
            "template": {
                "metadata": {"labels": described["labels"]},
                "spec": {
                    **pod_isolation(),
                    "serviceAccountName": gateway_name(policy.name),
                    # It reads its routes and where engines are.
                    "automountServiceAccountToken": True,
                    "terminationGracePeriodSeconds": LONGEST_STREAM_SECONDS + GRACE_MARGIN_SECONDS,
                    "containers": [_container(policy, gateway, image)],
                    "volumes": _volumes(gateway),
                },
            },
        },
    }


def _container(policy: PolicyView, gateway: Gateway, image: str) -> Manifest:
    arguments = ["gateway", "--policy", policy.name, "--namespace", policy.namespace]
    arguments += ["--port", str(PORT), "--admin-port", str(ADMIN_PORT)]
    mounts = [mount("tmp", SCRATCH_DIRECTORY)]
    if gateway.authentication.secret_ref is not None:
        arguments += ["--keys-directory", KEYS_DIRECTORY]
        mounts.append(mount("keys", KEYS_DIRECTORY, read_only=True))
    if gateway.tls is not None:
        arguments += ["--tls-directory", TLS_DIRECTORY]
        mounts.append(mount("tls", TLS_DIRECTORY, read_only=True))
    return our_container(
        name="gateway",
        image=image,
        arguments=arguments,
        environment=[],
        mounts=mounts,
        resources={
            "requests": {"cpu": "200m", "memory": "256Mi"},
            "limits": {"memory": mebibytes(MEMORY_BYTES + BODIES_AT_ONCE * gateway.max_body_bytes)},
        },
        ports=[
            {"name": _scheme(gateway), "containerPort": PORT, "protocol": "TCP"},
            {"name": "admin", "containerPort": ADMIN_PORT, "protocol": "TCP"},
        ],
        startupProbe=_probe("/health", period=1, failures=60),
        readinessProbe=_probe("/ready", period=2, failures=2),
        livenessProbe=_probe("/health", period=10, failures=6),
    )


def _probe(path: str, period: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": "admin"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _volumes(gateway: Gateway) -> list[Manifest]:
    volumes = [empty_directory("tmp", SCRATCH_BYTES)]
    if gateway.authentication.secret_ref is not None:
        volumes.append({"name": "keys", "secret": {"secretName": gateway.authentication.secret_ref.name}})
    if gateway.tls is not None:
        volumes.append({"name": "tls", "secret": {"secretName": gateway.tls.secret_name}})
    return volumes


def _scheme(gateway: Gateway) -> str:
    return "http" if gateway.tls is None else "https"


def _service(policy: PolicyView, gateway: Gateway) -> Manifest:
    scheme = _scheme(gateway)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(
            policy, gateway_name(policy.name), "gateway", annotations=gateway.service.annotations or None
        ),
        "spec": {
            "type": gateway.service.type.value,
            "selector": _selector(policy),
            "ports": [
                {"name": scheme, "port": 80 if scheme == "http" else 443, "targetPort": scheme, "protocol": "TCP"}
            ],
        },
    }


def _disruption_budget(policy: PolicyView) -> Manifest:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(policy, gateway_name(policy.name), "gateway"),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": _selector(policy)}},
    }
