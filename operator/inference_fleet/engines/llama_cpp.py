"""llama.cpp: `llama-server` of its official images.

Flags, memory rules and behaviour as recorded from build 11549 (tests/data/engines/). Slots share nothing (`--no-kv-unified`), so
that the memory of a configuration is exact and known beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from inference_fleet.api import arguments as api_arguments
from inference_fleet.api.arguments import Reserved
from inference_fleet.api.model import Attention, ModelFacts
from inference_fleet.engines import checks
from inference_fleet.engines.config import Artifact, EngineConfig, MemoryEstimate, Refusal
from inference_fleet.engines.contract import HTTP_PORT, Metrics, Probe, Probes, startup_probe
from inference_fleet.engines.extra_arguments import taken_back
from inference_fleet.engines.fitting import Parts, Rule, remedy, round_up

MIB = 2**20

CACHE_TYPES: Mapping[str, tuple[str, int]] = {
    "Auto": ("f16", 64),
    "F16": ("f16", 64),
    "Q8_0": ("q8_0", 34),
    "Q4_0": ("q4_0", 18),
}
"""Name in the API → name of the engine, bytes of 32 numbers: f16 2 bytes each, q8_0 and q4_0 a scale of 2 bytes with 32 numbers."""

PROCESS_BYTES = 192 * MIB
"""The server without buffers. Measured (build 11549, x86): 26 MiB with a vocabulary of 49,152, 53 MiB with one of 262,144, after
requests near the full context; the rest is room for request bodies, grammars and the allocator."""

DEVICE_CONTEXT_BYTES = 512 * MIB
"""What a CUDA context and its libraries hold on each device. Not measured here: reported 300 to 500 MiB for recent drivers."""

UBATCH_TOKENS = 512
"""`--ubatch-size`: tokens computed at once; the engine's own default."""

ACTIVATION_WIDTHS = 20
"""Compute buffer: numbers (4 bytes) held for each token of a ubatch, in units of hiddenSize. Measured 13.0 for SmolLM2-135M and
14.6 for Gemma-3-270M (build 11549, CPU, flash attention); the rest is room for wider feed-forward layers and experts."""

MOST_PROMPT_CACHE_BYTES = 8192 * MIB
"""The engine's own default for `--cache-ram`, which takes no notice of the container's memory limit."""

HTTP_THREADS_BESIDE_SLOTS = 64
"""Each open request holds one of the server's HTTP threads, waiting ones too: with the default (slots + 4) a queue would keep
`/health` from answering, and the kubelet would kill a server that is only busy."""

DEFAULT_BATCH_TOKENS = 2048

METRICS = Metrics(
    running="llamacpp:requests_processing",
    waiting="llamacpp:requests_deferred",
    generation_tokens="llamacpp:tokens_predicted_total",
    prompt_tokens="llamacpp:prompt_tokens_total",
    cached_prompt_tokens="llamacpp:prompt_tokens_cached_total",
    steps="llamacpp:n_decode_total",
    drafts="llamacpp:spec_decode_num_drafts_total",
    draft_tokens="llamacpp:spec_decode_num_draft_tokens_total",
    accepted_tokens="llamacpp:spec_decode_num_accepted_tokens_total",
    accepted_per_position="llamacpp:spec_decode_num_accepted_tokens_per_pos_total",
    time_to_first_token=None,
    time_per_output_token=None,
    key_value_cache_usage=None,
    preemptions=None,
)

