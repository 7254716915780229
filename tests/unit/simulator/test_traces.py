"""Files of traffic: every public format, one's own gateway, and what is made from them."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path
from statistics import fmean

import pytest

from inference_fleet.gateway.metrics import LATENCY_BUCKETS, TOKEN_BUCKETS
from inference_fleet.simulator import synthesis, traces
from inference_fleet.simulator.view import TPOT_EDGES, TTFT_EDGES

DATA = Path(__file__).resolve().parents[2] / "data" / "traces"


def test_azure_2023() -> None:
    found = traces.read(DATA / "azure-2023-conversation.csv.gz")
    assert len(found) == 19366
    assert (found[0].at, found[0].prompt, found[0].output) == (0.0, 374, 44)
    assert found[1].at == pytest.approx(4.314579, abs=1e-6)
    assert found[-1].at == pytest.approx(3501.72, abs=0.01)
    assert len(traces.read(DATA / "azure-2023-code.csv.gz")) == 8819


def test_azure_2024_writes_a_time_zone() -> None:
    found = traces.azure(
        [
            "TIMESTAMP,ContextTokens,GeneratedTokens",
            "2024-05-10 00:00:00.009930+00:00,2162,5",
            "2024-05-10 00:00:01+00:00,12,6",
        ]
    )
    assert [(round(a.at, 6), a.prompt, a.output) for a in found] == [(0.0, 2162, 5), (0.99007, 12, 6)]


def test_burstgpt_leaves_failures_out(tmp_path: Path) -> None:
    path = tmp_path / "BurstGPT.csv"
    path.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,Conversation log\n"
        "118,GPT-4,417,276,693,Conversation log\n"
    )
    assert [(a.at, a.prompt, a.output) for a in traces.read(path)] == [(0.0, 472, 18), (113.0, 417, 276)]


def test_mooncake_is_spread_over_its_steps() -> None:
    found = traces.read(DATA / "mooncake-conversation.jsonl.gz")
    assert len(found) == 12031
    assert found[0].hashes[:3] == (0, 1, 2)
    assert found[0].prompt == 6758
    together = max(found.count(a) for a in found[:50])
    assert together == 1
    assert all(b.at >= a.at for a, b in itertools.pairwise(found))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n", "neither Azure"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", "yesterday"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests"),
        ('{"timestamp": 0}\n', "input_length"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(traces.UnreadableTrace, match=says):
        traces.read(path)


def test_a_file_that_is_not_there_or_not_gzip(tmp_path: Path) -> None:
    with pytest.raises(traces.UnreadableTrace, match="No such file"):
        traces.read(tmp_path / "none.csv")
    (tmp_path / "x.gz").write_bytes(b"plain")
    with pytest.raises(traces.UnreadableTrace, match="gzip"):
        traces.read(tmp_path / "x.gz")
    with gzip.open(tmp_path / "y.gz", "wb") as file:
        file.write(b"\xff\xfe\x00")
    with pytest.raises(traces.UnreadableTrace):
        traces.read(tmp_path / "y.gz")


def test_a_prometheus_range_gives_rates() -> None:
    document = {
        "status": "success",
        "data": {
            "resultType": "matrix",
            "result": [
                {"metric": {"code": "200"}, "values": [[100, "1.5"], [160, "2"], [280, "NaN"]]},
                {"metric": {"code": "503"}, "values": [[160, "0.5"]]},
            ],
        },
    }
    rates = traces.prometheus_range(document)
    assert (rates.step, rates.values) == (60, (1.5, 2.5, 0.0, 0.0))
    with pytest.raises(traces.UnreadableTrace, match="matrix"):
        traces.prometheus_range({"status": "success", "data": {"resultType": "vector", "result": []}})
    with pytest.raises(traces.UnreadableTrace, match="two points"):
        traces.prometheus_range({"status": "success", "data": {"resultType": "matrix", "result": []}})


def test_own_rates_are_followed() -> None:
    recorded = [traces.Arrival(0.0, 10, 20), traces.Arrival(1.0, 30, 40)]
    found = list(synthesis.followed(recorded, traces.Rates(600.0, (1.0, 0.0, 3.0)), seed=1))
    counts = [sum(1 for a in found if i * 600 <= a.at < i * 600 + 600) for i in range(3)]
    assert counts[1] == 0
    assert counts[0] == pytest.approx(600, rel=0.15)
    assert counts[2] == pytest.approx(1800, rel=0.1)
    assert {(a.prompt, a.output) for a in found} == {(10, 20), (30, 40)}


def test_a_synthetic_day_follows_its_envelope_and_keeps_the_lengths() -> None:
    recorded = traces.read(DATA / "azure-2023-conversation.csv.gz")
    found = list(synthesis.resampled(recorded, synthesis.DAY_SECONDS, seed=1, scale=0.2))
    assert all(b.at >= a.at for a, b in itertools.pairwise(found))
    assert found[-1].at < synthesis.DAY_SECONDS
    per_hour = [0] * 24
    for arrival in found:
        per_hour[int(arrival.at // 3600)] += 1
    recorded_rate = len(recorded) / recorded[-1].at * 3600 * 0.2
    for hour, count in enumerate(per_hour):
        assert count == pytest.approx(recorded_rate * synthesis.level((hour + 0.5) * 3600), rel=0.15)
    assert fmean(a.prompt for a in found) == pytest.approx(fmean(a.prompt for a in recorded), rel=0.05)
    assert fmean(a.output for a in found) == pytest.approx(fmean(a.output for a in recorded), rel=0.05)
    assert found == list(synthesis.resampled(recorded, synthesis.DAY_SECONDS, seed=1, scale=0.2))


def test_a_weekend_is_quieter_and_a_week_comes_round() -> None:
    noon = 12 * 3600.0
    assert synthesis.level(5 * synthesis.DAY_SECONDS + noon) == pytest.approx(0.6 * synthesis.level(noon))
    assert synthesis.level(7 * synthesis.DAY_SECONDS + noon) == pytest.approx(synthesis.level(noon))


def test_prefixes_are_kept_within_a_day() -> None:
    recorded = [traces.Arrival(float(i), 600, 10, (i % 3,)) for i in range(121)]
    found = list(synthesis.resampled(recorded, 2 * synthesis.DAY_SECONDS, seed=1, scale=0.05))
    days = [{h for a in found if a.at // synthesis.DAY_SECONDS == d for h in a.hashes} for d in (0, 1)]
    assert len(days[0]) == len(days[1]) == 3
    assert not days[0] & days[1]


def test_stages() -> None:
    found = list(synthesis.staged([(2.0, 600.0), (5.0, 600.0)], 100, 10, seed=1))
    assert sum(1 for a in found if a.at < 600) == pytest.approx(1200, rel=0.1)
    assert sum(1 for a in found if a.at >= 600) == pytest.approx(3000, rel=0.1)
    assert {(a.prompt, a.output) for a in found} == {(100, 10)}


def test_a_cut_begins_at_zero() -> None:
    trace = [traces.Arrival(float(i), 1, 1) for i in range(10)]
    assert [a.at for a in traces.cut(trace, 3.0, 6.0)] == [0.0, 1.0, 2.0]


def test_the_histograms_have_the_gateways_edges() -> None:
    assert (TTFT_EDGES, TPOT_EDGES) == (LATENCY_BUCKETS, TOKEN_BUCKETS)
