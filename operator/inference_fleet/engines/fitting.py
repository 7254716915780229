"""Memory: the sum, the sentence that says it, and the search for what would fit instead. The formulas are each engine's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from inference_fleet.api.model import Attention
from inference_fleet.api.quantities import format_bytes
from inference_fleet.engines.config import EngineConfig

CONTEXT_STEP_TOKENS = 256
MOST_DEVICES = 64


@dataclass(frozen=True, slots=True)
class Parts:
    """What an engine allocates, bytes over all devices together."""

    weights: int
    key_value: int
    draft: int
    """Weights and KV cache of the draft model."""
    overhead: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.key_value + self.draft + self.overhead

    def sentence(self, sequences: int, context_tokens: int) -> str:
        """The parts, with what the KV cache is for."""
        draft = f", draft model {format_bytes(self.draft)}" if self.draft else ""
        return (
            f"weights {format_bytes(self.weights)}, KV cache of {sequences} × {context_tokens} tokens "
            f"{format_bytes(self.key_value)}{draft}, overhead {format_bytes(self.overhead)}"
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """How an engine fills memory: what it needs for a configuration, and the bytes it may use."""

    needed: Callable[[EngineConfig], int]
    available: Callable[[EngineConfig], int]
    smaller_cache_types: tuple[str, ...]
    """Values of keyValueCache that save memory, the largest first."""
    splits_into: Callable[[EngineConfig, int], bool]
    """Whether a replica of this model can use this many devices."""

    def fits(self, config: EngineConfig) -> bool:
        """Whether the configuration has the memory it needs."""
        return self.needed(config) <= self.available(config)


def alternatives(rule: Rule, config: EngineConfig) -> list[str]:
    """Single changes of a configuration that does not fit after which it would, each at its best value; may be empty."""
    found: list[str] = []
    sequences = _largest(range(1, config.max_sequences), lambda n: rule.fits(replace(config, max_sequences=n)))
    if sequences:
        found.append(f"batching.maxSequences {sequences}")
    steps = _largest(
        range(1, -(-config.context_tokens // CONTEXT_STEP_TOKENS)),
        lambda n: rule.fits(replace(config, context_tokens=n * CONTEXT_STEP_TOKENS)),
    )
    if steps:
        found.append(f"contextTokens {steps * CONTEXT_STEP_TOKENS}")
    smaller = (t for t in _after(config.key_value_cache, rule.smaller_cache_types))
    cache = next((t for t in smaller if rule.fits(replace(config, key_value_cache=t))), None)
    if cache is not None:
        found.append(f"quantization.keyValueCache {cache}")
    drafting = config.speculation is not None and config.speculation.draft is not None
    if drafting and rule.fits(replace(config, speculation=None)):
        found.append("no draft model")
    devices = next(
        (
            n
            for n in range(config.devices + 1, MOST_DEVICES + 1)
            if rule.splits_into(config, n) and rule.fits(with_devices(config, n))
        ),
        None,
    )
    if devices is not None:
        found.append(f"devicesPerReplica {devices}")
    return found


def remedy(rule: Rule, config: EngineConfig) -> str:
    """The end of a message that says it does not fit."""
    models = [
        config.target.facts,
        *([config.speculation.draft.facts] if config.speculation and config.speculation.draft else []),
    ]
    hybrid = any(facts.attention is Attention.HYBRID for facts in models)
    note = "All layers are counted as if they attended to everything, which is an upper bound. " if hybrid else ""
    found = alternatives(rule, config)
    if found:
        return f"{note}What would fit: {', or '.join(found)}."
    return note + (
        "No single change of maxSequences, contextTokens, keyValueCache or devicesPerReplica would fit: use an accelerator "
        "with more memory, or a smaller build."
    )


def with_devices(config: EngineConfig, devices: int) -> EngineConfig:
    """The same on another number of the same devices."""
    return replace(config, devices=devices, memory_bytes=config.device_bytes * devices)


def round_up(count: int, multiple: int) -> int:
    """The next multiple."""
    return -(-count // multiple) * multiple


def _after(current: str, types: tuple[str, ...]) -> Iterable[str]:
    return types[types.index(current) + 1 :] if current in types else types


def _largest(candidates: range, holds: Callable[[int], bool]) -> int | None:
    """The largest candidate for which it holds, where it holds for all below one that it holds for; None: for none."""
    low, high = candidates.start, candidates.stop
    if low >= high or not holds(low):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
