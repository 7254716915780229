"""The lowest layer of the images with Python: a small Debian 12 made by debootstrap, and Python's work in it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from hack.images.layers import Layer, key_of
from hack.tools.prerequisites import need, need_root
from hack.tools.progress import Failure

SUITE = "bookworm"
PYTHON = "3.11"
"""Of that Debian. Wheels are fetched for it, whatever Python runs here."""
PACKAGES = "python3,ca-certificates,libgomp1"  # libgomp1: llama.cpp computes with it
DIST_PACKAGES = f"usr/local/lib/python{PYTHON}/dist-packages"

UNNEEDED = ("dev/*", "proc/*", "sys/*", "run/*", "tmp/*", "var/cache/apt/*", "var/lib/apt/lists/*", "var/log/*",
            "usr/share/man/*", "usr/share/locale/*", "usr/share/info/*")  # fmt: skip


def mirror() -> list[str]:
    """The Debian mirror that this machine is set up with, where it is a Debian of the same suite."""
    wanted = ("Created-By: Packages", f"Codename: {SUITE}", "Component: main")
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", *wanted]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.split()[:1]
    except FileNotFoundError:
        return []


def fill_base(tree: Path) -> None:
    need_root("making an image's Debian layer")
    need("debootstrap")
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(tree), *mirror()]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"debootstrap failed:\n{(done.stdout + done.stderr)[-2000:]}")
    for pattern in UNNEEDED:
        for path in tree.glob(pattern):
            remove(path)
    for path in list(tree.glob("usr/share/doc/*/*")):
        if path.name != "copyright":
            remove(path)
    for path in list(tree.rglob("__pycache__")):
        remove(path)
    with (tree / "etc/passwd").open("a") as users, (tree / "etc/group").open("a") as groups:
        users.write("nonroot:x:65532:65532:nonroot:/home/nonroot:/usr/sbin/nologin\n")
        groups.write("nonroot:x:65532:\n")
    (tree / "home/nonroot").mkdir()
    compile_in(tree, tree / f"usr/lib/python{PYTHON}", f"/usr/lib/python{PYTHON}")


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)  # documentation folders may be links to one another


def compile_in(base: Path, packages: Path, where: str) -> None:
    """Compiles Python files with the image's own Python, for a file system on which nothing can be written later.

    Unchecked: the compiled files hold whatever the sources' times are, which packing sets anew.
    """
    script = 'mount --bind "$1" "$2/mnt" && exec chroot "$2" python3 -I -m compileall -q -s /mnt -p "$3" \
        --invalidation-mode unchecked-hash /mnt'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(packages), str(base), where]
    done = subprocess.run(command, capture_output=True, text=True)
    # A package may carry a file for another Python; it would fail in the image in the same way, when imported.
    if done.returncode != 0 and not any(packages.rglob("*.pyc")):
        raise Failure(f"compiling Python for an image failed:\n{(done.stdout + done.stderr)[-2000:]}")


BASE = Layer("base", key_of("1", SUITE, PACKAGES), fill_base)
