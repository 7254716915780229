"""What each set of values renders, word for word. `make golden` writes the snapshots anew."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import yaml

from tests.chart.conftest import Helm

GOLDEN = Path(__file__).parent / "golden"


def test_rendered_as_recorded(helm: Helm, values: Path) -> None:
    found = without_definitions(helm.template("--values", values))
    path = GOLDEN / values.name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(found)
    wanted = path.read_text() if path.exists() else ""
    difference = "".join(difflib.unified_diff(wanted.splitlines(True), found.splitlines(True), "recorded", "rendered"))
    assert not difference, f"{difference}\nif that is meant: make golden"


def without_definitions(text: str) -> str:
    """The CustomResourceDefinitions are compared with crds/ elsewhere."""
    documents = text.split("\n---\n")
    kept = [
        document for document in documents if (yaml.safe_load(document) or {}).get("kind") != "CustomResourceDefinition"
    ]
    return "\n---\n".join(kept)
