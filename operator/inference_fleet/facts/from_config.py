"""Facts from a model folder's `config.json`, for the families whose configuration follows Hugging Face's conventions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inference_fleet.api.model import Attention
from inference_fleet.facts.failure import Reason, SourceFailure, malformed

Config = Mapping[str, Any]

_RECURRENT_KEYS = (
    "mamba_d_state", "mamba_d_conv", "ssm_state_size", "ssm_cfg", "attn_layer_period", "linear_num_key_heads",
    "hybrid_override_pattern", "layers_block_type", "full_attn_idxs", "attn_type_list", "linear_attn_config", "conv_L_cache",
    "block_types",
)  # fmt: skip
"""A configuration with one of these mixes attention with recurrent layers (Jamba, Qwen3-Next, Nemotron-H, Kimi-Linear, LFM2, …)."""

_DEFAULT_PATTERN: Mapping[str, int] = {"gemma2": 2, "gemma3_text": 6, "gemma3": 6, "cohere2": 4, "gpt_oss": 2}
"""Model type → every which layer attends to everything, where the configuration leaves it to the code."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What decides memory and speed, in ModelFacts' terms."""

    architecture: str
    layers: int
    hidden_size: int
    attention_heads: int
    key_value_heads: int
    head_dimension: int
    value_head_dimension: int | None
    attention: Attention
    sliding_window_tokens: int | None
    vocabulary_size: int | None
    max_context_tokens: int


def read_shape(config: Config, shown: str) -> Shape:
    """The shape of a model. Raises SourceFailure: Unsupported without attention, Malformed where a number is missing."""
    text = text_part(config)
    architecture = next((str(name) for name in _list(config, "architectures") + _list(text, "architectures")), "")
    model_type = str(text.get("model_type", config.get("model_type", "")))
    layers = _number(text, shown, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    hidden = _number(text, shown, "hidden_size", "n_embd", "d_model")
    if not any(name in text for name in ("num_attention_heads", "n_head", "n_heads")):
        raise SourceFailure(
            Reason.UNSUPPORTED,
            f"{shown} describes {architecture or model_type or 'a model'}, which has no attention heads",
        )
    heads = _largest(text, shown, "num_attention_heads", "n_head", "n_heads")
    context = _number(
        text,
        shown,
        "max_position_embeddings",
        "n_positions",
        "max_sequence_length",
        "max_seq_len",
        "seq_length",
        "n_ctx",
    )
    window = _window(text, model_type, context)
    latent = _optional(text, "kv_lora_rank")
    dimension = _optional(text, "head_dim") or _optional(text, "v_head_dim") or max(1, hidden // heads)
    if latent is not None:
        key_value_heads, key, value = 1, latent + (_optional(text, "qk_rope_head_dim") or 0), None
    else:
        key_value_heads, key = _key_value_heads(text, shown, heads), dimension
        value = _optional(text, "v_head_dim")
        value = value if value != key else None
    return Shape(
        architecture=architecture or model_type or "unknown",
        layers=layers,
        hidden_size=hidden,
        attention_heads=heads,
        key_value_heads=key_value_heads,
        head_dimension=key,
        value_head_dimension=value,
        attention=_attention(text, model_type, heads, key_value_heads, latent, window),
        sliding_window_tokens=window,
        vocabulary_size=_optional(text, "vocab_size") or _optional(config, "vocab_size"),
        max_context_tokens=context,
    )


def text_part(config: Config) -> Config:
    """The language model's own part of a configuration that also describes vision or audio."""
    for name in ("text_config", "llm_config", "language_config"):
        part = config.get(name)
        if isinstance(part, dict) and part:
            return {"model_type": config.get("model_type", ""), **part}
    return config


def attention_of(heads: int, key_value_heads: int) -> Attention:
    """The plain kinds, by how many query heads share keys and values."""
    if key_value_heads >= heads:
        return Attention.MHA
    return Attention.MQA if key_value_heads == 1 else Attention.GQA


def _attention(
    text: Config, model_type: str, heads: int, key_value_heads: int, latent: int | None, window: int | None
) -> Attention:
    kinds = {str(kind) for kind in _list(text, "layer_types")}
    recurrent = any(text.get(key) for key in _RECURRENT_KEYS) or bool(
        kinds & {"linear_attention", "conv", "mamba", "recurrent"}
    )
    varying = isinstance(text.get("num_key_value_heads"), list) and len(set(text["num_key_value_heads"])) > 1
    if recurrent or varying:
        return Attention.HYBRID
    if latent is not None:
        return Attention.MLA
    if window is None:
        return attention_of(heads, key_value_heads)
    if kinds:
        return Attention.HYBRID if len(kinds) > 1 else Attention.SLIDING_WINDOW
    pattern = _optional(text, "sliding_window_pattern") or _DEFAULT_PATTERN.get(model_type, 1)
    return Attention.HYBRID if pattern > 1 or _windowed_above(text) else Attention.SLIDING_WINDOW


def _windowed_above(text: Config) -> bool:
    """Qwen2: only layers above `max_window_layers` have a window."""
    return bool(text.get("use_sliding_window")) and (_optional(text, "max_window_layers") or 0) > 0


def _window(text: Config, model_type: str, context: int) -> int | None:
    """Tokens a windowed layer looks back; None where there is no window, or it is as long as the context."""
    if text.get("use_sliding_window") is False:
        return None
    window = _optional(text, "sliding_window") or _optional(text, "attention_chunk_size")
    kinds = {str(kind) for kind in _list(text, "layer_types")}
    if kinds and not kinds & {"sliding_attention", "chunked_attention"}:
        return None
    return window if window is not None and window < context else None


def _key_value_heads(text: Config, shown: str, heads: int) -> int:
    if any(
        isinstance(text.get(name), int | list)
        for name in ("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads")
    ):
        if text.get("multi_query") and not text.get("new_decoder_architecture"):
            return 1
        return _largest(text, shown, "num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads")
    grouped = _optional(text, "multi_query_group_num")
    return grouped if grouped is not None else 1 if text.get("multi_query") else heads


def _list(config: Config, name: str) -> list[Any]:
    value = config.get(name)
    return value if isinstance(value, list) else []


def _optional(config: Config, name: str) -> int | None:
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _number(config: Config, shown: str, *names: str) -> int:
    found = next((number for name in names if (number := _optional(config, name)) is not None), None)
    if found is None:
        raise malformed(f"{shown} does not give {names[0]}")
    return found


def _largest(config: Config, shown: str, *names: str) -> int:
    """A number, or the largest of a list with one number a layer."""
    for name in names:
        numbers = [number for number in _list(config, name) if isinstance(number, int) and number > 0]
        if numbers:
            return max(numbers)
    return _number(config, shown, *names)
