"""Resources for tests: the files that the API server is shown too, and the least policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from inference_fleet.api.crd import KINDS, Kind

REPOSITORY = Path(__file__).resolve().parents[3]
CLUSTER = REPOSITORY / "tests" / "cluster"
BY_NAME: dict[str, Kind] = {kind.resource.kind: kind for kind in KINDS}


@dataclass(frozen=True, slots=True)
class Refused:
    """A file under tests/cluster/invalid: the last document must be refused with a sentence, those before it accepted.

    `refused` is what the API server says. `offline` is what our own reading says, empty where one object alone is not wrong.
    """

    path: Path
    documents: tuple[dict[str, Any], ...]
    refused: str
    offline: str

    def __str__(self) -> str:
        return self.path.stem


def refused() -> tuple[Refused, ...]:
    return tuple(_refused(path) for path in sorted((CLUSTER / "invalid").glob("*.yaml")))


def _refused(path: Path) -> Refused:
    text = path.read_text()
    said = dict(line[2:].split(": ", 1) for line in text.splitlines() if line.startswith("# "))
    offline = said.get("offline", said["refused"])
    return Refused(
        path=path,
        documents=tuple(yaml.safe_load_all(text)),
        refused=said["refused"],
        offline="" if offline.startswith("(") else offline,
    )


def valid() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every document under tests/cluster/valid, named."""
    for path in sorted((CLUSTER / "valid").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            yield f"{path.stem}:{document['kind']}:{document['metadata']['name']}", document
