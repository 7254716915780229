"""Runs `inference-fleet COMMAND …` as a process of its own, as a pod would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULE = [sys.executable, "-m", "inference_fleet.cli"]


def start(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start and go on; output is piped, both streams together."""
    return subprocess.Popen(
        [*MODULE, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=_environment(environment),
    )


def run(
    *arguments: str, environment: Mapping[str, str] | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run to its end; output is captured, both streams together."""
    return subprocess.run(
        [*MODULE, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=_environment(environment),
        timeout=timeout,
        check=False,
    )


def _environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.lower().endswith("_proxy") and not name.startswith("HF_")
    }
    return {**clean, "PYTHONPATH": str(ROOT / "operator"), **(extra or {})}
