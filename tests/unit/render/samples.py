"""Desired variants and policies for render tests, as a plan would hand them over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from inference_fleet.api.accelerator import AcceleratorClassSpec
from inference_fleet.api.model import Format, InferenceModelSpec, ModelFacts, ResolvedArtifact
from inference_fleet.api.policy import InferencePolicySpec, ModelEntry
from inference_fleet.engines.base import Refusal, engine
from inference_fleet.engines.config import Artifact, EngineConfig, SpeculationConfig
from inference_fleet.naming import variant_name
from inference_fleet.plan.observation import ClassView, ModelView, OperatorSettings, PolicyView, VariantIdentity
from inference_fleet.plan.outcome import DesiredVariant
from inference_fleet.staging.paths import engine_path
from tests.unit.engines.samples import QWEN3_0_6B, QWEN3_8B, SMOLLM2, llama_cpp, vllm

GATEWAY = {"authentication": {"type": "None"}}
SETTINGS = OperatorSettings(
    image="registry.example/inference-fleet:1.0",
    llama_cpp_image="registry.example/llama:b11549",
    vllm_image="registry.example/vllm:0.32.0",
    render_revision=1,
)
HTTP = {"http": {"url": "https://models.example/smollm2.gguf", "sha256": "a" * 64}}
CLAIM = {"volumeClaim": {"name": "weights", "path": "smollm2/model.gguf"}}
CPU = {"memory": "2Gi", "requestsPerDevice": {"cpu": "2", "memory": "3Gi"}}
GPU = {
    "resourceName": "nvidia.com/gpu",
    "memory": "80Gi",
    "capabilities": ["FP8"],
    "requestsPerDevice": {"cpu": "8", "memory": "64Gi"},
    "runtimeClassName": "nvidia",
    "nodeSelector": {"gpu": "h100"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "price": {"currency": "USD", "onDemandPerHour": "3.99"},
}


def hub(repository: str, token: bool = False) -> dict[str, Any]:
    """A source on the hub."""
    secret = {"tokenSecretRef": {"name": "hub", "key": "token"}} if token else {}
    return {"huggingFace": {"repository": repository, "revision": "main", **secret}}


def model(name: str, source: Mapping[str, Any], facts: ModelFacts, weight_bytes: int, form: str) -> ModelView:
    """An inspected model."""
    resolved = ResolvedArtifact(
        revision="c0ffee" if "huggingFace" in source else "",
        digest=f"sha256:{name}",
        format=Format(form),
        weight_bytes=weight_bytes,
    )
    return ModelView(
        name, f"uid-{name}", InferenceModelSpec.model_validate({"source": source}), resolved=resolved, facts=facts
    )


def policy(spec: InferencePolicySpec | None = None, name: str = "chat") -> PolicyView:
    """A policy."""
    return PolicyView(
        namespace="apps",
        name=name,
        uid="11111111-2222-3333-4444-555555555555",
        generation=1,
        created=datetime(2026, 11, 9, tzinfo=UTC),
        spec=spec,
    )


def spec(gateway: Mapping[str, Any] | None = None, **over: Any) -> InferencePolicySpec:
    """A policy's spec with one model."""
    body = {"models": [entry()], "gateway": {**GATEWAY, **(gateway or {})}, **over}
    return InferencePolicySpec.model_validate(body)


def entry(**over: Any) -> dict[str, Any]:
    """A model of the policy, in API spelling."""
    return {
        "name": "small",
        "engine": {"type": "LlamaCpp", "version": "b11549"},
        "builds": [{"name": "q4", "modelRef": {"name": "smollm2"}}],
        "contextTokens": 2048,
        "accelerators": [{"name": "cpu", "classRef": {"name": "cpu"}}],
        **over,
    }


