"""Configurations for engine tests, small changes away from ones that run, and what was recorded from the engines."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from inference_fleet.api.model import Attention, ModelFacts
from inference_fleet.engines.config import Artifact, EngineConfig, SpeculationConfig

RECORDED = Path(__file__).resolve().parents[2] / "data" / "engines"
GIB = 2**30
MIB = 2**20

SMOLLM2 = ModelFacts(
    architecture="llama",
    parameters=134_515_008,
    layers=30,
    hidden_size=576,
    key_value_heads=3,
    attention_heads=9,
    head_dimension=64,
    attention=Attention.GQA,
    vocabulary_size=49152,
    tokens_digest="sha256:smollm2",
    max_context_tokens=8192,
    weight_bits=4,
    tokenizer_model="gpt2",
)

QWEN3_8B = ModelFacts(
    architecture="Qwen3ForCausalLM",
    parameters=8_190_735_360,
    layers=36,
    hidden_size=4096,
    key_value_heads=8,
    attention_heads=32,
    head_dimension=128,
    attention=Attention.GQA,
    vocabulary_size=151_936,
    tokens_digest="sha256:qwen3",
    max_context_tokens=40_960,
    weight_bits=16,
    tokenizer_model="BPE",
)

QWEN3_0_6B = QWEN3_8B.model_copy(
    update={
        "parameters": 596_049_920,
        "layers": 28,
        "hidden_size": 1024,
        "attention_heads": 16,
    }
)


def llama_cpp(**over: Any) -> EngineConfig:
    """SmolLM2 on two CPU cores; `over` replaces fields."""
    config = EngineConfig(
        engine="LlamaCpp",
        version="b11549",
        served_name="small",
        target=Artifact("/models/target/model.gguf", 98_362_432, SMOLLM2, "GGUF"),
        weights="AsStored",
        method="None",
        key_value_cache="Auto",
        context_tokens=2048,
        max_sequences=4,
        max_batched_tokens=None,
        speculation=None,
        devices=1,
        on_gpu=False,
        memory_bytes=2 * GIB,
        cpu_cores=2,
    )
    return replace(config, **over)


def vllm(**over: Any) -> EngineConfig:
    """Qwen3-8B on one 80 GB device; `over` replaces fields."""
    config = EngineConfig(
        engine="VLLM",
        version="0.32",
        served_name="large",
        target=Artifact("/models/target", 16_381_470_720, QWEN3_8B, "Safetensors"),
        weights="AsStored",
        method="None",
        key_value_cache="Auto",
        context_tokens=8192,
        max_sequences=32,
        max_batched_tokens=8192,
        speculation=None,
        devices=1,
        on_gpu=True,
        memory_bytes=80 * GIB,
        cpu_cores=8,
        capabilities=("FP8",),
    )
    return replace(config, **over)


def drafting(
    config: EngineConfig, depth: int = 4, facts: ModelFacts | None = None, weight_bytes: int = 0
) -> EngineConfig:
    """The same with a draft model: by default the target's own facts, or a small Qwen for the large one."""
    by_default = SMOLLM2 if config.engine == "LlamaCpp" else QWEN3_0_6B
    path = "/models/draft/draft.gguf" if config.engine == "LlamaCpp" else "/models/draft"
    size = weight_bytes or (98_362_432 if config.engine == "LlamaCpp" else 1_503_300_328)
    draft = Artifact(path, size, facts or by_default, config.target.format)
    return replace(config, speculation=SpeculationConfig("DraftModel", depth, draft))


def guessing(config: EngineConfig, depth: int = 4) -> EngineConfig:
    """The same with n-gram speculation."""
    return replace(config, speculation=SpeculationConfig("NGram", depth))


def recorded_flags(name: str) -> frozenset[str]:
    """Flags that the engine lists, without those it lists as removed."""
    lines = (RECORDED / name).read_text().splitlines()
    return frozenset(line.strip() for line in lines if line.startswith("-"))


def recorded_series(name: str) -> dict[str, float]:
    """Metric name → sum over its series, of a recorded `/metrics`."""
    sums: dict[str, float] = {}
    for line in (RECORDED / name).read_text().splitlines():
        match = re.match(r"([a-zA-Z_:][\w:]*)(?:\{.*\})? (\S+)$", line)
        if match and not line.startswith("#"):
            sums[match[1]] = sums.get(match[1], 0.0) + float(match[2])
    return sums


def recorded_memory() -> dict[str, Any]:
    """What llama.cpp logged about its buffers."""
    found: dict[str, Any] = json.loads((RECORDED / "llamacpp-b11549-memory.json").read_text())
    return found


def flags_in(arguments: list[str]) -> list[str]:
    """The flags of a command line."""
    return [word for word in arguments if word.startswith("-")]


def value_of(arguments: list[str], flag: str) -> str | None:
    """What follows a flag; None where it is absent."""
    return arguments[arguments.index(flag) + 1] if flag in arguments else None
