"""What import-linter's contracts cannot say: a list of all that the plan may import, and no hidden clock."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

OPERATOR = Path(__file__).resolve().parents[2] / "operator"
PLAN = sorted((OPERATOR / "inference_fleet" / "plan").glob("**/*.py"))
PURE = [
    path
    for part in ("plan", "render", "engines")
    for path in sorted((OPERATOR / "inference_fleet" / part).glob("**/*.py"))
]

PLAN_MAY_IMPORT = (
    "inference_fleet.api",
    "inference_fleet.engines",
    "inference_fleet.facts.vocabulary",
    "inference_fleet.naming",
    "inference_fleet.plan",
    "inference_fleet.staging.paths",
    # Of the standard library only what computes.
    "__future__",
    "collections",
    "dataclasses",
    "datetime",
    "decimal",
    "enum",
    "fractions",
    "functools",
    "hashlib",
    "heapq",
    "itertools",
    "json",
    "math",
    "operator",
    "re",
    "types",
    "typing",
)
CLOCKS = {"now", "utcnow", "today"}


def imported(path: Path) -> set[str]:
    """Every module that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found.add(node.module or "")
    return found


def within(module: str, allowed: str) -> bool:
    return module == allowed or module.startswith(f"{allowed}.")


@pytest.mark.parametrize("path", PLAN, ids=lambda path: path.stem)
def test_the_plan_imports_only_what_computes(path: Path) -> None:
    strange = {name for name in imported(path) if not any(within(name, allowed) for allowed in PLAN_MAY_IMPORT)}
    assert not strange, f"{path.name} imports {sorted(strange)}: pass it in as a value instead"


@pytest.mark.parametrize("path", PURE, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_nothing_pure_reads_a_clock(path: Path) -> None:
    """datetime is allowed for its types; its clocks are not."""
    read = [
        f"line {node.lineno}: {ast.unparse(node.func)}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CLOCKS
    ]
    assert not read, f"{path.name} reads a clock: {read}; `now` is an argument"


def test_no_file_is_named_for_nothing() -> None:
    """A module is named for what it holds."""
    empty = {"utils", "util", "helpers", "helper", "manager", "misc", "common"}
    assert not [path for path in (OPERATOR / "inference_fleet").rglob("*.py") if path.stem in empty]
