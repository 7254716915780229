"""Scalers beside each other in the simulator: `make bench-autoscaling`. Writes docs/benchmarks/autoscaling.md.

First llm-d's published scenario, whose service time was fixed before (`autoscaling_knee`); then every baseline on the hour-long
traces, tuned on the first half and scored on the second, and on a synthetic day, tuned on its first eight hours of working
time. `--quick` runs one seed and no day. The last lines are figures, one JSON object each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from inference_fleet.simulator import compare, report, synthesis, traces, truth
from inference_fleet.simulator.baselines.llmd import LlmdSlo
from inference_fleet.simulator.results import Result
from inference_fleet.simulator.scenario import Objectives, Scenario, Variant

PAGE = Path("docs/benchmarks/autoscaling.md")
PICTURES = Path("docs/pictures")
PARTS = Path("build/autoscaling")
DATA = Path("tests/data/traces")
SEEDS = (1, 2, 3, 4, 5)
HOUR_SEEDS = (1, 2, 3)
WARM_UP = 600.0
"""Seconds of traffic before the scored slice, so that loops know where they are."""
PRICE = Decimal("3.99")
"""USD for a device and hour: an example; prices are the user's data."""

STAGES = ((2, 330), (4, 360), (6, 360), (8, 360), (10, 360), (4, 360), (1, 300))
"""Requests a second, seconds: llm-d, guides/workload-autoscaling/slo-aware/benchmark-templates/BENCHMARK.md."""
PUBLISHED = {"attainment": 95.8, "replicas": 5.93, "cold": 85.6}


def say(text: str) -> None:
    """Progress, apart from the figures."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Case:
    """A trace, what serves it, and what must hold."""

    name: str
    file: str
    scale: float
    engine: str
    objectives: Objectives
    maximum: int

    def traffic(self) -> list[traces.Arrival]:
        """The hour, at `scale` times its rate."""
        recorded = traces.read(DATA / self.file)
        return recorded if self.scale == 1 else synthesis.multiplied(recorded, self.scale, 1)

    def scenario(self, duration: float, seed: int, initial: int = 1) -> Scenario:
        """The fleet."""
        devices = int(self.engine.rpartition("x")[2])
        only = Variant("main", truth.load("splitwise")[self.engine], PRICE * devices, devices, 1, self.maximum, initial)
        return Scenario(self.name, (only,), self.objectives, duration, seed=seed, warm_up=WARM_UP)


CASES = (
    Case("conversation", "azure-2023-conversation.csv.gz", 3, "llama2-70b-h100x4", Objectives(2.0, 0.1), 20),
    Case("code", "azure-2023-code.csv.gz", 3, "llama2-70b-h100x4", Objectives(2.0, 0.2), 40),
    Case("mooncake", "mooncake-conversation.jsonl.gz", 1, "llama2-70b-h100x8", Objectives(30.0, 0.1), 60),
)


def mean_and_interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half of its 95 % interval by Student's t."""
    if len(values) < 2:
        return values[0], 0.0
    t = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}[len(values)]
    return statistics.fmean(values), t * statistics.stdev(values) / len(values) ** 0.5


def shown(values: Sequence[float], digits: int = 2) -> str:
    """`mean ± half interval`."""
    mean, half = mean_and_interval(values)
    return f"{mean:.{digits}f}" if len(values) < 2 else f"{mean:.{digits}f} ± {half:.{digits}f}"


# --- llm-d's scenario -----------------------------------------------------------------------------------------------------------


