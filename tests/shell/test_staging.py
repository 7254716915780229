"""Staging: what is in the folder afterwards, whatever the server, the network and other stagers did."""

from __future__ import annotations

import hashlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from inference_fleet.api.model import (
    Format,
    HTTPSource,
    HuggingFaceSource,
    ModelSource,
    ResolvedArtifact,
    ResolvedFile,
    VolumeClaimSource,
)
from inference_fleet.facts.failure import Reason, SourceFailure
from inference_fleet.facts.inspection import Reach, inspect_source
from inference_fleet.facts.web import Retries
from inference_fleet.staging import download, stage
from inference_fleet.staging.stage import MARKER_NAME, Stager, read_marker
from tests.support.command import run, start
from tests.support.small_models import folder_files, write_gguf
from tests.support.weights_server import WeightsServer, weights_server

CONTENT = bytes(range(256)) * 4096 * 3
"""3 MiB."""
REPOSITORY = "maker/small"


@dataclass
class Case:
    """A server with one file, a folder to stage into, and what the stager said and slept."""

    server: WeightsServer
    into: Path
    lines: list[str] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    content: bytes = CONTENT

    @property
    def source(self) -> ModelSource:
        return ModelSource(
            http=HTTPSource(url=f"{self.server.url}/m.gguf", sha256=hashlib.sha256(self.content).hexdigest())
        )

    @property
    def resolved(self) -> ResolvedArtifact:
        digest = f"sha256:{hashlib.sha256(self.content).hexdigest()}"
        file = ResolvedFile(path="m.gguf", bytes=len(self.content), digest=digest)
        return ResolvedArtifact(digest=digest, format=Format.GGUF, weight_bytes=len(self.content), files=(file,))

    @property
    def stager(self) -> Stager:
        retries = Retries(sleep=self.pauses.append)
        return Stager(Reach(hub_endpoint=self.server.url, retries=retries, timeout_seconds=5), self.lines.append)

    def stage(self) -> Path:
        return self.stager.stage(self.source, self.resolved, self.into)

    @property
    def file(self) -> Path:
        return self.into / "m.gguf"

    @property
    def partial(self) -> Path:
        return self.into / ".m.gguf.part"

    @property
    def ranges(self) -> list[str]:
        return [seen.range for seen in self.server.seen]

    def arguments(self) -> list[str]:
        source = self.source.model_dump_json(by_alias=True, exclude_none=True)
        resolved = self.resolved.model_dump_json(by_alias=True)
        return ["stage", "--source", source, "--resolved", resolved, "--into", str(self.into)]


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with weights_server() as server:
        server.files["/m.gguf"] = CONTENT
        yield Case(server, tmp_path / "target")


def failure_of(action: Callable[[], object]) -> SourceFailure:
    with pytest.raises(SourceFailure) as caught:
        action()
    return caught.value


def only_hidden_besides(into: Path, *names: str) -> bool:
    return sorted(path.name for path in into.iterdir() if not path.name.startswith(".")) == sorted(names)


def test_a_file_arrives_whole_under_its_name(case: Case) -> None:
    assert case.stage() == case.file
    assert case.file.read_bytes() == CONTENT
    assert not case.partial.exists()
    assert read_marker(case.into) == {"digest": case.resolved.digest, "files": {"m.gguf": len(CONTENT)}}
    assert case.file.stat().st_mode & 0o444 == 0o444


def test_what_stands_is_not_fetched_again(case: Case) -> None:
    case.stage()
    case.server.seen.clear()
    assert case.stage() == case.file
    assert case.server.seen == []
    assert "already here" in case.lines[-1]


def test_a_marker_whose_files_are_gone_does_not_stand(case: Case) -> None:
    case.stage()
    case.file.unlink()
    case.stage()
    assert case.file.read_bytes() == CONTENT


def test_a_whole_file_without_marker_is_verified_not_fetched(case: Case) -> None:
    case.stage()
    (case.into / MARKER_NAME).unlink()
    case.server.seen.clear()
    case.stage()
    assert case.server.seen == [] and (case.into / MARKER_NAME).exists()


def test_a_damaged_file_without_marker_is_fetched_again(case: Case) -> None:
    case.into.mkdir()
    case.file.write_bytes(bytes(len(CONTENT)))
    case.stage()
    assert case.file.read_bytes() == CONTENT


