"""A replica's life: Pending (no device yet), Loading, Ready, Draining, Gone; and its bill, from scheduled to gone."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from decimal import Decimal
from random import Random

from inference_fleet.simulator.engine import Engine
from inference_fleet.simulator.scenario import Variant
from inference_fleet.simulator.view import EngineSample, Phase, PodView

SAMPLES_KEPT = 240
"""Scrapes of a replica that can be looked back at: an hour at 15 s."""


class Replica:
    """One pod and the engine in it. Times in seconds; -1: not yet."""

    __slots__ = (
        "created",
        "engine",
        "frozen",
        "gone_at",
        "load",
        "name",
        "number",
        "phase",
        "random",
        "restarts",
        "samples",
        "scheduled_at",
        "since",
        "variant",
        "version",
        "weight",
    )

    def __init__(self, number: int, variant: Variant, created: float, seed: int, coarse: bool) -> None:
        """A pod that was just made. All its chance comes from the seed, its variant and its number."""
        self.number = number
        self.name = f"{variant.name}-{number}"
        self.variant = variant
        self.phase = Phase.PENDING
        self.created = created
        self.since = created
        self.scheduled_at = -1.0
        self.gone_at = -1.0
        self.restarts = 0
        self.random = Random(f"{seed}/{self.name}")
        self.engine = Engine(variant.truth, self.random, coarse)
        self.version = 0
        """Raised whenever the engine's `end` changes: older events are void."""
        self.load = 0
        """Requests inside, as the gateway counts them."""
        self.weight = variant.weight
        self.samples: deque[EngineSample] = deque(maxlen=SAMPLES_KEPT)
        self.frozen: EngineSample | None = None

    def enter(self, phase: Phase, now: float) -> None:
        """Moves on."""
        self.phase = phase
        self.since = now

    @property
    def serves(self) -> bool:
        """Whether an engine runs."""
        return self.phase in (Phase.READY, Phase.DRAINING)

    @property
    def is_held(self) -> bool:
        """Whether it counts as a replica of the Deployment: not on its way out."""
        return self.phase in (Phase.PENDING, Phase.LOADING, Phase.READY)

    @property
    def has_device(self) -> bool:
        """Whether it is billed and takes stock."""
        return self.phase in (Phase.LOADING, Phase.READY, Phase.DRAINING)

    def view(self) -> PodView:
        """As a scaler sees it."""
        return PodView(
            name=self.name,
            variant=self.variant.name,
            phase=self.phase,
            since=self.since,
            created=self.created,
            restarts=self.restarts,
            samples=tuple(self.samples),
        )

    def sample(self, now: float) -> EngineSample:
        """What its `/metrics` would say now."""
        engine = self.engine
        spec = self.variant.truth.speculation
        depth = spec.depth if spec is not None else 0
        generated = engine.generated_by(now)
        return EngineSample(
            at=now,
            running=engine.running,
            waiting=engine.waiting,
            kv_usage=min(1.0, engine.kv_usage),
            prompt_tokens=engine.computed_prompt_tokens,
            generation_tokens=generated,
            busy_seconds=engine.busy_by(now),
            preemptions=engine.preemptions,
            prefix_queries=engine.cache.queries,
            prefix_hits=engine.cache.hits,
            drafts=engine.drafts,
            draft_tokens=engine.drafts * depth,
            accepted_tokens=engine.accepted,
        )


@dataclass(frozen=True, slots=True)
class Bill:
    """A stay on devices."""

    variant: str
    devices: int
    price_per_hour: Decimal
    start: float
    end: float

    @property
    def amount(self) -> Decimal:
        """Exact to the microsecond."""
        return self.price_per_hour * Decimal(round((self.end - self.start) * 1_000_000)) / Decimal(3_600_000_000)

    @property
    def device_hours(self) -> float:
        """Devices times hours."""
        return self.devices * (self.end - self.start) / 3600
