"""Inspection over HTTP: the hub, plain servers, claims; what is asked of them, and what failures say."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from inference_fleet.api.model import Attention, Format, HTTPSource, HuggingFaceSource, ModelSource, VolumeClaimSource
from inference_fleet.facts.failure import TERMINATION_BYTES, Reason, SourceFailure
from inference_fleet.facts.inspection import Reach, inspect_source
from inference_fleet.facts.web import Retries
from tests.support.command import run
from tests.support.small_models import TOKENS, folder_files, safetensors_bytes, write_folder, write_gguf
from tests.support.weights_server import WeightsServer, weights_server

REPOSITORY = "maker/small"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[WeightsServer]:
    with weights_server() as running:
        yield running


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def reach(server: WeightsServer, pauses: list[float], tmp_path: Path) -> Reach:
    return Reach(
        hub_endpoint=server.url, retries=Retries(sleep=pauses.append), timeout_seconds=5, claim_mount=tmp_path / "claim"
    )


@pytest.fixture
def small(tmp_path: Path) -> bytes:
    return write_gguf(tmp_path / "small.gguf").read_bytes()


@pytest.fixture
def large(tmp_path: Path) -> bytes:
    """A header of about 7 MB, as Gemma's is."""
    return write_gguf(
        tmp_path / "large.gguf", tokens=[f"token {number:020d}" for number in range(200_000)]
    ).read_bytes()


def http(server: WeightsServer, name: str, content: bytes) -> ModelSource:
    server.files[f"/files/{name}"] = content
    return ModelSource(http=HTTPSource(url=f"{server.url}/files/{name}", sha256=hashlib.sha256(content).hexdigest()))


def hub(file: str | None = None, revision: str = "main") -> ModelSource:
    return ModelSource(hugging_face=HuggingFaceSource(repository=REPOSITORY, revision=revision, file=file))


def test_a_gguf_behind_a_url(server: WeightsServer, reach: Reach, small: bytes) -> None:
    found = inspect_source(http(server, "small.gguf", small), reach)
    assert found.resolved.format is Format.GGUF
    assert found.resolved.digest == f"sha256:{hashlib.sha256(small).hexdigest()}"
    assert found.resolved.weight_bytes == len(small)
    assert [(file.path, file.bytes, file.digest) for file in found.resolved.files] == [
        ("small.gguf", len(small), found.resolved.digest)
    ]
    assert found.facts.attention is Attention.GQA
    assert [seen.range for seen in server.seen] == ["bytes=0-262143"]


def test_a_large_header_takes_few_growing_requests(server: WeightsServer, reach: Reach, large: bytes) -> None:
    found = inspect_source(http(server, "large.gguf", large), reach)
    assert found.facts.vocabulary_size == 200_000
    assert [seen.range for seen in server.seen] == [
        "bytes=0-262143", "bytes=262144-1310719", "bytes=1310720-5505023", "bytes=5505024-22282239",
    ]  # fmt: skip


def test_a_server_without_ranges_is_read_from_its_start_and_left(
    server: WeightsServer, reach: Reach, small: bytes
) -> None:
    server.manners.ranges = False
    content = small + bytes(64 * 2**20)
    assert inspect_source(http(server, "small.gguf", content), reach).resolved.weight_bytes == len(content)
    assert len(server.seen) == 1
    assert server.bytes_sent < 16 * 2**20


def test_a_server_that_tells_no_length(server: WeightsServer, reach: Reach, small: bytes) -> None:
    server.manners.ranges = server.manners.length = False
    found = inspect_source(http(server, "small.gguf", small), reach)
    assert found.resolved.weight_bytes == len(small)


def test_what_breaks_off_is_taken_up_where_it_broke(
    server: WeightsServer, reach: Reach, large: bytes, pauses: list[float]
) -> None:
    server.manners.drop_after = [1000, 100_000, 0]
    assert inspect_source(http(server, "large.gguf", large), reach).facts.vocabulary_size == 200_000
    assert [seen.range.partition("-")[0] for seen in server.seen[:3]] == ["bytes=0", "bytes=1000", "bytes=101000"]
    assert pauses


