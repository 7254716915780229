"""`inference-fleet plan -f`: what a person is told about files, without a cluster."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import yaml

from inference_fleet.explain.commands import add_commands
from tests.unit.plan.world import FACTS

CLASS = {
    "apiVersion": "inference-fleet.dev/v1alpha1", "kind": "AcceleratorClass", "metadata": {"name": "cpu"},
    "spec": {"memory": "2Gi", "requestsPerDevice": {"cpu": "1", "memory": "3Gi"},
             "price": {"currency": "EUR", "onDemandPerHour": "0.05"}},
}  # fmt: skip
MODEL = {
    "apiVersion": "inference-fleet.dev/v1alpha1", "kind": "InferenceModel", "metadata": {"name": "smollm2"},
    "spec": {"source": {"http": {"url": "http://models/smollm2.gguf", "sha256": "a" * 64}}, "facts": FACTS.to_dict()},
}  # fmt: skip
POLICY = {
    "apiVersion": "inference-fleet.dev/v1alpha1", "kind": "InferencePolicy", "metadata": {"name": "chat"},
    "spec": {
        "models": [{
            "name": "small", "engine": {"type": "LlamaCpp", "version": "b11549"}, "contextTokens": 2048,
            "builds": [{"name": "q4", "modelRef": {"name": "smollm2"}}],
            "accelerators": [{"name": "cpu", "classRef": {"name": "cpu"}}], "replicas": {"min": 2},
        }],
        "gateway": {"authentication": {"type": "None"}},
    },
}  # fmt: skip


def command(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_commands(parser.add_subparsers(required=True))
    args = parser.parse_args(arguments)
    return int(args.run(args))


def write(folder: Path, *documents: object) -> str:
    path = folder / "fleet.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return str(path)


def test_it_says_what_would_run_what_it_needs_and_what_it_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("plan", "-f", write(tmp_path, CLASS, MODEL, POLICY)) == 0
    printed = capsys.readouterr().out
    assert "FirstChoice" in printed
    assert "0.10 EUR an hour" in printed
    assert "of 2.0 GiB" in printed
    assert "--ctx-size" in printed


def test_what_does_not_fit_says_what_would_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tight = {**CLASS, "spec": {**CLASS["spec"], "memory": "64Mi"}}  # type: ignore[dict-item]
    assert command("plan", "-f", write(tmp_path, tight, MODEL, POLICY)) == 1
    printed = capsys.readouterr().out
    assert "DoesNotFit" in printed
    assert "64.0 MiB" in printed
    assert "What would have to change" in printed


def test_stock_can_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("plan", "--devices", "cpu=1", "-f", write(tmp_path, CLASS, MODEL, POLICY)) == 0
    assert "1 of 2 replicas have devices" in " ".join(capsys.readouterr().out.split())
    assert command("plan", "--devices", "cpu", "-f", write(tmp_path, CLASS, MODEL, POLICY)) == 2
    assert "CLASS=N" in capsys.readouterr().err


def test_a_mistake_is_named_with_file_object_and_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {**POLICY, "spec": {**POLICY["spec"], "modes": "Apply"}}  # type: ignore[dict-item]
    assert command("plan", "-f", write(tmp_path, CLASS, MODEL, wrong)) == 2
    printed = capsys.readouterr().err
    assert "fleet.yaml" in printed
    assert "'chat'" in printed
    assert "spec.modes" in printed


def test_facts_that_are_missing_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    partial = {k: v for k, v in FACTS.to_dict().items() if k not in ("layers", "parameters")}
    model = {**MODEL, "spec": {**MODEL["spec"], "facts": partial}}  # type: ignore[dict-item]
    assert command("plan", "-f", write(tmp_path, CLASS, model, POLICY)) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "lacks parameters, layers" in printed
    assert "--inspect" in printed


def test_json_is_the_whole_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("plan", "-o", "json", "-f", write(tmp_path, CLASS, MODEL, POLICY)) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["decisions"][0]["reason"] == "FirstChoice"
    assert plan["variants"][0]["replicas"] == 2
