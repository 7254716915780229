"""`inference-fleet simulate`: what a policy and other scalers would have done to latency and money under given traffic."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inference_fleet.simulator.results import Result
    from inference_fleet.simulator.scenario import Scenario
    from inference_fleet.simulator.traces import Arrival
    from inference_fleet.simulator.truth import EngineTruth

SPANS = {"recorded": 0.0, "day": 86400.0, "week": 7 * 86400.0}


def add_commands(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Registers the command."""
    simulate = subparsers.add_parser(
        "simulate",
        help="what a policy would have done to latency and money under given traffic, beside other scalers",
        description="Simulates a policy's fleet in virtual time. Exit status: 0 done, 1 the policy cannot be placed, 2 invalid"
        " arguments or files.",
    )
    simulate.add_argument(
        "--policy", action="append", required=True, type=Path, metavar="FILE",
        help="YAML file or folder with the InferencePolicy, its models and classes; may be repeated",
    )  # fmt: skip
    simulate.add_argument(
        "--trace",
        required=True,
        type=Path,
        metavar="FILE",
        help="traffic: Azure or BurstGPT CSV, or Mooncake JSONL; .gz too",
    )
    simulate.add_argument(
        "--rates", type=Path, metavar="FILE",
        help="arrival rates of your own gateway, a Prometheus query_range answer (JSON); lengths then come from the trace",
    )  # fmt: skip
    simulate.add_argument(
        "--span",
        choices=sorted(SPANS),
        default="recorded",
        help="the trace as it is, or a synthetic day or week made of it",
    )
    simulate.add_argument("--scale", type=float, default=1.0, metavar="X", help="this many times the trace's rate")
    simulate.add_argument(
        "--engine", action="append", default=[], metavar="[ACCELERATOR=]NAME",
        help="step times of a measured engine, for one accelerator of the policy or for all; an unknown NAME lists them",
    )  # fmt: skip
    simulate.add_argument(
        "--engines-file", type=Path, metavar="FILE", help="your own step times (JSON, as truth_*.json)"
    )
    simulate.add_argument("--model", metavar="NAME", help="which model of the policy; default: the first")
    simulate.add_argument(
        "--scaler",
        action="append",
        default=[],
        metavar="NAME",
        help="may be repeated, `all` for every one; default: declared",
    )
    simulate.add_argument(
        "--tune",
        action="store_true",
        help="choose each scaler's setting on the first half of the traffic, score on the second",
    )
    simulate.add_argument(
        "--max-replicas", type=int, default=32, metavar="N", help="most replicas that scalers may use"
    )
    simulate.add_argument("--seed", type=int, default=1, metavar="N", help="decides all chance")
    simulate.add_argument(
        "--out", type=Path, metavar="DIR", help="folder for simulation.md, simulation.json, simulation.png"
    )
    simulate.set_defaults(run=run_simulate)


def run_simulate(args: argparse.Namespace) -> int:
    """Runs every scaler asked for on the same fleet and traffic, prints the table, writes the files."""
    from inference_fleet.simulator import compare, report
    from inference_fleet.simulator.policy import CannotSimulate

    names = list(compare.NAMES) if "all" in args.scaler else args.scaler or ["declared"]
    try:
        unknown = [name for name in names if name not in compare.NAMES]
        if unknown:
            raise ValueError(f"unknown scaler {unknown[0]!r}; known: {', '.join(compare.NAMES)}")
        traffic, duration = _traffic(args)
        scenario = _scenario(args, duration)
    except CannotSimulate as error:
        print(error, file=sys.stderr)
        return 1
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    training, scored = traffic, traffic
    scored_scenario = scenario
    if args.tune:
        training, scored = _halves(traffic, duration)
        scored_scenario = scenario = replace(scenario, duration=duration / 2)
    results: dict[str, Result] = {}
    for name in names:
        print(f"simulating {name} …", file=sys.stderr, flush=True)
        slice_ = scored if name == "clairvoyant" else training
        choices = compare.named(name, scenario, slice_)
        chosen = compare.tuned(scenario, training, choices) if args.tune else choices[0]
        label = name if name == "declared" else f"{name} ({chosen.setting})"
        results[label] = compare.run(scored_scenario, scored, chosen)
    _write(args, scored_scenario, results, report.comparison(results))
    return 0


