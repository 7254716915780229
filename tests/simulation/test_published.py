"""llm-d's published scenario: what the simulator makes of it, as docs/benchmarks/autoscaling.md reports it."""

from __future__ import annotations

import itertools
from decimal import Decimal

from inference_fleet.simulator import compare, synthesis, truth
from inference_fleet.simulator.baselines.llmd import LlmdSlo
from inference_fleet.simulator.baselines.static import Static
from inference_fleet.simulator.results import Result
from inference_fleet.simulator.scenario import Objectives, Scenario, Variant

STAGES = ((2, 330), (4, 360), (6, 360), (8, 360), (10, 360), (4, 360), (1, 300))
END = 2430.0


def run(candidate: compare.Candidate, seed: int) -> Result:
    engine = truth.load("knee")["qwen3-32b-h100x2"]
    only = Variant("qwen", engine, Decimal("7.98"), 2, 3, 8, 3)
    scenario = Scenario("llm-d", (only,), Objectives(3.0, 0.1), END, seed=seed)
    return compare.run(scenario, list(synthesis.staged(STAGES, 4000, 1000, seed, 0.1)), candidate)


def test_a_static_peak_of_eight_meets_everything_as_published() -> None:
    result = run(compare.Candidate("8", lambda: Static({"qwen": 8}), {"qwen": 8}), 1)
    assert result.attainment == 1.0


def test_the_loop_holds_its_floor_and_bursts_at_the_first_crossing_as_published() -> None:
    result = run(compare.Candidate("", LlmdSlo), 1)
    totals = result.totals()
    assert [n for at, n in totals if at < 690] == [3]
    assert max(n for at, n in totals if at < 1050) == 8
    assert all(b - a >= -1 for (_, a), (_, b) in itertools.pairwise(totals)), "it drains one at a time"
    first = next(at for at, met in sorted(zip(result.book.arrival, result.book.met, strict=True)) if not met)
    assert 690 <= first < 900
