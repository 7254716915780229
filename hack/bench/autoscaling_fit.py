"""Fits the simulator's step times to measured ones and writes `simulator/truth_splitwise.json`: python -m
hack.bench.autoscaling_fit

Least squares of relative errors over the medians of repeated measurements, coefficients not negative, knees searched on a grid.
Prints the table of fit errors of docs/designs/010-simulator.md: in the sample, with each point left out, and on points that
were never used (the sweep over output lengths).
"""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

MEASURED = Path("tests/data/traces/splitwise-perf-model.csv.gz")
TRUTH = Path("operator/inference_fleet/simulator/truth_splitwise.json")
DEVICE_GIGABYTES = 80
USABLE = 0.9
"""Share of a device's memory for weights and KV cache, vLLM's default."""
WEIGHTS_GIGABYTES = {"llama2-70b": 138.0, "bloom-176b": 352.5}
"""16-bit weights."""
KV_BYTES_PER_TOKEN = {"llama2-70b": 80 * 8 * 128 * 2 * 2, "bloom-176b": 70 * 14336 * 2 * 2}
"""Layers x KV heads x head dimension x key and value x 2 bytes; bloom has a KV head for each of its 112 heads."""
LEFT_OUT = {("llama2-70b", "2", 64)}
"""(model, tensor parallelism, batch): 64 prompts of 512 tokens do not fit beside 138 GB of weights on two devices; the measured
prefill there (0.36 and 0.79 s, against 2.4 and 6.6 s for half as many) is of another batch."""


@dataclass(frozen=True)
class Point:
    """Medians of the repetitions of one setting. Milliseconds, tokens."""

    prompt: int
    batch: int
    output: int
    prefill: float
    decode: float

    @property
    def pairs(self) -> float:
        """Token pairs of the prompts' attention."""
        return self.batch * self.prompt**2 / 2

    @property
    def cached(self) -> float:
        """Mean KV tokens read in a decoding iteration."""
        return self.batch * (self.prompt + self.output / 2)


Row = list[float]


def solve(rows: Sequence[Row], targets: Sequence[float]) -> tuple[Row, float]:
    """Least squares of relative errors with coefficients >= 0, by trying every set of active ones. Returns them and the
    squares' sum."""
    width = len(rows[0])
    best: tuple[Row, float] = ([0.0] * width, float("inf"))
    scaled = [[v / y for v in row] for row, y in zip(rows, targets, strict=True)]
    for count in range(1, width + 1):
        for active in itertools.combinations(range(width), count):
            found = _normal(scaled, active)
            if found is None or min(found) < 0:
                continue
            whole = [0.0] * width
            for index, value in zip(active, found, strict=True):
                whole[index] = value
            error = sum((sum(a * b for a, b in zip(whole, row, strict=True)) - 1) ** 2 for row in scaled)
            if error < best[1] - 1e-12:
                best = (whole, error)
    return best


def _normal(rows: Sequence[Row], active: Sequence[int]) -> Row | None:
    size = len(active)
    matrix = [[sum(r[i] * r[j] for r in rows) for j in active] + [sum(r[i] for r in rows)] for i in active]
    scale = [matrix[i][i] ** 0.5 or 1.0 for i in range(size)]
    for i in range(size):
        matrix[i] = [*(matrix[i][j] / scale[i] / scale[j] for j in range(size)), matrix[i][size] / scale[i]]
    for column in range(size):
        pivot = max(range(column, size), key=lambda r: abs(matrix[r][column]))
        if abs(matrix[pivot][column]) < 1e-10:
            return None
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        for r in range(size):
            if r != column:
                factor = matrix[r][column] / matrix[column][column]
                matrix[r] = [a - factor * b for a, b in zip(matrix[r], matrix[column], strict=True)]
    return [matrix[i][size] / matrix[i][i] / scale[i] for i in range(size)]


def decode_fit(points: Sequence[Point]) -> tuple[Callable[[Point], float], dict[str, float]]:
    """alpha + gamma n + gamma2 max(0, n - n1) + delta K."""

    def row(point: Point, n1: float) -> Row:
        return [1.0, point.batch, max(0.0, point.batch - n1), point.cached]

    fits = [(*solve([row(p, n1) for p in points], [p.decode for p in points]), n1) for n1 in (8.0, 16.0, 24.0, 32.0)]
    found, _, n1 = min(fits, key=lambda fit: fit[1])
    names = dict(zip(("alpha", "gamma", "gamma2", "delta"), found, strict=True))
    return lambda p: sum(a * b for a, b in zip(found, row(p, n1), strict=True)), {**names, "n1": n1}