def _write(args: argparse.Namespace, scenario: Scenario, results: dict[str, Result], table: str) -> None:
    from inference_fleet.simulator import report

    bounds = scenario.objectives
    shown = [
        f"{n} {v:g} s" for n, v in (("TTFT", bounds.ttft), ("TPOT", bounds.tpot), ("E2E", bounds.e2e)) if v is not None
    ]
    variants = ", ".join(f"{v.name} ({v.truth.name})" for v in scenario.variants)
    made = "" if args.span == "recorded" and not args.rates and args.scale == 1 else " (synthetic)"
    head = (
        f"Policy {scenario.name} on {variants}; {args.trace.name}{made}, {scenario.duration / 3600:.2f} h, seed {args.seed};"
        f" objectives: {', '.join(shown) or 'none'}; money in {scenario.currency}."
    )
    print(f"{head}\n\n{table}")
    if args.out is None:
        return
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "simulation.md").write_text(f"{head}\n\n{table}\n")
    (args.out / "simulation.json").write_text(json.dumps(report.to_json(results), indent=1) + "\n")
    if not report.picture(results, args.out / "simulation.png"):
        print("no picture: matplotlib is not installed (the extra `plots`)", file=sys.stderr)


def _traffic(args: argparse.Namespace) -> tuple[Sequence[Arrival], float]:
    from inference_fleet.simulator import synthesis, traces

    recorded = traces.read(args.trace)
    if args.scale <= 0:
        raise ValueError("--scale must be more than 0")
    if args.rates is not None:
        rates = traces.prometheus_range(json.loads(args.rates.read_text()))
        rates = replace(rates, values=tuple(v * args.scale for v in rates.values))
        return list(synthesis.followed(recorded, rates, args.seed)), rates.step * len(rates.values)
    if args.span != "recorded":
        seconds = SPANS[args.span]
        return list(synthesis.resampled(recorded, seconds, args.seed, args.scale)), seconds
    if args.scale != 1:
        recorded = synthesis.multiplied(recorded, args.scale, args.seed)
    return recorded, recorded[-1].at + 1.0


def _scenario(args: argparse.Namespace, duration: float) -> Scenario:
    from inference_fleet.explain import files
    from inference_fleet.simulator import policy

    declared = files.read(args.policy)
    if not declared.policies:
        raise ValueError("no InferencePolicy in these files")
    return policy.scenario(
        declared.policies[0],
        declared,
        _engines(args),
        duration,
        model=args.model,
        maximum=args.max_replicas,
        seed=args.seed,
    )


def _engines(args: argparse.Namespace) -> dict[str, EngineTruth]:
    from inference_fleet.simulator import truth

    known = {**truth.load("splitwise"), **truth.load("knee")}
    if args.engines_file is not None:
        document = json.loads(args.engines_file.read_text())
        known.update({name: truth.read_engine(name, value) for name, value in document["engines"].items()})
    found: dict[str, EngineTruth] = {}
    for item in args.engine:
        accelerator, _, name = item.rpartition("=")
        if name not in known:
            raise ValueError(f"--engine: unknown engine {name!r}; known: {', '.join(sorted(known))}")
        found[accelerator] = known[name]
    return found


def _halves(traffic: Sequence[Arrival], duration: float) -> tuple[list[Arrival], list[Arrival]]:
    from inference_fleet.simulator import traces

    return traces.cut(traffic, 0.0, duration / 2), traces.cut(traffic, duration / 2, duration)
