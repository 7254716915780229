"""The chart's CustomResourceDefinitions are those of crds/, and outlive the release unless told otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import yaml

from tests.chart.conftest import CHART, REPOSITORY, Documents

CRDS = sorted((REPOSITORY / "crds").glob("*.yaml"))


def definitions(documents: Documents) -> Documents:
    return [document for document in documents if document["kind"] == "CustomResourceDefinition"]


def test_the_copies_are_the_originals() -> None:
    assert CRDS, "crds/ is empty: make generate"
    copies = CHART / "files" / "crds"
    assert [path.name for path in sorted(copies.iterdir())] == [path.name for path in CRDS]
    for path in CRDS:
        assert (copies / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("keep", ["true", "false"])
def test_rendered_whole(rendered: Callable[..., Documents], keep: str) -> None:
    found = {document["metadata"]["name"]: document for document in definitions(rendered("--set", f"crds.keep={keep}"))}
    for path in CRDS:
        wanted = yaml.safe_load(path.read_text())
        got = found.pop(wanted["metadata"]["name"])
        annotations = got["metadata"].pop("annotations", {})
        assert (annotations.pop("helm.sh/resource-policy", None) == "keep") is (keep == "true")
        if annotations:
            got["metadata"]["annotations"] = annotations
        assert got == wanted
    assert not found


def test_left_out_where_someone_else_installs_them(rendered: Callable[..., Documents]) -> None:
    assert not definitions(rendered("--set", "crds.install=false"))
