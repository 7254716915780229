"""The metrics of real engines, as recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference_fleet.draft.engine_metrics import Snapshot, read_snapshot
from inference_fleet.draft.measure import Measurement, fold
from inference_fleet.engines.base import metrics

RECORDED = Path(__file__).resolve().parents[2] / "data" / "speculation"


def recorded(engine: str, file: str) -> Snapshot:
    return read_snapshot(metrics(engine), (RECORDED / file).read_text(), at=1.0)


def test_llama_cpp() -> None:
    assert recorded("LlamaCpp", "llamacpp-b11549.txt") == Snapshot(
        at=1.0,
        running=0,
        waiting=0,
        generation_tokens=120,
        steps=24,
        slot_steps=24,
        drafts=21,
        draft_tokens=96,
        accepted_tokens=96,
        accepted_per_position=(21, 21, 18, 18, 18),
    )


def test_vllm() -> None:
    found = recorded("VLLM", "vllm-0.32.0.txt")
    assert found.slot_steps is None
    assert (found.running, found.waiting, found.generation_tokens) == (0, 0, 387)
    assert (found.drafts, found.draft_tokens, found.accepted_tokens) == (380, 1140, 0)
    assert found.accepted_per_position == (0, 0, 0)


def test_what_the_recordings_mean() -> None:
    good = fold(Measurement(), recorded("LlamaCpp", "llamacpp-b11549.txt"))
    assert good.acceptance == 1.0 and good.drafting is True
    assert good.mean_accepted_length == pytest.approx(96 / 21)
    useless = fold(Measurement(), recorded("VLLM", "vllm-0.32.0.txt"))
    assert useless.acceptance == 0.0 and useless.drafting is True and useless.acceptance_per_position == (0, 0, 0)


def test_a_missing_series_is_missing() -> None:
    text = (RECORDED / "llamacpp-b11549.txt").read_text()
    kept = "\n".join(line for line in text.splitlines() if "spec_decode" not in line and "busy" not in line)
    found = read_snapshot(metrics("LlamaCpp"), kept, at=1.0)
    assert (found.drafts, found.accepted_tokens, found.slot_steps, found.accepted_per_position) == (
        None,
        None,
        None,
        (),
    )


def test_engine_processes_are_added_up() -> None:
    text = (
        'vllm:num_requests_running{engine="0"} 2\n'
        'vllm:num_requests_running{engine="1"} 3\n'
        'vllm:num_requests_waiting{engine="0"} NaN\n'
    )
    found = read_snapshot(metrics("VLLM"), text, at=1.0)
    assert (found.running, found.waiting) == (5, None)


def test_something_else_is_refused() -> None:
    with pytest.raises(ValueError):
        read_snapshot(metrics("VLLM"), "<html>{", at=1.0)
