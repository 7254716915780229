"""Results as people and programs read them: a Markdown table, JSON, and a picture where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inference_fleet.simulator.results import Result, Summary

COLUMNS = (
    "scaler",
    "attainment %",
    "worst 5 min %",
    "TTFT p99 s",
    "TPOT p99 ms",
    "mean replicas",
    "GPU-hours",
    "money",
    "per 1M good tokens",
    "scale events",
    "turns/h",
    "killed",
)


def row(name: str, s: Summary) -> tuple[str, ...]:
    """One line of the table."""
    return (
        name,
        f"{s.attainment_percent:.2f}",
        f"{s.worst_five_minutes_percent:.1f}",
        f"{s.ttft_p99:.2f}",
        f"{1000 * s.tpot_p99:.0f}",
        f"{s.average_replicas:.2f}",
        f"{s.device_hours:.1f}",
        s.money[: s.money.index(".") + 3],
        "-" if s.money_per_million_good_tokens is None else s.money_per_million_good_tokens[:6],
        str(s.scale_events),
        f"{s.direction_changes_per_hour:.1f}",
        str(s.killed),
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown, numbers to the right."""
    lines = [f"| {' | '.join(columns)} |", f"| --- |{' ---: |' * (len(columns) - 1)}"]
    lines += [f"| {' | '.join(cells)} |" for cells in rows]
    return "\n".join(lines)


def comparison(results: Mapping[str, Result]) -> str:
    """The table of several scalers on one scenario."""
    return table(COLUMNS, [row(name, result.summary()) for name, result in results.items()])


def to_json(results: Mapping[str, Result]) -> dict[str, Any]:
    """Summaries, and the replicas over time, by scaler."""
    return {
        name: {
            "seed": result.scenario.seed,
            "summary": result.summary().to_json(),
            "replicas": [{"at": round(at, 3), **counts} for at, counts in result.counts],
            "attainmentByFiveMinutes": [
                {"from": number * 300, "requests": n, "within": good}
                for number, (n, good) in sorted(result.attainment_by_window().items())
            ],
        }
        for name, result in results.items()
    }


def picture(results: Mapping[str, Result], path: Path) -> bool:
    """Arrivals, replicas and attainment over time. False where matplotlib is not installed."""
    try:
        import matplotlib  # type: ignore[import-not-found,unused-ignore]

        matplotlib.use("Agg")
        from matplotlib import pyplot  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return False
    figure, (load, replicas, attained) = pyplot.subplots(3, 1, sharex=True, figsize=(11, 8))
    for number, (name, result) in enumerate(results.items()):
        windows = sorted(result.attainment_by_window(60.0).items())
        minutes = [n for n, _ in windows]
        if not number:
            load.plot(minutes, [count / 60 for _, (count, _) in windows], color="black", linewidth=1)
        totals = [*result.totals(), (result.scenario.duration, result.totals()[-1][1])]
        replicas.step([at / 60 for at, _ in totals], [count for _, count in totals], where="post", label=name)
        attained.plot(minutes, [100 * good / count for _, (count, good) in windows], linewidth=1, label=name)
    load.set_ylabel("requests/s")
    replicas.set_ylabel("replicas")
    attained.set_ylabel("within SLO, %")
    attained.set_xlabel("minutes")
    replicas.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True


def pareto(points: Mapping[str, tuple[float, float]], title: str, path: Path) -> bool:
    """Money against attainment, one point for each scaler. False where matplotlib is not installed."""
    try:
        import matplotlib  # type: ignore[import-not-found,unused-ignore]

        matplotlib.use("Agg")
        from matplotlib import pyplot  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return False
    figure, axes = pyplot.subplots(figsize=(7, 5))
    for name, (money, attainment) in points.items():
        axes.plot([money], [attainment], "o")
        axes.annotate(name, (money, attainment), textcoords="offset points", xytext=(5, 4), fontsize=8)
    axes.axhline(99, color="grey", linewidth=0.7, linestyle="--")
    axes.set_xlabel("money")
    axes.set_ylabel("requests within SLO, %")
    axes.set_title(title)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True
