"""Traffic from files: the public traces' formats, and the arrival rates of one's own gateway as Prometheus answers them.

Every loader gives arrivals in seconds since the first, lengths in tokens. A file may be compressed with gzip.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from inference_fleet.simulator.request import Request


class UnreadableTrace(ValueError):
    """A file that is in none of the formats, or breaks its own; the text says where."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace."""

    at: float
    prompt: int
    output: int
    hashes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Rates:
    """Requests a second over time, without lengths: `values[i]` holds from `step * i` on."""

    step: float
    values: tuple[float, ...]


def requests(trace: Iterable[Arrival]) -> Iterator[Request]:
    """Fresh requests for one run."""
    for number, arrival in enumerate(trace):
        yield Request(number, arrival.at, arrival.prompt, arrival.output, arrival.hashes)


def read(path: Path) -> list[Arrival]:
    """A trace in any of the formats, told apart by its first line. Raises UnreadableTrace."""
    try:
        with _open(path) as file:
            first = file.readline()
            file.seek(0)
            if first.lstrip().startswith("{"):
                return mooncake(file)
            columns = {name.strip() for name in first.split(",")}
            if "ContextTokens" in columns:
                return azure(file)
            if "Request tokens" in columns:
                return burstgpt(file)
    except (OSError, UnicodeDecodeError, gzip.BadGzipFile) as error:
        raise UnreadableTrace(f"{path}: {error}") from error
    except (KeyError, ValueError, TypeError) as error:
        raise UnreadableTrace(f"{path}: {error}") from error
    raise UnreadableTrace(
        f"{path}: neither Azure (TIMESTAMP,ContextTokens,GeneratedTokens), BurstGPT (Timestamp,…,Request tokens,Response"
        " tokens,…) nor Mooncake (one JSON object a line)"
    )


def azure(lines: Iterable[str]) -> list[Arrival]:
    """Azure's 2023 and 2024 LLM inference traces: `TIMESTAMP,ContextTokens,GeneratedTokens`; 2024 writes a time zone."""
    found = []
    for row in csv.DictReader(lines):
        at = datetime.fromisoformat(_microseconds(row["TIMESTAMP"])).timestamp()
        found.append((at, int(row["ContextTokens"]), int(row["GeneratedTokens"])))
    return _from_zero(found)


def burstgpt(lines: Iterable[str]) -> list[Arrival]:
    """BurstGPT: `Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type`; seconds. Failed ones have no response."""
    found = []
    for row in csv.DictReader(lines):
        output = int(float(row["Response tokens"]))
        if output > 0:
            found.append((float(row["Timestamp"]), int(float(row["Request tokens"])), output))
    return _from_zero(found)


def mooncake(lines: Iterable[str]) -> list[Arrival]:
    """Mooncake: `{"timestamp": ms, "input_length", "output_length", "hash_ids"}` a line. Its times are steps of three seconds;
    requests of one step are spread evenly over it, as they must have come."""
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines if line.strip()]
    rows.sort(key=lambda row: row["timestamp"])
    stamps = sorted({row["timestamp"] for row in rows})
    gap = min((b - a for a, b in itertools.pairwise(stamps)), default=0)
    count: dict[int, int] = {}
    for row in rows:
        count[row["timestamp"]] = count.get(row["timestamp"], 0) + 1
    seen: dict[int, int] = {}
    found = []
    for row in rows:
        stamp = row["timestamp"]
        place = seen.get(stamp, 0)
        seen[stamp] = place + 1
        at = (stamp + gap * place / count[stamp]) / 1000
        hashes = tuple(int(h) for h in row.get("hash_ids", ()))
        found.append(Arrival(at, max(1, int(row["input_length"])), max(1, int(row["output_length"])), hashes))
    if not found:
        raise ValueError("no requests")
    start = found[0].at
    return [Arrival(a.at - start, a.prompt, a.output, a.hashes) for a in found]


def prometheus_range(document: Any) -> Rates:
    """The answer of `/api/v1/query_range` to `sum(rate(inference_fleet_requests_total[1m]))`: arrival rates of one's own gateway.

    Several series are added. NaN counts as zero. Raises UnreadableTrace.
    """
    try:
        if document["status"] != "success" or document["data"]["resultType"] != "matrix":
            raise ValueError("want the answer of query_range: status success, resultType matrix")
        series = [{float(t): _number(v) for t, v in item["values"]} for item in document["data"]["result"]]
        times = sorted({t for one in series for t in one})
        if len(times) < 2:
            raise ValueError("fewer than two points in time")
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableTrace(f"Prometheus range: {error}") from error
    step = min(b - a for a, b in itertools.pairwise(times))
    points = round((times[-1] - times[0]) / step) + 1
    values = [0.0] * points
    for one in series:
        for at, value in one.items():
            values[round((at - times[0]) / step)] += value
    return Rates(step, tuple(values))


def cut(trace: Sequence[Arrival], start: float, end: float) -> list[Arrival]:
    """The arrivals of a span, moved to begin at zero."""
    return [Arrival(a.at - start, a.prompt, a.output, a.hashes) for a in trace if start <= a.at < end]


def _from_zero(found: list[tuple[float, int, int]]) -> list[Arrival]:
    if not found:
        raise ValueError("no requests")
    found.sort(key=lambda item: item[0])
    start = found[0][0]
    return [Arrival(at - start, max(1, prompt), max(1, output)) for at, prompt, output in found]


def _microseconds(stamp: str) -> str:
    """`datetime` reads six decimals, Azure writes seven."""
    whole, dot, rest = stamp.strip().partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    return whole + (f".{digits[:6]:0<6}{rest[len(digits) :]}" if dot else "")


def _number(text: Any) -> float:
    value = float(text)
    return value if value == value else 0.0


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")
