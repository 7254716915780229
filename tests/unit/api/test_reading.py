"""Reading resources: what is written comes back, what is wrong is said, and said as the API server would."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from inference_fleet.api.faults import sentences
from inference_fleet.api.model import DeclaredFacts, InferenceModel, ModelFacts
from inference_fleet.api.policy import InferencePolicy, InferencePolicyStatus
from tests.unit.api.resources import BY_NAME, Refused, refused, valid

VALID = dict(valid())


def read(document: dict[str, Any]) -> Any:
    return BY_NAME[document["kind"]].model_validate(document)


@pytest.mark.parametrize("name", VALID)
def test_what_is_written_comes_back(name: str) -> None:
    resource = read(VALID[name])
    written = resource.to_dict()
    assert read(written) == resource
    assert read(written).to_dict() == written
    assert lost(VALID[name]["spec"], written["spec"]) == []


def lost(before: Any, after: Any, path: str = "spec") -> list[str]:
    """Fields of `before` that are not in `after`; what a default added does not count."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [fault for key, value in before.items() for fault in lost(value, after.get(key), f"{path}.{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [f for i, pair in enumerate(zip(before, after, strict=True)) for f in lost(*pair, f"{path}[{i}]")]
    return [] if before == after or str(before) == after else [f"{path}: {before!r} became {after!r}"]


@pytest.mark.parametrize("case", refused(), ids=str)
def test_what_is_wrong_is_said(case: Refused) -> None:
    *before, last = case.documents
    for document in before:
        read(document)
    if not case.offline:
        read(last)
        return
    with pytest.raises(ValidationError) as caught:
        read(last)
    assert case.offline in " | ".join(sentences(caught.value, BY_NAME[last["kind"]]))


def test_a_spec_alone_is_named_from_its_root() -> None:
    with pytest.raises(ValidationError) as caught:
        InferencePolicy.model_fields["spec"].annotation.model_validate({"models": [], "gatway": {}})  # type: ignore[union-attr]
    said = sentences(caught.value, InferencePolicy, within=("spec",))
    assert "spec.gateway: required" in said
    assert "spec.gatway: unknown field; did you mean gateway?" in said


def test_several_broken_rules_are_all_said() -> None:
    document = VALID["policy-vllm:InferencePolicy:chat"]
    entry = {**document["spec"]["models"][0], "engine": {"type": "LlamaCpp", "version": "b1"}}
    with pytest.raises(ValidationError) as caught:
        read({**document, "spec": {**document["spec"], "models": [entry]}})
    (said,) = sentences(caught.value, InferencePolicy)
    assert said.startswith("spec.models[0]: ")
    assert "quantization methods are for VLLM" in said and "keyValueCache must be Auto or FP8 with VLLM" in said


def test_resources_cannot_be_changed() -> None:
    resource = read(VALID["minimal:InferencePolicy:minimal"])
    with pytest.raises(ValidationError, match="frozen"):
        resource.spec.priority = 3


@pytest.mark.parametrize("value", ["4096", 4096.0, True, None])
def test_a_whole_number_is_nothing_else(value: object) -> None:
    document = VALID["minimal:InferencePolicy:minimal"]
    entry = {**document["spec"]["models"][0], "contextTokens": value}
    with pytest.raises(ValidationError):
        read({**document, "spec": {**document["spec"], "models": [entry]}})


def test_a_status_of_a_newer_operator_is_read() -> None:
    counts = {"desired": 1, "ready": 1, "draining": 2}
    status = InferencePolicyStatus.model_validate(
        {"observedGeneration": 3, "saturation": "new", "models": [{"name": "a", "ready": True, "replicas": counts}]}
    )
    assert status.observed_generation == 3
    assert status.models[0].replicas.ready == 1


def test_a_status_of_ours_is_cut_and_never_refused() -> None:
    decision = {"action": "Wait", "reason": "R" * 100, "message": "m" * 5000, "rejected": [
        {"option": "o", "reason": "r", "message": ""} for _ in range(20)
    ]}  # fmt: skip
    status = InferencePolicyStatus.model_validate({"plan": {"summary": "s" * 5000, "decisions": [decision] * 200}})
    assert status.plan is not None
    assert len(status.plan.decisions) == 64
    assert len(status.plan.decisions[0].rejected) == 8
    assert len(status.plan.decisions[0].message) == 512 and status.plan.summary.endswith("…")


def test_fields_of_a_template_pass_through() -> None:
    policy = InferencePolicy.model_validate(VALID["policy-vllm:InferencePolicy:chat"])
    template = policy.spec.models[0].pod_template
    assert template is not None
    spec = template.to_dict()["spec"]
    assert spec["topologySpreadConstraints"][0]["maxSkew"] == 1
    assert spec["containers"][0]["env"] == [{"name": "VLLM_LOGGING_LEVEL", "value": "DEBUG"}]


FACTS = {
    "architecture": "llama", "parameters": 134515008, "layers": 30, "hiddenSize": 576, "keyValueHeads": 3, "attentionHeads": 9,
    "headDimension": 64, "attention": "GQA", "vocabularySize": 49152, "tokensDigest": "sha256:ab", "maxContextTokens": 8192,
    "weightBits": 4,
}  # fmt: skip


def test_declared_facts_are_the_found_facts_made_optional() -> None:
    declared, found = DeclaredFacts.model_fields, ModelFacts.model_fields
    assert list(declared) == list(found)
    schemas = {
        facts: InferenceModel.model_json_schema(by_alias=True)["$defs"][facts]["properties"]
        for facts in ("DeclaredFacts", "ModelFacts")
    }
    for name, shape in schemas["ModelFacts"].items():
        plain = {key: value for key, value in shape.items() if key not in ("description", "title", "default")}
        option = schemas["DeclaredFacts"][name]
        assert plain == {k: v for k, v in option.items() if k not in ("description", "title", "default")} or (
            plain in [{k: v for k, v in o.items() if k != "title"} for o in option["anyOf"]]
        )


def test_declared_facts_complete_and_compare() -> None:
    declared = DeclaredFacts.model_validate(FACTS)
    found = declared.complete()
    assert found is not None and found.layers == 30
    assert DeclaredFacts(layers=30).complete() is None
    assert "hiddenSize" in DeclaredFacts(layers=30).missing() and "slidingWindowTokens" not in DeclaredFacts().missing()
    assert DeclaredFacts(layers=28, weight_bits=4).contradictions(found) == ("layers: declared 28, found 30",)
