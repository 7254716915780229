"""The routes ConfigMap: what the gateway reads is what was planned, and a revision names its content."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

from inference_fleet.gateway.routes import parse
from inference_fleet.plan.outcome import RouteModel, Routes, RouteVariant
from inference_fleet.render.routes import render_routes, routes_document, routes_revision
from tests.unit.render.samples import policy, spec

SLO = {
    "windowSeconds": 120,
    "objectives": [{"name": "first-token", "metric": "TimeToFirstToken", "percentile": 95, "milliseconds": 500}],
}
ROUTES = Routes(
    models=(
        RouteModel(
            name="small",
            served_names=("chat-small",),
            context_tokens=8192,
            default=True,
            variants=(RouteVariant("chat-small-1a2b3c4d", "chat-small-1a2b3c4d", 8000, 100, "LlamaCpp"),),
        ),
    ),
    drain=("chat-small-1a2b3c4d-b", "chat-small-1a2b3c4d-a"),
)


def test_as_the_seams_have_it() -> None:
    document = routes_document(policy(), spec(slo=SLO), ROUTES)
    revision = document.pop("revision")
    assert document == {
        "policy": "chat",
        "namespace": "apps",
        "holdSeconds": 120,
        "maxBodyBytes": 33554432,
        "windowSeconds": 120,
        "objectives": SLO["objectives"],
        "models": [
            {
                "name": "small",
                "servedNames": ["chat-small"],
                "contextTokens": 8192,
                "default": True,
                "variants": [
                    {
                        "name": "chat-small-1a2b3c4d",
                        "service": "chat-small-1a2b3c4d",
                        "port": 8000,
                        "weight": 100,
                        "engine": "LlamaCpp",
                    }
                ],
            }
        ],
        "drain": ["chat-small-1a2b3c4d-a", "chat-small-1a2b3c4d-b"],
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert revision == hashlib.sha256(text.encode()).hexdigest()[:12]


def test_the_gateway_reads_it() -> None:
    config_map = render_routes(policy(), spec(slo=SLO), ROUTES)
    assert config_map["metadata"]["name"] == "chat-routes"
    read = parse(config_map["data"]["routes.json"].encode())
    assert read.revision == routes_revision(policy(), spec(slo=SLO), ROUTES)
    assert read.drain == frozenset(ROUTES.drain)
    assert read.resolve("chat-small") is read.resolve("chat") is read.resolve("small")
    assert [objective.limit_seconds for objective in read.objectives] == [0.5]


def test_equal_content_has_an_equal_revision() -> None:
    turned = replace(ROUTES, drain=tuple(reversed(ROUTES.drain)))
    assert routes_revision(policy(), spec(), turned) == routes_revision(policy(), spec(), ROUTES)


def test_another_content_has_another_revision() -> None:
    shorter = replace(ROUTES, drain=())
    held = spec({"holdSeconds": 5})
    revisions = {
        routes_revision(policy(), spec(), ROUTES),
        routes_revision(policy(), spec(), shorter),
        routes_revision(policy(), held, ROUTES),
        routes_revision(policy(), spec(slo=SLO), ROUTES),
    }
    assert len(revisions) == 4
