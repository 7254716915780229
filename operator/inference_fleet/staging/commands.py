"""The `stage` command: an init container's whole work."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from inference_fleet.api.model import ResolvedArtifact
from inference_fleet.facts.commands import parse_source
from inference_fleet.facts.failure import (
    TERMINATION_LOG,
    Reason,
    SourceFailure,
    encode_failure,
    write_termination_message,
)
from inference_fleet.facts.inspection import reach_from_environment
from inference_fleet.staging.download import explain_write_error
from inference_fleet.staging.drain_script import write_drain_script
from inference_fleet.staging.stage import Stager


def add_commands(subparsers: Any) -> None:
    """Register `stage`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "stage",
        help="bring a model's files into a folder, verified",
        description="Brings what an inspection resolved into a folder: resumable, verified, skipped where it already is.",
    )
    add_artifact_arguments(parser, required=True)
    parser.add_argument("--drain-script", metavar="PATH", help="also write the engine container's preStop script here")
    parser.add_argument(
        "--termination-log", metavar="PATH", default=TERMINATION_LOG, help="where a failure is explained"
    )
    parser.set_defaults(run=run_stage)


def add_artifact_arguments(parser: argparse.ArgumentParser, required: bool) -> None:
    """`--source`, `--resolved` and `--into`: what is staged, and where."""
    parser.add_argument("--source", metavar="JSON", required=required, help="spec.source of an InferenceModel")
    parser.add_argument("--resolved", metavar="JSON", required=required, help="status.resolved of the same")
    parser.add_argument("--into", metavar="DIR", required=required, type=Path, help="folder for the files")


def run_stage(arguments: argparse.Namespace) -> int:
    """Stage. 0: everything is there; 1: it is not, and the termination message says why."""
    try:
        if arguments.drain_script:
            _write_script(Path(arguments.drain_script))
        source, resolved = parse_source(arguments.source), parse_resolved(arguments.resolved)
        path = Stager(reach_from_environment(), log_line).stage(source, resolved, arguments.into)
    except SourceFailure as failure:
        write_termination_message(encode_failure(failure), arguments.termination_log)
        log_line(str(failure))
        return 1
    log_line(f"the engine loads {path}")
    return 0


def parse_resolved(text: str) -> ResolvedArtifact:
    """`status.resolved` from JSON. Raises SourceFailure(Unsupported)."""
    try:
        return ResolvedArtifact.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise SourceFailure(Reason.UNSUPPORTED, f"--resolved cannot be read: {where}: {first['msg']}") from error


def log_line(line: str) -> None:
    """One line of the container's log, at once."""
    print(f"stage: {line}", flush=True)


def _write_script(path: Path) -> None:
    try:
        write_drain_script(path)
    except OSError as error:
        raise explain_write_error(error, path, 0) from error