def test_a_busy_server_is_asked_again_as_it_wishes(
    server: WeightsServer, reach: Reach, small: bytes, pauses: list[float]
) -> None:
    server.manners.statuses = [503, 429]
    inspect_source(http(server, "small.gguf", small), reach)
    assert pauses == [1.0, 2.0]


def test_patience_ends(server: WeightsServer, reach: Reach, small: bytes, pauses: list[float]) -> None:
    server.manners.statuses = [500] * 50
    with pytest.raises(SourceFailure) as caught:
        inspect_source(http(server, "small.gguf", small), reach)
    assert caught.value.reason is Reason.UNREACHABLE and "HTTP 500" in caught.value.message
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0]


def test_a_repository(server: WeightsServer, reach: Reach) -> None:
    commit = server.add_repository(REPOSITORY, folder_files())
    found = inspect_source(hub(), reach)
    assert found.resolved.revision == commit
    assert found.resolved.format is Format.SAFETENSORS
    assert [file.path for file in found.resolved.files] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
    ]
    assert [file.digest.partition(":")[0] for file in found.resolved.files] == [
        "sha256",
        "sha256",
        "git-sha1",
        "git-sha1",
        "git-sha1",
    ]
    assert (found.facts.parameters, found.facts.weight_bits, found.facts.vocabulary_size) == (704, 16, 10)


def test_gguf_and_safetensors_of_one_vocabulary_have_one_digest(
    server: WeightsServer, reach: Reach, small: bytes
) -> None:
    server.add_repository(REPOSITORY, {**folder_files(), "small.gguf": small})
    assert (
        inspect_source(hub(), reach).facts.tokens_digest == inspect_source(hub("small.gguf"), reach).facts.tokens_digest
    )


def test_one_file_of_a_repository(server: WeightsServer, reach: Reach, small: bytes) -> None:
    server.add_repository(REPOSITORY, {"q4/small.gguf": small, "q8/small.gguf": small + bytes(32)})
    found = inspect_source(hub("q4/small.gguf"), reach)
    assert [file.path for file in found.resolved.files] == ["q4/small.gguf"]
    assert found.resolved.digest == f"sha256:{hashlib.sha256(small).hexdigest()}"


def test_all_parts_of_a_split_model(server: WeightsServer, reach: Reach, small: bytes) -> None:
    server.add_repository(REPOSITORY, {f"m-0000{number}-of-00002.gguf": small for number in (1, 2)})
    found = inspect_source(hub("m-00001-of-00002.gguf"), reach)
    assert (len(found.resolved.files), found.facts.parameters, found.resolved.weight_bytes) == (
        2,
        2 * 704,
        2 * len(small),
    )


@pytest.mark.parametrize("revision", ["refs/pr/1", "main"])
def test_a_revision_is_resolved_once_to_a_commit(server: WeightsServer, reach: Reach, revision: str) -> None:
    commit = server.add_repository(REPOSITORY, folder_files())
    assert inspect_source(hub(revision=revision), reach).resolved.revision == commit
    assert all(commit in seen.path for seen in server.seen[1:])


def test_a_listing_in_pages(server: WeightsServer, reach: Reach) -> None:
    server.add_repository(REPOSITORY, folder_files())
    server.manners.page_size = 2
    assert len(inspect_source(hub(), reach).resolved.files) == 5


def test_the_token_goes_to_the_hub_and_not_to_where_it_redirects(server: WeightsServer, reach: Reach) -> None:
    commit = server.add_repository(REPOSITORY, folder_files())
    with weights_server() as cdn:
        cdn.files = {f"/{REPOSITORY}/resolve/{commit}/{path}": content for path, content in folder_files().items()}
        server.manners.redirect_to = cdn.url
        server.manners.token = "secret"
        inspect_source(hub(), replace(reach, hub_token="secret"))
        assert {seen.authorization for seen in server.seen} == {"Bearer secret"}
        assert cdn.seen and {seen.authorization for seen in cdn.seen} == {""}


