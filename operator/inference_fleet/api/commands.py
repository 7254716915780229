"""`inference-fleet crds` and `inference-fleet reference`: what is generated from the API, for people and for packaging."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def add_commands(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Registers both commands."""
    crds = subparsers.add_parser(
        "crds",
        help="print the CustomResourceDefinitions: inference-fleet crds | kubectl apply --server-side -f -",
        description="Prints the CustomResourceDefinitions of this version, or writes one file for each.",
    )
    crds.add_argument("--output-directory", type=Path, metavar="FOLDER", help="write files there instead of printing")
    crds.set_defaults(run=run_crds)
    reference = subparsers.add_parser(
        "reference",
        help="print the reference of the API, or of its conditions and reasons",
        description="Prints a reference page in Markdown, or writes both.",
    )
    reference.add_argument("page", nargs="?", choices=["api", "conditions"], default="api", help="which page to print")
    reference.add_argument("--output-directory", type=Path, metavar="FOLDER", help="write both pages there instead")
    reference.set_defaults(run=run_reference)


def run_crds(args: argparse.Namespace) -> int:
    """Prints or writes the CustomResourceDefinitions."""
    from inference_fleet.api import crd

    texts = {crd.file_name(kind): crd.yaml_text(kind) for kind in crd.KINDS}
    if args.output_directory is None:
        sys.stdout.write("".join(texts.values()))
        return 0
    return _write(args.output_directory, texts)


def run_reference(args: argparse.Namespace) -> int:
    """Prints one reference page, or writes both."""
    from inference_fleet.api import reference

    if args.output_directory is None:
        sys.stdout.write(reference.pages()[f"{args.page}.md"])
        return 0
    return _write(args.output_directory, reference.pages())


def _write(folder: Path, texts: Mapping[str, str]) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text)
        print(folder / name)
    return 0