def prefill_fit(points: Sequence[Point], alpha: float) -> tuple[Callable[[Point], float], dict[str, float]]:
    """alpha + phi + beta max(0, P - p0) + beta2 max(0, P - p1) + epsilon A; alpha is the decoding one's."""

    def row(point: Point, p0: float, p1: float) -> Row:
        tokens = point.batch * point.prompt
        return [1.0, max(0.0, tokens - p0), max(0.0, tokens - p1), point.pairs]

    fits = []
    for p0, p1 in itertools.product((0.0, 128.0, 256.0, 384.0, 512.0, 640.0), (1024.0, 1536.0, 2048.0, 3072.0)):
        found, error = solve([row(p, p0, p1) for p in points], [p.prefill for p in points])
        if found[0] >= alpha:
            fits.append((found, error, p0, p1))
    found, _, p0, p1 = min(fits, key=lambda fit: fit[1])
    names = dict(zip(("phi", "beta", "beta2", "epsilon"), found, strict=True))
    names["phi"] -= alpha
    return lambda p: sum(a * b for a, b in zip(found, row(p, p0, p1), strict=True)), {**names, "p0": p0, "p1": p1}


def errors(predict: Callable[[Point], float], points: Sequence[Point], of: str) -> tuple[float, float]:
    """Mean and largest relative error, percent."""
    found = [100 * abs(predict(p) / getattr(p, of) - 1) for p in points]
    return statistics.fmean(found), max(found)


def read() -> dict[tuple[str, str, str], list[Point]]:
    """Points by model, device and tensor parallelism; capped power is left out."""
    grouped: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    with gzip.open(MEASURED, "rt") as file:
        for row in csv.DictReader(file):
            if not row["hardware"].endswith("pcap"):
                key = tuple(
                    row[k] for k in ("model", "hardware", "tensor_parallel", "prompt_size", "batch_size", "token_size")
                )
                grouped[key].append((float(row["prompt_time"]), float(row["token_time"])))
    found: dict[tuple[str, str, str], list[Point]] = defaultdict(list)
    for (model, hardware, parallel, prompt, batch, output), times in sorted(grouped.items()):
        if (model, parallel, int(batch)) not in LEFT_OUT:
            prefill, decode = (statistics.median(values) for values in zip(*times, strict=True))
            found[model, hardware, parallel].append(Point(int(prompt), int(batch), int(output), prefill, decode))
    return found


def main() -> None:
    """Fits, writes, reports."""
    engines = {}
    print("| engine | decode: mean, largest | left out | unseen | prefill: mean, largest | left out | unseen |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for (model, hardware, parallel), points in read().items():
        used = [p for p in points if p.output == 128]
        unseen = [p for p in points if p.output != 128]
        decode, decode_names = decode_fit(used)
        prefill, prefill_names = prefill_fit(used, decode_names["alpha"])
        name = f"{model}-{hardware.partition('-')[0]}x{parallel}"
        cells = []
        for of, predict in (("decode", decode), ("prefill", prefill)):
            mean, largest = errors(predict, used, of)
            left = []
            for point in used:
                rest = [p for p in used if p is not point]
                other = decode_fit(rest)[0] if of == "decode" else prefill_fit(rest, 0.0)[0]
                left.append(errors(other, [point], of)[0])
            cells += [
                f"{mean:.1f} %, {largest:.1f} %",
                f"{statistics.fmean(left):.1f} %",
                f"{errors(predict, unseen, of)[0]:.1f} %",
            ]
        print(f"| {name} | {' | '.join(cells)} |")
        free = (DEVICE_GIGABYTES * int(parallel) * USABLE - WEIGHTS_GIGABYTES[model]) * 1e9
        whole = {"p0", "p1", "n1"}
        engines[name] = {
            "times": {
                k: v if k in whole else float(f"{v / 1000:.4g}") for k, v in {**decode_names, **prefill_names}.items()
            },
            "kv_capacity_tokens": int(free / KV_BYTES_PER_TOKEN[model]) // 16 * 16,
            "max_sequences": 128,
            "max_batched_tokens": 1024,
            "start_median_seconds": 120.0,
            "start_sigma": 0.15,
        }
    document = {
        "source": "Fitted by hack/bench/autoscaling_fit.py to tests/data/traces/splitwise-perf-model.csv.gz (SageServe, MIT)."
        " Shape and start-up are assumptions: docs/designs/010-simulator.md.",
        "engines": engines,
    }
    TRUTH.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
