"""Traffic that is made, not recorded: staged rates, a day and a week by resampling a recorded hour. Always called synthetic.

**The envelope.** Published traces of chat services agree on a shape: a daily swing with a peak in the early afternoon, a trough
before dawn at about a third of it, and quieter weekends (Azure 2024 week trace; BurstGPT, Wang et al. 2024; DynamoLLM,
Stojkovic et al. 2025). `DAY` has that shape in 24 hourly levels, `WEEKEND` its factor; between hours the level is interpolated.
The level of 1 stands for the mean rate of the recorded trace times `scale`.

**The resampling.** Requests are drawn in whole minutes of the recorded trace (so bursts within a minute and the lengths that go
with them stay as recorded), each minute repeated or thinned to the envelope's level: a minute drawn with n requests becomes a
Poisson number of picks of them, at their recorded seconds. Prefix hashes are kept, renamed for each day so that days do not
share caches for ever.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from random import Random

from inference_fleet.simulator.traces import Arrival, Rates

DAY = (
    0.52, 0.44, 0.38, 0.34, 0.33, 0.35, 0.42, 0.56, 0.74, 0.90, 1.00, 1.06,
    1.08, 1.10, 1.12, 1.10, 1.06, 1.00, 0.95, 0.90, 0.86, 0.80, 0.71, 0.61,
)  # fmt: skip
"""Relative rate at each full hour; the mean is about 0.76."""
WEEKEND = 0.6
"""Saturdays and Sundays, times this."""
HOUR = 3600.0
DAY_SECONDS = 24 * HOUR


def level(at: float) -> float:
    """The envelope at a time of the week that begins on Monday 0:00, in units of the recorded mean rate."""
    hours = at / HOUR
    whole = math.floor(hours)
    part = hours - whole
    inside = DAY[whole % 24] * (1 - part) + DAY[(whole + 1) % 24] * part
    return inside * (WEEKEND if (at // DAY_SECONDS) % 7 >= 5 else 1.0)


def resampled(recorded: Sequence[Arrival], seconds: float, seed: int, scale: float = 1.0) -> Iterator[Arrival]:
    """A synthetic span of `seconds` from Monday 0:00 on."""
    random = Random(f"{seed}/resampled")
    minutes = _minutes(recorded)
    for minute in range(math.ceil(seconds / 60)):
        at = minute * 60.0
        yield from _minute(minutes, at, level(at + 30) * scale, int(at // DAY_SECONDS), seconds, random)


def multiplied(recorded: Sequence[Arrival], factor: float, seed: int) -> list[Arrival]:
    """The recorded span at `factor` times its rate: each request a Poisson number of times, each moved by up to ten seconds."""
    random = Random(f"{seed}/multiplied")
    found = [
        Arrival(max(0.0, a.at + random.uniform(-10.0, 10.0)), a.prompt, a.output, a.hashes)
        for a in recorded
        for _ in range(poisson(random, factor))
    ]
    return sorted(found, key=lambda a: a.at)


def followed(recorded: Sequence[Arrival], rates: Rates, seed: int) -> Iterator[Arrival]:
    """Lengths of a recorded trace at the arrival rates of one's own gateway: Poisson within each step."""
    random = Random(f"{seed}/followed")
    for index, rate in enumerate(rates.values):
        start = index * rates.step
        for offset in sorted(random.uniform(0, rates.step) for _ in range(poisson(random, rate * rates.step))):
            picked = recorded[random.randrange(len(recorded))]
            yield Arrival(start + offset, picked.prompt, picked.output)


def staged(
    stages: Sequence[tuple[float, float]], prompt: int, output: int, seed: int, spread: float = 0.0
) -> Iterator[Arrival]:
    """Stages of (requests a second, seconds): exponential gaps; lengths normal around their means with `spread` of them."""
    random = Random(f"{seed}/staged")
    start = 0.0
    for rate, seconds in stages:
        at = start + random.expovariate(rate)
        while at < start + seconds:
            lengths = [max(1, round(mean * random.gauss(1.0, spread))) if spread else mean for mean in (prompt, output)]
            yield Arrival(at, lengths[0], lengths[1])
            at += random.expovariate(rate)
        start += seconds


def poisson(random: Random, mean: float) -> int:
    """A Poisson number; normal where the mean is large."""
    if mean > 60:
        return max(0, round(random.gauss(mean, math.sqrt(mean))))
    limit = math.exp(-mean)
    count = 0
    product = random.random()
    while product > limit:
        count += 1
        product *= random.random()
    return count


def _minutes(recorded: Sequence[Arrival]) -> list[list[Arrival]]:
    whole = math.floor(recorded[-1].at / 60)
    minutes: list[list[Arrival]] = [[] for _ in range(max(1, whole))]
    for arrival in recorded:
        number = int(arrival.at // 60)
        if number < len(minutes):
            minutes[number].append(arrival)
    return minutes


def _minute(
    minutes: Sequence[Sequence[Arrival]], at: float, factor: float, day: int, end: float, random: Random
) -> Iterator[Arrival]:
    source = minutes[random.randrange(len(minutes))]
    picked = [a for a in source for _ in range(poisson(random, factor))]
    moved = []
    for arrival in picked:
        when = at + (arrival.at % 60 + random.uniform(0.0, 1.0)) % 60
        if when < end:
            hashes = tuple(h + (day << 40) for h in arrival.hashes)
            moved.append(Arrival(when, arrival.prompt, arrival.output, hashes))
    moved.sort(key=lambda a: a.at)
    yield from moved
