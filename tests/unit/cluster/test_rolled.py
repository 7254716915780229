"""UpToDate in the very pass that writes another template: what was observed still speaks of the old one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from inference_fleet.api.conditions import Condition, Status, find
from inference_fleet.cluster.report import with_rollouts
from inference_fleet.plan.outcome import Plan

FRESH = (
    Condition(type="Ready", status=Status.TRUE, reason="Ready", message="Every model answers behind the gateway."),
    Condition(type="UpToDate", status=Status.TRUE, reason="AsDeclared", message="What runs is what is declared."),
)
VARIANT: Any = SimpleNamespace(name="chat-small-1a2b3c4d")


def test_a_template_that_was_just_written_is_not_what_runs() -> None:
    told = with_rollouts(FRESH, Plan(variants=(VARIANT,)), [VARIANT.name])
    found = find(told, "UpToDate")
    assert found is not None and (found.status, found.reason) == (Status.FALSE, "RollingOut")
    assert VARIANT.name in found.message
    assert find(told, "Ready") == FRESH[0], "a rollout does not make a fleet unready"


@pytest.mark.parametrize("rolled", [[], ["chat-gateway"]])
def test_without_a_new_template_of_a_variant_nothing_changes(rolled: list[str]) -> None:
    assert with_rollouts(FRESH, Plan(variants=(VARIANT,)), rolled) == FRESH


def test_what_is_worse_stands() -> None:
    blocked = Condition(type="UpToDate", status=Status.FALSE, reason="RolloutBlocked", message="A pod crashes.")
    assert with_rollouts((blocked,), Plan(variants=(VARIANT,)), [VARIANT.name]) == (blocked,)
