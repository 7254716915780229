"""Every reason that planning can give is explained in the reference: nothing else invents reasons."""

from __future__ import annotations

import ast
from pathlib import Path

import inference_fleet.engines
import inference_fleet.facts.vocabulary
import inference_fleet.plan
from inference_fleet.api.condition_types import CONDITIONS
from inference_fleet.api.reasons import GROUPS

PLAN_CALLS = {
    "Problem": 1,
    "Rejected": 1,
    "Decision": 3,
    "condition": 2,
    "say": 2,
    "keep": 3,
    "_stay": 3,
    "step": 1,
    "Refusal": 0,
}


def known() -> set[str]:
    grouped = {reason.name for group in GROUPS for reason in group.reasons}
    return grouped | {reason.name for meaning in CONDITIONS for _, reason in meaning.own}


def given() -> dict[str, str]:
    """Reasons that stand as literals in calls of the functions that take one, with where they stand."""
    found: dict[str, str] = {}
    folders = [Path(package.__path__[0]) for package in (inference_fleet.plan, inference_fleet.engines)]
    for path in sorted(p for folder in folders for p in folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                index = PLAN_CALLS.get(name)
                arguments = node.args if index is not None else []
                for argument in arguments[index : index + 1] if index is not None else []:
                    if (
                        isinstance(argument, ast.Constant)
                        and isinstance(argument.value, str)
                        and argument.value[:1].isupper()
                    ):
                        found[argument.value] = f"{path.name}:{node.lineno}"
    return found


def test_no_reason_is_unexplained() -> None:
    reasons = given()
    assert len(reasons) > 25, "the search no longer finds the reasons; mend PLAN_CALLS"
    unexplained = {reason: where for reason, where in reasons.items() if reason not in known()}
    assert unexplained == {}
