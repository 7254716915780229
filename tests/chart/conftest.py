"""The chart as Helm renders it, for a set of values."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.cluster import binaries

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts" / "inference-fleet"
VALUES = sorted((Path(__file__).parent / "values").glob("*.yaml"))

Documents = list[dict[str, Any]]


class Helm:
    """Helm's own program, built from its Go module on first use."""

    def __init__(self) -> None:
        binaries.build(binaries.HELM)

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([binaries.HELM.path, *words], capture_output=True, text=True)

    def template(self, *words: str | Path, release: str = "inference-fleet") -> str:
        """The rendered chart in namespace `fleet`; a refusal is a failing test."""
        done = self.run("template", release, CHART, "--namespace", "fleet", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def helm() -> Helm:
    return Helm()


@pytest.fixture(scope="session")
def rendered(helm: Helm) -> Callable[..., Documents]:
    def render(*words: str | Path) -> Documents:
        return [document for document in yaml.safe_load_all(helm.template(*words)) if document]

    return render


@pytest.fixture(params=VALUES, ids=lambda path: path.stem)
def values(request: pytest.FixtureRequest) -> Path:
    """Each of the value sets in turn."""
    path: Path = request.param
    return path
