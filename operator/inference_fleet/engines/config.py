"""What an engine is asked to do, in the project's own words; each engine's file turns it into that engine's flags."""

from __future__ import annotations

from dataclasses import dataclass

from inference_fleet.api.model import ModelFacts


@dataclass(frozen=True, slots=True)
class Artifact:
    """Weights as inspected, and where the engine finds them inside its container."""

    path: str
    weight_bytes: int
    facts: ModelFacts
    format: str
    """GGUF or Safetensors."""


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """How to speculate. `draft` is None for methods that need no model (n-gram)."""

    method: str
    depth: int
    draft: Artifact | None = None


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One replica's configuration. Sizes in bytes, lengths in tokens, memory over all its devices together."""

    engine: str
    """LlamaCpp or VLLM."""
    version: str
    served_name: str
    target: Artifact
    weights: str
    """Declared quantization of the weights; AsStored: whatever the artefact holds."""
    method: str
    key_value_cache: str
    context_tokens: int
    """Longest sequence, prompt and output together."""
    max_sequences: int
    max_batched_tokens: int | None
    speculation: SpeculationConfig | None
    devices: int
    """Devices a replica holds; tensor parallelism on GPUs."""
    on_gpu: bool
    memory_bytes: int
    """Usable bytes of all the replica's devices together."""
    cpu_cores: int | None
    """Whole cores requested for the replica, None on accelerators where nothing is requested."""
    extra_arguments: tuple[str, ...] = ()
    capabilities: tuple[str, ...] | None = None
    """What the accelerator class declares that its hardware can do, such as FP8. None: not known, so not checked."""

    @property
    def slots_context_tokens(self) -> int:
        """Tokens of all sequences together at full context."""
        return self.context_tokens * self.max_sequences

    @property
    def device_bytes(self) -> int:
        """Usable bytes of one device."""
        return self.memory_bytes // self.devices


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """The arithmetic behind FitsMemory. `sequences` is how many full-context sequences fit (None: not limited by that)."""

    needed_bytes: int
    available_bytes: int
    weight_bytes: int
    key_value_bytes: int
    draft_bytes: int
    overhead_bytes: int
    sequences: int | None
    fits: bool
    message: str
    """One sentence with the numbers; where it does not fit it says what would."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an engine cannot run a configuration: a condition's reason and a message that ends with what to do."""

    reason: str
    message: str
