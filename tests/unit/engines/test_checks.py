"""What an engine refuses before memory is looked at, and that it says what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inference_fleet.api.reasons import REFUSAL
from inference_fleet.engines.base import ENGINES, Refusal, engine
from inference_fleet.engines.config import Artifact, EngineConfig, SpeculationConfig
from tests.unit.engines.samples import GIB, QWEN3_0_6B, QWEN3_8B, SMOLLM2, drafting, guessing, llama_cpp, vllm

KNOWN_REASONS = {reason.name for reason in REFUSAL.reasons}


def check(config: EngineConfig) -> Refusal | None:
    known = engine(config.engine, config.version)
    assert not isinstance(known, Refusal)
    return known.check(config)


def artifact(form: str, facts: Any = SMOLLM2, size: int = 98_362_432) -> Artifact:
    return Artifact("/models/target", size, facts, form)


OTHER_VOCABULARY = SMOLLM2.model_copy(update={"vocabulary_size": 151_936, "tokens_digest": "sha256:other"})
ODD_HEADS = SMOLLM2.model_copy(update={"head_dimension": 80})
ODD_DRAFT = QWEN3_0_6B.model_copy(update={"attention_heads": 15})
SMALL_WINDOW_DRAFT = SpeculationConfig("EAGLE", 4)

REFUSED = [
    ("FormatUnsupported", llama_cpp(target=artifact("Safetensors"))),
    ("FormatUnsupported", vllm(target=artifact("GGUF"))),
    (
        "FormatUnsupported",
        replace(llama_cpp(), speculation=SpeculationConfig("DraftModel", 4, artifact("Safetensors"))),
    ),
    ("QuantizationMismatch", llama_cpp(weights="F16")),
    ("QuantizationMismatch", vllm(weights="Int4", method="AWQ")),
    ("QuantizationMismatch", vllm(method="GPTQ")),
    ("QuantizationUnsupported", llama_cpp(method="AWQ")),
    ("CapabilityMissing", vllm(method="FP8", capabilities=())),
    ("KeyValueCacheUnsupported", llama_cpp(key_value_cache="FP8")),
    ("KeyValueCacheUnsupported", llama_cpp(key_value_cache="Q8_0", target=artifact("GGUF", ODD_HEADS))),
    ("KeyValueCacheUnsupported", vllm(key_value_cache="Q8_0")),
    ("ContextTooLong", llama_cpp(context_tokens=8193)),
    ("ContextTooLong", vllm(context_tokens=65_536)),
    ("DevicesUneven", vllm(devices=3, memory_bytes=240 * GIB)),
    ("DevicesUneven", drafting(vllm(devices=2, memory_bytes=160 * GIB), facts=ODD_DRAFT)),
    ("BatchTooSmall", vllm(max_batched_tokens=16, max_sequences=32)),
    ("SpeculationUnsupported", llama_cpp(speculation=SMALL_WINDOW_DRAFT)),
    ("SpeculationUnsupported", vllm(speculation=SMALL_WINDOW_DRAFT)),
    ("SpeculationUnsupported", guessing(llama_cpp(), depth=0)),
    ("DraftMissing", llama_cpp(speculation=SpeculationConfig("DraftModel", 4))),
    ("VocabularyMismatch", drafting(llama_cpp(), facts=OTHER_VOCABULARY)),
    ("VocabularyMismatch", drafting(vllm(), facts=QWEN3_0_6B.model_copy(update={"vocabulary_size": 151_936 - 8}))),
    ("ArgumentReserved", llama_cpp(extra_arguments=("-c", "4096"))),
    ("ArgumentReserved", llama_cpp(extra_arguments=("--swa-full",))),
    ("ArgumentReserved", vllm(extra_arguments=("--max_model_len=4096",))),
    ("ArgumentReserved", vllm(extra_arguments=("--speculative-config.model", "x"))),
]


@pytest.mark.parametrize(("reason", "config"), REFUSED, ids=[f"{i}-{reason}" for i, (reason, _) in enumerate(REFUSED)])
def test_refused(reason: str, config: EngineConfig) -> None:
    found = check(config)
    assert found is not None
    assert found.reason == reason
    assert found.reason in KNOWN_REASONS
    assert len(found.message) > 40
    assert len(found.message) < 512


ACCEPTED = [
    llama_cpp(),
    llama_cpp(weights="Q4_1"),
    llama_cpp(weights="Q8_0"),
    llama_cpp(devices=7, on_gpu=True),
    llama_cpp(key_value_cache="Q4_0"),
    llama_cpp(context_tokens=8192),
    drafting(llama_cpp()),
    drafting(llama_cpp(), facts=SMOLLM2.model_copy(update={"vocabulary_size": 49280, "tokens_digest": "sha256:more"})),
    guessing(llama_cpp()),
    llama_cpp(extra_arguments=("--seed", "7", "--temp", "0", "--chat-template", "chatml")),
    vllm(),
    vllm(weights="BF16"),
    vllm(weights="FP8", method="FP8"),
    vllm(method="FP8", capabilities=None),
    vllm(
        target=Artifact("/m", 6 * GIB, QWEN3_8B.model_copy(update={"weight_bits": 4}), "Safetensors"),
        weights="Int4",
        method="AWQ",
    ),
    vllm(devices=4, memory_bytes=320 * GIB),
    vllm(devices=3, on_gpu=False),
    drafting(vllm(devices=2, memory_bytes=160 * GIB)),
    guessing(vllm()),
    vllm(extra_arguments=("--seed", "7", "--enable-auto-tool-choice", "--max-loras=2")),
]


@pytest.mark.parametrize("config", ACCEPTED, ids=range(len(ACCEPTED)))
def test_accepted(config: EngineConfig) -> None:
    assert check(config) is None


def test_a_message_names_what_would_do() -> None:
    found = check(vllm(devices=3, memory_bytes=240 * GIB))
    assert found is not None
    assert found.message == (
        "The model has 32 attention heads, which 3 devices cannot share evenly; "
        "set devicesPerReplica to one of: 1, 2, 4, 8, 16, 32."
    )


@pytest.mark.parametrize("version", ["0.32", "0.32.0", "0.32.1", "v0.32.0"])
def test_patch_releases_have_the_flags_of_their_minor(version: str) -> None:
    assert not isinstance(engine("VLLM", version), Refusal)


@pytest.mark.parametrize(
    ("name", "version", "known"),
    [("VLLM", "0.31", "0.32"), ("VLLM", "0.321", "0.32"), ("VLLM", "latest", "0.32"), ("LlamaCpp", "b11550", "b11549")],
)
def test_an_unknown_version_names_the_known_ones(name: str, version: str, known: str) -> None:
    found = engine(name, version)
    assert isinstance(found, Refusal)
    assert found.reason == "EngineVersionUnknown"
    assert version in found.message
    assert known in found.message


def test_an_unknown_engine_names_the_known_ones() -> None:
    found = engine("TGI", "1")
    assert isinstance(found, Refusal)
    assert all(name in found.message for name in ENGINES)


def test_startup_is_given_time_for_the_weights() -> None:
    for config in (llama_cpp(), vllm(), drafting(vllm())):
        known = engine(config.engine, config.version)
        assert not isinstance(known, Refusal)
        probes = known.probes(config)
        assert probes.startup.budget_seconds >= 60 + config.target.weight_bytes / 100_000_000
        assert probes.liveness.budget_seconds >= 60
        assert {probes.startup.path, probes.readiness.path, probes.liveness.path} == {"/health"}


def test_only_several_gpus_need_shared_memory() -> None:
    llama, virtual = engine("LlamaCpp", "b11549"), engine("VLLM", "0.32")
    assert not isinstance(llama, Refusal)
    assert not isinstance(virtual, Refusal)
    assert llama.shared_memory_bytes(llama_cpp(devices=4, on_gpu=True)) is None
    assert virtual.shared_memory_bytes(vllm()) is None
    assert (virtual.shared_memory_bytes(vllm(devices=2, memory_bytes=160 * GIB)) or 0) >= GIB
