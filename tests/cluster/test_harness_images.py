"""Images are packed the same from the same content, and the models server keeps HTTP's promises about ranges."""

from __future__ import annotations

import hashlib
import http.client
import importlib.util
import json
import os
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from hack.images.archive import Settings, image_config, write_archive, write_layer
from hack.tools.cache import REPOSITORY


def make_tree(root: Path, time: int, reverse: bool) -> Path:
    root.mkdir()
    names = ["a/program", "a/text", "b/deep/er"]
    for name in reversed(names) if reverse else names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        os.utime(path, (time, time))
    (root / "a/program").chmod(0o4755)
    (root / "link").symlink_to("a/text")
    os.link(root / "a/text", root / "z-same")
    return root


def test_the_same_content_gives_the_same_image(tmp_path: Path) -> None:
    archives = []
    for number, (time, reverse) in enumerate([(1, False), (2_000_000_000, True)]):
        layer = tmp_path / f"{number}.layer"
        digest = write_layer(make_tree(tmp_path / str(number), time, reverse), layer)
        config = image_config([digest], Settings(command=("/a/program",)), "amd64")
        archives.append(tmp_path / f"{number}.tar")
        write_archive(archives[-1], "localhost/x:1", [(digest, layer)], config)
    assert archives[0].read_bytes() == archives[1].read_bytes()


def test_a_layer_has_no_rights_to_gain_and_one_owner(tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    write_layer(make_tree(tmp_path / "tree", 5, False), layer)
    with tarfile.open(layer) as tar:
        entries = {entry.name: entry for entry in tar}
    assert entries["a/program"].mode == 0o755
    assert {(entry.uid, entry.gid, entry.uname) for entry in entries.values()} == {(0, 0, "")}
    assert entries["link"].issym() and entries["z-same"].islnk()


def test_an_archive_is_what_docker_load_reads(tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    digest = write_layer(make_tree(tmp_path / "tree", 5, False), layer)
    config = image_config([digest], Settings(entrypoint=("/a/program",)), "amd64")
    write_archive(tmp_path / "x.tar", "localhost/x:1", [(digest, layer)], config)
    with tarfile.open(tmp_path / "x.tar") as tar:
        content = {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]
    [manifest] = json.loads(content["manifest.json"])
    described = content[manifest["Config"]]
    assert manifest["Config"] == hashlib.sha256(described).hexdigest() + ".json"
    assert json.loads(described)["config"]["User"] == "65532:65532"
    [name] = manifest["Layers"]
    assert json.loads(described)["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(content[name]).hexdigest()]


@pytest.fixture(scope="module")
def serve() -> ModuleType:
    spec = importlib.util.spec_from_file_location("serve", REPOSITORY / "images/models/serve.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def connection(serve: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[http.client.HTTPConnection]:
    root = tmp_path_factory.mktemp("models") / "root"
    root.mkdir()
    (root / "m.gguf").write_bytes(b"0123456789")
    (root / "m.gguf.sha256").write_text("abcdef  m.gguf\n")
    (root / "empty").write_bytes(b"")
    (root.parent / "secret").write_text("no")
    with serve.Server(("127.0.0.1", 0), root) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield http.client.HTTPConnection("127.0.0.1", server.server_address[1])
        server.shutdown()


@pytest.mark.parametrize(
    ("header", "status", "body", "content_range"),
    [
        (None, 200, b"0123456789", None),
        ("bytes=0-3", 206, b"0123", "bytes 0-3/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-2", 206, b"89", "bytes 8-9/10"),
        ("bytes=-50", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=8-50", 206, b"89", "bytes 8-9/10"),
        ("bytes=10-", 416, b"", "bytes */10"),
        ("bytes=-0", 416, b"", "bytes */10"),
        ("bytes=5-2", 200, b"0123456789", None),
        ("bytes=0-1,4-5", 200, b"0123456789", None),
        ("items=0-1", 200, b"0123456789", None),
    ],
)
def test_ranges(
    connection: http.client.HTTPConnection, header: str | None, status: int, body: bytes, content_range: str | None
) -> None:
    connection.request("GET", "/m.gguf", headers={"Range": header} if header else {})
    answer = connection.getresponse()
    assert (answer.status, answer.read(), answer.getheader("Content-Range")) == (status, body, content_range)


def test_head_tells_the_size_and_sends_nothing(connection: http.client.HTTPConnection) -> None:
    connection.request("HEAD", "/m.gguf")
    answer = connection.getresponse()
    assert (answer.status, answer.read(), answer.getheader("Content-Length")) == (200, b"", "10")
    assert (answer.getheader("ETag"), answer.getheader("Accept-Ranges")) == ('"abcdef"', "bytes")


def test_a_resumed_download_of_another_file_starts_over(connection: http.client.HTTPConnection) -> None:
    for tag, status in (('"abcdef"', 206), ('"other"', 200)):
        connection.request("GET", "/m.gguf", headers={"Range": "bytes=5-", "If-Range": tag})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == status


@pytest.mark.parametrize("path", ["/nothing", "/../secret", "/%2e%2e/secret", "//etc/passwd"])
def test_gives_out_only_its_folder(connection: http.client.HTTPConnection, path: str) -> None:
    connection.request("GET", path)
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (404, b"")


def test_an_empty_file_is_served(connection: http.client.HTTPConnection) -> None:
    connection.request("GET", "/empty")
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (200, b"")
