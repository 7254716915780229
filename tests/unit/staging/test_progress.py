"""Progress lines: neither a flood nor silence."""

from __future__ import annotations

from inference_fleet.staging.progress import Progress

MIB = 2**20


def lines_of(total: int, steps: list[tuple[float, int]], done: int = 0) -> list[str]:
    """`steps` are (seconds since the start, bytes)."""
    now, lines = [100.0], list[str]()
    progress = Progress("m.gguf", total, done, lines.append, lambda: now[0])
    for seconds, count in steps:
        now[0] = 100.0 + seconds
        progress.at(count)
    return lines


def test_a_line_each_ten_percent() -> None:
    lines = lines_of(1000 * MIB, [(second, second * MIB) for second in range(1, 1001)])
    assert len(lines) == 1 + 16  # a slow minute passes between two lines at most
    fast = lines_of(1000 * MIB, [(second, 10 * second * MIB) for second in range(1, 101)])
    assert len(fast) == 1 + 10


def test_never_two_lines_within_five_seconds() -> None:
    assert len(lines_of(1000 * MIB, [(number / 100, number * MIB) for number in range(1, 1001)])) == 1 + 2


def test_what_the_lines_say() -> None:
    lines = lines_of(1000 * MIB, [(10, 500 * MIB)], done=100 * MIB)
    assert lines == ["m.gguf: 1.0 GiB, 100.0 MiB of it already here", "m.gguf: 50%, 0.5 GiB of 1.0 GiB, 40.0 MiB/s"]
