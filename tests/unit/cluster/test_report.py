"""A status is written when it says something new, and then only what differs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_fleet.cluster.apply import Refused
from inference_fleet.cluster.observe import read_conditions
from inference_fleet.cluster.report import patch_of, rounded, status_of, worth_writing
from inference_fleet.plan.decide import plan
from inference_fleet.plan.observation import ObjectiveReading, Observation, TrafficView
from inference_fleet.plan.outcome import Memory
from tests.unit.plan import world

NOW = datetime(2026, 12, 1, 13, 0, tzinfo=UTC)


def status(observation: Observation, previous: dict[str, Any] | None = None, at: datetime = NOW,
           refused: tuple[Refused, ...] = ()) -> dict[str, Any]:  # fmt: skip
    decided, _ = plan(observation, Memory(), at)
    return status_of(observation, decided, refused, read_conditions(previous or {}), at)


def observation(requests: int = 0, within: int = 0, milliseconds: str | None = None) -> Observation:
    reading = ObjectiveReading("first-token", requests, within, Decimal(milliseconds) if milliseconds else None)
    return replace(world.observation(), traffic=TrafficView((reading,), age_seconds=1.0))


def test_the_same_facts_give_the_same_status_and_no_write() -> None:
    first = status(observation())
    again = status(observation(), first, NOW + timedelta(hours=1))
    assert again == first
    assert not worth_writing(first, again, 1e9)
    assert patch_of(first, again) == {}


def test_a_first_status_is_always_written() -> None:
    assert worth_writing({}, status(observation()), 0.0)


def test_measured_figures_alone_wait_a_minute() -> None:
    first = status(observation(100, 99, "120"))
    busier = status(observation(900, 850, "480"), first)
    assert busier["objectives"][0]["observedMilliseconds"] == 480
    assert not worth_writing(first, busier, 59.0)
    assert worth_writing(first, busier, 60.0)


def test_a_condition_that_changes_does_not_wait() -> None:
    first = status(observation())
    gone = replace(observation(), models={})
    assert worth_writing(first, status(gone, first), 0.0)


def test_a_time_moves_only_with_its_condition() -> None:
    first = status(observation())
    later = NOW + timedelta(minutes=5)
    second = status(replace(observation(), models={}), first, later)
    times = {c["type"]: c["lastTransitionTime"] for c in second["conditions"]}
    before = {c["type"]: (c["status"], c["lastTransitionTime"]) for c in first["conditions"]}
    for c in second["conditions"]:
        changed = c["type"] not in before or before[c["type"]][0] != c["status"]
        expected = later.isoformat().replace("+00:00", "Z") if changed else before[c["type"]][1]
        assert times[c["type"]] == expected, c["type"]


def test_what_the_api_server_refused_is_said() -> None:
    refused = (Refused("Deployment", "chat-small-1", 422, "spec.x is invalid", variant=True),)
    said = {c["type"]: c for c in status(observation(), refused=refused)["conditions"]}
    assert (said["Accepted"]["status"], said["Accepted"]["reason"]) == ("False", "TemplateInvalid")
    assert "spec.x is invalid" in said["Accepted"]["message"]
    assert said["Ready"]["status"] == "False"


@pytest.mark.parametrize(
    ("value", "shown"), [("0", 0), ("7.4", 7), ("87.6", 88), ("123", 120), ("1250", 1200), ("98765", 99000)]
)
def test_figures_are_rounded_to_two_digits(value: str, shown: int) -> None:
    assert rounded(Decimal(value)) == shown


def test_attainment_is_never_rounded_up() -> None:
    assert status(observation(1000, 999))["objectives"][0]["attainmentPercent"] == 99


def test_what_is_unknown_is_absent() -> None:
    (row,) = status(observation(0, 0))["objectives"]
    assert "attainmentPercent" not in row
    assert "observedMilliseconds" not in row


documents = st.recursive(
    st.integers(0, 3) | st.text("ab", max_size=2) | st.lists(st.integers(0, 2), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=8,
)


def merged(target: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


@given(
    st.dictionaries(st.sampled_from("abcd"), documents, max_size=4),
    st.dictionaries(st.sampled_from("abcd"), documents, max_size=4),
)
def test_the_patch_turns_what_is_stored_into_what_was_computed(
    stored: dict[str, Any], computed: dict[str, Any]
) -> None:
    assert merged(stored, patch_of(stored, computed)) == computed
