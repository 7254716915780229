"""Why a source could not be read or staged, as a value that people and the operator can act on."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Any

import orjson

TERMINATION_LOG = "/dev/termination-log"
TERMINATION_BYTES = 4096
"""Kubernetes cuts a container's termination message at this many bytes."""


class Reason(StrEnum):
    """What went wrong, in one word; the operator puts it into conditions."""

    NOT_FOUND = "NotFound"
    UNAUTHORIZED = "Unauthorized"
    UNREACHABLE = "Unreachable"
    DIGEST_MISMATCH = "DigestMismatch"
    UNSUPPORTED = "Unsupported"
    MALFORMED = "Malformed"
    NO_SPACE = "NoSpace"
    NOT_WRITABLE = "NotWritable"
    VOCABULARY_MISMATCH = "VocabularyMismatch"


class SourceFailure(Exception):
    """A source, or what was read of it, cannot be used. `remedy` says what to do about it; empty where nothing can be said."""

    def __init__(self, reason: Reason, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        """One line: reason, message, remedy."""
        return f"{self.reason}: {self.sentence()}"

    def sentence(self) -> str:
        """The message followed by what to do."""
        return f"{self.message}. {self.remedy}" if self.remedy else self.message

    def to_dict(self) -> dict[str, Any]:
        """As written into a termination message: `{"error": {"reason", "message"}}`."""
        return {"error": {"reason": str(self.reason), "message": self.sentence()}}


def malformed(message: str) -> SourceFailure:
    """A file that breaks its own format: damaged, cut short or hostile."""
    return SourceFailure(Reason.MALFORMED, message, "Check that the file is whole and is what its name says")


def encode_failure(failure: SourceFailure) -> bytes:
    """The failure as a termination message, its text cut so that the whole stays within 4,096 bytes."""
    text = failure.sentence()
    while True:
        payload = orjson.dumps({"error": {"reason": str(failure.reason), "message": text}})
        if len(payload) <= TERMINATION_BYTES:
            return payload
        text = text[: len(text) * 3 // 4] + "…"


def write_termination_message(payload: bytes, path: str | os.PathLike[str]) -> None:
    """Write the container's last words. Kubernetes' own file is there beforehand: where it is not, this is no container."""
    target = Path(path)
    if str(path) == TERMINATION_LOG and not target.exists():
        return
    try:
        target.write_bytes(payload[:TERMINATION_BYTES])
    except OSError:
        return
