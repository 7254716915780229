"""Each revision of what is rendered, held still by golden files: an operator upgrade must roll no engine.

Until the first release a change of revision 1 may be taken over: `GOLDEN=write make test-unit TESTS=-kgolden`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from inference_fleet.api.model import InferenceModelSpec
from inference_fleet.render.gateway import render_gateway
from inference_fleet.render.inspection import render_inspection
from inference_fleet.render.variant import RENDERERS, render_variant
from tests.unit.render.samples import CLAIM, SETTINGS, VARIANTS, hub, policy, spec

GOLDEN = Path(__file__).parent / "golden"
WRITE = os.environ.get("GOLDEN") == "write"

GATEWAYS = {
    "gateway-plain": {},
    "gateway-tls-keys": {
        "replicas": 2,
        "authentication": {"type": "APIKeys", "secretRef": {"name": "keys"}},
        "tls": {"secretName": "certificate"},
        "service": {"type": "LoadBalancer", "annotations": {"lb.example/scheme": "internal"}},
    },
}
SOURCES = {"inspection-hub": hub("Qwen/Qwen3-8B", token=True), "inspection-claim": CLAIM}


def variant(name: str, revision: int) -> Callable[[], Any]:
    return lambda: render_variant(VARIANTS[name](render_revision=revision), policy(), SETTINGS)


def gateway(declared: dict[str, Any]) -> Callable[[], Any]:
    return lambda: render_gateway(policy(), spec(declared), SETTINGS)


def inspection(source: dict[str, Any]) -> Callable[[], Any]:
    model = InferenceModelSpec.model_validate({"source": source})
    return lambda: (render_inspection("apps", "qwen3-8b", "uid-1", model, SETTINGS),)


CASES: dict[str, Callable[[], Any]] = {
    **{f"rev{revision}/{name}": variant(name, revision) for revision in RENDERERS for name in VARIANTS},
    **{f"rev1/{name}": gateway(declared) for name, declared in GATEWAYS.items()},
    **{f"rev1/{name}": inspection(source) for name, source in SOURCES.items()},
}


class Plain(yaml.SafeDumper):
    """Writes a value in full each time, also where it is the same object twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def text(manifests: tuple[dict[str, Any], ...]) -> str:
    return yaml.dump_all(manifests, Dumper=Plain, sort_keys=False, width=120, allow_unicode=True)


@pytest.mark.parametrize("case", CASES)
def test_a_revision_is_rendered_as_it_was(case: str) -> None:
    path = GOLDEN / f"{case}.yaml"
    rendered = text(CASES[case]())
    if WRITE:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(rendered)
    assert path.exists(), f"{path} is missing; GOLDEN=write makes it"
    assert rendered == path.read_text(), (
        "a change of what is rendered needs a new revision (inference_fleet.render.revisions), or every engine would be "
        "rolled by an operator upgrade; before the first release: GOLDEN=write"
    )


def test_every_golden_file_is_of_a_case() -> None:
    assert {str(path.relative_to(GOLDEN).with_suffix("")) for path in GOLDEN.rglob("*.yaml")} == set(CASES)
