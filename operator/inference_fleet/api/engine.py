"""How a model is run: engine, quantization, context, batching, speculation. Part of InferencePolicy."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from inference_fleet.api import arguments
from inference_fleet.api.base import ApiModel, NameReference, Rule, Whole


class EngineType(StrEnum):
    """The inference servers that can be run."""

    VLLM = "VLLM"
    LLAMA_CPP = "LlamaCpp"


class Weights(StrEnum):
    """Number format of the weights. The generic names are those of safetensors files, the Q names those of GGUF files."""

    AS_STORED = "AsStored"
    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"
    FP8 = "FP8"
    INT8 = "Int8"
    INT4 = "Int4"
    Q8_0 = "Q8_0"
    Q6_K = "Q6_K"
    Q5_K_M = "Q5_K_M"
    Q5_K_S = "Q5_K_S"
    Q5_1 = "Q5_1"
    Q5_0 = "Q5_0"
    Q4_K_M = "Q4_K_M"
    Q4_K_S = "Q4_K_S"
    Q4_1 = "Q4_1"
    Q4_0 = "Q4_0"
    Q3_K_M = "Q3_K_M"
    Q2_K = "Q2_K"

    @property
    def bits(self) -> int | None:
        """Bits of most weights, to compare with `facts.weightBits`; None for AsStored. Block scales are not counted."""
        if self is Weights.AS_STORED:
            return None
        digits = re.search(r"[0-9]+", self.value)
        return int(digits[0]) if digits else None


class QuantizationMethod(StrEnum):
    """How quantized weights are to be computed with."""

    NONE = "None"
    AWQ = "AWQ"
    GPTQ = "GPTQ"
    FP8 = "FP8"
    COMPRESSED_TENSORS = "CompressedTensors"


class KeyValueCacheType(StrEnum):
    """Number format of the KV cache. Auto: what the engine does by itself (F16, or the model's own)."""

    AUTO = "Auto"
    F16 = "F16"
    FP8 = "FP8"
    Q8_0 = "Q8_0"
    Q4_0 = "Q4_0"


GGUF_WEIGHTS = frozenset(weights for weights in Weights if weights.value.startswith("Q"))
"""Formats that only a GGUF file has."""

SAFETENSORS_WEIGHTS = frozenset({Weights.FP8, Weights.INT8, Weights.INT4})
"""Formats that only safetensors files have."""


class Quantization(ApiModel):
    """What the artefact's weights are, and how the engine computes with them."""

    weights: Weights = Weights.AS_STORED
    """Number format of the weights. AsStored: whatever the artefact holds."""
    method: QuantizationMethod = QuantizationMethod.NONE
    """VLLM only: the method that the weights were quantized with. FP8 with unquantized weights quantizes while loading and needs
    the capability FP8. None: the engine reads it from the model's own configuration."""
    key_value_cache: KeyValueCacheType = KeyValueCacheType.AUTO
    """Number format of the KV cache. FP8 with VLLM; F16, Q8_0, Q4_0 with LlamaCpp."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!(self.method in ['AWQ', 'GPTQ']) || self.weights in ['AsStored', 'Int4', 'Int8']",
            message="methods AWQ and GPTQ need weights Int4, Int8 or AsStored",
            holds=lambda self: (
                self.method not in {QuantizationMethod.AWQ, QuantizationMethod.GPTQ}
                or self.weights in {Weights.AS_STORED, Weights.INT4, Weights.INT8}
            ),
            field="weights",
        ),
        Rule(
            cel="self.method != 'FP8' || self.weights in ['AsStored', 'FP8', 'BF16', 'F16']",
            message="method FP8 needs weights FP8, or BF16, F16 or AsStored to quantize while loading",
            holds=lambda self: (
                self.method is not QuantizationMethod.FP8
                or self.weights in {Weights.AS_STORED, Weights.FP8, Weights.BF16, Weights.F16}
            ),
            field="weights",
        ),
    )


def _leaves_alone(engine: EngineType, flags: arguments.Reserved) -> Rule:
    return Rule(
        cel=f"self.type != '{engine}' || {flags.cel}",
        message=flags.message,
        holds=lambda self: self.type is not engine or not flags.found(self.extra_arguments),
        field="extraArguments",
    )


class Engine(ApiModel):
    """The inference server."""

    type: EngineType
    """VLLM: paged KV cache, many sequences, GPUs. LlamaCpp: GGUF files, CPUs and GPUs."""
    version: Annotated[str, Field(min_length=1, max_length=32, pattern=r"^[0-9A-Za-z][-._0-9A-Za-z]*$")]
    """Version of the engine, such as `"0.32"` or `"b11549"`: decides which flags are rendered."""
    image: Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[!-~]+$")] | None = None
    """Image to run instead of the installation's own for this engine."""
    extra_arguments: Annotated[tuple[Annotated[str, Field(max_length=256)], ...], Field(max_length=32)] = ()
    """Further arguments, after ours. They cannot set what the operator renders."""

    rules: ClassVar[tuple[Rule, ...]] = (
        *(_leaves_alone(EngineType.VLLM, flags) for flags in arguments.VLLM),
        *(_leaves_alone(EngineType.LLAMA_CPP, flags) for flags in arguments.LLAMA_CPP),
    )


class Batching(ApiModel):
    """How many sequences a replica works on at once."""

    max_sequences: Annotated[Whole, Field(ge=1, le=1024)] = 8
    """Sequences at once: `--max-num-seqs` of vLLM, slots of llama.cpp."""
    max_batched_tokens: Annotated[Whole, Field(ge=1, le=1048576)] | None = None
    """Tokens in one engine step. Absent: the engine's own default."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.maxBatchedTokens) || self.maxBatchedTokens >= self.maxSequences",
            message="maxBatchedTokens must be at least maxSequences: a step carries one token of each sequence",
            holds=lambda self: self.max_batched_tokens is None or self.max_batched_tokens >= self.max_sequences,
            field="maxBatchedTokens",
        ),
    )


class SpeculationMethod(StrEnum):
    """Where guesses come from."""

    DRAFT_MODEL = "DraftModel"
    N_GRAM = "NGram"


class Speculation(ApiModel):
    """Guess several tokens ahead and verify them in one step."""

    method: SpeculationMethod
    """DraftModel: a small model with the same vocabulary guesses. NGram: the text so far does."""
    draft_ref: NameReference | None = None
    """DraftModel only: the InferenceModel that guesses."""
    max_depth: Annotated[Whole, Field(ge=-1024, le=1024)]
    """Most tokens guessed at once, 1 to 16."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="(self.method == 'DraftModel') == has(self.draftRef)",
            message="draftRef must be given with method DraftModel, and only with it",
            holds=lambda self: (self.method is SpeculationMethod.DRAFT_MODEL) == (self.draft_ref is not None),
            field="draftRef",
        ),
        Rule(
            cel="self.maxDepth >= 1 && self.maxDepth <= 16",
            message="maxDepth must be 1 to 16; leave speculation out to turn it off",
            holds=lambda self: 1 <= self.max_depth <= 16,
            field="maxDepth",
        ),
    )
