"""Digests of files as sources give them: `sha256:…` and, for small files on the hub, `git-sha1:…`."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

BLOCK_BYTES = 2**20


class ContentDigest:
    """Takes a file's content in order and compares it with an expected digest; an empty expectation agrees with everything.

    `size` is the file's length in bytes, which git hashes before the content.
    """

    def __init__(self, expected: str, size: int) -> None:
        self.expected = expected
        kind = expected.partition(":")[0]
        if kind not in ("", "sha256", "git-sha1"):
            raise ValueError(f"{expected!r} is a digest of an unknown kind")
        self._kind = kind
        if kind == "git-sha1":
            self._hash = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        else:
            self._hash = hashlib.sha256()

    def update(self, content: bytes) -> None:
        """The next piece."""
        self._hash.update(content)

    @property
    def found(self) -> str:
        """The digest of what was taken so far, in the expected kind."""
        return f"{self._kind or 'sha256'}:{self._hash.hexdigest()}"

    def agrees(self) -> bool:
        """Whether it is the expected one."""
        return not self.expected or hmac.compare_digest(self.found, self.expected)


def digest_file(path: Path, digest: ContentDigest) -> ContentDigest:
    """Feed a file's content to `digest`."""
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest
