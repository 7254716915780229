"""What must hold for a configuration whichever engine runs it. Each check gives a Refusal or None; engines chain them."""

from __future__ import annotations

from collections.abc import Sequence

from inference_fleet.api.engine import Weights
from inference_fleet.api.quantities import format_bytes
from inference_fleet.engines.config import Artifact, EngineConfig, Refusal
from inference_fleet.facts.vocabulary import compatible

UNQUANTIZED_BITS = 16
"""Weights of at least this many bits are not quantized."""


def gib(count: int) -> str:
    """Bytes as people compare them with a device's memory."""
    return format_bytes(count)


def draft_of(config: EngineConfig) -> Artifact | None:
    """The draft model, where the configuration has one."""
    return config.speculation.draft if config.speculation is not None else None


def artifact_format(config: EngineConfig, wanted: str, engine: str) -> Refusal | None:
    """The engine's file format, of the model and of its draft."""
    roles = [("model", config.target), ("draft", draft_of(config))]
    for role, artifact in roles:
        if artifact is not None and artifact.format != wanted:
            return Refusal(
                "FormatUnsupported",
                f"{engine} loads {wanted} files, and the {role} at {artifact.path} is {artifact.format}; refer to an "
                f"InferenceModel with {wanted} weights, or use another engine.",
            )
    return None


def weights_as_stored(config: EngineConfig, quantizes_while_loading: bool = False) -> Refusal | None:
    """Declared weights against the artefact's: quantized or not.

    Bits are not compared one by one: a quantized file holds a mixture, and its largest part may be the embeddings, which are kept
    at more bits.
    """
    declared, stored = Weights(config.weights).bits, config.target.facts.weight_bits
    if declared is None or quantizes_while_loading:
        return None
    if (declared >= UNQUANTIZED_BITS) == (stored >= UNQUANTIZED_BITS):
        return None
    return Refusal(
        "QuantizationMismatch",
        f"quantization.weights is {config.weights}, and most weights of {config.target.path} have {stored} bits; set it to "
        f"AsStored, or refer to an InferenceModel that holds {config.weights}.",
    )


def context(config: EngineConfig) -> Refusal | None:
    """The model was trained for the context that is asked for."""
    longest = config.target.facts.max_context_tokens
    if config.context_tokens <= longest:
        return None
    return Refusal(
        "ContextTooLong",
        f"contextTokens is {config.context_tokens}, and the model was made for {longest}; set it to at most {longest}.",
    )


def speculation(config: EngineConfig, methods: Sequence[str]) -> Refusal | None:
    """The method is one of the engine's, it has the model that it needs, and the vocabularies agree."""
    wanted = config.speculation
    if wanted is None:
        return None
    if wanted.method not in methods:
        return Refusal(
            "SpeculationUnsupported",
            f"{config.engine} {config.version} does not speculate by {wanted.method}; use one of: {', '.join(methods)}.",
        )
    if (wanted.method == "DraftModel") != (wanted.draft is not None):
        return Refusal(
            "DraftMissing",
            "speculation by DraftModel needs a draft model, and other methods must not have one; set or remove draftRef.",
        )
    if wanted.depth < 1:
        return Refusal("SpeculationUnsupported", "maxDepth must be at least 1; leave speculation out to turn it off.")
    if wanted.draft is None:
        return None
    verdict = compatible(config.engine, config.target.facts, wanted.draft.facts)
    return None if verdict.ok else Refusal(verdict.reason, verdict.message)
