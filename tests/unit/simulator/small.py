"""Small engines and fleets for the simulator's tests."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from random import Random
from typing import Any

from inference_fleet.simulator.engine import Engine
from inference_fleet.simulator.request import Request
from inference_fleet.simulator.scenario import Objectives, Scenario, Variant
from inference_fleet.simulator.traces import Arrival
from inference_fleet.simulator.truth import QUIET, EngineTruth, StepTimes

TIMES = StepTimes(
    alpha=0.02,
    phi=0.01,
    beta=5e-5,
    p0=256,
    beta2=2e-5,
    p1=768,
    epsilon=1e-9,
    gamma=2e-4,
    gamma2=3e-4,
    n1=24,
    delta=1e-7,
)
QUIET_TRUTH = EngineTruth(
    "small", TIMES, kv_capacity_tokens=20_000, max_sequences=32, max_batched_tokens=512, noise=QUIET
)
NOISY_TRUTH = EngineTruth("small", TIMES, kv_capacity_tokens=60_000, max_sequences=64, max_batched_tokens=1024)


def variant(truth: EngineTruth = NOISY_TRUTH, name: str = "a", **changes: Any) -> Variant:
    """A variant at 4.00 an hour."""
    return replace(Variant(name, truth, Decimal("4.00"), devices=2, initial=2), **changes)


def scenario(*variants: Variant, duration: float = 600.0, **changes: Any) -> Scenario:
    """A fleet with TTFT 2 s, TPOT 100 ms."""
    return replace(Scenario("small", variants or (variant(),), Objectives(2.0, 0.1), duration), **changes)


def poisson(rate: float, seconds: float, seed: int, prompt: int = 400, output: int = 60) -> list[Arrival]:
    """Poisson arrivals with lengths that vary threefold."""
    random = Random(f"{seed}/traffic")
    found = []
    at = random.expovariate(rate)
    while at < seconds:
        found.append(Arrival(at, random.randint(prompt // 2, prompt * 3 // 2), random.randint(1, output * 2)))
        at += random.expovariate(rate)
    return found


def drive(engine: Engine, requests: list[Request], check: Any = lambda engine: None) -> list[Request]:
    """Runs an engine alone until it is idle; calls `check` after every event. Returns the requests in the order of their ends."""
    ended = []
    upcoming = sorted(requests, key=lambda r: r.arrival)
    while upcoming or engine.running or engine.waiting:
        if upcoming and upcoming[0].arrival <= engine.end:
            request = upcoming.pop(0)
            engine.submit(request, request.arrival)
        else:
            engine.advance()
            ended += engine.done
            engine.done.clear()
            engine.first.clear()
        check(engine)
    return ended
