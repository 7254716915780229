"""Staging: bring what an inspection resolved into a folder, once, whole and verified. Targets and drafts alike."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inference_fleet.api.model import HTTPSource, HuggingFaceSource, ModelSource, ResolvedArtifact
from inference_fleet.facts.failure import Reason, SourceFailure
from inference_fleet.facts.folder import HubFolder, listing_digest
from inference_fleet.facts.hub import ListedFile
from inference_fleet.facts.inspection import Reach, choose_files
from inference_fleet.staging.download import (
    Download,
    Transfer,
    check_space,
    explain_write_error,
    publish,
    sync_folder,
)
from inference_fleet.staging.lock import folder_lock
from inference_fleet.staging.paths import engine_path, file_name

MARKER_NAME = ".inference-fleet-staged.json"


@dataclass(frozen=True, slots=True)
class Stager:
    """How staging is done: how sources are reached, where its log goes, its clock."""

    reach: Reach
    log: Callable[[str], None]
    monotonic: Callable[[], float] = field(default=time.monotonic)

    def stage(self, source: ModelSource, resolved: ResolvedArtifact, into: Path) -> Path:
        """Bring the artefact into the folder `into` and return the path for the engine. Raises SourceFailure."""
        path = Path(engine_path(source, str(into)))
        if source.volume_claim is not None:
            return _mounted(path, source.volume_claim.name)
        try:
            into.mkdir(parents=True, exist_ok=True)
            if _stands(into, resolved.digest):
                self.log(f"{into}: {resolved.digest} is already here")
                return path
            with folder_lock(into, self.log, self.reach.retries.sleep) as partial_suffix:
                if not _stands(into, resolved.digest):
                    self._fill(source, resolved, into, partial_suffix)
        except OSError as error:
            raise explain_write_error(error, into / MARKER_NAME, resolved.weight_bytes) from error
        return path

    def _fill(self, source: ModelSource, resolved: ResolvedArtifact, into: Path, partial_suffix: str) -> None:
        downloads = self._downloads(source, resolved, into)
        _clear_other(into, {download.path for download in downloads})
        check_space(into, sum(download.size - _present(download, partial_suffix) for download in downloads))
        web = self.reach.hub.web if source.hugging_face is not None else self.reach.web
        transfer = Transfer(web, self.log, self.monotonic, partial_suffix)
        for download in downloads:
            transfer.fetch(download)
        _mark(into, resolved.digest, {str(one.path.relative_to(into)): one.size for one in downloads})
        self.log(f"{into}: {resolved.digest} is staged, {len(downloads)} files")

    def _downloads(self, source: ModelSource, resolved: ResolvedArtifact, into: Path) -> list[Download]:
        if source.http is not None:
            return _http_downloads(source.http, resolved, into)
        if source.hugging_face is not None:
            return self._hub_downloads(source.hugging_face, resolved, into)
        raise SourceFailure(Reason.UNSUPPORTED, "the source is empty")

    def _hub_downloads(self, source: HuggingFaceSource, resolved: ResolvedArtifact, into: Path) -> list[Download]:
        hub = self.reach.hub
        listed: Sequence[ListedFile] = [ListedFile(file.path, file.bytes, file.digest) for file in resolved.files]
        if not listed:
            files = {file.path: file for file in hub.files(source.repository, resolved.revision)}
            folder = HubFolder(hub, source.repository, resolved.revision, files)
            listed = [files[path] for path in choose_files(folder, source.file)[1]]
        found = listing_digest(listed)
        if found != resolved.digest:
            raise SourceFailure(
                Reason.DIGEST_MISMATCH,
                f"{source.repository} at {resolved.revision} lists files of digest {found}, not {resolved.digest}",
                "Make a new InferenceModel to inspect it again",
            )
        return [
            Download(
                hub.address(source.repository, resolved.revision, file.path),
                _inside(into, file.path),
                file.bytes,
                file.digest,
            )
            for file in listed
        ]


def _http_downloads(source: HTTPSource, resolved: ResolvedArtifact, into: Path) -> list[Download]:
    """One file, verified against what the user wrote whatever the status says."""
    size = resolved.files[0].bytes if resolved.files else resolved.weight_bytes
    return [Download(source.url, _inside(into, file_name(source.url)), size, f"sha256:{source.sha256}")]


def _mounted(path: Path, claim: str) -> Path:
    if not path.exists():
        raise SourceFailure(
            Reason.NOT_FOUND, f"{path} does not exist on claim {claim}", "Check the path and what the claim holds"
        )
    return path


def _inside(into: Path, path: str) -> Path:
    if path.startswith("/") or not path or {"..", "."} & set(path.split("/")):
        raise SourceFailure(Reason.MALFORMED, f"{path[:200]!r} is not a path inside a folder")
    return into / path


def _present(download: Download, partial_suffix: str) -> int:
    """Bytes of it that need no more room."""
    partial = download.path.with_name(f".{download.path.name}{partial_suffix}")
    for path in (download.path, partial):
        if path.is_file():
            return min(download.size, path.stat().st_size)
    return 0


def read_marker(into: Path) -> Mapping[str, Any]:
    """What stands in the folder: `{"digest", "files": {path: bytes}}`; empty where nothing whole does."""
    try:
        marker = json.loads((into / MARKER_NAME).read_text())
    except (OSError, ValueError):
        return {}
    return marker if isinstance(marker, dict) and isinstance(marker.get("files"), dict) else {}


def _stands(into: Path, digest: str) -> bool:
    """Whether exactly this artefact is in the folder: the marker names it and every file has its size."""
    marker = read_marker(into)
    if marker.get("digest") != digest:
        return False
    return all(_size(into / path) == size for path, size in marker["files"].items())


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _clear_other(into: Path, wanted: set[Path]) -> None:
    """Remove the marker and the files of another artefact that it names: an engine loads whatever lies in its folder."""
    for path in read_marker(into).get("files", {}):
        if into / path not in wanted:
            _inside(into, path).unlink(missing_ok=True)
    (into / MARKER_NAME).unlink(missing_ok=True)
    sync_folder(into)


def _mark(into: Path, digest: str, files: Mapping[str, int]) -> None:
    partial = into / f"{MARKER_NAME}.{os.getpid()}.part"
    with partial.open("w") as file:
        json.dump({"digest": digest, "files": dict(files)}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    publish(partial, into / MARKER_NAME)
