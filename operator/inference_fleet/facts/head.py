"""Reading the beginning of a file, forward only: what every weight format's header needs, wherever the file lies.

GGUF and safetensors keep all that describes a model at the front, so a reader that only moves forward, and stops early, serves
local files and HTTP alike and never needs to hold what it has passed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from inference_fleet.facts.failure import Reason, SourceFailure, malformed

HEADER_LIMIT_BYTES = 512 * 2**20
"""No header is longer: the largest known (262,144 tokens, merges and an embedded tokenizer.json) are near 64 MiB."""

BLOCK_BYTES = 2**18


class Head:
    """Bytes from the front of a file, in order.

    `blocks` yields the file's content piece by piece; `size` is the whole file's length in bytes, None where the server did not
    say. Reading past the end, or past `limit` bytes, raises SourceFailure(Malformed).
    """

    def __init__(self, name: str, blocks: Iterator[bytes], size: int | None, limit: int = HEADER_LIMIT_BYTES) -> None:
        self.name = name
        self.size = size
        self._blocks = blocks
        self._limit = limit
        self._buffer = b""
        self._start = 0
        self._passed = 0

    @property
    def position(self) -> int:
        """Bytes read or skipped so far."""
        return self._passed + self._start

    def read(self, count: int) -> bytes:
        """Exactly `count` bytes."""
        end = self._start + count
        if end > len(self._buffer):
            self._check(count)
            self._gather(count)
            end = self._start + count
        piece = self._buffer[self._start : end]
        self._start = end
        return piece

    def skip(self, count: int) -> None:
        """Pass over `count` bytes without keeping them."""
        self._check(count)
        while count > len(self._buffer) - self._start:
            count -= len(self._buffer) - self._start
            self._next(keep=b"")
        self._start += count

    def close(self) -> None:
        """Let go of the file or connection."""
        close = getattr(self._blocks, "close", None)
        if close is not None:
            close()

    def _check(self, count: int) -> None:
        if count < 0:
            raise malformed(f"{self.name} announces a length of {count} bytes")
        if self.size is not None and self.position + count > self.size:
            raise malformed(
                f"{self.name} is {self.size} bytes long but announces content up to byte {self.position + count}"
            )
        if self.position + count > self._limit:
            raise malformed(f"{self.name} announces a header of more than {self._limit} bytes")

    def _gather(self, count: int) -> None:
        pieces = [self._buffer[self._start :]]
        missing = count - len(pieces[0])
        self._passed += self._start
        self._buffer, self._start = b"", 0
        while missing > 0:
            block = self._block()
            pieces.append(block)
            missing -= len(block)
        self._buffer = b"".join(pieces)

    def _next(self, keep: bytes) -> None:
        self._passed += len(self._buffer)
        self._buffer, self._start = keep + self._block(), 0

    def _block(self) -> bytes:
        for block in self._blocks:
            if block:
                return block
        raise malformed(f"{self.name} ends after {self._passed + len(self._buffer)} bytes, inside its header")


def open_file(path: Path, name: str | None = None) -> Head:
    """The front of a local file. Raises SourceFailure(NotFound) where there is none, Unauthorized where it may not be read."""
    shown = name or str(path)
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise SourceFailure(Reason.NOT_FOUND, f"{shown} is not a file")
        return Head(shown, _file_blocks(path), size)
    except FileNotFoundError:
        raise SourceFailure(
            Reason.NOT_FOUND, f"{shown} does not exist", "Check the path and what is mounted there"
        ) from None
    except PermissionError:
        raise SourceFailure(
            Reason.UNAUTHORIZED, f"{shown} may not be read", "Make it readable for this user or group"
        ) from None


def _file_blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            yield block
