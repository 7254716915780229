"""The gateway of a policy: who may call it, how it is reached. Part of InferencePolicy."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from inference_fleet.api.base import ApiModel, ForeignName, Rule, SecretReference, Whole


class AuthenticationType(StrEnum):
    """How clients prove who they are."""

    API_KEYS = "APIKeys"
    NONE = "None"


class Authentication(ApiModel):
    """Who may call. Must be chosen: there is no default."""

    type: AuthenticationType
    """APIKeys: a bearer key whose SHA-256 is in the Secret. None: whoever reaches the Service."""
    secret_ref: SecretReference | None = None
    """APIKeys only. In this Secret each data key is a tenant, its value lines of SHA-256 hashes of keys."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="(self.type == 'APIKeys') == has(self.secretRef)",
            message="secretRef must be given with type APIKeys, and only with it",
            holds=lambda self: (self.type is AuthenticationType.API_KEYS) == (self.secret_ref is not None),
            field="secretRef",
        ),
    )


class ServiceType(StrEnum):
    """Type of the gateway's Service."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class GatewayService(ApiModel):
    """The Service in front of the gateway."""

    type: ServiceType = ServiceType.CLUSTER_IP
    """ClusterIP is reached from inside the cluster only."""
    annotations: Annotated[Mapping[str, Annotated[str, Field(max_length=4096)]], Field(max_length=32)] | None = None
    """For load balancers. Those under inference-fleet.dev/ are the operator's."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.annotations) || self.annotations.all(key, !key.startsWith('inference-fleet.dev/'))",
            message="annotations under inference-fleet.dev/ are the operator's",
            holds=lambda self: not any(key.startswith("inference-fleet.dev/") for key in self.annotations or ()),
            field="annotations",
        ),
    )


class TLS(ApiModel):
    """Serve HTTPS."""

    secret_name: ForeignName
    """Secret of type kubernetes.io/tls in the same namespace."""


class Gateway(ApiModel):
    """The OpenAI-compatible door of the policy."""

    replicas: Annotated[Whole, Field(ge=1, le=50)] = 1
    """Gateway pods."""
    hold_seconds: Annotated[Whole, Field(ge=0, le=600)] = 120
    """How long a request waits for a model that is not ready, before it gets 503 with Retry-After."""
    authentication: Authentication
    """Who may call."""
    service: GatewayService = GatewayService()
    """The Service in front of it."""
    tls: TLS | None = None
    """Serve HTTPS. Absent: HTTP."""
    max_body_bytes: Annotated[Whole, Field(ge=1024, le=1073741824)] = 33554432
    """Largest request body; larger ones get 413."""
