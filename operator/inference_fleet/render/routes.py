"""The routes of a policy → the ConfigMap that its gateways read (docs/designs/001-seams.md)."""

from __future__ import annotations

import json
from typing import Any

from inference_fleet.api.policy import InferencePolicySpec
from inference_fleet.naming import canonical_json, digest, routes_name
from inference_fleet.plan.observation import PolicyView
from inference_fleet.plan.outcome import RouteModel, Routes
from inference_fleet.render.manifests import Manifest, metadata, stamped

KEY = "routes.json"
REVISION_DIGITS = 12
DEFAULT_WINDOW_SECONDS = 300


def render_routes(policy: PolicyView, spec: InferencePolicySpec, routes: Routes) -> Manifest:
    """The ConfigMap."""
    return stamped(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata(policy, routes_name(policy.name), "gateway"),
            "data": {KEY: json.dumps(routes_document(policy, spec, routes), indent=1, ensure_ascii=False) + "\n"},
        }
    )


def routes_document(policy: PolicyView, spec: InferencePolicySpec, routes: Routes) -> dict[str, Any]:
    """What the gateways read, its revision first. Equal content has an equal revision."""
    slo = spec.slo
    content = {
        "policy": policy.name,
        "namespace": policy.namespace,
        "holdSeconds": spec.gateway.hold_seconds,
        "maxBodyBytes": spec.gateway.max_body_bytes,
        "windowSeconds": slo.window_seconds if slo is not None else DEFAULT_WINDOW_SECONDS,
        "objectives": [objective.to_dict() for objective in slo.objectives] if slo is not None else [],
        "models": [_model(model) for model in routes.models],
        "drain": sorted(routes.drain),
    }
    return {"revision": digest(canonical_json(content), REVISION_DIGITS), **content}


def routes_revision(policy: PolicyView, spec: InferencePolicySpec, routes: Routes) -> str:
    """The first 12 hex digits of the SHA-256 of the content, in canonical JSON."""
    return str(routes_document(policy, spec, routes)["revision"])


def _model(model: RouteModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "servedNames": list(model.served_names),
        "contextTokens": model.context_tokens,
        "default": model.default,
        "variants": [
            {
                "name": variant.name,
                "service": variant.service,
                "port": variant.port,
                "weight": variant.weight,
                "engine": variant.engine,
            }
            for variant in model.variants
        ],
    }
