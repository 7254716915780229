"""How long an engine's iteration really takes in the simulated world: parameters in `truth_*.json`, calibrated on measurements.

Seconds of one iteration with P prompt tokens (their attention over A token pairs), n decoding sequences and K tokens of KV
cache read:

    alpha + [P > 0]·phi + beta·max(0, P - p0) + beta2·max(0, P - p1) + epsilon·A
          + gamma·n + gamma2·max(0, n - n1) + delta·K

times noise: a factor for the replica (no two devices are alike), a slow drift (autoregressive, minutes), and a factor drawn for
each iteration. The planner's model is alpha + beta·P + gamma·n + delta·K; the knees at p0, p1 and n1, the attention term and
the noise are what it cannot express. How the numbers were found, and how far they are off: docs/designs/010-simulator.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import resources
from random import Random
from typing import Any


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Coefficients of one engine on one kind of device, without noise. Seconds, seconds a token, seconds a sequence."""

    alpha: float
    """Any iteration: reading the weights, launching kernels."""
    phi: float = 0.0
    """Extra of an iteration with prompt tokens."""
    beta: float = 0.0
    """A prompt token past `p0`."""
    p0: float = 0.0
    """Prompt tokens that are free: below, the device waits for memory anyway."""
    beta2: float = 0.0
    """Further cost of a prompt token past `p1`."""
    p1: float = 0.0
    epsilon: float = 0.0
    """A pair of tokens in the attention of prompts."""
    gamma: float = 0.0
    """A decoding sequence."""
    gamma2: float = 0.0
    """Further cost of a decoding sequence past `n1`."""
    n1: float = 0.0
    delta: float = 0.0
    """A token of KV cache read."""

    def seconds(self, prompt: float, pairs: float, sequences: float, cached: float) -> float:
        """One iteration."""
        total = self.alpha + self.gamma * sequences + self.delta * cached
        if sequences > self.n1:
            total += self.gamma2 * (sequences - self.n1)
        if prompt > 0:
            total += self.phi + self.epsilon * pairs
            if prompt > self.p0:
                total += self.beta * (prompt - self.p0)
            if prompt > self.p1:
                total += self.beta2 * (prompt - self.p1)
        return total


@dataclass(frozen=True, slots=True)
class NoiseLevels:
    """How far iterations stray. All are standard deviations of the logarithm."""

    step: float = 0.08
    """Between iterations, independent."""
    drift: float = 0.03
    """Slow: neighbours, clocks, temperature."""
    drift_seconds: float = 120.0
    """Time constant of the drift."""
    replica: float = 0.03
    """Between replicas, constant for a replica's life."""


QUIET = NoiseLevels(0.0, 0.0, 120.0, 0.0)
"""No noise at all: for tests of arithmetic."""


@dataclass(frozen=True, slots=True)
class SpeculationTruth:
    """Draft and verify. A token drafted at position i is accepted with `acceptance` if all before it were."""

    depth: int
    acceptance: float
    draft_seconds: float
    """One draft token for the whole batch."""
    verify_sequence_share: float = 1.0
    """What a drafted token costs in the target's iteration, in units of `gamma`: near zero in a small batch that waits for
    memory, toward one where computing binds. It is multiplied by min(1, n / `verify_full_at`)."""
    verify_full_at: int = 32

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens of an iteration and sequence: 1 + a + a² + … + a^depth."""
        return 1.0 + sum(self.acceptance**i for i in range(1, self.depth + 1))

    def extra_seconds(self, times: StepTimes, sequences: int) -> float:
        """What drafting and verifying add to an iteration."""
        share = self.verify_sequence_share * min(1.0, sequences / self.verify_full_at)
        return self.depth * (self.draft_seconds + times.gamma * share * sequences)


@dataclass(frozen=True, slots=True)
class EngineTruth:
    """One engine's shape and speed."""

    name: str
    times: StepTimes
    kv_capacity_tokens: int
    max_sequences: int = 256
    max_batched_tokens: int = 2048
    """Tokens of one iteration, decoding ones included: chunked prefill."""
    block_tokens: int = 16
    noise: NoiseLevels = NoiseLevels()
    speculation: SpeculationTruth | None = None
    start_median_seconds: float = 100.0
    """Scheduled to ready: lognormal with this median."""
    start_sigma: float = 0.15
    """Standard deviation of the logarithm of the start-up time."""
    source: str = ""

    def __post_init__(self) -> None:
        """Refuses shapes in which nothing could run."""
        if self.kv_capacity_tokens < 2 * self.block_tokens or self.max_sequences < 1 or self.max_batched_tokens < 1:
            raise ValueError(f"{self.name}: no room for one sequence")


class Noise:
    """The noise of one replica; its own stream, so that what another replica does never changes it."""

    __slots__ = ("_fixed", "_level", "_next", "_period", "_random", "_sigma", "_step", "factor")

    def __init__(self, levels: NoiseLevels, random: Random) -> None:
        """Draws the replica's own factor and where its drift stands."""
        self._random = random
        self._step = levels.step
        self._sigma = levels.drift
        self._fixed = random.gauss(0.0, levels.replica) if levels.replica else 0.0
        self._level = random.gauss(0.0, levels.drift) if levels.drift else 0.0
        self._period = levels.drift_seconds / 12.0
        self._next = self._period
        self.factor = math.exp(self._fixed + self._level)
        """Replica and drift, at the time last asked about."""

    _RHO = math.exp(-1.0 / 12.0)

    def draw(self, now: float, steps: int) -> float:
        """The mean factor of `steps` iterations that begin at `now`: the mean of independent ones has 1/√steps of their
        spread."""
        if self._sigma and now >= self._next:
            self._level = self._RHO * self._level + math.sqrt(1 - self._RHO**2) * self._random.gauss(0.0, self._sigma)
            self.factor = math.exp(self._fixed + self._level)
            self._next = now + self._period
        if not self._step:
            return self.factor
        return self.factor * max(0.5, self._random.gauss(1.0, self._step / math.sqrt(steps)))


def load(name: str) -> Mapping[str, EngineTruth]:
    """The engines of `truth_NAME.json`, by name."""
    text = resources.files("inference_fleet.simulator").joinpath(f"truth_{name}.json").read_text()
    document = json.loads(text)
    return {key: read_engine(key, value) for key, value in document["engines"].items()}


def read_engine(name: str, value: Mapping[str, Any]) -> EngineTruth:
    """An engine as a truth file says it; unknown fields are refused."""
    known = {f.name for f in fields(EngineTruth)} - {"name"}
    strange = set(value) - known
    if strange:
        raise ValueError(f"{name}: unknown fields {sorted(strange)}; known: {sorted(known)}")
    speculation = value.get("speculation")
    return EngineTruth(
        name=name,
        **{
            **value,
            "times": StepTimes(**value["times"]),
            "noise": NoiseLevels(**value.get("noise", {})),
            "speculation": SpeculationTruth(**speculation) if speculation else None,
        },
    )