def test_the_token_does_not_go_to_plain_servers(server: WeightsServer, reach: Reach, small: bytes) -> None:
    inspect_source(http(server, "small.gguf", small), replace(reach, hub_token="secret"))
    assert {seen.authorization for seen in server.seen} == {""}


def test_a_redirect_in_a_circle_ends(server: WeightsServer, reach: Reach, small: bytes) -> None:
    source = http(server, "small.gguf", small)
    server.manners.redirect_to = server.url
    with pytest.raises(SourceFailure, match="redirects more than"):
        inspect_source(source, reach)


@pytest.mark.parametrize(
    ("files", "file", "reason", "says"),
    [
        ({"a.gguf": b"", "b.gguf": b""}, None, Reason.UNSUPPORTED, "It has a.gguf, b.gguf"),
        ({"a.gguf": b""}, "c.gguf", Reason.NOT_FOUND, "It has a.gguf"),
        ({"README.md": b""}, None, Reason.UNSUPPORTED, "no safetensors weights"),
        ({"README.md": b""}, "c.gguf", Reason.NOT_FOUND, "no .gguf file at all"),
        ({"model.safetensors": safetensors_bytes({})}, None, Reason.UNSUPPORTED, "no config.json"),
        ({"a.gguf": b"<html>"}, "a.gguf", Reason.MALFORMED, "does not begin as a GGUF file"),
        ({"m-00001-of-00002.gguf": b""}, "m-00001-of-00002.gguf", Reason.NOT_FOUND, "m-00002-of-00002.gguf"),
        ({**folder_files(), "config.json": b"{"}, None, Reason.MALFORMED, "is not JSON"),
        ({"model.safetensors.index.json": b'{"weight_map": {"a": "gone.safetensors"}}'}, None, Reason.MALFORMED,
         "gone.safetensors"),
    ],
)  # fmt: skip
def test_what_cannot_be_chosen_from_a_repository(
    server: WeightsServer, reach: Reach, files: dict[str, bytes], file: str | None, reason: Reason, says: str
) -> None:
    server.add_repository(REPOSITORY, files)
    with pytest.raises(SourceFailure) as caught:
        inspect_source(hub(file), reach)
    assert caught.value.reason is reason and says in caught.value.sentence()


def test_a_repository_that_does_not_exist(reach: Reach) -> None:
    with pytest.raises(SourceFailure) as caught:
        inspect_source(hub(), reach)
    assert caught.value.reason is Reason.NOT_FOUND and "Repository not found" in caught.value.message


def test_a_token_that_is_missing(server: WeightsServer, reach: Reach) -> None:
    server.add_repository(REPOSITORY, folder_files())
    server.manners.token = "secret"
    with pytest.raises(SourceFailure) as caught:
        inspect_source(hub(), reach)
    assert caught.value.reason is Reason.UNAUTHORIZED and "token" in caught.value.remedy


def test_nobody_answers(reach: Reach) -> None:
    source = ModelSource(http=HTTPSource(url="http://127.0.0.1:9/m.gguf", sha256="0" * 64))
    with pytest.raises(SourceFailure) as caught:
        inspect_source(source, reach)
    assert caught.value.reason is Reason.UNREACHABLE


def test_part_of_a_split_model_behind_a_url(server: WeightsServer, reach: Reach, small: bytes) -> None:
    with pytest.raises(SourceFailure, match="one part of a split"):
        inspect_source(http(server, "m-00001-of-00002.gguf", small), reach)


def test_safetensors_behind_a_url(server: WeightsServer, reach: Reach) -> None:
    with pytest.raises(SourceFailure) as caught:
        inspect_source(http(server, "m.safetensors", safetensors_bytes({})), reach)
    assert caught.value.reason is Reason.UNSUPPORTED and "huggingFace" in caught.value.remedy


def claim(path: str) -> ModelSource:
    return ModelSource(volume_claim=VolumeClaimSource(name="weights", path=path))


