"""What the installation fixes: flags, each with a variable of the same name."""

from __future__ import annotations

import argparse
import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from inference_fleet.cluster.lease import LeaseTimes


@dataclass(frozen=True, slots=True)
class OperatorOptions:
    """How this operator process runs."""

    image: str
    llama_cpp_image: str
    vllm_image: str
    gateway_cluster_role: str
    namespaces: tuple[str, ...]
    """Empty: all namespaces."""
    read_nodes: bool
    hub_endpoint: str
    lease_namespace: str
    lease_name: str
    identity: str
    resync_seconds: float
    workers: int
    port: int
    kubeconfig: str
    log_level: str
    lease_times: LeaseTimes = field(default_factory=LeaseTimes)
    scrape_seconds: float = 15.0
    relist_seconds: float = 300.0
    silence_seconds: float = 60.0
    excluded: frozenset[str] = frozenset()
    """Namespaces that another install serves."""

    @property
    def clusterwide(self) -> bool:
        """Whether every namespace is served; only such an install writes the status of cluster-scoped classes."""
        return not self.namespaces


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _truth(text: str) -> bool:
    return text.strip().lower() in ("1", "true", "yes", "on")


def add_arguments(parser: argparse.ArgumentParser, environment: Mapping[str, str] = os.environ) -> None:
    """The flags; what a variable says is the default."""

    def variable(name: str, otherwise: str) -> str:
        return environment.get(f"INFERENCE_FLEET_{name}") or otherwise

    parser.add_argument(
        "--namespace", action="append", dest="namespaces", metavar="NAME", default=None,
        help="serve only this namespace (repeatable; INFERENCE_FLEET_NAMESPACES, comma-separated); absent: all",
    )  # fmt: skip
    parser.add_argument(
        "--exclude-namespace", action="append", dest="excluded", metavar="NAME", default=None,
        help="without --namespace: leave this one to another install (repeatable; INFERENCE_FLEET_EXCLUDED_NAMESPACES)",
    )  # fmt: skip
    parser.add_argument(
        "--read-nodes", type=_truth, default=_truth(variable("READ_NODES", "true")), metavar="true|false",
        help="with --namespace: whether AcceleratorClasses and nodes may be read (INFERENCE_FLEET_READ_NODES)",
    )  # fmt: skip
    images = (
        ("--image", "IMAGE", "inference-fleet:latest", "this project's own image: gateways, sidecars, inspection"),
        ("--llama-cpp-image", "LLAMA_CPP_IMAGE", "", "image of llama.cpp where a policy names none"),
        ("--vllm-image", "VLLM_IMAGE", "", "image of vLLM where a policy names none"),
        ("--gateway-cluster-role", "GATEWAY_CLUSTER_ROLE", "inference-fleet-gateway", "ClusterRole that gateways are bound to"),
        ("--hub-endpoint", "HUB_ENDPOINT", "", "address of a mirror of the Hugging Face hub"),
        ("--lease-name", "LEASE_NAME", "inference-fleet", "Lease that decides who leads"),
        ("--lease-namespace", "LEASE_NAMESPACE", environment.get("POD_NAMESPACE") or "default", "namespace of that Lease"),
        ("--kubeconfig", "KUBECONFIG", "", "kubeconfig file; absent: the pod's service account, else $KUBECONFIG"),
        ("--log-level", "LOG_LEVEL", "Info", "Debug, Info, Warning or Error"),
    )  # fmt: skip
    for flag, name, otherwise, text in images:
        parser.add_argument(
            flag, default=variable(name, otherwise), metavar="TEXT", help=f"{text} (INFERENCE_FLEET_{name})"
        )
    numbers = (
        ("--resync-seconds", "RESYNC_SECONDS", "120", "how often every policy is looked at without an event"),
        ("--workers", "WORKERS", "8", "passes at once"),
        ("--port", "PORT", "8080", "port of /healthz, /readyz and /metrics"),
        ("--scrape-seconds", "SCRAPE_SECONDS", "15", "how often a policy's gateways and sidecars are read"),
        ("--lease-seconds", "LEASE_SECONDS", "30", "how long the Lease lives after a renewal; after half of it nothing is written"),
        ("--relist-seconds", "RELIST_SECONDS", "300", "how often every kind is listed again beside its watch"),
        ("--silence-seconds", "SILENCE_SECONDS", "60", "how long a watch may keep back what a list shows before /healthz fails"),
    )  # fmt: skip
    for flag, name, otherwise, text in numbers:
        parser.add_argument(
            flag,
            type=float,
            default=float(variable(name, otherwise)),
            metavar="N",
            help=f"{text} (INFERENCE_FLEET_{name})",
        )


def from_arguments(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> OperatorOptions:
    """The options from parsed flags."""
    named = arguments.namespaces
    if named is None:
        named = _names(environment.get("INFERENCE_FLEET_NAMESPACES", ""))
    excluded = arguments.excluded
    if excluded is None:
        excluded = _names(environment.get("INFERENCE_FLEET_EXCLUDED_NAMESPACES", ""))
    host = environment.get("POD_NAME") or socket.gethostname()
    return OperatorOptions(
        image=arguments.image,
        llama_cpp_image=arguments.llama_cpp_image,
        vllm_image=arguments.vllm_image,
        gateway_cluster_role=arguments.gateway_cluster_role,
        namespaces=tuple(dict.fromkeys(named)),
        excluded=frozenset(excluded) - frozenset(named),
        read_nodes=arguments.read_nodes,
        hub_endpoint=arguments.hub_endpoint,
        lease_namespace=arguments.lease_namespace,
        lease_name=arguments.lease_name,
        identity=f"{host}_{uuid.uuid4().hex[:8]}",
        resync_seconds=arguments.resync_seconds,
        workers=max(1, int(arguments.workers)),
        port=int(arguments.port),
        kubeconfig=arguments.kubeconfig,
        log_level=arguments.log_level,
        lease_times=LeaseTimes.of(float(arguments.lease_seconds)),
        scrape_seconds=arguments.scrape_seconds,
        relist_seconds=arguments.relist_seconds,
        silence_seconds=arguments.silence_seconds,
    )
