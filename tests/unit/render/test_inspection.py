"""The Job that inspects a model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inference_fleet.api.model import InferenceModelSpec, ModelSource
from inference_fleet.render.inspection import render_inspection
from tests.unit.render.samples import CLAIM, HTTP, SETTINGS, hub


def job(source: dict[str, Any], attempt: str = "", settings: Any = SETTINGS) -> dict[str, Any]:
    spec = InferenceModelSpec.model_validate({"source": source})
    return render_inspection("apps", "qwen3-8b", "uid-1", spec, settings, attempt)


def pod(found: dict[str, Any]) -> dict[str, Any]:
    inner: dict[str, Any] = found["spec"]["template"]["spec"]
    return inner


def test_it_is_told_the_source_and_nothing_else() -> None:
    words = pod(job(HTTP))["containers"][0]["args"]
    assert words[:2] == ["inspect", "--source"]
    assert ModelSource.model_validate_json(words[2]) == ModelSource.model_validate(HTTP)
    assert len(words) == 3


def test_it_ends_whatever_happens() -> None:
    spec = job(HTTP)["spec"]
    assert pod(job(HTTP))["restartPolicy"] == "Never"
    assert 0 < spec["activeDeadlineSeconds"] <= 3600
    assert 0 < spec["backoffLimit"] <= 3
    assert spec["ttlSecondsAfterFinished"] == 3600


def test_each_attempt_is_another_job_of_the_same_owner() -> None:
    first, second = job(HTTP)["metadata"], job(HTTP, "2")["metadata"]
    assert first["name"].startswith("qwen3-8b-inspect-")
    assert len(first["name"]) == len("qwen3-8b-inspect-") + 8
    assert first["name"] != second["name"]
    assert first["ownerReferences"] == second["ownerReferences"]
    assert first["ownerReferences"][0]["kind"] == "InferenceModel"


def test_a_claim_is_mounted_read_only_where_inspection_looks() -> None:
    container = pod(job(CLAIM))["containers"][0]
    assert {"name": "source", "mountPath": "/models/source", "readOnly": True} in container["volumeMounts"]
    assert pod(job(CLAIM))["volumes"][-1]["persistentVolumeClaim"] == {"claimName": "weights", "readOnly": True}


def test_a_token_and_a_mirror() -> None:
    settings = replace(SETTINGS, hub_endpoint="http://mirror.example")
    assert pod(job(hub("a/b", token=True), settings=settings))["containers"][0]["env"] == [
        {"name": "HF_ENDPOINT", "value": "http://mirror.example"},
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
    ]
    assert "env" not in pod(job(HTTP, settings=settings))["containers"][0]


def test_it_is_restricted() -> None:
    inner = pod(job(HTTP))
    assert inner["automountServiceAccountToken"] is False
    assert inner["securityContext"]["runAsNonRoot"] is True
    assert inner["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
