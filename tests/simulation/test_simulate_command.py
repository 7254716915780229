"""`inference-fleet simulate`: a user's files in, tables and files out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from inference_fleet import cli
from inference_fleet.simulator import compare
from tests.unit.explain.test_offline import MODEL, POLICY

GPU = {
    "apiVersion": "inference-fleet.dev/v1alpha1", "kind": "AcceleratorClass", "metadata": {"name": "cpu"},
    "spec": {"memory": "2Gi", "requestsPerDevice": {"cpu": "1", "memory": "3Gi"},
             "price": {"currency": "EUR", "onDemandPerHour": "0.50"}},
}  # fmt: skip
SLO = {
    "objectives": [
        {"name": "first", "metric": "TimeToFirstToken", "percentile": 95, "milliseconds": 2000},
        {"name": "stricter", "metric": "TimeToFirstToken", "percentile": 50, "milliseconds": 1000},
        {"name": "each", "metric": "TimePerOutputToken", "percentile": 95, "milliseconds": 100},
    ]
}
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:{i // 60:02}:{i % 60:02}.0000000,{200 + i % 7 * 50},{20 + i % 5 * 10}\n" for i in range(900)
)
ENGINE = {
    "times": {"alpha": 0.02, "beta": 5e-5, "gamma": 2e-4},
    "kv_capacity_tokens": 50_000,
    "start_median_seconds": 60.0,
}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    policy = json.loads(json.dumps(POLICY))
    policy["spec"]["slo"] = SLO
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump_all([GPU, MODEL, policy]))
    (tmp_path / "trace.csv").write_text(TRACE)
    (tmp_path / "engines.json").write_text(json.dumps({"engines": {"mine": ENGINE}}))
    return [
        "simulate", "--policy", str(tmp_path / "fleet.yaml"), "--trace", str(tmp_path / "trace.csv"),
        "--engines-file", str(tmp_path / "engines.json"), "--engine", "mine",
    ]  # fmt: skip


def test_the_declared_replicas_are_simulated_and_paid(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(files) == 0
    printed = capsys.readouterr().out
    assert (
        "Policy chat on cpu (mine); trace.csv, 0.25 h, seed 1; objectives: TTFT 1 s, TPOT 0.1 s; money in EUR."
        in printed
    )
    line = next(line for line in printed.splitlines() if line.startswith("| declared"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert (cells[1], cells[5], cells[7]) == ("100.00", "2.00", "0.25")


def test_files_are_written_and_repeat_byte_for_byte(files: list[str], tmp_path: Path) -> None:
    written = []
    for name in ("one", "two"):
        assert (
            cli.main([*files, "--scaler", "declared", "--scaler", "hpa-concurrency", "--out", str(tmp_path / name)])
            == 0
        )
        written.append([(tmp_path / name / f"simulation.{kind}").read_bytes() for kind in ("md", "json")])
    assert written[0] == written[1]
    document: dict[str, Any] = json.loads(written[0][1])
    assert set(document) == {"declared", "hpa-concurrency (4)"}
    summary = document["declared"]["summary"]
    assert summary["requests"] == summary["completed"] == 900
    assert document["declared"]["replicas"] == [{"at": 0.0, "cpu": 2}]
    assert sum(w["requests"] for w in document["declared"]["attainmentByFiveMinutes"]) == 900


def test_every_scaler_can_be_tuned_on_one_half_and_scored_on_the_other(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*files, "--scaler", "all", "--tune", "--max-replicas", "4", "--scale", "2"]) == 0
    printed = capsys.readouterr().out
    assert all(f"| {name}" in printed for name in compare.NAMES)
    assert "(synthetic)" in printed
    assert "0.13 h" in printed


def test_own_rates_are_followed(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = [[60 * i, "2"] for i in range(11)]
    document = {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {}, "values": values}]}}
    (tmp_path / "rates.json").write_text(json.dumps(document))
    assert cli.main([*files, "--rates", str(tmp_path / "rates.json"), "--out", str(tmp_path / "out")]) == 0
    summary = json.loads((tmp_path / "out" / "simulation.json").read_text())["declared"]["summary"]
    assert summary["requests"] == pytest.approx(2 * 660, rel=0.1)


def test_a_synthetic_day_is_called_so(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*files, "--span", "day", "--scale", "0.02"]) == 0
    assert "trace.csv (synthetic), 24.00 h" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "status", "says"),
    [
        (["--scaler", "magic"], 2, "unknown scaler 'magic'; known: declared, static-peak"),
        (["--engine", "cpu=warp"], 2, "unknown engine 'warp'; known: bloom-176b-a100x8"),
        (["--trace", "/nowhere.csv"], 2, "No such file"),
        (["--model", "huge"], 1, "has no model 'huge'"),
        (["--scale", "0"], 2, "more than 0"),
    ],
)
def test_mistakes_are_named(
    files: list[str], more: list[str], status: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*files, *more]) == status
    assert says in capsys.readouterr().err


def test_step_times_must_be_given(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(files[:-2]) == 1
    assert "no step times for accelerator 'cpu': give --engine cpu=NAME" in capsys.readouterr().err


def test_a_policy_that_cannot_be_placed_says_so(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump_all([MODEL, POLICY]))
    assert cli.main(files) == 1
    assert "cannot be placed, see `inference-fleet plan`" in capsys.readouterr().err


def test_pictures_are_left_out_without_matplotlib(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main([*files, "--out", str(tmp_path / "out")]) == 0
    assert "matplotlib is not installed" in capsys.readouterr().err
    assert not (tmp_path / "out" / "simulation.png").exists()