RESERVED = (
    *api_arguments.LLAMA_CPP,
    Reserved(
        "the memory of a replica is counted with what the operator renders; use the policy's fields",
        (
            "--no-kv-unified", "-no-kvu", "--kv-unified-per-slot", "--swa-full", "--ubatch-size", "-ub", "--flash-attn", "-fa",
            "--cache-type-k-draft", "-ctkd", "--spec-draft-type-k", "--cache-type-v-draft", "-ctvd", "--spec-draft-type-v",
            "--fit-target", "-fitt", "--fit-ctx", "-fitc", "--gpu-layers-draft", "--n-gpu-layers-draft", "-ngld",
            "--spec-draft-ngl", "--spec-ngram-simple-size-n", "--reuse-port", "--spec-draft-n-min",
        ),
    ),
)  # fmt: skip
"""What extra arguments may not set."""


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """llama.cpp in one version."""

    version: str

    VERSIONS: ClassVar[tuple[str, ...]] = ("b11549",)
    METRICS: ClassVar[Metrics] = METRICS

    @classmethod
    def supports(cls, version: str) -> bool:
        """Whether the flags of this version are known."""
        return version in cls.VERSIONS

    @property
    def type(self) -> str:
        """LlamaCpp."""
        return "LlamaCpp"

    @property
    def metrics(self) -> Metrics:
        """Names in `/metrics`."""
        return METRICS

    def check(self, config: EngineConfig) -> Refusal | None:
        """Format, quantization, KV cache, context, draft, extra arguments; the first that does not hold."""
        return (
            checks.artifact_format(config, "GGUF", "LlamaCpp")
            or checks.weights_as_stored(config)
            or _quantization_method(config)
            or _cache_type(config)
            or checks.context(config)
            or checks.speculation(config, ("DraftModel", "NGram"))
            or taken_back(config.extra_arguments, RESERVED)
        )

    def arguments(self, config: EngineConfig) -> list[str]:
        """`llama-server` arguments."""
        cache, _ = CACHE_TYPES[config.key_value_cache]
        batch = config.max_batched_tokens or DEFAULT_BATCH_TOKENS
        arguments = [
            "--model", config.target.path,
            "--alias", config.served_name,
            "--host", "0.0.0.0",
            "--port", str(HTTP_PORT),
            "--ctx-size", str(_slot_cells(config) * config.max_sequences),
            "--parallel", str(config.max_sequences),
            "--no-kv-unified",
            "--batch-size", str(batch),
            "--ubatch-size", str(_ubatch_tokens(config)),
            "--flash-attn", "on",
            "--cache-type-k", cache,
            "--cache-type-v", cache,
            "--cache-ram", str(self._prompt_cache_bytes(config) // MIB),
            "--fit", "off",
            "--offline",
            "--metrics",
            "--jinja",
            "--no-webui",
            "--threads-http", str(config.max_sequences + HTTP_THREADS_BESIDE_SLOTS),
        ]  # fmt: skip
        if config.cpu_cores is not None:
            arguments += ["--threads", str(config.cpu_cores), "--threads-batch", str(config.cpu_cores)]
        if config.on_gpu:
            arguments += ["--n-gpu-layers", "all"]
        arguments += _speculation_arguments(config)
        return [*arguments, *config.extra_arguments]

    def environment(self, config: EngineConfig) -> Mapping[str, str]:
        """Nothing: everything is an argument."""
        return {}

    def memory(self, config: EngineConfig) -> MemoryEstimate:
        """The whole context is allocated before the first request, so the whole must fit."""
        parts = _parts(config)
        available = config.memory_bytes
        fits = parts.total <= available
        whole = parts.sentence(config.max_sequences, config.context_tokens)
        figures = f"{checks.gib(parts.total)} of {checks.gib(available)} ({whole})"
        message = f"Needs {figures}." if fits else f"Needs {figures}. {remedy(_RULE, config)}"
        return MemoryEstimate(
            needed_bytes=parts.total,
            available_bytes=available,
            weight_bytes=parts.weights,
            key_value_bytes=parts.key_value,
            draft_bytes=parts.draft,
            overhead_bytes=parts.overhead,
            sequences=config.max_sequences if fits else None,
            fits=fits,
            message=message,
        )

    def probes(self, config: EngineConfig) -> Probes:
        """`/health` answers 503 while the model loads and 200 under any load."""
        draft = checks.draft_of(config)
        weights = config.target.weight_bytes + (draft.weight_bytes if draft is not None else 0)
        return Probes(
            startup=startup_probe("/health", weights, fixed_seconds=120),
            readiness=Probe("/health", period_seconds=5, timeout_seconds=5, failure_threshold=3),
            liveness=Probe("/health", period_seconds=20, timeout_seconds=15, failure_threshold=6),
        )

    def shared_memory_bytes(self, config: EngineConfig) -> int | None:
        """One process: none."""
        return None

    def scratch_bytes(self, config: EngineConfig) -> int:
        """Uploads and little else."""
        return 1024 * MIB

    def image(self, config: EngineConfig) -> str:
        """The project's own images: one for CPUs, one with CUDA."""
        return f"ghcr.io/ggml-org/llama.cpp:server{'-cuda' if config.on_gpu else ''}-{self.version}"

    def _prompt_cache_bytes(self, config: EngineConfig) -> int:
        """Host memory for prompts of idle slots: on CPUs half of what is left, so that the container's limit is never met."""
        if config.on_gpu:
            return 0
        left = config.memory_bytes - _parts(config).total
        return max(0, min(MOST_PROMPT_CACHE_BYTES, left // 2))


def _speculation_arguments(config: EngineConfig) -> list[str]:
    speculation = config.speculation
    if speculation is None:
        return []
    if speculation.draft is not None:
        arguments = [
            "--spec-type", "draft-simple",
            "--spec-draft-model", speculation.draft.path,
            "--spec-draft-n-max", str(speculation.depth),
        ]  # fmt: skip
        return [*arguments, "--spec-draft-ngl", "all"] if config.on_gpu else arguments
    # ngram-simple drafts nothing while size-m < size-n; its own default for n is 12.
    return [
        "--spec-type", "ngram-simple",
        "--spec-ngram-simple-size-n", str(min(12, speculation.depth)),
        "--spec-ngram-simple-size-m", str(speculation.depth),
    ]  # fmt: skip


def _quantization_method(config: EngineConfig) -> Refusal | None:
    if config.method == "None":
        return None
    return Refusal(
        "QuantizationUnsupported",
        f"LlamaCpp reads the quantization from the GGUF file; set quantization.method to None instead of {config.method}.",
    )


def _cache_type(config: EngineConfig) -> Refusal | None:
    if config.key_value_cache not in CACHE_TYPES:
        return Refusal(
            "KeyValueCacheUnsupported",
            f"LlamaCpp has no KV cache of type {config.key_value_cache}; set quantization.keyValueCache to one of: "
            f"{', '.join(CACHE_TYPES)}.",
        )
    facts = config.target.facts
    widths = (facts.head_dimension, facts.value_head_dimension or facts.head_dimension)
    if config.key_value_cache.startswith("Q") and any(width % 32 for width in widths):
        return Refusal(
            "KeyValueCacheUnsupported",
            f"A KV cache of type {config.key_value_cache} is stored in blocks of 32 numbers, and headDimension is "
            f"{facts.head_dimension}; set quantization.keyValueCache to F16.",
        )
    return None


def _ubatch_tokens(config: EngineConfig) -> int:
    return min(UBATCH_TOKENS, config.max_batched_tokens or DEFAULT_BATCH_TOKENS)


def _slot_cells(config: EngineConfig) -> int:
    """KV cells of one slot: the engine rounds context / slots up to 256, so `--ctx-size` is rendered rounded."""
    return round_up(config.context_tokens, 256)


def key_value_bytes(facts: ModelFacts, cells: int, slots: int, ubatch_tokens: int, bytes_of_32: int) -> int:
    """KV cache of `slots` slots with `cells` cells each.

    Exact where every layer attends to everything: cells × layers × kvHeads × (bytes of a key + bytes of a value); checked against
    the engine's own figures (180.00 MiB f16, 95.62 q8_0, 50.62 q4_0 for SmolLM2-135M, 4 × 2,048). A layer with a sliding window
    keeps the window and one ubatch, rounded up to 256 (checked: Gemma-3-270M). Hybrid models are counted as if every layer
    attended to everything, which is an upper bound.
    """
    if facts.attention is Attention.SLIDING_WINDOW and facts.sliding_window_tokens is not None:
        cells = min(cells, round_up(facts.sliding_window_tokens + ubatch_tokens, 256))
    keys = facts.head_dimension
    # MLA keeps one latent vector a token; its value is a part of it (llama-kv-cache.cpp: no V where is_mla).
    values = 0 if facts.attention is Attention.MLA else facts.value_head_dimension or facts.head_dimension
    numbers = slots * cells * facts.layers * facts.key_value_heads * (keys + values)
    return -(-numbers * bytes_of_32 // 32)


def _parts(config: EngineConfig) -> Parts:
    facts = config.target.facts
    slots, cells, ubatch = config.max_sequences, _slot_cells(config), _ubatch_tokens(config)
    _, bytes_of_32 = CACHE_TYPES.get(config.key_value_cache, CACHE_TYPES["Auto"])
    depth = config.speculation.depth if config.speculation is not None else 0
    weights = config.target.weight_bytes
    cache = key_value_bytes(facts, cells, slots, ubatch, bytes_of_32)
    overhead = PROCESS_BYTES + config.devices * _compute_bytes(facts, cells, ubatch)
    overhead += _output_bytes(facts, slots * (depth + 1))
    draft = checks.draft_of(config)
    drafting = 0
    if draft is not None:
        # The draft's cache is F16 whatever the target's is, and as long: seen in the engine's log.
        drafting = draft.weight_bytes + key_value_bytes(draft.facts, cells, slots, ubatch, CACHE_TYPES["F16"][1])
        overhead += config.devices * _compute_bytes(draft.facts, cells, ubatch) + _output_bytes(draft.facts, slots)
    if config.on_gpu:
        overhead += config.devices * DEVICE_CONTEXT_BYTES + _unevenness_bytes(config.target, config.devices, cache)
    return Parts(weights, cache, drafting, overhead)


def _compute_bytes(facts: ModelFacts, cells: int, ubatch_tokens: int) -> int:
    """Buffer for intermediate results on one device, with the attention mask of 2 bytes for each token and cell."""
    return ubatch_tokens * (ACTIVATION_WIDTHS * facts.hidden_size * 4 + 2 * cells)


def _output_bytes(facts: ModelFacts, outputs: int) -> int:
    """One number of 4 bytes for each word of the vocabulary and token whose distribution is wanted in one step."""
    return outputs * facts.vocabulary_size * 4


def _unevenness_bytes(target: Artifact, devices: int, cache_bytes: int) -> int:
    """Layers are spread whole: the fullest device holds more than its share, and the others cannot use that room."""
    layers = target.facts.layers
    fullest = -(-layers // devices)
    return (fullest * devices - layers) * (target.weight_bytes + cache_bytes) // layers


def _splits_into(config: EngineConfig, devices: int) -> bool:
    return not config.on_gpu or devices <= config.target.facts.layers


_RULE = Rule(
    needed=lambda config: _parts(config).total,
    available=lambda config: config.memory_bytes,
    smaller_cache_types=("Q8_0", "Q4_0"),
    splits_into=_splits_into,
)
