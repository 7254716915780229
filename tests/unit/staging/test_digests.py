"""Digests as the sources give them."""

from __future__ import annotations

import hashlib

import pytest

from inference_fleet.staging.digests import ContentDigest


def of(expected: str, content: bytes) -> ContentDigest:
    digest = ContentDigest(expected, len(content))
    digest.update(content[:3])
    digest.update(content[3:])
    return digest


def test_sha256_and_git_blob() -> None:
    content = b"hello world\n"
    assert of(f"sha256:{hashlib.sha256(content).hexdigest()}", content).agrees()
    assert of("git-sha1:3b18e512dba79e4c8300dd08aeb37f8e728b8dad", content).agrees()  # git hash-object
    assert not of("git-sha1:3b18e512dba79e4c8300dd08aeb37f8e728b8dad", content + b"x").agrees()
    assert not of(f"sha256:{'0' * 64}", content).agrees()
    assert of("", content).agrees()


def test_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown kind"):
        ContentDigest("md5:x", 1)
