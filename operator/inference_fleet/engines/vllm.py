"""vLLM: `vllm serve` of its official images.

Flags and metrics as recorded from 0.32.0 (tests/data/engines/); what is said of its behaviour was read in the source of that
version, named where it matters. KV memory is paged: sequences share it, so a configuration runs with less than all of them need.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import Any, ClassVar

from inference_fleet.api import arguments as api_arguments
from inference_fleet.api.arguments import Reserved
from inference_fleet.api.model import Attention, ModelFacts
from inference_fleet.engines import checks
from inference_fleet.engines.config import Artifact, EngineConfig, MemoryEstimate, Refusal
from inference_fleet.engines.contract import HTTP_PORT, Metrics, Probe, Probes, startup_probe
from inference_fleet.engines.extra_arguments import taken_back
from inference_fleet.engines.fitting import Parts, Rule, remedy, round_up

MIB = 2**20
GIB = 2**30

BLOCK_TOKENS = 16
"""Tokens in a page of the KV cache (config/cache.py, DEFAULT_BLOCK_SIZE)."""

GPU_MEMORY_SHARE = Decimal("0.92")
"""Share of a device that vLLM may use for everything: the engine's own default, rendered because memory is planned with it."""

CACHE_BYTES: Mapping[str, tuple[str, int]] = {"Auto": ("auto", 2), "FP8": ("fp8", 1)}
"""Name in the API → name of the engine, bytes of a number. `auto` is the model's own type; FP32 models run in 16 bits too."""

METHODS: Mapping[str, str] = {
    "AWQ": "awq",
    "GPTQ": "gptq",
    "FP8": "fp8",
    "CompressedTensors": "compressed-tensors",
}

DEVICE_PROCESS_BYTES = 3 * GIB // 2
"""On each GPU: CUDA context, NCCL buffers and captured CUDA graphs. Not measured here: vLLM's own start-up log commonly reports 0.6
to 1.5 GiB of them for dense models. Better too much: what is not used becomes KV cache."""

CPU_PROCESS_BYTES = 3 * GIB
"""On CPUs: API server and engine process with PyTorch and its compiled kernels."""

ACTIVATION_WIDTHS = 16
"""Peak of intermediate results: 16-bit numbers for each token of a step, in units of hiddenSize. Assumed."""

SAMPLER_COPIES = 4
"""The start-up profile samples for every sequence at once: logits, sorted logits, probabilities and their sum, 4 bytes each."""

SHUTDOWN_SECONDS = 10
"""On SIGTERM vLLM finishes what is running for this long (`--shutdown-timeout`; its own default aborts at once). The preStop hook
has waited for the long ones before; this is for a request that arrived in between."""

METRICS = Metrics(
    running="vllm:num_requests_running",
    waiting="vllm:num_requests_waiting",
    generation_tokens="vllm:generation_tokens_total",
    prompt_tokens="vllm:prompt_tokens_total",
    cached_prompt_tokens="vllm:prompt_tokens_cached_total",
    steps="vllm:iteration_tokens_total_count",
    drafts="vllm:spec_decode_num_drafts_total",
    draft_tokens="vllm:spec_decode_num_draft_tokens_total",
    accepted_tokens="vllm:spec_decode_num_accepted_tokens_total",
    accepted_per_position="vllm:spec_decode_num_accepted_tokens_per_pos_total",
    time_to_first_token="vllm:time_to_first_token_seconds",
    time_per_output_token="vllm:request_time_per_output_token_seconds",
    key_value_cache_usage="vllm:kv_cache_usage_perc",
    preemptions="vllm:num_preemptions_total",
)

RESERVED = (
    *api_arguments.VLLM,
    Reserved(
        "a replica is one pod that the operator counts devices and memory for; use the policy's fields",
        ("--node-rank", "-r", "-n", "--master-addr", "--tokens-only", "--ssl-ca-certs", "--device-ids"),
    ),
)
"""What extra arguments may not set."""


