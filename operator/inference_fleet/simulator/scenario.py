"""What is simulated: variants, objectives, faults, and the rules of the door."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from inference_fleet.simulator.truth import EngineTruth


@dataclass(frozen=True, slots=True)
class Variant:
    """Replicas of one kind. Money is for a whole replica."""

    name: str
    truth: EngineTruth
    price_per_hour: Decimal
    devices: int = 1
    """Devices of a replica, for GPU-hours."""
    minimum: int = 1
    maximum: int = 64
    initial: int = 1
    """Ready at the start."""
    stock: int | None = None
    """Replicas that the cluster has room for; None: without end."""
    spot: bool = False
    weight: float = 1.0
    """Relative share of new requests for each ready replica, unless the scaler publishes weights."""


@dataclass(frozen=True, slots=True)
class Objectives:
    """Bounds in seconds; a request meets its SLO when it meets all that are given. None: not judged."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None
    percentile: int = 95
    """Percent of requests that must meet each of them."""


@dataclass(frozen=True, slots=True)
class Window:
    """From `start` until `end`, seconds."""

    start: float
    end: float

    def holds(self, now: float) -> bool:
        """Whether `now` is inside."""
        return self.start <= now < self.end


@dataclass(frozen=True, slots=True)
class StockOut:
    """In the window the cluster has room for no more than `replicas` of the variant; what runs stays."""

    window: Window
    variant: str
    replicas: int = 0


@dataclass(frozen=True, slots=True)
class Reclaim:
    """At `at` the provider gives notice to `count` replicas of a spot variant (None: all of them)."""

    at: float
    variant: str
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Slow:
    """Start-ups that begin in the window take `factor` times as long."""

    window: Window
    factor: float


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong besides load."""

    scrape_loss: float = 0.0
    """Share of scrapes (of one target, once) that are lost."""
    outages: Sequence[Window] = ()
    """Nothing at all is scraped."""
    frozen: Sequence[Window] = ()
    """Engines' gauges show what they showed when the window began; counters stand still with them."""
    stock_outs: Sequence[StockOut] = ()
    reclaims: Sequence[Reclaim] = ()
    slow_starts: Sequence[Slow] = ()
    load_failure: float = 0.0
    """Share of start-ups that fail at their end; the kubelet tries again after 10, 20, 40 … 300 s, on the same bill."""
    restarts: Sequence[float] = ()
    """The scaler is begun anew and remembers nothing."""


NO_FAULTS = Faults()


@dataclass(frozen=True, slots=True)
class Scenario:
    """One simulated fleet. Seconds."""

    name: str
    variants: tuple[Variant, ...]
    objectives: Objectives
    duration: float
    """Scored and billed; requests that arrived before its end are served to theirs afterwards, unscaled and unbilled."""
    warm_up: float = 0.0
    """What arrives, runs and is paid before this is not scored: loops look back at traffic before they are judged."""
    faults: Faults = NO_FAULTS
    scrape_seconds: float = 15.0
    scrape_jitter: float = 1.0
    """A scrape comes up to this much late."""
    hold_seconds: float = 120.0
    """How long the gateway holds a request for an engine that is not ready."""
    drain_seconds: float = 600.0
    """How long a draining replica may finish what it has; then it is killed."""
    notice_seconds: float = 120.0
    """From the provider's notice to the end of a spot replica."""
    tail_seconds: float = 1800.0
    """How long after `duration` requests are served to their end."""
    budget_per_hour: Decimal | None = None
    currency: str = "USD"
    coarse: bool = True
    """False: every iteration is an event of its own."""
    seed: int = 1
