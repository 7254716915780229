"""Facts from a GGUF header."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from inference_fleet.api.model import Attention, ModelFacts
from inference_fleet.facts.failure import Reason, SourceFailure, malformed
from inference_fleet.facts.from_config import attention_of
from inference_fleet.facts.gguf import TENSOR_TYPES, GgufHeader, Scalar, Tensor, Value

_MIXED_WINDOWS = frozenset({
    "gemma2", "gemma3", "gemma3n", "gemma4", "gemma-embedding", "cohere2", "llama4", "gpt-oss", "exaone4", "exaone-moe", "olmo2",
    "smallthinker", "plamo3", "afmoe", "step35", "mimo2", "modern-bert", "laguna",
})  # fmt: skip
"""Architectures whose windowed layers alternate with full ones by a pattern that llama.cpp keeps in its code, not in the file."""

_NOMINAL_BITS = {name: int(digits[0]) for name, *_ in TENSOR_TYPES.values() if (digits := re.findall(r"[0-9]+", name))}
"""Bits of a weight as its type is called: `Q4_K` counts as 4, though its scales make it 4.5."""


def facts_from_gguf(header: GgufHeader, tensors: Sequence[Tensor], shown: str) -> ModelFacts:
    """Facts of a GGUF model. `tensors` are those of all its parts, `header` is the first part's.

    Raises SourceFailure: Unsupported for files that hold no language model, Malformed where a number is missing.
    """
    architecture = header.metadata.get("general.architecture")
    kind = header.metadata.get("general.type", "model")
    if not isinstance(architecture, str) or kind != "model":
        raise SourceFailure(
            Reason.UNSUPPORTED, f"{shown} holds no model but {kind!r}", "Give the model's own GGUF file"
        )
    if header.vocabulary is None:
        raise SourceFailure(
            Reason.UNSUPPORTED,
            f"{shown} has no vocabulary",
            "Give the first part of a split model, or a file with a tokenizer",
        )
    own = _Keys(header.metadata, architecture, shown)
    heads = max(own.numbers("attention.head_count"), default=0)
    per_layer = own.numbers("attention.head_count_kv") or own.numbers("attention.head_count")
    key_value_heads = max(per_layer, default=0)
    if heads < 1 or key_value_heads < 1:
        raise SourceFailure(
            Reason.UNSUPPORTED, f"{shown} is of architecture {architecture}, which has no attention heads"
        )
    hidden, latent, context = (
        own.number("embedding_length"),
        own.optional("attention.kv_lora_rank"),
        own.number("context_length"),
    )
    if latent is not None:
        rotary = own.optional("rope.dimension_count") or 0
        key_value_heads, key, value = 1, latent + rotary, None
    else:
        key = own.optional("attention.key_length") or max(1, hidden // heads)
        value = own.optional("attention.value_length")
    window = own.optional("attention.sliding_window")
    window = window if window is not None and window < context else None
    return ModelFacts(
        architecture=architecture,
        parameters=max(1, sum(tensor.elements for tensor in tensors)),
        layers=own.number("block_count"),
        hidden_size=hidden,
        key_value_heads=key_value_heads,
        attention_heads=heads,
        head_dimension=key,
        value_head_dimension=value if value != key else None,
        attention=_attention(own, architecture, heads, per_layer, latent, window),
        sliding_window_tokens=window,
        vocabulary_size=header.vocabulary.size,
        tokens_digest=header.vocabulary.digest,
        max_context_tokens=context,
        weight_bits=most_common_bits(tensors),
        tokenizer_model=header.vocabulary.model or None,
    )


def most_common_bits(tensors: Sequence[Tensor]) -> int:
    """Whole bits that most weights are stored in."""
    by_bits: Counter[int] = Counter()
    for tensor in tensors:
        by_bits[_NOMINAL_BITS.get(tensor.type, 8 * tensor.bytes // max(1, tensor.elements)) or 1] += tensor.elements
    return min(64, by_bits.most_common(1)[0][0]) if by_bits else 16


def _attention(
    own: _Keys, architecture: str, heads: int, per_layer: Sequence[int], latent: int | None, window: int | None
) -> Attention:
    recurrent = own.optional("ssm.state_size") or own.optional("ssm.conv_kernel") or own.optional("shortconv.l_cache")
    if recurrent or len(set(per_layer)) > 1:
        return Attention.HYBRID
    if latent is not None:
        return Attention.MLA
    if window is None:
        return attention_of(heads, max(per_layer))
    pattern = own.numbers("attention.sliding_window_pattern")
    if len(pattern) > 1:
        return Attention.HYBRID if len(set(pattern)) > 1 else Attention.SLIDING_WINDOW
    mixed = pattern[0] > 1 if pattern else architecture in _MIXED_WINDOWS
    return Attention.HYBRID if mixed else Attention.SLIDING_WINDOW


class _Keys:
    """The metadata under `ARCHITECTURE.`, typed."""

    def __init__(self, metadata: Mapping[str, Value], architecture: str, shown: str) -> None:
        self._metadata = metadata
        self._architecture = architecture
        self._shown = shown

    def numbers(self, name: str) -> tuple[int, ...]:
        """A number or a list with one a layer, as a tuple; empty where absent."""
        value = self._metadata.get(f"{self._architecture}.{name}", ())
        items: tuple[Scalar, ...] = value if isinstance(value, tuple) else (value,)
        return tuple(int(item) for item in items if isinstance(item, int))

    def optional(self, name: str) -> int | None:
        """The number, or the largest of a list; None where absent or zero."""
        return max(self.numbers(name), default=0) or None

    def number(self, name: str) -> int:
        """The number. Raises SourceFailure(Malformed) where it is missing."""
        found = self.optional(name)
        if found is None:
            raise malformed(f"{self._shown} does not give {self._architecture}.{name}")
        return found
