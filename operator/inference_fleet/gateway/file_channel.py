"""Routes from a file, for running without a cluster: read again when it has changed."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from inference_fleet.gateway.fleet import Fleet

log = logging.getLogger(__name__)


class FileChannel:
    """Endpoints come from the variants' own `endpoints`."""

    def __init__(self, path: Path, fleet: Fleet, poll_seconds: float) -> None:
        self._path = path
        self._fleet = fleet
        self._poll_seconds = poll_seconds
        self._seen: bytes | None = None
        self._error = ""

    async def run(self) -> None:
        while True:
            self.refresh()
            await asyncio.sleep(self._poll_seconds)

    def refresh(self) -> None:
        """Reads the file; what cannot be read leaves the last routes in force."""
        try:
            document = self._path.read_bytes()
        except OSError as error:
            if self._error != str(error):
                self._error = str(error)
                log.error("routes: %s", error)
                self._fleet.channel_failed("routes")
            return
        self._error = ""
        self._fleet.channel_synced("routes")
        # Content rather than modification time: two writes may fall in one tick of the file system's clock.
        if document != self._seen:
            self._seen = document
            self._fleet.take_routes(document)
