"""The kinds of objects this operator reads or writes, and where the API serves them."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

GROUP = "inference-fleet.dev"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object as the API serves it."""

    group: str
    version: str
    plural: str
    name: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`group/version`, or the version alone in the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The URL path of a collection (no name) or of one object. Without a namespace: all of them."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=""))
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


POLICY = Kind(GROUP, "v1alpha1", "inferencepolicies", "InferencePolicy")
MODEL = Kind(GROUP, "v1alpha1", "inferencemodels", "InferenceModel")
ACCELERATOR_CLASS = Kind(GROUP, "v1alpha1", "acceleratorclasses", "AcceleratorClass", namespaced=False)
DEPLOYMENT = Kind("apps", "v1", "deployments", "Deployment")
POD = Kind("", "v1", "pods", "Pod")
NODE = Kind("", "v1", "nodes", "Node", namespaced=False)
SERVICE = Kind("", "v1", "services", "Service")
CONFIG_MAP = Kind("", "v1", "configmaps", "ConfigMap")
SERVICE_ACCOUNT = Kind("", "v1", "serviceaccounts", "ServiceAccount")
ROLE_BINDING = Kind("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
DISRUPTION_BUDGET = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
JOB = Kind("batch", "v1", "jobs", "Job")
EVENT = Kind("events.k8s.io", "v1", "events", "Event")
LEASE = Kind("coordination.k8s.io", "v1", "leases", "Lease")

_KNOWN = (
    POLICY,
    MODEL,
    ACCELERATOR_CLASS,
    DEPLOYMENT,
    POD,
    NODE,
    SERVICE,
    CONFIG_MAP,
    SERVICE_ACCOUNT,
    ROLE_BINDING,
    DISRUPTION_BUDGET,
    JOB,
    EVENT,
    LEASE,
)
_BY_NAME = {(kind.api_version, kind.name): kind for kind in _KNOWN}


def kind_of(manifest: dict[str, object]) -> Kind:
    """The kind of a rendered object. Raises KeyError for one this operator never writes."""
    return _BY_NAME[(str(manifest["apiVersion"]), str(manifest["kind"]))]
