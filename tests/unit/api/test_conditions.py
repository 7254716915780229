"""Conditions change their time only with their status; every reason that the code gives is explained."""

from __future__ import annotations

import ast
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError

from inference_fleet.api.condition_types import CONDITIONS, known_reasons
from inference_fleet.api.conditions import Condition, ConditionType, Status, find, with_times
from inference_fleet.api.reasons import GROUPS
from tests.unit.api.resources import REPOSITORY

NOW = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)
BEFORE = NOW - timedelta(hours=1)


def ready(status: Status, reason: str = "Because", at: datetime | None = None) -> Condition:
    return Condition(type="Ready", status=status, reason=reason, last_transition_time=at)


def test_a_new_condition_changed_now() -> None:
    (written,) = with_times([], [ready(Status.TRUE)], NOW)
    assert written.last_transition_time == NOW


def test_times_are_whole_seconds_with_a_zone() -> None:
    (written,) = with_times([], [ready(Status.TRUE)], NOW.replace(microsecond=123456))
    assert written.to_dict()["lastTransitionTime"] == "2026-12-01T12:00:00Z"
    with pytest.raises(ValidationError):
        Condition(type="Ready", status=Status.TRUE, reason="Ready", last_transition_time=datetime(2026, 12, 1))


def test_a_new_reason_moves_no_time() -> None:
    (written,) = with_times([ready(Status.FALSE, "Old", BEFORE)], [ready(Status.FALSE, "New")], NOW)
    assert (written.reason, written.last_transition_time) == ("New", BEFORE)


def test_a_new_status_moves_the_time() -> None:
    (written,) = with_times([ready(Status.FALSE, at=BEFORE)], [ready(Status.UNKNOWN)], NOW)
    assert written.last_transition_time == NOW


def test_what_is_no_longer_computed_goes() -> None:
    gone = Condition(type="LatencySLOMet", status=Status.TRUE, reason="Met", last_transition_time=BEFORE)
    assert with_times([gone], [], NOW) == ()


def test_finding() -> None:
    conditions = [ready(Status.TRUE)]
    assert find(conditions, ConditionType.READY) is conditions[0]
    assert find(conditions, ConditionType.ACCEPTED) is None


def test_a_long_message_is_cut() -> None:
    assert len(Condition(type="Ready", status=Status.TRUE, reason="Ready", message="x" * 5000).message) == 1024


def test_every_condition_is_explained_once_for_each_kind() -> None:
    pairs = [(meaning.kind, meaning.type) for meaning in CONDITIONS]
    assert len(pairs) == len(set(pairs))
    assert {kind for _, kind in pairs} == set(ConditionType)


def test_no_reason_is_explained_twice_in_one_place() -> None:
    for group in GROUPS:
        names = [reason.name for reason in group.reasons]
        assert len(names) == len(set(names)), group.key
    for meaning in CONDITIONS:
        names = [reason.name for _, reason in meaning.own]
        assert len(names) == len(set(names)), meaning.type


GIVERS = {"condition", "say", "by_problem", "keep", "Problem", "Refusal", "Rejected", "Decision", "Trouble", "Condition", "_remove",
          "_stay", "step"}  # fmt: skip
"""Functions of the operator that take a reason among their arguments."""
NOT_REASONS = {*ConditionType, "Normal", "Warning"}
SOURCES = sorted(
    path
    for folder in ("plan", "engines", "cluster", "facts")
    for path in (REPOSITORY / "operator" / "inference_fleet" / folder).glob("*.py")
)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_reason_given_is_explained(path: Path) -> None:
    unexplained = sorted(given(path) - known_reasons() - NOT_REASONS)
    assert not unexplained, f"explain in api/reasons.py or api/condition_types.py: {unexplained}"


def given(path: Path) -> set[str]:
    """CamelCase words handed to a function that takes a reason, or members of an enum called Reason."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            values = [keyword.value for keyword in node.keywords if keyword.arg == "reason"]
            values += node.args if name in GIVERS else []
            found |= {word for value in values for word in words(value)}
        elif isinstance(node, ast.Tuple) and any(is_status(item) for item in node.elts):
            found |= {word for item in node.elts for word in words(item)}
        elif isinstance(node, ast.ClassDef) and node.name == "Reason":
            found |= {word for item in node.body if isinstance(item, ast.Assign) for word in words(item.value)}
    return found


def is_status(item: ast.expr) -> bool:
    return isinstance(item, ast.Attribute) and isinstance(item.value, ast.Name) and item.value.id == "Status"


def words(value: ast.expr) -> set[str]:
    options = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
    return {
        option.value
        for option in options
        if isinstance(option, ast.Constant) and isinstance(option.value, str) and re.fullmatch(r"[A-Z][A-Za-z0-9]+", option.value)
    }  # fmt: skip
