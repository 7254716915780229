"""The `inspect` command."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
from pydantic import ValidationError

from inference_fleet.api.model import ModelSource
from inference_fleet.api.quantities import format_bytes
from inference_fleet.facts.failure import (
    TERMINATION_LOG,
    Reason,
    SourceFailure,
    encode_failure,
    write_termination_message,
)
from inference_fleet.facts.inspection import Inspection, Reach, inspect_local, inspect_source, reach_from_environment

_HUB = re.compile(r"^hf:(?P<repository>[^@#]+)(?:@(?P<revision>[^#]+))?(?:#(?P<file>.+))?$")
_UNVERIFIED = "0" * 64
"""Stands in for a digest that the person asking does not know; it is not shown as one."""


def add_commands(subparsers: Any) -> None:
    """Register `inspect`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "inspect",
        help="tell what a model is from its headers",
        description="Reads only the headers of a model's files and tells its size, shape and vocabulary.",
    )
    parser.add_argument("model", nargs="?", help="FILE, FOLDER, URL or hf:OWNER/NAME[@REVISION][#FILE]")
    parser.add_argument("--source", metavar="JSON", help="spec.source of an InferenceModel; answers in JSON")
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    parser.add_argument(
        "--termination-log", metavar="PATH", default=TERMINATION_LOG, help="with --source: also write the answer here"
    )
    parser.set_defaults(run=run_inspect)


def run_inspect(arguments: argparse.Namespace) -> int:
    """Answer on standard output, and with `--source` in the termination message too. 0 found, 1 not, 2 asked wrongly."""
    if (arguments.model is None) == (arguments.source is None):
        print("inspect: give either a model or --source", file=sys.stderr)
        return 2
    reach = reach_from_environment()
    if arguments.source is not None:
        return _answer_pod(arguments.source, Path(arguments.termination_log), reach)
    try:
        found = _inspect_for_people(arguments.model, reach)
    except SourceFailure as failure:
        print(
            encode_failure(failure).decode() if arguments.json else f"inspect: {failure}",
            file=sys.stdout if arguments.json else sys.stderr,
        )
        return 1
    print(orjson.dumps(found.to_dict(), option=orjson.OPT_INDENT_2).decode() if arguments.json else table(found))
    return 0


def parse_source(text: str) -> ModelSource:
    """`spec.source` from JSON. Raises SourceFailure(Unsupported) with what is wrong with it."""
    try:
        return ModelSource.model_validate_json(text)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc']))}: {item['msg']}".lstrip(": ") for item in error.errors()[:4]
        )
        raise SourceFailure(Reason.UNSUPPORTED, f"the source cannot be read: {problems}") from error


def _answer_pod(source: str, termination_log: Path, reach: Reach) -> int:
    try:
        payload, status = inspect_source(parse_source(source), reach).encode(), 0
    except SourceFailure as failure:
        payload, status = encode_failure(failure), 1
    write_termination_message(payload, termination_log)
    print(payload.decode())
    return status


def _inspect_for_people(model: str, reach: Reach) -> Inspection:
    hub = _HUB.match(model)
    if hub:
        named = {name: value for name, value in hub.groupdict().items() if value}
        return inspect_source(parse_source(orjson.dumps({"huggingFace": named}).decode()), reach)
    if urlsplit(model).scheme in ("http", "https"):
        document = {"http": {"url": model, "sha256": _UNVERIFIED}}
        return inspect_source(parse_source(orjson.dumps(document).decode()), reach)
    return inspect_local(Path(model), model)


def table(found: Inspection) -> str:
    """What was found, for people."""
    facts, resolved = found.facts, found.resolved
    heads = f"{facts.attention_heads} query, {facts.key_value_heads} key/value of {facts.head_dimension}"
    if facts.value_head_dimension:
        heads += f" (values {facts.value_head_dimension})"
    window = f", window {facts.sliding_window_tokens:,} tokens" if facts.sliding_window_tokens else ""
    digest = "not known (give sha256 to verify)" if _UNVERIFIED in resolved.digest else resolved.digest
    rows = {
        "architecture": facts.architecture,
        "format": str(resolved.format),
        "parameters": f"{facts.parameters:,}",
        "weights": f"{format_bytes(resolved.weight_bytes)}, mostly {facts.weight_bits} bits",
        "layers": f"{facts.layers} of width {facts.hidden_size:,}",
        "attention": f"{facts.attention}{window}",
        "heads": heads,
        "context": f"{facts.max_context_tokens:,} tokens",
        "vocabulary": f"{facts.vocabulary_size:,} tokens"
        + (f", {facts.tokenizer_model}" if facts.tokenizer_model else ""),
        "tokens digest": facts.tokens_digest,
        "revision": resolved.revision,
        "digest": digest,
        "files": f"{len(resolved.files)}, {format_bytes(sum(file.bytes for file in resolved.files))}"
        if resolved.files
        else "",
    }
    return "\n".join(f"{name:<15}{value}" for name, value in rows.items() if value)
