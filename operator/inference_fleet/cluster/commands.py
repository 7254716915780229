"""`inference-fleet operator`."""

from __future__ import annotations

import argparse
import logging
import sys
from typing import Any


def add_commands(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Registers the command."""
    from inference_fleet.cluster.settings import add_arguments

    parser = subparsers.add_parser(
        "operator",
        help="run the operator",
        description="Watches policies, models and classes, and makes the cluster what they say. Exit status: 0 told to end, "
        "3 the lease was lost, 4 a part of it failed.",
    )
    add_arguments(parser)
    parser.set_defaults(run=run_operator)


def run_operator(arguments: argparse.Namespace) -> int:
    """Runs until SIGTERM."""
    import asyncio

    from inference_fleet.cluster.process import serve
    from inference_fleet.cluster.settings import from_arguments

    level = getattr(logging, str(arguments.log_level).upper(), logging.INFO)
    logging.basicConfig(
        stream=sys.stderr, level=level, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", force=True
    )
    logging.getLogger("kopf").setLevel(max(level, logging.WARNING))
    return asyncio.run(serve(from_arguments(arguments)))
