"""The commands `draft` (the sidecar) and `drained` (a preStop hook)."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inference_fleet.draft.drained import in_flight, wait_until_drained
from inference_fleet.draft.server import POLL_SECONDS, Sidecar
from inference_fleet.draft.verify import verify
from inference_fleet.engines.base import ENGINES, metrics
from inference_fleet.facts.commands import parse_source
from inference_fleet.facts.failure import (
    TERMINATION_LOG,
    SourceFailure,
    encode_failure,
    write_termination_message,
)
from inference_fleet.facts.inspection import reach_from_environment
from inference_fleet.facts.web import Retries, Web
from inference_fleet.staging.commands import add_artifact_arguments, parse_resolved
from inference_fleet.staging.stage import Stager


def add_commands(subparsers: Any) -> None:
    """Register both."""
    draft: argparse.ArgumentParser = subparsers.add_parser(
        "draft",
        help="the sidecar of a speculating engine: stage and verify its draft, then measure",
        description="Stages the draft and checks it against the target; ready only then. Then measures what drafting achieves.",
    )
    _add_engine_arguments(draft)
    add_artifact_arguments(draft, required=False)
    draft.add_argument(
        "--target", type=Path, metavar="PATH", help="the target's file or folder, to compare vocabularies with"
    )
    draft.add_argument("--depth", type=int, metavar="N", help="tokens that the engine guesses at most at a time")
    draft.add_argument("--port", type=int, default=8011)
    draft.add_argument(
        "--poll-seconds", type=float, default=POLL_SECONDS, help="between readings of the metrics, at least 1"
    )
    draft.add_argument(
        "--termination-log", metavar="PATH", default=TERMINATION_LOG, help="where a failure is explained"
    )
    draft.set_defaults(run=run_draft)
    drained: argparse.ArgumentParser = subparsers.add_parser(
        "drained",
        help="wait until an engine has nothing in flight",
        description="Waits until an engine's metrics show no request, between a minimum and a maximum. Always exits 0.",
    )
    _add_engine_arguments(drained)
    drained.add_argument("--minimum-seconds", type=float, default=5.0, help="wait this long in any case")
    drained.add_argument("--maximum-seconds", type=float, required=True, help="wait no longer than this")
    drained.set_defaults(run=run_drained)


def _add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engine", choices=sorted(ENGINES), required=True)
    parser.add_argument("--metrics-url", metavar="URL", required=True, help="the engine's own /metrics")


def run_draft(arguments: argparse.Namespace) -> int:
    """Serve until told to end (0), or until the draft turns out to be unusable (1, with a termination message)."""
    given = [arguments.source, arguments.resolved, arguments.into]
    if any(given) and not all(given):
        print("draft: --source, --resolved and --into belong together", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, format="draft: %(message)s", stream=sys.stdout)
    try:
        sidecar = Sidecar(
            engine=arguments.engine,
            names=metrics(arguments.engine),
            metrics_url=arguments.metrics_url,
            depth=arguments.depth,
            prepare=_preparation(arguments) if all(given) else _nothing_to_prepare,
            poll_seconds=arguments.poll_seconds,
        )
        asyncio.run(sidecar.run(arguments.port))
    except SourceFailure as failure:
        write_termination_message(encode_failure(failure), arguments.termination_log)
        _say(str(failure))
        return 1
    return 0


def _preparation(arguments: argparse.Namespace) -> Callable[[], None]:
    source, resolved = parse_source(arguments.source), parse_resolved(arguments.resolved)

    def prepare() -> None:
        path = Stager(reach_from_environment(), _say).stage(source, resolved, arguments.into)
        if arguments.target is None:
            _say(f"{path} is there; no target was given to compare it with")
            return
        _say(verify(arguments.engine, arguments.target, path).message)

    return prepare


def _nothing_to_prepare() -> None:
    _say("this method needs no draft model: measuring only")


def run_drained(arguments: argparse.Namespace) -> int:
    """Always 0: a failed preStop hook helps no one."""
    web = Web(timeout_seconds=5.0, retries=Retries(attempts=1), use_proxy=False)
    names = metrics(arguments.engine)
    outcome = wait_until_drained(
        lambda: in_flight(web, arguments.metrics_url, names),
        arguments.minimum_seconds,
        arguments.maximum_seconds,
        time.sleep,
        time.monotonic,
    )
    why = "no request is left" if outcome.quiet else "the longest wait is over"
    print(f"drained: {why} after {outcome.seconds:.0f} seconds", flush=True)
    return 0


def _say(line: str) -> None:
    print(f"draft: {line}", flush=True)
