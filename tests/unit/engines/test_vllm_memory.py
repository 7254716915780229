"""vLLM's memory rule: paged, so refused only when not one sequence fits, and counted in sequences otherwise."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_fleet.api.model import Attention
from inference_fleet.engines.config import Artifact, EngineConfig, MemoryEstimate
from inference_fleet.engines.vllm import VLLM, sequence_bytes
from tests.unit.engines.samples import GIB, MIB, QWEN3_0_6B, QWEN3_8B, RECORDED, drafting, guessing, vllm

ONE_SEQUENCE = 8192 * 36 * 8 * (128 + 128) * 2
"""Qwen3-8B, 8,192 tokens, 16 bits: 1.125 GiB, by hand."""


def estimate(config: EngineConfig) -> MemoryEstimate:
    return VLLM("0.32").memory(config)


def test_one_sequence() -> None:
    assert sequence_bytes(QWEN3_8B, 8192, 8192, 2, 1) == ONE_SEQUENCE == 1152 * MIB


def test_the_cache_of_a_real_vllm() -> None:
    """Recorded: a 4-layer target and a 1-layer draft, 64 numbers a key and layer, 1 GiB for pages of 128 tokens."""
    text = (RECORDED / "vllm-0.32.0-metrics.txt").read_text()
    shown = dict(
        re.findall(r'(\w+)="([^"]*)"', next(x for x in text.splitlines() if x.startswith("vllm:cache_config_info")))
    )
    narrow = {"key_value_heads": 1, "head_dimension": 64}
    target = QWEN3_8B.model_copy(update={"layers": 4, **narrow})
    draft = QWEN3_8B.model_copy(update={"layers": 1, **narrow})
    one = sum(sequence_bytes(facts, 1024, 8192, 2, 1) for facts in (target, draft))
    assert float(shown["kv_cache_max_concurrency"]) == pytest.approx(
        int(shown["kv_cache_memory_bytes"]) / one, rel=1e-3
    )


def test_holds_some_of_the_sequences_at_full_context() -> None:
    found = estimate(vllm(memory_bytes=40 * GIB))
    assert found.fits
    assert found.available_bytes == int(40 * GIB * 92 // 100)
    room = found.available_bytes - found.weight_bytes - found.overhead_bytes
    assert found.sequences == room // ONE_SEQUENCE == 16
    assert found.message.startswith("Holds 16 of 32 sequences at full context; one needs ")


def test_never_more_sequences_than_are_worked_on() -> None:
    assert estimate(vllm(max_sequences=4)).sequences == 4


def test_refused_where_not_one_sequence_fits() -> None:
    found = estimate(vllm(memory_bytes=20 * GIB, max_sequences=32))
    assert not found.fits
    assert found.sequences is None
    assert found.message.startswith("One sequence of full context needs ")
    assert "devicesPerReplica 2" in found.message


def test_a_draft_takes_memory_and_sequences() -> None:
    plain, drafted = estimate(vllm(memory_bytes=40 * GIB)), estimate(drafting(vllm(memory_bytes=40 * GIB)))
    cache = sequence_bytes(QWEN3_0_6B, 8192, 8192, 2, 1)
    assert drafted.draft_bytes == 1_503_300_328 + cache
    assert drafted.sequences is not None
    assert plain.sequences is not None
    assert drafted.sequences < plain.sequences
    assert estimate(guessing(vllm(memory_bytes=40 * GIB))).draft_bytes == 0


def test_an_fp8_cache_holds_about_twice_as_many() -> None:
    config = vllm(memory_bytes=40 * GIB, max_sequences=64)
    plain, small = estimate(config), estimate(replace(config, key_value_cache="FP8"))
    assert small.key_value_bytes * 2 == plain.key_value_bytes
    assert plain.sequences is not None
    assert small.sequences in (2 * plain.sequences, 2 * plain.sequences + 1)


def test_more_devices_than_heads_keep_heads_twice() -> None:
    """8 KV heads on 16 devices: each device keeps one, so every head is kept twice."""
    assert sequence_bytes(QWEN3_8B, 8192, 8192, 2, 8) == ONE_SEQUENCE
    assert sequence_bytes(QWEN3_8B, 8192, 8192, 2, 16) == 2 * ONE_SEQUENCE


def test_a_sliding_window_bounds_the_cache() -> None:
    window = QWEN3_8B.model_copy(update={"attention": Attention.SLIDING_WINDOW, "sliding_window_tokens": 4096})
    short = sequence_bytes(window, 4096, 2048, 2, 1)
    assert sequence_bytes(window, 32_768, 2048, 2, 1) == sequence_bytes(window, 131_072, 2048, 2, 1) < 2 * short


def test_mla_keeps_one_latent_vector_on_every_device() -> None:
    mla = QWEN3_8B.model_copy(update={"attention": Attention.MLA, "key_value_heads": 1, "head_dimension": 576})
    assert sequence_bytes(mla, 8192, 8192, 2, 1) == 8192 * 36 * 576 * 2
    assert sequence_bytes(mla, 8192, 8192, 2, 4) == 4 * 8192 * 36 * 576 * 2


def test_quantizing_while_loading_halves_the_layers() -> None:
    stored, quantized = estimate(vllm()).weight_bytes, estimate(vllm(method="FP8")).weight_bytes
    assert stored // 2 < quantized < stored * 6 // 10


@settings(deadline=None)
@given(
    memory=st.integers(4, 200),
    context=st.integers(1, 160).map(lambda n: n * 256),
    sequences=st.integers(1, 512),
    devices=st.sampled_from([1, 2, 4]),
    drafts=st.booleans(),
)
def test_what_is_said_to_fit_fits(memory: int, context: int, sequences: int, devices: int, drafts: bool) -> None:
    config = vllm(
        memory_bytes=memory * GIB * devices,
        context_tokens=context,
        max_sequences=sequences,
        devices=devices,
        max_batched_tokens=None,
    )
    config = drafting(config) if drafts else config
    found = estimate(config)
    assert found.fits == (found.sequences is not None)
    assert found.fits == (found.needed_bytes <= found.available_bytes)
    if "What would fit: " not in found.message:
        return
    for option in found.message.split("What would fit: ")[1].rstrip(".").split(", or "):
        name, _, value = option.partition(" ")
        match name:
            case "batching.maxSequences":
                changed = replace(config, max_sequences=int(value))
            case "contextTokens":
                changed = replace(config, context_tokens=int(value))
            case "quantization.keyValueCache":
                changed = replace(config, key_value_cache=value)
            case "devicesPerReplica":
                changed = replace(config, devices=int(value), memory_bytes=memory * GIB * int(value))
            case _:
                changed = replace(config, speculation=None)
        assert estimate(changed).fits, option
        assert VLLM("0.32").check(changed) is None or name != "devicesPerReplica"


def test_a_model_too_large_for_any_number_of_devices_says_so() -> None:
    giant = Artifact("/models/target", 10_000 * GIB, QWEN3_8B, "Safetensors")
    assert "No single change" in estimate(vllm(target=giant)).message
