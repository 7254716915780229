"""`inference-fleet`: every command of every part.

Only the part that was asked for is imported: a gateway must not pay for kopf, nor an inspection for an operator.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence

from inference_fleet import __version__

COMMANDS: Mapping[str, str] = {
    "operator": "inference_fleet.cluster.commands",
    "gateway": "inference_fleet.gateway.commands",
    "draft": "inference_fleet.draft.commands",
    "drained": "inference_fleet.draft.commands",
    "stage": "inference_fleet.staging.commands",
    "inspect": "inference_fleet.facts.commands",
    "plan": "inference_fleet.explain.commands",
    "explain": "inference_fleet.explain.commands",
    "simulate": "inference_fleet.simulator.commands",
    "crds": "inference_fleet.api.commands",
    "reference": "inference_fleet.api.commands",
}
"""Command → the module whose `add_commands` registers it."""


def parser(commands: Sequence[str]) -> argparse.ArgumentParser:
    """The parser with the parts that these commands need."""
    top = argparse.ArgumentParser(
        prog="inference-fleet", description="Runs language models to declared latency and cost."
    )
    top.add_argument("--version", action="version", version=__version__)
    subparsers = top.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    for module in dict.fromkeys(COMMANDS[name] for name in commands):
        importlib.import_module(module).add_commands(subparsers)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; the exit status is the command's."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    asked = next((word for word in words if not word.startswith("-")), "")
    parsed = parser([asked] if asked in COMMANDS else tuple(COMMANDS)).parse_args(words)
    status: int = parsed.run(parsed)
    return status


if __name__ == "__main__":
    sys.exit(main())