def test_what_an_earlier_attempt_left_is_continued(case: Case) -> None:
    case.into.mkdir()
    case.partial.write_bytes(CONTENT[:1_000_000])
    case.stage()
    assert case.ranges == ["bytes=1000000-"]
    assert case.file.read_bytes() == CONTENT


def test_a_whole_partial_file_needs_no_request(case: Case) -> None:
    case.into.mkdir()
    case.partial.write_bytes(CONTENT)
    case.stage()
    assert case.ranges == [] and case.file.read_bytes() == CONTENT


@pytest.mark.parametrize("left", [b"x" * 1_000_000, CONTENT + b"x", bytes(len(CONTENT))])
def test_a_partial_file_that_does_not_fit_is_thrown_away(case: Case, left: bytes) -> None:
    case.into.mkdir()
    case.partial.write_bytes(left)
    case.stage()
    assert case.ranges[-1] == ""
    assert case.file.read_bytes() == CONTENT


def test_a_server_without_ranges_begins_anew(case: Case) -> None:
    case.server.manners.ranges = False
    case.into.mkdir()
    case.partial.write_bytes(CONTENT[:1_000_000])
    case.stage()
    assert case.file.read_bytes() == CONTENT


def test_a_server_that_tells_no_length(case: Case) -> None:
    case.server.manners.length = False
    case.stage()
    assert case.file.read_bytes() == CONTENT


def test_breaks_are_taken_up_where_they_happened(case: Case) -> None:
    case.server.manners.drop_after = [100_000, 200_000, 0]
    case.stage()
    assert case.ranges == ["", "bytes=100000-", "bytes=300000-", "bytes=300000-"]
    assert case.pauses == [1.0, 2.0, 4.0]
    assert case.file.read_bytes() == CONTENT


def test_progress_renews_patience(case: Case) -> None:
    case.content = CONTENT * 3
    case.server.files["/m.gguf"] = case.content
    case.server.manners.drop_after = [2**20] * 8
    case.stage()
    assert case.pauses == [1.0] * 8
    assert case.file.read_bytes() == case.content


def test_patience_ends_and_what_came_is_kept(case: Case) -> None:
    case.server.manners.drop_after = [1000] * 50
    failure = failure_of(case.stage)
    assert failure.reason is Reason.UNREACHABLE and "broke off" in failure.message
    assert case.pauses == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert case.partial.stat().st_size == 6000
    assert not case.file.exists() and not (case.into / MARKER_NAME).exists()
    case.server.manners.drop_after = []
    case.stage()
    assert case.ranges[-1] == "bytes=6000-"


def test_a_body_that_is_short_although_it_ends_well(case: Case) -> None:
    case.server.manners.length = False
    case.server.manners.drop_after = [500_000, 10**9]
    case.stage()
    assert case.ranges == ["", "bytes=500000-"]


def test_busy_answers_are_waited_out(case: Case) -> None:
    case.server.manners.statuses = [503, 429, 500]
    case.stage()
    assert case.pauses == [1.0, 2.0, 4.0]


def test_other_content_of_the_same_size_is_never_published(case: Case) -> None:
    case.server.files["/m.gguf"] = CONTENT[:-1] + b"x"
    failure = failure_of(case.stage)
    assert failure.reason is Reason.DIGEST_MISMATCH
    assert case.resolved.digest in failure.message and "new InferenceModel" in failure.remedy
    assert only_hidden_besides(case.into) and not case.partial.exists()


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"x"])
def test_content_of_another_size_is_refused_before_it_is_fetched(case: Case, content: bytes) -> None:
    case.server.files["/m.gguf"] = content
    failure = failure_of(case.stage)
    assert failure.reason is Reason.DIGEST_MISMATCH and f"{len(content)} bytes" in failure.message
    assert only_hidden_besides(case.into)


def test_endless_content_is_cut(case: Case) -> None:
    case.server.manners.length = False
    case.server.files["/m.gguf"] = CONTENT + bytes(10**6)
    assert failure_of(case.stage).reason is Reason.DIGEST_MISMATCH