def published(seeds: Sequence[int]) -> tuple[str, list[dict[str, Any]]]:
    """The loop on its own scenario beside its published figure."""
    engine = truth.load("knee")["qwen3-32b-h100x2"]
    end = float(sum(seconds for _, seconds in STAGES))
    rows, figures = [], []
    for name, make, first in (("llm-d's loop", LlmdSlo, 3), ("static 8", None, 8), ("static 6", None, 6)):
        attained, replicas, worst, clean = [], [], [], []
        for seed in seeds:
            say(f"published scenario: {name}, seed {seed}")
            only = Variant("qwen", engine, 2 * PRICE, 2, 3, 8, first)
            scenario = Scenario("llm-d", (only,), Objectives(3.0, 0.1, percentile=90), end + 1200, seed=seed)
            traffic = list(synthesis.staged(STAGES, 4000, 1000, seed, 0.1))
            candidate = compare.Candidate("", make) if make is not None else compare.fixed(scenario, first)
            result = compare.run(scenario, traffic, candidate)
            # The episode ends when the pool has drained to its floor after the load.
            floor = next((at for at, n in result.totals() if at >= end and n == 3), end)
            attained.append(100 * result.attainment)
            replicas.append(result.average_replicas(0.0, floor))
            worst.append(result.summary().worst_five_minutes_percent)
            missed = [at for at, met in zip(result.book.arrival, result.book.met, strict=True) if not met]
            clean.append(100 * sum(690 <= at < 1050 for at in missed) / len(missed) if missed else 0.0)
        rows.append((name, shown(attained), shown(replicas), shown(worst, 1), shown(clean, 0)))
        if make is not None:
            figures = [
                figure(
                    "attainment_percent", "llmd-published", statistics.fmean(attained), "%", PUBLISHED["attainment"]
                ),
                figure(
                    "average_replicas", "llmd-published", statistics.fmean(replicas), "replicas", PUBLISHED["replicas"]
                ),
            ]
    rows.append(("published: llm-d's loop, predictor warm", "95.8", "5.93", "-", '"almost entirely" (6/s)'))
    rows.append(("published: llm-d's loop, predictor cold", "85.6", "-", "-", "-"))
    rows.append(("published: static 8", "100", "8", "-", "-"))
    columns = ("", "attainment %", "mean replicas", "worst 5 min %", "of the misses, in the third stage %")
    return report.table(columns, rows), figures


def figure(
    measure: str, trace: str, value: float | None, unit: str, peer: float | None = None, **more: Any
) -> dict[str, Any]:
    """One figure."""
    found = {"bench": "autoscaling", "measure": measure, "trace": trace}
    found["value"] = round(value, 3) if value is not None else None  # type: ignore[assignment]
    found["unit"] = unit
    if peer is not None:
        found |= {"peer": "llm-d, published", "peer_value": peer}  # type: ignore[dict-item]
    return {**found, **more}


# --- Baselines on traces --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scored:
    """A scaler on one case."""

    name: str
    setting: str
    results: Sequence[Result]

    @property
    def attainment(self) -> float:
        """Mean, percent."""
        return statistics.fmean(100 * r.attainment for r in self.results)

    @property
    def money(self) -> float:
        """Mean."""
        return statistics.fmean(float(r.money) for r in self.results)


def score(
    case: Case,
    training: Sequence[traces.Arrival],
    scored: Sequence[traces.Arrival],
    spans: tuple[float, float],
    seeds: Sequence[int],
) -> list[Scored]:
    """Every baseline: its setting chosen on the training slice with seed 0, scored with the others."""
    before = case.scenario(spans[0], 0)
    peak = compare.static_peak(before, training)
    mean = compare.static_mean(before, training, peak)
    before = case.scenario(spans[0], 0, peak)
    after = case.scenario(spans[1], seeds[0], peak)
    own_peak = compare.static_peak(after, scored)
    say(f"{case.name}: static peak {peak} (of the scored slice itself {own_peak}), mean {mean}")
    chosen = {"static-peak": compare.fixed(before, peak), "static-mean": compare.fixed(before, mean)}
    for name, settings in compare.candidates().items():
        chosen[name] = compare.tuned(before, training, settings)
        say(f"{case.name}: {name} tuned to {chosen[name].setting}")
    if spans[1] > 7200:
        bound = compare.foresight(after, scored, also=(own_peak,), smoothing=(300.0,), bisections=4)
    else:
        bound = compare.foresight(after, scored, also=(own_peak,))
    chosen["clairvoyant"] = bound[0]
    say(f"{case.name}: clairvoyant {chosen['clairvoyant'].setting}")
    return [
        Scored(name, candidate.setting, [compare.run(replace(after, seed=seed), scored, candidate) for seed in seeds])
        for name, candidate in chosen.items()
    ]


