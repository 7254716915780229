"""TLS on the clients' side, its certificate read again when the mounted Secret changes."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

log = logging.getLogger(__name__)


class Certificate:
    """`tls.crt` and `tls.key` of a directory, as Kubernetes lays out a Secret of type `kubernetes.io/tls`."""

    def __init__(self, directory: Path) -> None:
        self._chain = directory / "tls.crt"
        self._key = directory / "tls.key"
        self._seen = (b"", b"")
        self.context = _server_context()

    def refresh(self) -> bool:
        """Loads the pair if it differs from the one in use; whether it did. Connections that are open keep theirs.

        Raises OSError or ssl.SSLError when it cannot be used; the last one stays in use.
        """
        pair = (self._chain.read_bytes(), self._key.read_bytes())
        if pair == self._seen:
            return False
        # Tried apart first: a failed load would leave the context with a new chain and an old key.
        _server_context().load_cert_chain(self._chain, self._key)
        self.context.load_cert_chain(self._chain, self._key)
        self._seen = pair
        log.info("tls: certificate loaded")
        return True


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context