@pytest.mark.parametrize(
    ("token", "files", "reason"), [("", {}, Reason.NOT_FOUND), ("secret", {}, Reason.UNAUTHORIZED)]
)
def test_refusals_are_final(case: Case, token: str, files: dict[str, bytes], reason: Reason) -> None:
    case.server.manners.token, case.server.files = token, files
    assert failure_of(case.stage).reason is reason
    assert case.pauses == []


def test_a_full_disk_is_told_before_it_is_full(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"total": 10**9, "used": 10**9, "free": 1000})
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: usage)
    failure = failure_of(case.stage)
    assert failure.reason is Reason.NO_SPACE
    assert "1000 bytes free and 3.0 MiB are needed" in failure.message
    assert case.server.seen == []


def test_a_disk_that_fills_up_on_the_way(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(download.os, "fsync", full)
    monkeypatch.setattr(stage, "sync_folder", lambda _: None)
    assert failure_of(case.stage).reason is Reason.NO_SPACE


def test_a_folder_that_may_not_be_written(case: Case) -> None:
    blocked = case.into.parent / "file"
    blocked.write_text("")
    failure = failure_of(lambda: case.stager.stage(case.source, case.resolved, blocked / "target"))
    assert failure.reason is Reason.NOT_WRITABLE


def test_another_artefact_in_the_folder_makes_room(case: Case) -> None:
    case.stage()
    case.content = b"another model"
    case.server.files["/other.gguf"] = case.content
    other = ModelSource(
        http=HTTPSource(url=f"{case.server.url}/other.gguf", sha256=hashlib.sha256(case.content).hexdigest())
    )
    case.stager.stage(other, case.resolved, case.into)
    assert only_hidden_besides(case.into, "other.gguf")


def test_a_marker_cannot_delete_outside_the_folder(case: Case) -> None:
    case.into.mkdir()
    outside = case.into.parent / "outside"
    outside.write_text("mine")
    (case.into / MARKER_NAME).write_text(json.dumps({"digest": "x", "files": {"../outside": 1}}))
    assert failure_of(case.stage).reason is Reason.MALFORMED
    assert outside.exists()


def hub_source(file: str | None = None) -> ModelSource:
    return ModelSource(hugging_face=HuggingFaceSource(repository=REPOSITORY, file=file))


@pytest.mark.parametrize("listed", [True, False])
def test_a_repository(case: Case, listed: bool) -> None:
    case.server.add_repository(REPOSITORY, folder_files())
    resolved = inspect_source(hub_source(), case.stager.reach).resolved
    if not listed:  # what a termination message leaves out where the list is too long for it
        resolved = resolved.model_copy(update={"files": ()})
    assert case.stager.stage(hub_source(), resolved, case.into) == case.into
    assert {path.name: path.read_bytes() for path in case.into.iterdir() if not path.name.startswith(".")} == {
        name: content for name, content in folder_files().items() if name != "README.md"
    }


def test_the_commit_of_the_inspection_is_staged_though_the_branch_moved_on(case: Case) -> None:
    commit = case.server.add_repository(REPOSITORY, folder_files())
    resolved = inspect_source(hub_source(), case.stager.reach).resolved
    case.server.seen.clear()
    case.stager.stage(hub_source(), resolved, case.into)
    assert all(commit in seen.path for seen in case.server.seen)


def test_a_listing_that_changed_is_refused(case: Case) -> None:
    commit = case.server.add_repository(REPOSITORY, folder_files())
    resolved = inspect_source(hub_source(), case.stager.reach).resolved.model_copy(update={"files": ()})
    case.server.repositories[REPOSITORY] = (commit, {**folder_files(), "config.json": b"{}"})
    assert failure_of(lambda: case.stager.stage(hub_source(), resolved, case.into)).reason is Reason.DIGEST_MISMATCH


def test_a_small_file_is_verified_by_gits_hash(case: Case) -> None:
    commit = case.server.add_repository(REPOSITORY, folder_files())
    resolved = inspect_source(hub_source(), case.stager.reach).resolved
    changed = folder_files()["config.json"].replace(b"2", b"3")
    case.server.repositories[REPOSITORY] = (commit, {**folder_files(), "config.json": changed})
    failure = failure_of(lambda: case.stager.stage(hub_source(), resolved, case.into))
    assert failure.reason is Reason.DIGEST_MISMATCH and "git-sha1" in failure.message


def test_a_file_in_a_folder_of_a_repository(case: Case, tmp_path: Path) -> None:
    content = write_gguf(tmp_path / "m.gguf").read_bytes()
    case.server.add_repository(REPOSITORY, {"q4/m.gguf": content})
    source = hub_source("q4/m.gguf")
    path = case.stager.stage(source, inspect_source(source, case.stager.reach).resolved, case.into)
    assert path == case.into / "q4" / "m.gguf" and path.read_bytes() == content


@pytest.mark.parametrize("path", ["../m.gguf", "/etc/m.gguf", "a/../../m.gguf"])
def test_a_path_that_leads_out_is_refused(case: Case, path: str) -> None:
    file = ResolvedFile(path=path, bytes=1, digest="sha256:" + "0" * 64)
    resolved = ResolvedArtifact(revision="abc", digest=file.digest, format=Format.GGUF, weight_bytes=1, files=(file,))
    assert failure_of(lambda: case.stager.stage(hub_source("m.gguf"), resolved, case.into)).reason is Reason.MALFORMED


def test_a_claim_is_only_looked_at(case: Case) -> None:
    source = ModelSource(volume_claim=VolumeClaimSource(name="w", path="m.gguf"))
    assert failure_of(lambda: case.stager.stage(source, case.resolved, case.into)).reason is Reason.NOT_FOUND
    case.into.mkdir()
    case.file.write_bytes(b"x")
    assert case.stager.stage(source, case.resolved, case.into) == case.file
    assert not (case.into / MARKER_NAME).exists()


def test_two_stagers_fetch_once(case: Case) -> None:
    case.server.manners.gate = threading.Event()
    first = threading.Thread(target=case.stage)
    first.start()
    wait_for(lambda: case.partial.exists())
    second_lines: list[str] = []
    reach = replace(case.stager.reach, retries=Retries(sleep=lambda _: time.sleep(0.01)))
    second = threading.Thread(
        target=lambda: Stager(reach, second_lines.append).stage(case.source, case.resolved, case.into)
    )
    second.start()
    wait_for(lambda: bool(second_lines))
    assert "waiting for another process" in second_lines[0]
    case.server.manners.gate.set()
    first.join(10)
    second.join(10)
    assert case.ranges == [""]
    assert case.file.read_bytes() == CONTENT


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def test_killed_in_the_middle_and_started_again(case: Case) -> None:
    """kill -9, twice; the third attempt finishes from where the second was."""
    sizes = []
    for _ in range(2):
        case.server.manners.gate = threading.Event()
        process = start(*case.arguments())
        wait_for(lambda: case.partial.exists() and case.partial.stat().st_size > (sizes[-1] if sizes else 0))
        process.send_signal(signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
        case.server.manners.gate.set()
        sizes.append(case.partial.stat().st_size)
        assert not case.file.exists() and not (case.into / MARKER_NAME).exists()
    case.server.manners.gate = None
    done = run(*case.arguments())
    assert done.returncode == 0, done.stdout
    assert case.ranges[-1] == f"bytes={sizes[-1]}-" and sizes[0] < sizes[1]
    assert case.file.read_bytes() == CONTENT
    assert "already here" in done.stdout and "complete and verified" in done.stdout


def test_the_command_says_what_failed(case: Case) -> None:
    case.server.files["/m.gguf"] = CONTENT[:-1] + b"x"
    log = case.into.parent / "log"
    done = run(*case.arguments(), "--termination-log", str(log))
    assert done.returncode == 1
    assert json.loads(log.read_bytes())["error"]["reason"] == "DigestMismatch"


def test_the_command_brings_the_drain_script(case: Case) -> None:
    script = case.into.parent / "fleet" / "drained"
    done = run(*case.arguments(), "--drain-script", str(script))
    assert done.returncode == 0, done.stdout
    assert script.read_text().startswith("#!/bin/sh\n") and script.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("resolved", ["", "{}", "null"])
def test_the_command_with_arguments_that_are_none(case: Case, resolved: str) -> None:
    arguments = case.arguments()
    arguments[4] = resolved
    log = case.into.parent / "log"
    assert run(*arguments, "--termination-log", str(log)).returncode == 1
    assert json.loads(log.read_bytes())["error"]["reason"] == "Unsupported"
