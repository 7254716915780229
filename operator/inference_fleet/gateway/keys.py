"""Who is asking: API keys from a mounted Secret, known to the gateway only by their SHA-256.

Each file of the directory is a tenant, named by the file; its lines are SHA-256 digests in hexadecimal, optionally after
`sha256:`. Empty lines and lines that begin with `#` are skipped.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from inference_fleet.gateway.errors import missing_key, wrong_key

log = logging.getLogger(__name__)

ANONYMOUS = "anonymous"
"""The tenant of everybody where the policy asks for no authentication."""

BUCKET_BYTES = 2


@dataclass(frozen=True, slots=True)
class Keys:
    """Tenants by the digest of a key, in buckets of the digest's first bytes."""

    buckets: Mapping[bytes, tuple[tuple[bytes, str], ...]] = field(default_factory=dict, repr=False)

    def tenant(self, key: str) -> str | None:
        """Whose key this is, or None. How long it takes tells nothing of the digests that are known."""
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        for known, tenant in self.buckets.get(digest[:BUCKET_BYTES], ()):
            if hmac.compare_digest(known, digest):
                return tenant
        return None


def presented_key(headers: Mapping[str, str]) -> str | None:
    """The key of a request: `Authorization: Bearer`, or `x-api-key` as Anthropic's clients send it."""
    authorization = headers.get("Authorization")
    if authorization:
        scheme, _, key = authorization.partition(" ")
        return key.strip() if scheme.lower() == "bearer" and key.strip() else None
    return headers.get("x-api-key") or None


def authenticate(keys: Keys | None, headers: Mapping[str, str]) -> str:
    """The tenant of a request; `keys` is None where no authentication is asked for.

    Raises Refusal 401.
    """
    if keys is None:
        return ANONYMOUS
    key = presented_key(headers)
    if key is None:
        raise missing_key()
    tenant = keys.tenant(key)
    if tenant is None:
        raise wrong_key()
    return tenant


def parse(files: Iterable[tuple[str, str]]) -> Keys:
    """Digests out of (tenant, text) pairs. A line that is no digest is left out and reported without its content."""
    tenants: dict[bytes, str] = {}
    for tenant, text in files:
        for number, line in enumerate(text.splitlines(), 1):
            word = line.strip().lower().removeprefix("sha256:")
            if not word or word.startswith("#"):
                continue
            try:
                digest = bytes.fromhex(word)
            except ValueError:
                digest = b""
            if len(digest) != hashlib.sha256().digest_size:
                log.warning("keys: line %d of tenant %s is no SHA-256 in hexadecimal and is left out", number, tenant)
            elif tenants.setdefault(digest, tenant) != tenant:
                log.warning("keys: line %d of tenant %s repeats a key of %s", number, tenant, tenants[digest])
    buckets: dict[bytes, tuple[tuple[bytes, str], ...]] = {}
    for digest, tenant in tenants.items():
        bucket = digest[:BUCKET_BYTES]
        buckets[bucket] = (*buckets.get(bucket, ()), (digest, tenant))
    return Keys(buckets)


class KeyDirectory:
    """The keys of a directory, read again when it has changed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: object = None
        self.keys = Keys()

    def refresh(self) -> bool:
        """Reads the directory if it differs from what was read last; whether it did.

        What cannot be read leaves the last good keys in force. At first there are none: everybody is refused.
        """
        try:
            # Dot names are the kubelet's own: `..data` is the link it swaps to publish a new content at once.
            files = sorted(path for path in self._directory.iterdir() if not path.name.startswith("."))
            seen = [(path.name, (status := path.stat()).st_mtime_ns, status.st_size, status.st_ino) for path in files]
            if seen == self._seen:
                return False
            self.keys = parse((path.name, path.read_text("utf-8", "replace")) for path in files if path.is_file())
        except OSError as error:
            if self._seen is not error.errno:
                self._seen = error.errno
                log.error("keys: %s cannot be read: %s", self._directory, error.strerror)
            return False
        self._seen = seen
        log.info("keys: read again, %d tenants", len(files))
        return True