@dataclass(frozen=True, slots=True)
class VLLM:
    """vLLM in one version."""

    version: str

    VERSIONS: ClassVar[tuple[str, ...]] = ("0.32",)
    METRICS: ClassVar[Metrics] = METRICS

    @classmethod
    def supports(cls, version: str) -> bool:
        """Whether the flags of this version are known: a known minor version, with or without its patch."""
        match = re.fullmatch(r"v?([0-9]+\.[0-9]+)(\.[0-9]+)?", version)
        return match is not None and match[1] in cls.VERSIONS

    @property
    def type(self) -> str:
        """VLLM."""
        return "VLLM"

    @property
    def metrics(self) -> Metrics:
        """Names in `/metrics`."""
        return METRICS

    def check(self, config: EngineConfig) -> Refusal | None:
        """Format, quantization, KV cache, context, devices, draft, extra arguments; the first that does not hold."""
        return (
            checks.artifact_format(config, "Safetensors", "VLLM")
            or checks.weights_as_stored(config, quantizes_while_loading=_quantizes_while_loading(config))
            or _method(config)
            or _cache_type(config)
            or checks.context(config)
            or _tensor_parallel(config, config.target, "model")
            or _batch(config)
            or checks.speculation(config, ("DraftModel", "NGram"))
            or _draft_tensor_parallel(config)
            or taken_back(config.extra_arguments, RESERVED)
        )

    def arguments(self, config: EngineConfig) -> list[str]:
        """What follows `vllm serve`: the model's path first (the flag `--model` is deprecated), then flags."""
        arguments = [
            config.target.path,
            "--served-model-name", config.served_name,
            "--host", "0.0.0.0",
            "--port", str(HTTP_PORT),
            "--max-model-len", str(config.context_tokens),
            "--max-num-seqs", str(config.max_sequences),
            "--tensor-parallel-size", str(config.devices if config.on_gpu else 1),
            "--kv-cache-dtype", CACHE_BYTES[config.key_value_cache][0],
            "--enable-prefix-caching",
            "--shutdown-timeout", str(SHUTDOWN_SECONDS),
            "--disable-access-log-for-endpoints", "/health,/metrics",
        ]  # fmt: skip
        if config.max_batched_tokens is not None:
            arguments += ["--max-num-batched-tokens", str(config.max_batched_tokens)]
        if config.on_gpu:
            arguments += ["--gpu-memory-utilization", str(GPU_MEMORY_SHARE)]
        else:
            # Left alone it sizes the cache by the NUMA node's memory, not the container's (v1/worker/cpu_worker.py).
            arguments += ["--kv-cache-memory-bytes", str(_cpu_cache_bytes(config))]
        if config.method in METHODS:
            arguments += ["--quantization", METHODS[config.method]]
        speculation = _speculation(config)
        if speculation is not None:
            arguments += ["--speculative-config", json.dumps(speculation, sort_keys=True)]
        return [*arguments, *config.extra_arguments]

    def environment(self, config: EngineConfig) -> Mapping[str, str]:
        """No usage statistics, no look-ups at the hub; on CPUs as many threads as cores were requested.

        A user name is needed because PyTorch asks for one and the pod's user has no entry in the image's passwd.
        """
        variables = {
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
            "USER": "vllm",
            "LOGNAME": "vllm",
        }
        if not config.on_gpu and config.cpu_cores is not None:
            variables["OMP_NUM_THREADS"] = str(config.cpu_cores)
        return variables

    def memory(self, config: EngineConfig) -> MemoryEstimate:
        """Refused only if not even one sequence of full context fits; otherwise it says how many do."""
        parts, available = _parts(config), _available_bytes(config)
        one = parts.key_value + _draft_cache_bytes(config)
        room = available - (parts.total - one)
        sequences = max(0, min(config.max_sequences, room // one))
        fits = sequences >= 1
        figures = f"{checks.gib(parts.total)} of {checks.gib(available)} ({parts.sentence(1, config.context_tokens)})"
        if fits:
            message = f"Holds {sequences} of {config.max_sequences} sequences at full context; one needs {figures}."
        else:
            message = f"One sequence of full context needs {figures}. {remedy(_RULE, config)}"
        return MemoryEstimate(
            needed_bytes=parts.total,
            available_bytes=available,
            weight_bytes=parts.weights,
            key_value_bytes=parts.key_value,
            draft_bytes=parts.draft,
            overhead_bytes=parts.overhead,
            sequences=sequences if fits else None,
            fits=fits,
            message=message,
        )

    def probes(self, config: EngineConfig) -> Probes:
        """`/health` is refused while loading, 200 under any load, 503 when the engine process has died."""
        draft = checks.draft_of(config)
        weights = config.target.weight_bytes + (draft.weight_bytes if draft is not None else 0)
        return Probes(
            # The fixed part is for imports, compilation and the capture of CUDA graphs, whose cache a new pod does not have.
            startup=startup_probe("/health", weights, fixed_seconds=900),
            readiness=Probe("/health", period_seconds=5, timeout_seconds=5, failure_threshold=3),
            liveness=Probe("/health", period_seconds=20, timeout_seconds=15, failure_threshold=6),
        )

    def shared_memory_bytes(self, config: EngineConfig) -> int | None:
        """Several workers pass tensors and NCCL its buffers through /dev/shm, of which a container has 64 MiB by itself."""
        return (2 + config.devices) * GIB if config.devices > 1 and config.on_gpu else None

    def scratch_bytes(self, config: EngineConfig) -> int:
        """Compiled kernels and graphs; the caches of Triton, FlashInfer and PyTorch."""
        return 8 * GIB

    def image(self, config: EngineConfig) -> str:
        """The project's own images: CUDA, or CPU."""
        release = self.version.removeprefix("v")
        release = release if release.count(".") == 2 else f"{release}.0"
        return f"vllm/vllm-openai{'' if config.on_gpu else '-cpu'}:v{release}"


def _speculation(config: EngineConfig) -> dict[str, Any] | None:
    """The value of `--speculative-config` (config/speculative.py)."""
    wanted = config.speculation
    if wanted is None:
        return None
    if wanted.draft is not None:
        return {
            "method": "draft_model",
            "model": wanted.draft.path,
            "num_speculative_tokens": wanted.depth,
            "draft_tensor_parallel_size": config.devices if config.on_gpu else 1,
        }
    return {
        "method": "ngram",
        "num_speculative_tokens": wanted.depth,
        "prompt_lookup_max": 5,
        "prompt_lookup_min": 2,
    }


def _quantizes_while_loading(config: EngineConfig) -> bool:
    return config.method == "FP8" and config.target.facts.weight_bits >= checks.UNQUANTIZED_BITS


def _method(config: EngineConfig) -> Refusal | None:
    if config.method != "None" and config.method not in METHODS:
        return Refusal(
            "QuantizationUnsupported",
            f"VLLM {config.version} has no method {config.method}; set quantization.method to one of: None, "
            f"{', '.join(METHODS)}.",
        )
    if (
        config.method in ("AWQ", "GPTQ", "CompressedTensors")
        and config.target.facts.weight_bits >= checks.UNQUANTIZED_BITS
    ):
        return Refusal(
            "QuantizationMismatch",
            f"quantization.method is {config.method}, and most weights of {config.target.path} have "
            f"{config.target.facts.weight_bits} bits; refer to an InferenceModel quantized with {config.method}, or set it to "
            f"None.",
        )
    if config.method == "FP8" and config.capabilities is not None and "FP8" not in config.capabilities:
        return Refusal(
            "CapabilityMissing",
            "quantization.method FP8 needs an AcceleratorClass with capability FP8; add it where the hardware has it, or use "
            "another build.",
        )
    return None


def _cache_type(config: EngineConfig) -> Refusal | None:
    if config.key_value_cache in CACHE_BYTES:
        return None
    return Refusal(
        "KeyValueCacheUnsupported",
        f"VLLM has no KV cache of type {config.key_value_cache}; set quantization.keyValueCache to one of: "
        f"{', '.join(CACHE_BYTES)}.",
    )


def _tensor_parallel(config: EngineConfig, artifact: Artifact, role: str) -> Refusal | None:
    """Attention heads are dealt out evenly (config/model.py, verify_with_parallel_config)."""
    heads = artifact.facts.attention_heads
    if not config.on_gpu or heads % config.devices == 0:
        return None
    possible = ", ".join(str(n) for n in range(1, min(heads, 64) + 1) if heads % n == 0)
    return Refusal(
        "DevicesUneven",
        f"The {role} has {heads} attention heads, which {config.devices} devices cannot share evenly; set devicesPerReplica to "
        f"one of: {possible}.",
    )


def _draft_tensor_parallel(config: EngineConfig) -> Refusal | None:
    """A draft runs on as many devices as its target (v1/spec_decode/draft_model.py), so its heads must be divisible too."""
    draft = checks.draft_of(config)
    return None if draft is None else _tensor_parallel(config, draft, "draft")


def _batch(config: EngineConfig) -> Refusal | None:
    if config.max_batched_tokens is None or config.max_batched_tokens >= config.max_sequences:
        return None
    return Refusal(
        "BatchTooSmall",
        f"batching.maxBatchedTokens is {config.max_batched_tokens}, and each of {config.max_sequences} sequences needs one "
        f"token of a step; set it to at least {config.max_sequences}.",
    )


def _batched_tokens(config: EngineConfig) -> int:
    """Tokens of one step: as declared, or the engine's own default by device memory (engine/arg_utils.py)."""
    if config.max_batched_tokens is not None:
        return config.max_batched_tokens
    if not config.on_gpu or config.device_bytes < 70 * GIB:
        return 2048
    return 16384 if config.device_bytes >= 160 * GIB else 8192


def sequence_bytes(facts: ModelFacts, tokens: int, batched_tokens: int, bytes_each: int, devices: int) -> int:
    """KV cache of one sequence, over all devices.

    Pages × 16 tokens × layers × heads a device × devices × (numbers of a key + of a value) × bytes: a device keeps at least one
    head, so that with more devices than KV heads each head is kept several times. A layer with a sliding window keeps the window
    and one step (v1/kv_cache_interface.py). MLA keeps one latent vector a token, on every device. Hybrid models are counted as if
    every layer attended to everything, which is an upper bound.
    """
    if facts.attention is Attention.SLIDING_WINDOW and facts.sliding_window_tokens is not None:
        tokens = min(tokens, facts.sliding_window_tokens - 1 + batched_tokens)
    tokens = round_up(tokens, BLOCK_TOKENS)
    heads = max(1, facts.key_value_heads // devices) * devices
    keys = facts.head_dimension
    values = 0 if facts.attention is Attention.MLA else facts.value_head_dimension or facts.head_dimension
    return tokens * facts.layers * heads * (keys + values) * bytes_each


def _devices(config: EngineConfig) -> int:
    return config.devices if config.on_gpu else 1


def _cache_bytes(config: EngineConfig, facts: ModelFacts) -> int:
    _, bytes_each = CACHE_BYTES.get(config.key_value_cache, CACHE_BYTES["Auto"])
    return sequence_bytes(facts, config.context_tokens, _batched_tokens(config), bytes_each, _devices(config))


def _draft_cache_bytes(config: EngineConfig) -> int:
    draft = checks.draft_of(config)
    return 0 if draft is None else _cache_bytes(config, draft.facts)


def _weight_bytes(config: EngineConfig) -> int:
    """Quantizing while loading halves the layers and leaves embeddings and head at 16 bits."""
    stored = config.target.weight_bytes
    if not _quantizes_while_loading(config):
        return stored
    facts = config.target.facts
    return min(stored, stored // 2 + 2 * facts.vocabulary_size * facts.hidden_size)


def _parts(config: EngineConfig) -> Parts:
    """What one sequence of full context needs."""
    draft = checks.draft_of(config)
    drafting = 0 if draft is None else draft.weight_bytes + _draft_cache_bytes(config)
    overhead = _devices(config) * DEVICE_PROCESS_BYTES if config.on_gpu else CPU_PROCESS_BYTES
    overhead += _activation_bytes(config, config.target.facts)
    overhead += _activation_bytes(config, draft.facts) if draft is not None else 0
    return Parts(_weight_bytes(config), _cache_bytes(config, config.target.facts), drafting, overhead)


def _activation_bytes(config: EngineConfig, facts: ModelFacts) -> int:
    tokens = _batched_tokens(config)
    intermediate = tokens * ACTIVATION_WIDTHS * facts.hidden_size * 2
    depth = config.speculation.depth if config.speculation is not None else 0
    sampled = min(config.max_sequences * (depth + 1), tokens) * facts.vocabulary_size * 4 * SAMPLER_COPIES
    return intermediate + sampled


def _available_bytes(config: EngineConfig) -> int:
    if not config.on_gpu:
        return config.memory_bytes
    return int((config.memory_bytes * GPU_MEMORY_SHARE).to_integral_value(ROUND_FLOOR))


def _cpu_cache_bytes(config: EngineConfig) -> int:
    """What is left for the KV cache on CPUs, at most what all sequences can use."""
    parts = _parts(config)
    one = parts.key_value + _draft_cache_bytes(config)
    room = _available_bytes(config) - (parts.total - one)
    return max(one, min(one * config.max_sequences, room)) // MIB * MIB + MIB


def _splits_into(config: EngineConfig, devices: int) -> bool:
    models = [config.target.facts] + ([draft.facts] if (draft := checks.draft_of(config)) is not None else [])
    return not config.on_gpu or all(facts.attention_heads % devices == 0 for facts in models)


_RULE = Rule(
    needed=lambda config: _parts(config).total,
    available=_available_bytes,
    smaller_cache_types=("FP8",),
    splits_into=_splits_into,
)