def chapter(case: Case, found: Sequence[Scored], title: str) -> tuple[str, list[dict[str, Any]]]:
    """The table of one case, its picture, its figures."""
    by_name = {s.name: s for s in found}
    peak, bound = by_name["static-peak"].money, by_name["clairvoyant"].money
    saving = peak - bound
    meaningful = saving >= 0.05 * peak
    rows = []
    for s in found:
        summaries = [r.summary() for r in s.results]
        share = f"{100 * (peak - s.money) / saving:.0f}" if meaningful and s.attainment >= 99 else "-"
        rows.append(
            (
                s.name,
                s.setting,
                shown([x.attainment_percent for x in summaries]),
                shown([x.worst_five_minutes_percent for x in summaries], 1),
                shown([x.ttft_p99 for x in summaries]),
                shown([1000 * x.tpot_p99 for x in summaries], 0),
                shown([x.average_replicas for x in summaries]),
                shown([float(r.money) for r in s.results]),
                f"{statistics.fmean(float(x.money_per_million_good_tokens or 'nan') for x in summaries):.2f}",
                share,
                f"{statistics.fmean(x.direction_changes_per_hour for x in summaries):.1f}",
                f"{sum(x.killed for x in summaries)}",
            )
        )
    columns = (
        "scaler", "setting", "attainment %", "worst 5 min %", "TTFT p99 s", "TPOT p99 ms", "mean replicas", "money USD",
        "per 1M good tokens", "of clairvoyant saving %", "turns/h", "killed",
    )  # fmt: skip
    reaching = [s for s in found if s.attainment >= 99 and s.name != "clairvoyant"]
    cheapest = min(reaching, key=lambda s: s.money) if reaching else None
    said = (
        f"The clairvoyant schedule saves {100 * saving / peak:.1f} % of the static peak's money"
        + ("" if meaningful else ": under 5 %, so no share of it is given")
        + f". Cheapest baseline at 99 %: {cheapest.name if cheapest else 'none'}."
    )
    figures = []
    for s in found:
        captured = 100 * (peak - s.money) / saving if meaningful and s.attainment >= 99 else None
        why = {}
        if captured is None:
            why["why"] = "attainment is under 99 %" if meaningful else "the clairvoyant schedule saves under 5 %"
        figures.append(figure("attainment_percent", title, s.attainment, "%", scaler=s.name))
        figures.append(figure("clairvoyant_saving_captured_percent", title, captured, "%", scaler=s.name, **why))
    drawn = report.pareto(
        {s.name: (s.money, s.attainment) for s in found}, title, PICTURES / f"autoscaling-{title}.png"
    )
    image = f"\n![Money against attainment](../pictures/autoscaling-{title}.png)\n" if drawn else ""
    bounds = case.objectives
    where = f"`{case.file}` at {case.scale:g} times its rate on {case.engine}"
    head = f"{where}; TTFT {bounds.ttft:g} s, TPOT {bounds.tpot:g} s."
    return f"{head}\n\n{report.table(columns, rows)}\n\n{said}\n{image}", figures


def hours(seeds: Sequence[int]) -> tuple[str, list[dict[str, Any]]]:
    """The three recorded hours."""
    text, figures = [], []
    for case in CASES:
        traffic = case.traffic()
        end = traffic[-1].at
        middle = (end + WARM_UP) / 2
        training, scored = traces.cut(traffic, 0, middle), traces.cut(traffic, middle - WARM_UP, end)
        found = score(case, training, scored, (middle, end - middle + WARM_UP), seeds)
        part, more = chapter(case, found, case.name)
        text.append(f"### {case.name}\n\n{part}")
        figures += more
    return "\n".join(text), figures


def day() -> tuple[str, list[dict[str, Any]]]:
    """A synthetic day of the conversation trace, trained on two hours before noon of another day."""
    case = replace(CASES[0], scale=2)
    recorded = traces.read(DATA / case.file)
    another = list(synthesis.resampled(recorded, 12 * 3600.0, 7, case.scale))
    training = traces.cut(another, 8 * 3600.0, 10 * 3600.0)
    scored = list(synthesis.resampled(recorded, synthesis.DAY_SECONDS, 1, case.scale))
    found = score(case, training, scored, (2 * 3600.0, synthesis.DAY_SECONDS), (1,))
    part, figures = chapter(case, found, "day")
    return f"### day (synthetic)\n\n{part}", figures


