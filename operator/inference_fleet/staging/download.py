"""One file, from its address to its final name: resumed where it was left, verified, and never visible before it is whole."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from inference_fleet.api.quantities import format_bytes
from inference_fleet.facts.failure import Reason, SourceFailure
from inference_fleet.facts.web import Response, Transient, Web, shown
from inference_fleet.staging.digests import ContentDigest, digest_file
from inference_fleet.staging.progress import Progress

FORGIVING_BYTES = 2**20
"""A connection that brought this much before it broke was worth having: failures are counted anew."""


@dataclass(frozen=True, slots=True)
class Download:
    """What to fetch. `size` in bytes; `digest` as in `digests.py`, empty where the source gives none."""

    url: str
    path: Path
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class Transfer:
    """How files are fetched: the web, the log, the clock."""

    web: Web
    log: Callable[[str], None]
    monotonic: Callable[[], float] = field(default=time.monotonic)
    partial_suffix: str = ".part"

    def fetch(self, download: Download) -> None:
        """Bring the file to its final name. Raises SourceFailure; what came before a failure of the network is kept."""
        if self._already_there(download):
            self.log(f"{download.path.name}: already here, verified")
            return
        partial = download.path.with_name(f".{download.path.name}{self.partial_suffix}")
        try:
            resumed = self._fill(download, partial)
            if not resumed:
                return
            self.log(f"{download.path.name}: what an earlier attempt left does not fit; fetching it anew")
            partial.unlink(missing_ok=True)
            self._fill(download, partial)
        except OSError as error:
            raise explain_write_error(error, download.path, download.size) from error

    def _already_there(self, download: Download) -> bool:
        path = download.path
        if not path.is_file() or path.stat().st_size != download.size:
            return False
        return digest_file(path, ContentDigest(download.digest, download.size)).agrees()

    def _fill(self, download: Download, partial: Path) -> bool:
        """Fetch and publish. True: what was resumed turned out wrong, so the file should be fetched from its start."""
        partial.parent.mkdir(parents=True, exist_ok=True)
        digest = ContentDigest(download.digest, download.size)
        done = partial.stat().st_size if partial.exists() else 0
        if done > download.size:
            partial.unlink()
            done = 0
        if done:
            digest_file(partial, digest)
        resumed = done > 0
        progress = Progress(download.path.name, download.size, done, self.log, self.monotonic)
        failures, fresh = 0, done
        while done < download.size or not partial.exists():
            try:
                done, digest = self._receive(download, partial, done, digest, progress)
                if done < download.size:
                    raise Transient(f"{shown(download.url)} ended after {done} of {download.size} bytes")
            except Transient as failure:
                done, digest = self._restart(download, partial)
                failures = 1 if done - fresh >= FORGIVING_BYTES else failures + 1
                fresh = done
                if failures >= self.web.retries.attempts:
                    raise
                pause = self.web.retries.pause(failures, failure.retry_after_seconds)
                self.log(f"{download.path.name}: {failure.message}; trying again in {pause:.0f} s")
                self.web.retries.sleep(pause)
        if not digest.agrees():
            partial.unlink(missing_ok=True)
            if resumed:
                return True
            raise SourceFailure(
                Reason.DIGEST_MISMATCH,
                f"{shown(download.url)} has digest {digest.found}, not {download.digest}",
                "The file was changed or damaged: check the source, or make a new InferenceModel for the new file",
            )
        publish(partial, download.path)
        progress.end(done)
        return False

    def _restart(self, download: Download, partial: Path) -> tuple[int, ContentDigest]:
        """What is on disk after a failure, hashed again: the only account that survives a broken write."""
        digest = ContentDigest(download.digest, download.size)
        if not partial.exists():
            return 0, digest
        return partial.stat().st_size, digest_file(partial, digest)

    def _receive(
        self, download: Download, partial: Path, done: int, digest: ContentDigest, progress: Progress
    ) -> tuple[int, ContentDigest]:
        """One request's worth. The server may answer from the start although a range was asked for: then all begins again."""
        response = self.web.get(download.url, {"Range": f"bytes={done}-"} if done else {})
        try:
            if response.status == 416 or (done and response.status == 206 and not self._continues(response, done)):
                partial.unlink(missing_ok=True)
                raise Transient(f"{shown(download.url)} does not continue at byte {done}")
            if response.total is not None and response.total != download.size:
                raise SourceFailure(
                    Reason.DIGEST_MISMATCH,
                    f"{shown(download.url)} has {response.total} bytes, not {download.size} as when it was inspected",
                    "The file was changed: make a new InferenceModel for the new file",
                )
            if done and response.status != 206:
                done, digest = 0, ContentDigest(download.digest, download.size)
            with partial.open("r+b" if done else "wb") as file:
                file.seek(done)
                for block in response.blocks():
                    done += len(block)
                    if done > download.size:
                        raise SourceFailure(
                            Reason.DIGEST_MISMATCH, f"{shown(download.url)} sends more than its {download.size} bytes"
                        )
                    file.write(block)
                    digest.update(block)
                    progress.at(done)
                file.flush()
                os.fsync(file.fileno())
            return done, digest
        finally:
            response.close()

    @staticmethod
    def _continues(response: Response, done: int) -> bool:
        return response.header("Content-Range").startswith(f"bytes {done}-")


def publish(partial: Path, path: Path) -> None:
    """Give a whole file its final name, so that it is there after a power cut or not at all."""
    partial.chmod(0o644)
    os.replace(partial, path)  # noqa: PTH105 - the atomic one
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Write a folder's names to disk; file systems that cannot are left alone."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError:
        return
    finally:
        os.close(descriptor)


def check_space(folder: Path, needed: int) -> None:
    """Refuse to begin what cannot end. Raises SourceFailure(NoSpace); file systems that do not tell are believed to have room."""
    usage = shutil.disk_usage(folder)
    if usage.total > 0 and usage.free < needed:
        raise _no_space(folder, needed, usage.free)


def explain_write_error(error: OSError, path: Path, size: int) -> SourceFailure:
    """What an error from the disk means for the one who reads the pod's message."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        free = shutil.disk_usage(path.parent).free if path.parent.is_dir() else 0
        return _no_space(path.parent, size, free)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return SourceFailure(
            Reason.NOT_WRITABLE,
            f"{path.parent} cannot be written by user {os.getuid()}: {error.strerror}",
            "Set fsGroup, or a volume that may be written",
        )
    return SourceFailure(Reason.NOT_WRITABLE, f"{path} cannot be written: {error}", "Check the volume")


def _no_space(folder: Path, needed: int, free: int) -> SourceFailure:
    return SourceFailure(
        Reason.NO_SPACE,
        f"{folder} has {format_bytes(free)} free and {format_bytes(needed)} are needed",
        "Give the volume more room",
    )
