"""config.json of the families that are served, as their publishers wrote them (fields that matter here)."""

from __future__ import annotations

from typing import Any

import pytest

from inference_fleet.api.model import Attention
from inference_fleet.facts.failure import Reason, SourceFailure
from inference_fleet.facts.from_config import Shape, read_shape

LLAMA_31_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "vocab_size": 128256,
    "rope_scaling": {"factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
}  # fmt: skip
QWEN2_7B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28,
    "num_hidden_layers": 28, "num_key_value_heads": 4, "max_position_embeddings": 32768, "vocab_size": 152064,
    "sliding_window": 131072, "use_sliding_window": False, "max_window_layers": 28,
}  # fmt: skip
QWEN3_8B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 128, "hidden_size": 4096,
    "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "max_position_embeddings": 40960,
    "vocab_size": 151936, "sliding_window": None, "use_sliding_window": False,
}  # fmt: skip
MISTRAL_7B_V01: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 4096, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "max_position_embeddings": 32768, "vocab_size": 32000,
    "sliding_window": 4096,
}  # fmt: skip
GEMMA_2_2B: dict[str, Any] = {
    "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "head_dim": 256, "hidden_size": 2304,
    "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4, "max_position_embeddings": 8192,
    "vocab_size": 256000, "sliding_window": 4096,
}  # fmt: skip
GEMMA_3_4B: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text", "head_dim": 256, "hidden_size": 2560, "num_attention_heads": 8, "num_hidden_layers": 34,
        "num_key_value_heads": 4, "max_position_embeddings": 131072, "vocab_size": 262208, "sliding_window": 1024,
        "sliding_window_pattern": 6,
    },
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
}  # fmt: skip
DEEPSEEK_V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168, "num_attention_heads": 128,
    "num_hidden_layers": 61, "num_key_value_heads": 128, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "max_position_embeddings": 163840, "vocab_size": 129280,
}  # fmt: skip
GPT_OSS_20B: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "head_dim": 64, "hidden_size": 2880,
    "num_attention_heads": 64, "num_hidden_layers": 24, "num_key_value_heads": 8, "max_position_embeddings": 131072,
    "vocab_size": 201088, "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 12,
}  # fmt: skip
QWEN3_NEXT: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "head_dim": 256, "hidden_size": 2048,
    "num_attention_heads": 16, "num_hidden_layers": 48, "num_key_value_heads": 2, "linear_num_key_heads": 16,
    "max_position_embeddings": 262144, "vocab_size": 151936,
}  # fmt: skip
FALCON_7B: dict[str, Any] = {
    "architectures": ["FalconForCausalLM"], "model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71,
    "num_hidden_layers": 32, "num_kv_heads": 71, "multi_query": True, "max_position_embeddings": 2048, "vocab_size": 65024,
}  # fmt: skip
GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
    "n_ctx": 1024, "vocab_size": 50257,
}  # fmt: skip
MAMBA: dict[str, Any] = {
    "architectures": ["MambaForCausalLM"], "model_type": "mamba", "hidden_size": 768, "num_hidden_layers": 24,
    "state_size": 16, "vocab_size": 50280,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "attention", "layers", "key_value_heads", "head_dimension", "window"),
    [
        (LLAMA_31_8B, Attention.GQA, 32, 8, 128, None),
        (QWEN2_7B, Attention.GQA, 28, 4, 128, None),
        (QWEN2_7B | {"use_sliding_window": True, "sliding_window": 4096}, Attention.HYBRID, 28, 4, 128, 4096),
        (QWEN3_8B, Attention.GQA, 36, 8, 128, None),
        (MISTRAL_7B_V01, Attention.SLIDING_WINDOW, 32, 8, 128, 4096),
        (MISTRAL_7B_V01 | {"sliding_window": None}, Attention.GQA, 32, 8, 128, None),
        (GEMMA_2_2B, Attention.HYBRID, 26, 4, 256, 4096),
        (GEMMA_3_4B, Attention.HYBRID, 34, 4, 256, 1024),
        (DEEPSEEK_V3, Attention.MLA, 61, 1, 576, None),
        (GPT_OSS_20B, Attention.HYBRID, 24, 8, 64, 128),
        (GPT_OSS_20B | {"layer_types": ["sliding_attention"] * 24}, Attention.SLIDING_WINDOW, 24, 8, 64, 128),
        (GPT_OSS_20B | {"layer_types": ["full_attention"] * 24}, Attention.GQA, 24, 8, 64, None),
        (QWEN3_NEXT, Attention.HYBRID, 48, 2, 256, None),
        (FALCON_7B, Attention.MQA, 32, 1, 64, None),
        (GPT2, Attention.MHA, 12, 12, 64, None),
    ],
)
def test_families(
    config: dict[str, Any],
    attention: Attention,
    layers: int,
    key_value_heads: int,
    head_dimension: int,
    window: int | None,
) -> None:
    shape = read_shape(config, "config.json")
    assert (shape.attention, shape.layers, shape.key_value_heads, shape.head_dimension, shape.sliding_window_tokens) == (
        attention, layers, key_value_heads, head_dimension, window,
    )  # fmt: skip


def test_the_whole_shape() -> None:
    assert read_shape(LLAMA_31_8B, "config.json") == Shape(
        architecture="LlamaForCausalLM",
        layers=32,
        hidden_size=4096,
        attention_heads=32,
        key_value_heads=8,
        head_dimension=128,
        value_head_dimension=None,
        attention=Attention.GQA,
        sliding_window_tokens=None,
        vocabulary_size=128256,
        max_context_tokens=131072,
    )


def test_a_model_without_attention_is_refused() -> None:
    with pytest.raises(SourceFailure) as caught:
        read_shape(MAMBA, "config.json")
    assert caught.value.reason is Reason.UNSUPPORTED and "MambaForCausalLM" in caught.value.message


@pytest.mark.parametrize("missing", ["num_hidden_layers", "hidden_size", "max_position_embeddings"])
def test_a_missing_number_is_named(missing: str) -> None:
    with pytest.raises(SourceFailure) as caught:
        read_shape({name: value for name, value in LLAMA_31_8B.items() if name != missing}, "config.json")
    assert caught.value.reason is Reason.MALFORMED and missing in caught.value.message


@pytest.mark.parametrize("nonsense", [True, -3, 0, "32", 4.5, None, [], {}])
def test_nonsense_is_not_taken_for_a_number(nonsense: object) -> None:
    with pytest.raises(SourceFailure):
        read_shape(LLAMA_31_8B | {"num_hidden_layers": nonsense}, "config.json")
