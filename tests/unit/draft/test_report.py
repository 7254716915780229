"""How a measurement is shown."""

from __future__ import annotations

from prometheus_client import generate_latest

from inference_fleet.draft.engine_metrics import Snapshot
from inference_fleet.draft.measure import Measurement, Pace
from inference_fleet.draft.report import registry_of, to_document

SEEN = Measurement(
    last=Snapshot(at=100.0),
    drafts=100.0,
    draft_tokens=400.0,
    accepted_tokens=150.0,
    accepted_per_position=(80.0, 40.0, 20.0, 10.0),
    generation_tokens=250.0,
    drafting=True,
    paces={1: Pace(20.0, 600.0), 4: Pace(2.0, 600.0)},
)


def exposed(measured: Measurement, depth: int | None) -> str:
    return generate_latest(registry_of(lambda: measured, depth)).decode()


def test_json() -> None:
    assert to_document("LlamaCpp", 4, SEEN, 101.5) == {
        "engine": "LlamaCpp",
        "depth": 4,
        "drafts": 100,
        "draftTokens": 400,
        "acceptedTokens": 150,
        "acceptedPerPosition": [80, 40, 20, 10],
        "acceptance": 0.375,
        "meanAcceptedLength": 1.5,
        "drafting": True,
        "tokensPerSecond": [{"concurrency": 1, "tokensPerSecond": 30.0, "seconds": 20}],
        "ageSeconds": 1.5,
    }


def test_json_leaves_out_what_is_not_known() -> None:
    assert to_document("VLLM", None, Measurement(), 0.0) == {"engine": "VLLM", "tokensPerSecond": []}


def test_metrics() -> None:
    text = exposed(SEEN, 4)
    assert "inference_fleet_speculation_drafts_total 100.0" in text
    assert "inference_fleet_speculation_draft_tokens_total 400.0" in text
    assert "inference_fleet_speculation_accepted_tokens_total 150.0" in text
    assert "inference_fleet_speculation_acceptance_ratio 0.375" in text
    assert "inference_fleet_speculation_depth 4.0" in text
    assert "inference_fleet_speculation_drafting 1.0" in text
    assert 'inference_fleet_speculation_tokens_per_second{concurrency="1"} 30.0' in text
    assert 'inference_fleet_speculation_position_acceptance_ratio{position="0"} 0.8' in text


def test_metrics_show_what_is_not_known_as_nan_or_not_at_all() -> None:
    lines = [line for line in exposed(Measurement(), None).splitlines() if not line.startswith("#")]
    assert lines == [
        "inference_fleet_speculation_acceptance_ratio NaN",
        "inference_fleet_speculation_depth NaN",
        "inference_fleet_speculation_drafting NaN",
    ]
