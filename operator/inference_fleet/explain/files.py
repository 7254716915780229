"""YAML files as a user writes them → resources. Says in which file and document a mistake is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from inference_fleet.api.accelerator import AcceleratorClass
from inference_fleet.api.base import API_VERSION
from inference_fleet.api.model import InferenceModel
from inference_fleet.api.policy import InferencePolicy

KINDS: dict[str, type[AcceleratorClass] | type[InferenceModel] | type[InferencePolicy]] = {
    "AcceleratorClass": AcceleratorClass,
    "InferenceModel": InferenceModel,
    "InferencePolicy": InferencePolicy,
}


class InvalidFile(ValueError):
    """A file that cannot be read as our resources; the text names the file, the object and the field."""


@dataclass(frozen=True, slots=True)
class Declared:
    """Everything found in the files. Objects of other kinds are left out."""

    policies: tuple[InferencePolicy, ...] = ()
    models: tuple[InferenceModel, ...] = ()
    classes: tuple[AcceleratorClass, ...] = ()


def read(paths: Iterable[Path]) -> Declared:
    """Reads every document of every file; a folder stands for its `*.yaml` files. Raises InvalidFile."""
    policies: list[InferencePolicy] = []
    models: list[InferenceModel] = []
    classes: list[AcceleratorClass] = []
    for path in _files(paths):
        for where, document in _documents(path):
            found = _resource(where, document)
            if isinstance(found, InferencePolicy):
                policies.append(found)
            elif isinstance(found, InferenceModel):
                models.append(found)
            elif isinstance(found, AcceleratorClass):
                classes.append(found)
    return Declared(tuple(policies), tuple(models), tuple(classes))


def _files(paths: Iterable[Path]) -> Iterable[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(path.glob("*.yaml"))
        else:
            yield path


def _documents(path: Path) -> Iterable[tuple[str, Any]]:
    try:
        text = path.read_text()
        documents = list(yaml.safe_load_all(text))
    except OSError as error:
        raise InvalidFile(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidFile(f"{path}: not YAML: {error}") from error
    for document in documents:
        items = (
            document.get("items", []) if isinstance(document, dict) and document.get("kind") == "List" else [document]
        )
        for item in items:
            if item is not None:
                yield str(path), item


def _resource(where: str, document: Any) -> AcceleratorClass | InferenceModel | InferencePolicy | None:
    if not isinstance(document, dict):
        raise InvalidFile(f"{where}: a document is not an object")
    if document.get("apiVersion") != API_VERSION:
        return None
    kind = KINDS.get(str(document.get("kind")))
    if kind is None:
        raise InvalidFile(f"{where}: {API_VERSION} has no kind {document.get('kind')!r}; known: {', '.join(KINDS)}")
    name = (document.get("metadata") or {}).get("name", "?")
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(str(part) for part in e['loc']) or 'object'}: {e['msg']}" for e in error.errors()
        )
        raise InvalidFile(f"{where}: {kind.__name__} {name!r}: {faults}") from error