def test_a_claim(reach: Reach) -> None:
    write_folder(reach.claim_mount / "models" / "small")
    write_gguf(reach.claim_mount / "small.gguf")
    folder, file = inspect_source(claim("models/small"), reach), inspect_source(claim("small.gguf"), reach)
    assert folder.facts.tokens_digest == file.facts.tokens_digest
    assert (folder.resolved.format, file.resolved.format) == (Format.SAFETENSORS, Format.GGUF)
    assert file.resolved.digest != folder.resolved.digest
    write_gguf(reach.claim_mount / "small.gguf", tokens=(*TOKENS, "more"))
    assert inspect_source(claim("small.gguf"), reach).resolved.digest != file.resolved.digest


@pytest.mark.parametrize(("path", "reason"), [("nothing", Reason.NOT_FOUND), ("folder", Reason.UNSUPPORTED)])
def test_a_claim_without_a_model(reach: Reach, path: str, reason: Reason) -> None:
    (reach.claim_mount / "folder").mkdir(parents=True)
    with pytest.raises(SourceFailure) as caught:
        inspect_source(claim(path), reach)
    assert caught.value.reason is reason and "claim weights" in caught.value.message


def many_shards() -> dict[str, bytes]:
    files = folder_files()
    names = [f"model-{number:05d}-of-00070.safetensors" for number in range(70)]
    files |= {name: safetensors_bytes({f"w{name}": ("BF16", (4,), 8)}) for name in names}
    return {
        **files,
        "model.safetensors.index.json": json.dumps({"weight_map": {name: name for name in names}}).encode(),
    }


def test_the_command_in_a_pod(server: WeightsServer, tmp_path: Path) -> None:
    server.add_repository(REPOSITORY, many_shards())
    log = tmp_path / "termination-log"
    source = hub().model_dump_json(by_alias=True, exclude_none=True)
    done = run("inspect", "--source", source, "--termination-log", str(log), environment={"HF_ENDPOINT": server.url})
    assert done.returncode == 0, done.stdout
    assert json.loads(log.read_bytes()) == json.loads(done.stdout)
    assert log.stat().st_size <= TERMINATION_BYTES
    assert json.loads(log.read_bytes())["resolved"]["files"] == []
    assert json.loads(log.read_bytes())["facts"]["parameters"] == 280


def test_the_command_in_a_pod_that_fails(server: WeightsServer, tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    source = hub("gone.gguf").model_dump_json(by_alias=True, exclude_none=True)
    done = run("inspect", "--source", source, "--termination-log", str(log), environment={"HF_ENDPOINT": server.url})
    assert done.returncode == 1
    assert json.loads(log.read_bytes())["error"]["reason"] == "NotFound"


@pytest.mark.parametrize("source", ["", "{", "{}", '{"http": {"url": "x", "sha256": "y"}}'])
def test_the_command_with_a_source_that_is_none(tmp_path: Path, source: str) -> None:
    done = run("inspect", "--source", source, "--termination-log", str(tmp_path / "log"))
    assert done.returncode == 1
    assert json.loads((tmp_path / "log").read_bytes())["error"]["reason"] == "Unsupported"


def test_the_command_for_people(server: WeightsServer, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "small.gguf")
    assert "GQA" in run("inspect", str(path)).stdout
    server.add_repository(REPOSITORY, {"small.gguf": path.read_bytes()})
    at_hub = run("inspect", f"hf:{REPOSITORY}@main#small.gguf", "--json", environment={"HF_ENDPOINT": server.url})
    assert json.loads(at_hub.stdout)["facts"]["layers"] == 2
    server.files["/small.gguf"] = path.read_bytes()
    behind_url = run("inspect", f"{server.url}/small.gguf")
    assert "not known (give sha256 to verify)" in behind_url.stdout
    assert run("inspect").returncode == 2
    missing = run("inspect", str(tmp_path / "gone.gguf"))
    assert missing.returncode == 1 and "does not exist" in missing.stdout
