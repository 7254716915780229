"""The models that a policy serves, and what each may run on. Part of InferencePolicy."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from inference_fleet.api.base import ApiModel, ByName, ItemName, NameReference, Rule, Unique, Whole
from inference_fleet.api.engine import (
    GGUF_WEIGHTS,
    SAFETENSORS_WEIGHTS,
    Batching,
    Engine,
    EngineType,
    KeyValueCacheType,
    Quantization,
    QuantizationMethod,
    Speculation,
)
from inference_fleet.api.template import PodTemplate

ServedName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][-._:/A-Za-z0-9]*$")]

LLAMA_CPP_SEQUENCES = 256
"""llama.cpp's LLAMA_MAX_SEQ."""

LLAMA_CPP_TOKENS = 2**26
"""256 sequences of 262,144 tokens: more KV cache than any node holds for any model."""


class Build(ApiModel):
    """One artefact of the model."""

    name: ItemName
    """Name of the build, shown in status."""
    model_ref: NameReference
    """The InferenceModel that holds the weights."""
    quantization: Quantization = Quantization()
    """What its weights are."""


class AcceleratorChoice(ApiModel):
    """One kind of device that may run a replica."""

    name: ItemName
    """Name of the choice, shown in status."""
    class_ref: NameReference
    """The AcceleratorClass."""
    devices_per_replica: Annotated[Whole, Field(ge=1, le=64)] = 1
    """Devices that one replica holds; more than one: tensor parallelism."""


class Replicas(ApiModel):
    """How many replicas a model has over all its variants."""

    min: Annotated[Whole, Field(ge=1, le=1000)] = 1
    """Replicas that are kept."""


class ModelEntry(ApiModel):
    """A model that the policy serves."""

    name: ItemName
    """Name of the model in this policy; clients may ask for it by this name."""
    served_names: Annotated[tuple[ServedName, ...], Field(max_length=8), Unique()] = ()
    """Further names that clients may put into `model`."""
    engine: Engine
    """The inference server."""
    builds: Annotated[tuple[Build, ...], Field(min_length=1, max_length=8), ByName()]
    """The artefact that serves this model. Exactly one in this version."""
    context_tokens: Annotated[Whole, Field(ge=256, le=2097152)]
    """Longest sequence, prompt and output together."""
    batching: Batching = Batching()
    """How many sequences a replica works on at once."""
    speculation: Speculation | None = None
    """Guess tokens ahead. Absent: off."""
    accelerators: Annotated[tuple[AcceleratorChoice, ...], Field(min_length=1, max_length=8), ByName()]
    """Alternatives, in order of preference."""
    replicas: Replicas = Replicas()
    """How many replicas."""
    pod_template: PodTemplate | None = None
    """Merged strategically into the pods that we render; what we render wins. The container is called `engine`."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.builds.size() == 1",
            message="builds must have exactly one item: choosing between builds is not in this version",
            holds=lambda self: len(self.builds) == 1,
            field="builds",
        ),
        Rule(
            cel="self.engine.type != 'LlamaCpp' || self.builds.all(build, !has(build.quantization)"
            " || build.quantization.method == 'None')",
            message="quantization methods are for VLLM: with LlamaCpp the GGUF file says how it is quantized, leave method out",
            holds=lambda self: (
                self.engine.type is not EngineType.LLAMA_CPP
                or all(build.quantization.method is QuantizationMethod.NONE for build in self.builds)
            ),
            field="builds",
        ),
        Rule(
            cel="self.engine.type != 'LlamaCpp' || self.builds.all(build, !has(build.quantization)"
            " || !(build.quantization.weights in ['FP8', 'Int8', 'Int4']))",
            message="weights FP8, Int8 and Int4 are for VLLM: with LlamaCpp name the GGUF type, such as Q4_K_M, or AsStored",
            holds=lambda self: (
                self.engine.type is not EngineType.LLAMA_CPP
                or all(build.quantization.weights not in SAFETENSORS_WEIGHTS for build in self.builds)
            ),
            field="builds",
        ),
        Rule(
            cel="self.engine.type != 'VLLM' || self.builds.all(build, !has(build.quantization)"
            " || !build.quantization.weights.startsWith('Q'))",
            message="GGUF weights such as Q4_K_M are for LlamaCpp: VLLM serves safetensors",
            holds=lambda self: (
                self.engine.type is not EngineType.VLLM
                or all(build.quantization.weights not in GGUF_WEIGHTS for build in self.builds)
            ),
            field="builds",
        ),
        Rule(
            cel="self.builds.all(build, !has(build.quantization) || (self.engine.type == 'LlamaCpp'"
            " ? build.quantization.keyValueCache != 'FP8' : build.quantization.keyValueCache in ['Auto', 'FP8']))",
            message="keyValueCache must be Auto or FP8 with VLLM, and Auto, F16, Q8_0 or Q4_0 with LlamaCpp",
            holds=lambda self: all(
                (build.quantization.key_value_cache is KeyValueCacheType.FP8) == (self.engine.type is EngineType.VLLM)
                for build in self.builds
                if build.quantization.key_value_cache is not KeyValueCacheType.AUTO
            ),
            field="builds",
        ),
        Rule(
            cel="self.engine.type != 'LlamaCpp' || self.batching.maxSequences <= 256",
            message="batching.maxSequences must be at most 256 with LlamaCpp",
            holds=lambda self: (
                self.engine.type is not EngineType.LLAMA_CPP or self.batching.max_sequences <= LLAMA_CPP_SEQUENCES
            ),
            field="batching",
        ),
        Rule(
            cel="self.engine.type != 'LlamaCpp' || self.contextTokens * self.batching.maxSequences <= 67108864",
            message="contextTokens times batching.maxSequences must be at most 67108864 with LlamaCpp: it allocates the context of"
            " all sequences up front",
            holds=lambda self: (
                self.engine.type is not EngineType.LLAMA_CPP
                or self.context_tokens * self.batching.max_sequences <= LLAMA_CPP_TOKENS
            ),
            field="contextTokens",
        ),
    )

    @property
    def build(self) -> Build:
        """The build that serves."""
        return self.builds[0]
