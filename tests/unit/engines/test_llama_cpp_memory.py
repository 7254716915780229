"""llama.cpp's memory rule against what the engine itself logged and held."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_fleet.api.model import Attention, ModelFacts
from inference_fleet.engines.config import Artifact, EngineConfig, MemoryEstimate
from inference_fleet.engines.llama_cpp import LlamaCpp, key_value_bytes
from tests.unit.engines.samples import GIB, MIB, SMOLLM2, drafting, guessing, llama_cpp, recorded_memory

TYPES = {"f16": "F16", "q8_0": "Q8_0", "q4_0": "Q4_0"}
RUNS = recorded_memory()["runs"]


def estimate(config: EngineConfig) -> MemoryEstimate:
    return LlamaCpp("b11549").memory(config)


def facts_of(name: str, attention: Attention = Attention.GQA, **over: Any) -> ModelFacts:
    recorded = dict(recorded_memory()["models"][name])
    for unknown in ("weightBytes", "slidingWindowLayers"):
        recorded.pop(unknown, None)
    body = {
        "architecture": "x",
        "parameters": 1,
        "attention": attention,
        "tokensDigest": "sha256:x",
        **recorded,
        **over,
    }
    return ModelFacts.model_validate(body)


def configuration(run: dict[str, Any]) -> EngineConfig:
    weight_bytes = recorded_memory()["models"][run["model"]]["weightBytes"]
    facts = facts_of(run["model"])
    config = llama_cpp(
        target=Artifact("/models/target/model.gguf", weight_bytes, facts, "GGUF"),
        context_tokens=run["context"],
        max_sequences=run["slots"],
        key_value_cache=TYPES[run["cache"]],
        memory_bytes=64 * GIB,
    )
    return drafting(config, run["depth"], facts, weight_bytes) if "draft" in run else config


def mib(text: str) -> int:
    return round(float(text) * MIB)


@pytest.mark.parametrize("run", [run for run in RUNS if "cacheMiB" in run])
def test_the_cache_is_exact(run: dict[str, Any]) -> None:
    """To the hundredth of a MiB that the engine prints."""
    assert f"{estimate(configuration(run)).key_value_bytes / MIB:.2f}" == run["cacheMiB"]


@pytest.mark.parametrize("run", [run for run in RUNS if "windowCacheMiB" in run])
def test_layers_with_a_sliding_window(run: dict[str, Any]) -> None:
    """Gemma 3: 15 layers keep a window, 3 keep everything; each kind exactly as the engine logs it."""
    slots, cells = run["slots"], run["context"]
    window = facts_of(run["model"], Attention.SLIDING_WINDOW, layers=15)
    whole = facts_of(run["model"], layers=3)
    assert f"{key_value_bytes(window, cells, slots, 512, 64) / MIB:.2f}" == run["windowCacheMiB"]
    assert f"{key_value_bytes(whole, cells, slots, 512, 64) / MIB:.2f}" == run["fullCacheMiB"]
    hybrid = facts_of(run["model"], Attention.HYBRID)
    assert key_value_bytes(hybrid, cells, slots, 512, 64) >= mib(run["windowCacheMiB"]) + mib(run["fullCacheMiB"])


@pytest.mark.parametrize("run", [run for run in RUNS if "computeMiB" in run])
def test_the_overhead_covers_the_buffers_that_were_logged(run: dict[str, Any]) -> None:
    measured = mib(run["computeMiB"]) + mib(run.get("outputMiB", "0")) + mib(run.get("repackMiB", "0"))
    assert measured <= estimate(configuration(run)).overhead_bytes <= measured + 320 * MIB


@pytest.mark.parametrize("run", [run for run in RUNS if "anonymousMiB" in run])
def test_what_was_held_at_most_is_within_the_estimate(run: dict[str, Any]) -> None:
    """Resident memory that is not the mapped file, after requests near the full context."""
    parts = estimate(configuration(run))
    draft_weights = configuration(run).target.weight_bytes if "draft" in run else 0
    assert mib(run["anonymousMiB"]) <= parts.needed_bytes - parts.weight_bytes - draft_weights


def test_a_draft_brings_weights_and_a_cache_as_long_as_the_targets() -> None:
    plain, drafted = estimate(llama_cpp()), estimate(drafting(llama_cpp()))
    assert plain.draft_bytes == 0
    assert drafted.draft_bytes == 98_362_432 + 180 * MIB
    assert drafted.needed_bytes > plain.needed_bytes + drafted.draft_bytes
    assert estimate(guessing(llama_cpp())).draft_bytes == 0


def test_a_quantized_cache_does_not_shrink_the_drafts() -> None:
    assert estimate(drafting(llama_cpp(key_value_cache="Q8_0"))).draft_bytes == 98_362_432 + 180 * MIB


def test_refused_on_the_whole_context() -> None:
    """No paging: a single sequence would fit, four do not."""
    config = llama_cpp(memory_bytes=420 * MIB, context_tokens=8192)
    assert estimate(replace(config, max_sequences=1, context_tokens=2048)).fits
    whole = estimate(config)
    assert not whole.fits
    assert whole.sequences is None


def test_the_message_has_the_numbers_and_what_would_fit() -> None:
    found = estimate(llama_cpp(memory_bytes=GIB, context_tokens=8192, max_sequences=8))
    assert found.message == (
        "Needs 1.7 GiB of 1.0 GiB (weights 93.8 MiB, KV cache of 8 × 8192 tokens 1.4 GiB, overhead 0.2 GiB). "
        "What would fit: batching.maxSequences 3, or contextTokens 3840, or quantization.keyValueCache Q4_0, "
        "or devicesPerReplica 2."
    )


def test_the_message_says_when_nothing_would_fit() -> None:
    found = estimate(llama_cpp(memory_bytes=64 * MIB, devices=1))
    assert "No single change" not in found.message  # more devices of the same kind would do
    assert "devicesPerReplica" in found.message
    far = llama_cpp(memory_bytes=MIB)
    assert "No single change" in estimate(far).message


def test_it_says_so_when_it_fits() -> None:
    found = estimate(llama_cpp())
    assert found.fits
    assert found.sequences == 4
    assert found.message.startswith("Needs 0.5 GiB of 2.0 GiB (weights 93.8 MiB, KV cache of 4 × 2048 tokens 0.2 GiB")


@settings(deadline=None)
@given(
    memory=st.integers(300, 4000),
    slots=st.integers(1, 64),
    context=st.integers(1, 32).map(lambda n: n * 256),
    cache=st.sampled_from(["Auto", "F16", "Q8_0", "Q4_0"]),
    drafts=st.booleans(),
)
def test_what_is_said_to_fit_fits_and_is_the_best(
    memory: int, slots: int, context: int, cache: str, drafts: bool
) -> None:
    config = llama_cpp(memory_bytes=memory * MIB, max_sequences=slots, context_tokens=context, key_value_cache=cache)
    config = drafting(config) if drafts else config
    message = estimate(config).message
    if "What would fit: " not in message:
        return
    for option in message.split("What would fit: ")[1].rstrip(".").split(", or "):
        name, _, value = option.partition(" ")
        match name:
            case "batching.maxSequences":
                assert estimate(replace(config, max_sequences=int(value))).fits
                assert not estimate(replace(config, max_sequences=int(value) + 1)).fits
            case "contextTokens":
                assert estimate(replace(config, context_tokens=int(value))).fits
                assert not estimate(replace(config, context_tokens=int(value) + 256)).fits
            case "quantization.keyValueCache":
                assert estimate(replace(config, key_value_cache=value)).fits
            case "devicesPerReplica":
                more = int(value)
                assert estimate(replace(config, devices=more, memory_bytes=memory * MIB * more)).fits
                less = more - 1
                assert not estimate(replace(config, devices=less, memory_bytes=memory * MIB * less)).fits
            case "no":
                assert estimate(replace(config, speculation=None)).fits
            case _:
                raise AssertionError(option)


@settings(deadline=None)
@given(slots=st.integers(1, 64), more=st.integers(1, 64), devices=st.integers(1, 8))
def test_more_sequences_never_need_less(slots: int, more: int, devices: int) -> None:
    config = llama_cpp(max_sequences=slots, on_gpu=True, devices=devices, memory_bytes=24 * GIB * devices)
    assert estimate(config).needed_bytes <= estimate(replace(config, max_sequences=slots + more)).needed_bytes


def test_layers_that_cannot_be_spread_evenly_cost_room() -> None:
    """30 layers on 4 devices: the fullest holds 8, as if there were 32."""
    even = estimate(llama_cpp(on_gpu=True, devices=3, memory_bytes=3 * GIB))
    uneven = estimate(llama_cpp(on_gpu=True, devices=4, memory_bytes=4 * GIB))
    per_layer = (98_362_432 + 180 * MIB) // SMOLLM2.layers
    assert uneven.overhead_bytes - even.overhead_bytes > 2 * per_layer


def test_mla_keeps_one_latent_vector() -> None:
    mla = SMOLLM2.model_copy(
        update={"attention": Attention.MLA, "key_value_heads": 1, "head_dimension": 576, "value_head_dimension": 512}
    )
    assert key_value_bytes(mla, 4096, 1, 512, 64) == 4096 * 30 * 576 * 2


def test_an_upper_bound_is_called_one() -> None:
    """Which layers of a hybrid model keep what is not known: they are counted in full."""
    hybrid = SMOLLM2.model_copy(update={"attention": Attention.HYBRID, "sliding_window_tokens": 512})
    target = Artifact("/models/target/model.gguf", 98_362_432, hybrid, "GGUF")
    assert "upper bound" in estimate(llama_cpp(target=target, memory_bytes=300 * MIB)).message
    assert "upper bound" not in estimate(llama_cpp(memory_bytes=300 * MIB)).message
