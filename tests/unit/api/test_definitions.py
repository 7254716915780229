"""The CustomResourceDefinitions: structural, bounded, explained, the same bytes every time, and those that are committed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from inference_fleet.api import arguments, crd
from inference_fleet.api.base import ApiModel
from inference_fleet.api.crd import KINDS, Kind
from tests.unit.api import structural
from tests.unit.api.resources import REPOSITORY, valid
from tests.unit.api.structural import faults, misfits, nodes

PER_KIND = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.resource.kind)


@PER_KIND
def test_structural(kind: Kind) -> None:
    assert faults(crd.schema(kind)) == []


@PER_KIND
def test_committed(kind: Kind) -> None:
    path = REPOSITORY / "crds" / crd.file_name(kind)
    assert path.read_text() == crd.yaml_text(kind), f"{path.name} is not what the code generates: make generate"


@PER_KIND
def test_every_field_is_described(kind: Kind) -> None:
    silent = [
        path
        for path, node in nodes(crd.schema(kind))
        if not node.get("description") and not path.endswith(("[]", "{}")) and not path.startswith("$.metadata")
    ]
    assert silent == []


@PER_KIND
def test_every_rule_is_in_the_schema(kind: Kind) -> None:
    """A class that is in the models and not in the CRD would be a rule that nobody enforces."""
    written = {rule["rule"] for _, node in nodes(crd.schema(kind)) for rule in node.get("x-kubernetes-validations", [])}
    assert {rule.cel for model in models_of(kind) for rule in model.rules} <= written


def models_of(kind: type[ApiModel], seen: set[type[ApiModel]] | None = None) -> Iterator[type[ApiModel]]:
    seen = set() if seen is None else seen
    if kind not in seen:
        seen.add(kind)
        yield kind
        for field in kind.model_fields.values():
            for inner in classes_in(field.annotation):
                yield from models_of(inner, seen)


def classes_in(annotation: Any) -> Iterator[type[ApiModel]]:
    if isinstance(annotation, type) and issubclass(annotation, ApiModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from classes_in(argument)


@PER_KIND
def test_no_floats(kind: Kind) -> None:
    assert [path for path, node in nodes(crd.schema(kind)) if node.get("type") == "number"] == []


@PER_KIND
def test_units_in_names(kind: Kind) -> None:
    """Durations say their unit, and there is no phase."""
    names = [path.rpartition(".")[2] for path, node in nodes(crd.schema(kind)) if node.get("type") == "integer"]
    assert "phase" not in names
    assert [name for name in names if re.search(r"(timeout|duration|delay|interval)$", name, re.IGNORECASE)] == []


@PER_KIND
def test_lists_of_named_things_are_maps(kind: Kind) -> None:
    for path, node in nodes(crd.schema(kind)):
        if node.get("type") == "array" and "name" in node["items"].get("required", []):
            assert node.get("x-kubernetes-list-map-keys") == ["name"], path


def test_the_same_bytes_whatever_the_hash_seed() -> None:
    program = "from inference_fleet.api import crd; print(''.join(crd.yaml_text(kind) for kind in crd.KINDS))"
    texts = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(REPOSITORY / "operator"), "TZ": zone},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed, zone in (("0", "UTC"), ("4711", "Asia/Tokyo"))
    }
    assert len(texts) == 1


@PER_KIND
def test_yaml_says_what_the_definition_says(kind: Kind) -> None:
    assert yaml.safe_load(crd.yaml_text(kind)) == crd.definition(kind)


VALID = dict(valid())


@pytest.mark.parametrize("name", VALID)
def test_valid_resources_fit_and_lose_nothing(name: str) -> None:
    document = VALID[name]
    kind = next(kind for kind in KINDS if kind.resource.kind == document["kind"])
    assert list(misfits(document["spec"], crd.schema(kind)["properties"]["spec"])) == []


# -- the checker itself


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({"properties": {}}, "every node must have one of"),
        ({"type": "object", "properties": {"a": {"$ref": "#/x", "type": "string", "maxLength": 1}}}, "$ref is not allowed"),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, "$.a: a string must be bounded"),
        ({"type": "array", "items": {"type": "integer"}}, "a list must be bounded"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "a map must be bounded"),
        ({"type": "object", "additionalProperties": False}, "additionalProperties: false"),
        ({"type": "object", "properties": {"a": {"type": "object", "default": {"b": 1}}}}, "b would be pruned"),
        ({"type": "object", "properties": {"a": {"type": "integer", "default": "1"}}}, "'1' is not of type integer"),
        ({"type": "object", "required": ["a"]}, "required but not declared"),
        ({"type": "string", "maxLength": 1, "maxItems": 1}, "['maxItems'] says nothing about a string"),
        ({"type": "integer", "anyOf": [{"minimum": 1}]}, "anyOf is not used"),
        ({"x-kubernetes-int-or-string": True, "type": "string"}, "int-or-string must not have a type"),
        (
            {"type": "array", "maxItems": 1, "items": {"type": "object"}, "x-kubernetes-list-type": "map",
             "x-kubernetes-list-map-keys": ["name"]},
            "the key name of a map list must be required",
        ),
        ({"type": "object", "x-kubernetes-validations": [{"rule": "true"}]}, "a rule must have a message"),
        ({"type": "string", "maxLength": 1, "pattern": "(?!a)"}, "RE2 has no look-around"),
    ],
)  # fmt: skip
def test_the_checker_finds(schema: dict[str, Any], fault: str) -> None:
    assert any(fault in found for found in structural.faults(schema)), structural.faults(schema)


# -- reserved arguments


@pytest.mark.parametrize("argument", ["--port", "--port=9", "-m", "--ctx_size", "-c", "--alias=x", "--spec-type"])
def test_llama_cpp_arguments_that_are_ours(argument: str) -> None:
    assert any(reserved.found([argument]) for reserved in arguments.LLAMA_CPP)


@pytest.mark.parametrize(
    "argument", ["--model", "--max_num_seqs", "--speculative-config.method=ngram", "-tp=2", "--dtype"]
)
def test_vllm_arguments_that_are_ours(argument: str) -> None:
    assert any(reserved.found([argument]) for reserved in arguments.VLLM)


@pytest.mark.parametrize(
    "argument", ["--seed", "8", "--model-impl", "--no-mmap", "-ub", "--port-range", "model", "--", "-1", ""]
)
def test_other_arguments(argument: str) -> None:
    assert not any(reserved.found([argument]) for reserved in (*arguments.VLLM, *arguments.LLAMA_CPP))


def test_the_command_prints_all_definitions(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    import argparse

    from inference_fleet.api.commands import add_commands

    parser = argparse.ArgumentParser()
    add_commands(parser.add_subparsers())
    args = parser.parse_args(["crds"])
    assert args.run(args) == 0
    printed = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [document["spec"]["names"]["kind"] for document in printed] == [kind.resource.kind for kind in KINDS]
    args = parser.parse_args(["crds", "--output-directory", str(tmp_path / "out")])
    assert args.run(args) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(crd.file_name(kind) for kind in KINDS)
    args = parser.parse_args(["reference", "conditions"])
    capsys.readouterr()
    assert args.run(args) == 0
    assert capsys.readouterr().out.startswith("# Conditions and reasons")
