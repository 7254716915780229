"""From a Plan to manifests, in the order in which they are written. The rendering itself is `render/`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from inference_fleet.cluster.models import ATTEMPT_ANNOTATION
from inference_fleet.cluster.seen import ModelSeen
from inference_fleet.naming import MODEL_LABEL
from inference_fleet.plan.observation import OperatorSettings, PolicyView
from inference_fleet.plan.outcome import Plan
from inference_fleet.render.gateway import render_gateway
from inference_fleet.render.inspection import render_inspection
from inference_fleet.render.manifests import with_replicas
from inference_fleet.render.routes import render_routes
from inference_fleet.render.variant import render_variant

Manifest = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rendered:
    """All objects of one policy that a plan calls for."""

    foundation: tuple[Manifest, ...] = ()
    """ServiceAccount, RoleBinding, routes: what pods of the policy stand on."""
    gateway: tuple[Manifest, ...] = ()
    variants: tuple[tuple[str, tuple[Manifest, ...]], ...] = ()
    """Variant's name and its objects."""


class Renderer(Protocol):
    """What the kernel needs of rendering; tests may give another."""

    def policy(self, plan: Plan, policy: PolicyView) -> Rendered:
        """All objects of a policy."""

    def inspection(self, model: ModelSeen, attempt: int) -> Manifest:
        """The Job that inspects a model."""


@dataclass(frozen=True, slots=True)
class StandardRenderer:
    """The project's own rendering."""

    settings: OperatorSettings

    def policy(self, plan: Plan, policy: PolicyView) -> Rendered:
        """Gateway and routes where the plan has them, and every desired variant with its replicas at creation."""
        foundation: list[Manifest] = []
        gateway: list[Manifest] = []
        if plan.gateway is not None:
            for item in render_gateway(policy, plan.gateway, self.settings):
                if item["kind"] in ("ServiceAccount", "RoleBinding"):
                    foundation.append(item)
                else:
                    gateway.append(_created_with(item, plan.gateway.gateway.replicas))
        # The gateway's spec says what routes are made of; a plan that leaves the one alone leaves the other.
        if plan.routes is not None and plan.gateway is not None:
            foundation.append(render_routes(policy, plan.gateway, plan.routes))
        variants = tuple(
            (v.name, tuple(_created_with(item, v.replicas) for item in render_variant(v, policy, self.settings)))
            for v in plan.variants
        )
        return Rendered(tuple(foundation), tuple(gateway), variants)

    def inspection(self, model: ModelSeen, attempt: int) -> Manifest:
        """The Job, labelled with its model and annotated with its attempt, by which it is found again."""
        assert model.spec is not None
        meta = model.meta
        job = render_inspection(meta.namespace, meta.name, meta.uid, model.spec, self.settings, attempt=str(attempt))
        template = job["spec"]["template"]
        extra = {MODEL_LABEL: meta.name}
        return {
            **job,
            "metadata": {
                **job["metadata"],
                "labels": {**job["metadata"]["labels"], **extra},
                "annotations": {**job["metadata"]["annotations"], ATTEMPT_ANNOTATION: str(attempt)},
            },
            "spec": {
                **job["spec"],
                "template": {
                    **template,
                    "metadata": {**template["metadata"], "labels": {**template["metadata"]["labels"], **extra}},
                },
            },
        }


def _created_with(manifest: Manifest, replicas: int) -> Manifest:
    return with_replicas(manifest, replicas) if manifest["kind"] == "Deployment" else manifest
