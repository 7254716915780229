"""Layers and images that are built once and kept: what decides a layer's content is its key."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from hack.images.archive import Settings, image_config, write_archive, write_layer
from hack.tools.cache import cache, locked
from hack.tools.progress import say

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
KEPT_VERSIONS = 3
"""Of every layer: enough for a few checkouts side by side, and no more disk than that."""


def folder(name: str) -> Path:
    path = cache() / "images" / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def key_of(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:16]


def key_of_files(root: Path, files: Iterable[Path]) -> str:
    """A key from the names, the executable bits and the content of files."""
    facts: list[str | bytes] = []
    for file in sorted(files):
        facts += [str(file.relative_to(root)), "x" if file.stat().st_mode & 0o100 else "-", file.read_bytes()]
    return key_of(*facts)


@dataclass(frozen=True)
class Layer:
    """A folder tree, its key, and how to make it: `fill` is given an empty folder."""

    name: str
    key: str
    fill: Callable[[Path], None]

    @property
    def stem(self) -> str:
        return f"{self.name}-{self.key}"

    def tree(self) -> Path:
        """The layer as a folder on this machine. Read it, never write into it."""
        path = folder("trees") / self.stem
        if not path.exists():
            with locked(f"layer-{self.name}"):
                if not path.exists():
                    self.make(path)
        return path

    def make(self, path: Path) -> None:
        started = time.monotonic()
        say(f"making layer {self.name}")
        partial = path.with_name(f".{path.name}.partial")
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir(mode=0o755)
        self.fill(partial)
        partial.rename(path)
        say(f"  layer {self.name}: {time.monotonic() - started:.1f} s")
        self.remove_old()

    def packed(self) -> tuple[str, Path]:
        """The layer's digest and the tar file that holds it."""
        tar = folder("layers") / f"{self.stem}.tar"
        digest = tar.with_suffix(".digest")
        if not digest.exists():
            tree = self.tree()
            with locked(f"layer-{self.name}"):
                partial = tar.with_suffix(".partial")
                value = write_layer(tree, partial)
                partial.rename(tar)
                digest.write_text(value)
        return digest.read_text(), tar

    def remove_old(self) -> None:
        trees = [path for path in folder("trees").iterdir() if path.name[:-17] == self.name]
        for old in sorted(trees, key=lambda path: path.lstat().st_mtime)[:-KEPT_VERSIONS]:
            shutil.rmtree(old, ignore_errors=True)
            for file in folder("layers").glob(f"{old.name}.*"):
                file.unlink(missing_ok=True)


@dataclass(frozen=True)
class Image:
    """A name, layers from the lowest up, and what a container runs."""

    name: str
    layers: tuple[Layer, ...]
    settings: Settings

    def archive(self) -> Path:
        """The image as a docker-archive, packed only if a layer or the settings have changed."""
        target = folder("archives") / (
            self.name.removeprefix("localhost/").replace(":", "-").replace("/", "-") + ".tar"
        )
        packed = [layer.packed() for layer in self.layers]
        config = image_config([digest for digest, _ in packed], self.settings, ARCHITECTURE)
        identity = json.dumps([self.name, hashlib.sha256(config).hexdigest()])
        record = target.with_suffix(".id")
        if not (target.exists() and record.exists() and record.read_text() == identity):
            with locked("archive"):
                started = time.monotonic()
                write_archive(target, self.name, packed, config)
                record.write_text(identity)
                say(f"  packed {self.name}: {time.monotonic() - started:.1f} s")
        return target