def desired(
    config: EngineConfig,
    target: ModelView,
    draft: ModelView | None,
    accelerator: Mapping[str, Any],
    pod_template: Mapping[str, Any] | None = None,
    **over: Any,
) -> DesiredVariant:
    """A desired variant whose engine configuration speaks of exactly these models."""
    assert target.facts is not None
    assert target.resolved is not None
    artifact = Artifact(
        engine_path(target.spec.source, "/models/target"),
        target.resolved.weight_bytes,
        target.facts,
        target.resolved.format.value,
    )
    config = replace(config, target=artifact)
    if draft is not None:
        assert draft.facts is not None
        assert draft.resolved is not None
        path = engine_path(draft.spec.source, "/models/draft")
        guesser = Artifact(path, draft.resolved.weight_bytes, draft.facts, draft.resolved.format.value)
        config = replace(config, speculation=SpeculationConfig("DraftModel", 4, guesser))
    known = engine(config.engine, config.version)
    assert not isinstance(known, Refusal)
    identity = VariantIdentity(
        model="small",
        digest=target.resolved.digest,
        weights=config.weights,
        method=config.method,
        key_value_cache=config.key_value_cache,
        engine=config.engine,
        accelerator_class="cpu",
        devices_per_replica=config.devices,
    )
    body = entry(podTemplate=pod_template) if pod_template is not None else entry()
    base = DesiredVariant(
        name=variant_name("chat", identity),
        identity=identity,
        model=ModelEntry.model_validate(body),
        build="q4",
        accelerator="cpu",
        engine=config,
        engine_image=SETTINGS.llama_cpp_image if config.engine == "LlamaCpp" else SETTINGS.vllm_image,
        target=target,
        draft=draft,
        accelerator_class=ClassView("cpu", AcceleratorClassSpec.model_validate(accelerator)),
        replicas=2,
        render_revision=1,
        sidecar_image=SETTINGS.image,
        surge=True,
        longest_generation_seconds=600,
        price_per_hour=Decimal("3.99") * config.devices if "price" in accelerator else None,
        memory=known.memory(config),
    )
    return replace(base, **over)


def made(over: Mapping[str, Any], **defaults: Any) -> DesiredVariant:
    """A desired variant of these parts, some of them replaced."""
    return desired(**{**defaults, **over})


def smollm2(source: Mapping[str, Any] = HTTP) -> ModelView:
    """SmolLM2 as a GGUF."""
    return model("smollm2", source, SMOLLM2, 98_362_432, "GGUF")


def llama_plain(**over: Any) -> DesiredVariant:
    """llama.cpp on CPUs, weights over HTTP."""
    return made(over, config=llama_cpp(), target=smollm2(), draft=None, accelerator=CPU)


def llama_draft(**over: Any) -> DesiredVariant:
    """The same with a draft model."""
    return made(over, config=llama_cpp(), target=smollm2(), draft=smollm2(), accelerator=CPU)


def llama_ngram(**over: Any) -> DesiredVariant:
    """The same with n-gram speculation: a sidecar that only measures."""
    config = llama_cpp(speculation=SpeculationConfig("NGram", 4))
    return made(over, config=config, target=smollm2(), draft=None, accelerator=CPU)


def llama_claim(**over: Any) -> DesiredVariant:
    """Weights that lie on a claim."""
    return made(over, config=llama_cpp(), target=smollm2(CLAIM), draft=None, accelerator=CPU, surge=False)


def vllm_draft(**over: Any) -> DesiredVariant:
    """vLLM on two GPUs with a draft model, both from the hub, one gated."""
    config = vllm(devices=2, memory_bytes=2 * 80 * 2**30, served_name="small", cpu_cores=16)
    target = model("qwen3-8b", hub("Qwen/Qwen3-8B", token=True), QWEN3_8B, 16_381_470_720, "Safetensors")
    draft = model("qwen3-0-6b", hub("Qwen/Qwen3-0.6B"), QWEN3_0_6B, 1_503_300_328, "Safetensors")
    return made(over, config=config, target=target, draft=draft, accelerator=GPU)


VARIANTS = {
    "llama-cpp-plain": llama_plain,
    "llama-cpp-draft": llama_draft,
    "llama-cpp-ngram": llama_ngram,
    "llama-cpp-claim": llama_claim,
    "vllm-tp2-draft": vllm_draft,
}
"""One of each shape."""
