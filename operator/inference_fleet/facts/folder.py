"""A place with weight files, wherever it is: what it lists, and how the front or the whole of a file is read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from inference_fleet.facts.failure import Reason, SourceFailure, malformed
from inference_fleet.facts.head import Head, open_file
from inference_fleet.facts.hub import Hub, ListedFile

MAX_FOLDER_FILES = 20_000
SAMPLE_BYTES = 2**20

_CONFIGURATION = (".json", ".model", ".txt", ".jinja", ".tiktoken")


class Folder(Protocol):
    """Files by their path inside the place."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def files(self) -> Mapping[str, ListedFile]:
        """All files."""

    def open(self, path: str) -> Head:
        """The front of a file."""

    def read(self, path: str, limit: int) -> bytes:
        """The whole of a file that has at most `limit` bytes."""


@dataclass(frozen=True, slots=True)
class HubFolder:
    """A repository at one commit."""

    hub: Hub
    repository: str
    commit: str
    files: Mapping[str, ListedFile]

    @property
    def name(self) -> str:
        """`owner/name@commit`, the commit shortened."""
        return f"{self.repository}@{self.commit[:12]}"

    def open(self, path: str) -> Head:
        """By Range requests."""
        return self.hub.web.head(self.hub.address(self.repository, self.commit, path), f"{self.name}/{path}")

    def read(self, path: str, limit: int) -> bytes:
        """In one request."""
        return self.hub.web.content(self.hub.address(self.repository, self.commit, path), limit)


@dataclass(frozen=True, slots=True)
class LocalFolder:
    """A folder of this machine; only the files directly in it and below, links that lead out of it are not followed."""

    root: Path
    name: str
    files: Mapping[str, ListedFile]

    def open(self, path: str) -> Head:
        """From the disk."""
        return open_file(self.root / path, f"{self.name}/{path}")

    def read(self, path: str, limit: int) -> bytes:
        """From the disk."""
        if self.files[path].bytes > limit:
            raise malformed(f"{self.name}/{path} has {self.files[path].bytes} bytes, more than {limit}")
        return (self.root / path).read_bytes()


def local_folder(root: Path, name: str) -> LocalFolder:
    """List a folder. Raises SourceFailure."""
    found: dict[str, ListedFile] = {}
    for folder, _, names in os.walk(root):
        for item in names:
            path = Path(folder) / item
            if path.is_file():
                inside = path.relative_to(root).as_posix()
                found[inside] = ListedFile(inside, path.stat().st_size)
            if len(found) > MAX_FOLDER_FILES:
                raise SourceFailure(
                    Reason.UNSUPPORTED, f"{name} holds more than {MAX_FOLDER_FILES} files", "Name the model's folder"
                )
    return LocalFolder(root, name, found)


def configuration_files(files: Iterable[str], within: str = "") -> tuple[str, ...]:
    """Files beside the weights that an engine reads: configuration, tokenizer, chat template. Not subfolders, not code."""
    prefix = f"{within}/" if within else ""
    return tuple(
        sorted(
            path
            for path in files
            if path.startswith(prefix)
            and "/" not in path.removeprefix(prefix)
            and path.endswith(_CONFIGURATION)
            and not path.removeprefix(prefix).startswith(".")
        )
    )


def listing_digest(files: Iterable[ListedFile]) -> str:
    """One digest of everything that is loaded: a single file's own SHA-256, else the SHA-256 of the list.

    So whoever lists the same revision again can tell that it is the same list, without the list being passed on.
    """
    ordered = sorted(files, key=lambda file: file.path)
    if len(ordered) == 1 and ordered[0].digest.startswith("sha256:"):
        return ordered[0].digest
    lines = "".join(f"{file.path}\t{file.bytes}\t{file.digest}\n" for file in ordered)
    return f"sha256:{hashlib.sha256(lines.encode('utf-8', 'surrogateescape')).hexdigest()}"


def sampled_digest(path: Path) -> str:
    """`sampled-sha256:…` of a file that is too large to be read whole: its size and the first, middle and last MiB.

    For files on a claim, which nothing else gives a digest for. It tells other weights from these; it proves nothing.
    """
    digest, size = hashlib.sha256(), path.stat().st_size
    digest.update(size.to_bytes(8, "little"))
    with path.open("rb") as file:
        for start in (0, max(0, size // 2 - SAMPLE_BYTES // 2), max(0, size - SAMPLE_BYTES)):
            file.seek(start)
            digest.update(file.read(SAMPLE_BYTES))
    return f"sampled-sha256:{digest.hexdigest()}"
