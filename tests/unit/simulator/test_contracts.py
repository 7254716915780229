"""Who may import whom: the simulator stands apart from the operator, and reads no clock and no chance of its own."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[3] / "operator" / "inference_fleet"
SIMULATOR = sorted((PACKAGE / "simulator").rglob("*.py"))
MAY_IMPORT = ("api", "engines", "plan", "simulator")
COMMANDS_MAY_IMPORT = (*MAY_IMPORT, "explain")
"""The command line reads the same files, in the same way, as `inference-fleet plan`."""


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("path", SIMULATOR, ids=lambda path: path.stem)
def test_the_simulator_imports_only_what_decides(path: Path) -> None:
    allowed = COMMANDS_MAY_IMPORT if path.stem in ("commands", "policy") else MAY_IMPORT
    ours = {name.split(".")[1] for name in imported(path) if name.startswith("inference_fleet.")}
    assert ours <= set(allowed)


@pytest.mark.parametrize("path", SIMULATOR, ids=lambda path: path.stem)
def test_time_and_chance_are_virtual(path: Path) -> None:
    if path.stem != "commands":
        assert not imported(path) & {"time", "secrets", "uuid", "os", "socket", "numpy"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            assert node.func.attr not in ("now", "utcnow", "today") or path.stem == "commands"
            if isinstance(node.func.value, ast.Name) and node.func.value.id == "random":
                assert "import random" not in path.read_text(), "chance comes from a Random made of the seed"


def test_nothing_of_the_operator_imports_the_simulator() -> None:
    for path in PACKAGE.rglob("*.py"):
        if "simulator" not in path.parts:
            strange = {name for name in imported(path) if name.startswith("inference_fleet.simulator")}
            assert not strange, f"{path} imports {strange}"