def speed() -> tuple[str, list[dict[str, Any]]]:
    """CPU seconds of a simulated day of the conversation trace on eight replicas."""
    recorded = traces.read(DATA / CASES[0].file)
    scored = list(synthesis.resampled(recorded, synthesis.DAY_SECONDS, 1, 3.5))
    scenario = replace(CASES[0].scenario(synthesis.DAY_SECONDS, 1, 8))
    started = time.process_time()
    result = compare.run(scenario, scored, compare.fixed(scenario, 8))
    spent = time.process_time() - started
    text = (
        f"A synthetic day of the conversation trace at 3.5 times its rate ({len(scored):,} requests,"
        f" {result.summary().attainment_percent:.1f} % within SLO) on eight replicas: {spent:.0f} s of CPU on one core."
    )
    return text, [figure("simulated_day_seconds", "day", spent, "s", target=60)]


def main() -> None:
    """Runs everything, or one part, and writes the page from what there is."""
    parts: dict[str, Callable[[], tuple[str, list[dict[str, Any]]]]] = {
        "published": lambda: published(SEEDS),
        "speed": speed,
        "hours": lambda: hours(HOUR_SEEDS),
        "day": day,
    }
    parser = argparse.ArgumentParser(
        description="Compares scalers in the simulator and writes docs/benchmarks/autoscaling.md."
    )
    parser.add_argument("--only", choices=sorted(parts), help="measure this part anew and leave the others")
    only = parser.parse_args().only
    for folder in (PICTURES, PARTS, PAGE.parent):
        folder.mkdir(parents=True, exist_ok=True)
    texts = {}
    figures: list[dict[str, Any]] = []
    for name, measure in parts.items():
        kept = PARTS / f"{name}.json"
        if only in (None, name):
            text, found = measure()
            kept.write_text(json.dumps({"text": text, "figures": found}))
        document = json.loads(kept.read_text()) if kept.exists() else {"text": "Not measured.", "figures": []}
        texts[name] = document["text"]
        figures += document["figures"]
    PAGE.write_text(TEXT.format(**texts))
    for item in figures:
        print(json.dumps(item))


TEXT = """<!-- Written by `make bench-autoscaling`. -->
# Autoscaling in the simulator

What is simulated, and how its step times were found: [010: The simulator](../designs/010-simulator.md). Attainment: requests that
completed with TTFT and TPOT within their bounds, of all that arrived. Money: every replica from scheduled to gone at 3.99 USD a
device and hour (an example). Values are means over seeds with 95 % intervals (Student's t) where there are several.

## llm-d's published scenario

Qwen3-32B on two H100, 4,000 prompt and 1,000 output tokens, TTFT 3 s, TPOT 100 ms, 2 → 4 → 6 → 8 → 10 → 4 → 1 requests a
second, 3 to 8 replicas, start-up 100 s. The service time was fixed from the published operating point and committed before the
loop ran on it.

{published}

The loop here reads the histograms of actual latencies, the guide's documented fallback; the published figure is that of a warm
latency predictor, which sees pressure before requests have waited (with a cold one: 85.6 %). Replicas agree within 6 %;
attainment is some eleven points lower. Two transients account for it. The first is the published one: three replicas meet six
requests a second. The second is not in the published run: at eight requests a second the simulated signal lies below 0.40 (one
request a second and replica gives 0.26 to 0.29), the loop gives two replicas back, and meets ten requests a second with six. The
real engine must be slower than ours at middling load, so that its signal stays in the band; our step time was fixed by one
point, the knee, and was not touched afterwards. **So the simulated loop is worse than the published one on its own scenario,
and to be better than it here says less than it seems to.**

## Speed

{speed}

## Recorded hours

Each scaler's setting is chosen on the first half of the hour (the cheapest with 99 % attainment, else the nearest to it) and
scored on the second, each after ten minutes of the traffic before it that are not scored. Everything starts with the static
peak's number of replicas, ready. The clairvoyant schedule is the cheapest that was found with the scored traffic in hand. The
share of its saving, from the static peak's money, is given for scalers that attain 99 %: missing is cheap.

{hours}

{day}
"""


if __name__ == "__main__":
    main()
