"""Names of the objects that a policy or a model owns (docs/designs/001-seams.md), and the labels and annotations on them.

A name that would not be a DNS label (a dot, a leading digit, too long) is altered, and then carries a hash of what it was made
from: two owners never share a name by being cut alike.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar, Protocol

from inference_fleet.api.base import GROUP

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGED_BY = "inference-fleet"
FIELD_MANAGER = "inference-fleet"
POLICY_LABEL = f"{GROUP}/policy"
COMPONENT_LABEL = f"{GROUP}/component"
MODEL_LABEL = f"{GROUP}/model"
VARIANT_LABEL = f"{GROUP}/variant"

RENDERED_HASH_ANNOTATION = f"{GROUP}/rendered-hash"
TEMPLATE_HASH_ANNOTATION = f"{GROUP}/template-hash"
RENDER_REVISION_ANNOTATION = f"{GROUP}/render-revision"
SIDECAR_IMAGE_ANNOTATION = f"{GROUP}/sidecar-image"
IDENTITY_ANNOTATION = f"{GROUP}/identity"
CONFIGURATION_ANNOTATION = f"{GROUP}/configuration"
UPGRADE_ANNOTATION = f"{GROUP}/upgrade"

_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


class Identity(Protocol):
    """A dataclass of plain values that says what makes two replicas of a model interchangeable."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def model(self) -> str:
        """The model's name in its policy."""


def canonical_json(value: Any) -> str:
    """The same text for equal values, whatever the order of keys: sorted, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(text: str, length: int) -> str:
    """The first `length` hex digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def identity_json(identity: Identity) -> str:
    """The identity as it stands in the annotation and as it is hashed."""
    return canonical_json(asdict(identity))


def variant_name(policy: str, identity: Identity) -> str:
    """Name of a variant's Deployment and Service: `POLICY-MODEL` cut to 44 characters, `-`, 8 hex digits of its identity."""
    whole = f"{policy}-{identity.model}"
    stem = _cut(whole, 44)
    hashed = identity_json(identity)
    return f"{stem}-{digest(hashed if stem == whole else f'{whole}/{hashed}', 8)}"


def gateway_name(policy: str) -> str:
    """Name of the gateway's Deployment, Service, ServiceAccount, RoleBinding and PodDisruptionBudget."""
    return f"{_stem(policy, 55)}-gateway"


def routes_name(policy: str) -> str:
    """Name of the routes ConfigMap."""
    return f"{policy}-routes"


def memory_name(policy: str) -> str:
    """Name of the ConfigMap that holds what the planner remembers."""
    return f"{policy}-memory"


def inspection_name(model: str, uid: str, attempt: str = "") -> str:
    """Name of an inspection Job; another `attempt` (any text, such as a generation) is another Job."""
    return f"{_stem(model, 46)}-inspect-{digest(f'{model}/{uid}/{attempt}', 8)}"


def labels(policy: str, component: str) -> Mapping[str, str]:
    """Labels on everything that a policy owns. Component: engine, gateway or inspect."""
    return {MANAGED_BY_LABEL: MANAGED_BY, POLICY_LABEL: policy, COMPONENT_LABEL: component}


def _stem(text: str, limit: int) -> str:
    """`text` where it is a DNS label of at most `limit` characters, else cut and with six hex digits of itself."""
    cut = _cut(text, limit)
    return text if cut == text else f"{_cut(text, limit - 7)}-{digest(text, 6)}"


def _cut(text: str, limit: int) -> str:
    """The beginning of `text` that fits, with what a DNS label (RFC 1035: Services) does not allow replaced."""
    if len(text) <= limit and _LABEL.fullmatch(text):
        return text
    plain = text.replace(".", "-")
    if not plain[:1].isalpha():
        plain = f"x{plain}"
    return plain[:limit].rstrip("-")
