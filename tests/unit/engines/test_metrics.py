"""The metric contract: every name that is read is in what the engine showed. A renamed metric fails here, it is never a zero."""

from __future__ import annotations

from dataclasses import fields

import pytest

from inference_fleet.engines.base import metrics
from inference_fleet.staging.drain_script import DRAIN_SCRIPT
from tests.unit.engines.samples import recorded_series

RECORDED = {"LlamaCpp": "llamacpp-b11549-metrics.txt", "VLLM": "vllm-0.32.0-metrics.txt"}
HISTOGRAMS = {"time_to_first_token", "time_per_output_token"}


@pytest.mark.parametrize("engine", RECORDED)
def test_every_metric_is_there(engine: str) -> None:
    names, series = metrics(engine), recorded_series(RECORDED[engine])
    for field in fields(names):
        name = getattr(names, field.name)
        if name is None:
            continue
        wanted = [f"{name}_{part}" for part in ("bucket", "sum", "count")] if field.name in HISTOGRAMS else [name]
        missing = [one for one in wanted if one not in series]
        assert not missing, f"{engine}.{field.name}: {missing}"


@pytest.mark.parametrize("engine", RECORDED)
def test_counters_that_had_to_move_have_moved(engine: str) -> None:
    """A name that exists and always shows zero would be worse than a missing one."""
    names, series = metrics(engine), recorded_series(RECORDED[engine])
    for name in (names.generation_tokens, names.prompt_tokens, names.drafts, names.draft_tokens, names.steps):
        assert name is not None
        assert series[name] > 0, name


@pytest.mark.parametrize("engine", RECORDED)
def test_at_rest_nothing_is_in_flight(engine: str) -> None:
    series = recorded_series(RECORDED[engine])
    assert sum(series[name] for name in metrics(engine).in_flight) == 0


@pytest.mark.parametrize("engine", RECORDED)
def test_the_drain_script_waits_for_the_same_metrics(engine: str) -> None:
    for name in metrics(engine).in_flight:
        assert name in DRAIN_SCRIPT
