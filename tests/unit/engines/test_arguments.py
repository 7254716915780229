"""Every argument that is rendered is one that the engine takes, and means what the policy said."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest

from inference_fleet.engines.base import Refusal, engine
from inference_fleet.engines.config import EngineConfig
from tests.unit.engines.samples import (
    GIB,
    drafting,
    flags_in,
    guessing,
    llama_cpp,
    recorded_flags,
    value_of,
    vllm,
)

SPECULATION: list[Callable[[EngineConfig], EngineConfig]] = [lambda config: config, drafting, guessing]
FLAGS = {"LlamaCpp": "llamacpp-b11549-flags.txt", "VLLM": "vllm-0.32.0-flags.txt"}


def arguments(config: EngineConfig) -> list[str]:
    known = engine(config.engine, config.version)
    assert not isinstance(known, Refusal)
    return known.arguments(config)


def every_llama_cpp() -> list[EngineConfig]:
    return [
        variant(
            llama_cpp(
                key_value_cache=cache,
                on_gpu=on_gpu,
                devices=devices,
                max_batched_tokens=batch,
                cpu_cores=cores,
                memory_bytes=16 * GIB,
            )
        )
        for cache, on_gpu, devices, batch, cores, variant in product(
            ["Auto", "F16", "Q8_0", "Q4_0"],
            [False, True],
            [1, 2],
            [None, 64, 4096],
            [None, 8],
            SPECULATION,
        )
    ]


def every_vllm() -> list[EngineConfig]:
    return [
        variant(vllm(key_value_cache=cache, on_gpu=on_gpu, devices=devices, max_batched_tokens=batch, method=method))
        for cache, on_gpu, devices, batch, method, variant in product(
            ["Auto", "FP8"],
            [False, True],
            [1, 2],
            [None, 8192],
            ["None", "AWQ", "GPTQ", "FP8", "CompressedTensors"],
            SPECULATION,
        )
    ]


@pytest.mark.parametrize("configurations", [every_llama_cpp(), every_vllm()], ids=["LlamaCpp", "VLLM"])
def test_the_engine_takes_every_flag_that_is_rendered(configurations: list[EngineConfig]) -> None:
    known = recorded_flags(FLAGS[configurations[0].engine])
    assert len(known) > 300
    for config in configurations:
        unknown = [flag for flag in flags_in(arguments(config)) if flag not in known]
        assert not unknown, (unknown, config)


@pytest.mark.parametrize("configurations", [every_llama_cpp(), every_vllm()], ids=["LlamaCpp", "VLLM"])
def test_no_flag_is_given_twice(configurations: list[EngineConfig]) -> None:
    for config in configurations:
        flags = flags_in(arguments(config))
        assert len(flags) == len(set(flags)), config


@pytest.mark.parametrize("config", [llama_cpp(), vllm()], ids=["LlamaCpp", "VLLM"])
def test_extra_arguments_come_last(config: EngineConfig) -> None:
    assert arguments(replace(config, extra_arguments=("--seed", "7")))[-2:] == ["--seed", "7"]


def test_llama_cpp_allocates_the_context_of_all_slots() -> None:
    rendered = arguments(llama_cpp(context_tokens=2048, max_sequences=4))
    assert value_of(rendered, "--ctx-size") == "8192"
    assert value_of(rendered, "--parallel") == "4"
    assert "--no-kv-unified" in rendered


def test_llama_cpp_context_is_rendered_as_it_is_rounded() -> None:
    assert value_of(arguments(llama_cpp(context_tokens=1000, max_sequences=3)), "--ctx-size") == str(3 * 1024)


def test_llama_cpp_quantized_values_come_with_flash_attention() -> None:
    rendered = arguments(llama_cpp(key_value_cache="Q4_0"))
    assert value_of(rendered, "--cache-type-k") == value_of(rendered, "--cache-type-v") == "q4_0"
    assert value_of(rendered, "--flash-attn") == "on"


def test_llama_cpp_puts_everything_on_the_gpu_or_nothing() -> None:
    on_gpu = arguments(drafting(llama_cpp(on_gpu=True, memory_bytes=24 * GIB)))
    assert value_of(on_gpu, "--n-gpu-layers") == value_of(on_gpu, "--spec-draft-ngl") == "all"
    assert not {"--n-gpu-layers", "--spec-draft-ngl"} & set(arguments(drafting(llama_cpp())))


def test_llama_cpp_without_speculation_names_no_type() -> None:
    assert not [flag for flag in flags_in(arguments(llama_cpp())) if "spec" in flag]


def test_llama_cpp_draft_model() -> None:
    rendered = arguments(drafting(llama_cpp(), depth=5))
    assert value_of(rendered, "--spec-type") == "draft-simple"
    assert value_of(rendered, "--spec-draft-model") == "/models/draft/draft.gguf"
    assert value_of(rendered, "--spec-draft-n-max") == "5"


@pytest.mark.parametrize("depth", range(1, 17))
def test_llama_cpp_n_gram_drafts_at_every_depth(depth: int) -> None:
    """It drafts nothing while size-m is less than size-n."""
    rendered = arguments(guessing(llama_cpp(), depth))
    n, m = (int(value_of(rendered, f"--spec-ngram-simple-size-{size}") or 0) for size in "nm")
    assert m == depth
    assert 1 <= n <= m


def test_llama_cpp_prompt_cache_never_takes_memory_that_the_container_does_not_have() -> None:
    """Its own default is 8 GiB of host memory, whatever the container's limit."""
    for gib in (1, 2, 8, 64):
        config = llama_cpp(memory_bytes=gib * GIB)
        known = engine("LlamaCpp", "b11549")
        assert not isinstance(known, Refusal)
        cache = int(value_of(known.arguments(config), "--cache-ram") or -1) * 2**20
        assert 0 <= cache <= max(0, config.memory_bytes - known.memory(config).needed_bytes)
    assert value_of(arguments(llama_cpp(on_gpu=True)), "--cache-ram") == "0"


def test_llama_cpp_answers_health_while_a_queue_waits() -> None:
    """A waiting request holds an HTTP thread: there are more of them than slots by far."""
    assert int(value_of(arguments(llama_cpp(max_sequences=4)), "--threads-http") or 0) >= 4 + 32


def test_vllm_gets_the_model_first() -> None:
    """`vllm serve --model` is deprecated; the path is the one positional argument."""
    rendered = arguments(vllm())
    assert rendered[0] == "/models/target"
    assert "--model" not in rendered


def test_vllm_flags_of_a_plain_configuration() -> None:
    rendered = arguments(vllm())
    assert value_of(rendered, "--served-model-name") == "large"
    assert value_of(rendered, "--max-model-len") == "8192"
    assert value_of(rendered, "--max-num-seqs") == "32"
    assert value_of(rendered, "--max-num-batched-tokens") == "8192"
    assert value_of(rendered, "--gpu-memory-utilization") == "0.92"
    assert value_of(rendered, "--tensor-parallel-size") == "1"
    assert "--enable-prefix-caching" in rendered
    assert "--speculative-config" not in rendered
    assert "--quantization" not in rendered


def test_vllm_draft_model_runs_on_as_many_devices_as_the_target() -> None:
    rendered = arguments(drafting(vllm(devices=2, memory_bytes=160 * GIB), depth=3))
    assert json.loads(value_of(rendered, "--speculative-config") or "") == {
        "method": "draft_model",
        "model": "/models/draft",
        "num_speculative_tokens": 3,
        "draft_tensor_parallel_size": 2,
    }


def test_vllm_n_gram() -> None:
    config = json.loads(value_of(arguments(guessing(vllm(), depth=6)), "--speculative-config") or "")
    assert config["method"] == "ngram"
    assert config["num_speculative_tokens"] == 6
    assert 1 <= config["prompt_lookup_min"] <= config["prompt_lookup_max"]
    assert "model" not in config


def test_vllm_cache_on_cpus_is_sized_for_the_container() -> None:
    """Left alone it would take a share of the NUMA node's memory."""
    config = vllm(on_gpu=False, memory_bytes=48 * GIB, max_sequences=4)
    rendered = arguments(config)
    assert "--gpu-memory-utilization" not in rendered
    one = 8192 * 36 * 8 * 2 * 128 * 2
    assert 4 * one <= int(value_of(rendered, "--kv-cache-memory-bytes") or 0) <= 4 * one + 2**20
    tight = arguments(replace(config, memory_bytes=24 * GIB, max_sequences=256))
    assert int(value_of(tight, "--kv-cache-memory-bytes") or 0) < 24 * GIB - config.target.weight_bytes


@pytest.mark.parametrize(
    ("method", "flag"), [("AWQ", "awq"), ("GPTQ", "gptq"), ("FP8", "fp8"), ("CompressedTensors", "compressed-tensors")]
)
def test_vllm_quantization_method(method: str, flag: str) -> None:
    assert value_of(arguments(vllm(method=method)), "--quantization") == flag


def test_vllm_does_not_ask_the_hub_and_runs_without_a_passwd_entry() -> None:
    known = engine("VLLM", "0.32")
    assert not isinstance(known, Refusal)
    variables = known.environment(vllm())
    assert variables["HF_HUB_OFFLINE"] == "1"
    assert variables["USER"]


def test_official_images() -> None:
    llama, virtual = engine("LlamaCpp", "b11549"), engine("VLLM", "0.32.0")
    assert not isinstance(llama, Refusal)
    assert not isinstance(virtual, Refusal)
    assert llama.image(llama_cpp()) == "ghcr.io/ggml-org/llama.cpp:server-b11549"
    assert llama.image(llama_cpp(on_gpu=True)) == "ghcr.io/ggml-org/llama.cpp:server-cuda-b11549"
    assert virtual.image(vllm()) == "vllm/vllm-openai:v0.32.0"
    assert virtual.image(vllm(on_gpu=False)) == "vllm/vllm-openai-cpu:v0.32.0"
