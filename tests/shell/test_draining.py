"""The preStop script in every way it can run, and the `drained` command: for real, against an engine's metrics."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from inference_fleet.staging.drain_script import write_drain_script
from tests.support.command import start

RECORDED = Path(__file__).resolve().parents[1] / "data" / "speculation"
FILES = {"LlamaCpp": "llamacpp-b11549.txt", "VLLM": "vllm-0.32.0.txt"}
RUNNING = {
    "LlamaCpp": ("llamacpp:requests_processing 0", "llamacpp:requests_processing {}"),
    "VLLM": (
        'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0',
        'vllm:num_requests_running{{engine="0",model_name="a tiny model"}} {}.0',
    ),
}
WAITING = {
    "LlamaCpp": ("llamacpp:requests_deferred 0", "llamacpp:requests_deferred {}"),
    "VLLM": (
        'vllm:num_requests_waiting{engine="0",model_name="tiny"} 0.0',
        'vllm:num_requests_waiting{{engine="0",model_name="a tiny model"}} {}.0',
    ),
}
SHELLS = [shell for shell in (["dash"], ["bash", "--posix"], ["busybox", "ash"]) if shutil.which(shell[0])]
TOOLS = ("date",)


class Engine:
    """An engine's `/metrics`, as recorded, with a number of requests that the test sets. Negative: it does not answer."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.running = self.waiting = 0
        self.broken = False
        self.reads: list[float] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.reads.append(time.monotonic())
                body = outer.text().encode()
                self.send_response(500 if outer.broken else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/metrics"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def text(self) -> str:
        text = (RECORDED / FILES[self.kind]).read_text()
        for (old, new), count in ((RUNNING[self.kind], self.running), (WAITING[self.kind], self.waiting)):
            assert old in text
            text = text.replace(old, new.format(count))
        return text


@pytest.fixture(params=["LlamaCpp", "VLLM"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = Engine(request.param)
    yield engine
    engine.server.shutdown()
    engine.server.server_close()


@pytest.fixture
def llama() -> Iterator[Engine]:
    engine = Engine("LlamaCpp")
    yield engine
    engine.server.shutdown()
    engine.server.server_close()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    write_drain_script(tmp_path / "fleet" / "drained")
    return tmp_path / "fleet" / "drained"


def image(tmp_path: Path, *tools: str, quick: bool = True) -> dict[str, str]:
    """An environment whose PATH has only these programs, as a small image would; `quick`: with a `sleep` that is soon over."""
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    if quick:
        (folder / "sleep").write_text(f"#!/bin/sh\nexec {shutil.which('sleep')} 0.05\n")
        (folder / "sleep").chmod(0o755)
    else:
        (folder / "sleep").symlink_to(Path(shutil.which("sleep") or "").resolve())
    for tool in (*TOOLS, *tools):
        found = shutil.which(tool, path="/usr/bin:/bin:/usr/local/bin") or shutil.which(tool)
        assert found is not None, f"install {tool} to run this test"
        if not (folder / tool).exists():
            (folder / tool).symlink_to(Path(found).resolve())
    return {"PATH": str(folder), "http_proxy": "http://127.0.0.1:9"}


def begin(
    script: Path, engine: Engine, environment: dict[str, str], shell: list[str], minimum: int = 0, maximum: int = 60
) -> subprocess.Popen[str]:
    program = [shutil.which(shell[0]) or shell[0], *shell[1:]]
    return subprocess.Popen(
        [*program, str(script), engine.kind, engine.url, str(minimum), str(maximum)],
        env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def wait_for_reads(engine: Engine, process: subprocess.Popen[str], count: int) -> None:
    """Until the metrics were read that often from now on; the script must go on waiting meanwhile."""
    wanted = len(engine.reads) + count
    while len(engine.reads) < wanted:
        assert process.poll() is None, "it must wait while there are requests"
        time.sleep(0.02)


@pytest.mark.parametrize("tool", ["python3", "curl", "wget"])
def test_it_waits_for_requests_with_whatever_the_image_has(
    script: Path, engine: Engine, tmp_path: Path, tool: str
) -> None:
    engine.running = 1
    process = begin(script, engine, image(tmp_path, tool), SHELLS[0])
    wait_for_reads(engine, process, 3)
    engine.running, engine.waiting = 0, 7
    wait_for_reads(engine, process, 4)
    engine.waiting = 0
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and "no request is left" in output


def test_it_reads_no_faster_than_once_a_second(script: Path, llama: Engine, tmp_path: Path) -> None:
    """llama.cpp no longer notices that a client has left otherwise."""
    process = begin(script, llama, image(tmp_path, "curl", quick=False), SHELLS[0])
    process.communicate(timeout=30)
    assert len(llama.reads) == 2 and llama.reads[1] - llama.reads[0] > 1.0


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
def test_every_shell(script: Path, llama: Engine, tmp_path: Path, shell: list[str]) -> None:
    process = begin(script, llama, image(tmp_path, "curl"), shell)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and "no request is left" in output


def test_busyboxs_own_wget(script: Path, llama: Engine, tmp_path: Path) -> None:
    environment = image(tmp_path)
    busybox = shutil.which("busybox")
    assert busybox is not None, "install busybox to run this test"
    (tmp_path / "bin" / "wget").symlink_to(busybox)
    llama.running = 2
    process = begin(script, llama, environment, ["dash"])
    wait_for_reads(llama, process, 3)
    llama.running = 0
    output, _ = process.communicate(timeout=30)
    assert "no request is left" in output


@pytest.mark.parametrize("tool", ["python3", "curl", "wget"])
def test_the_maximum_ends_the_wait(script: Path, llama: Engine, tmp_path: Path, tool: str) -> None:
    llama.running = 1
    began = time.monotonic()
    process = begin(script, llama, image(tmp_path, tool), SHELLS[0], maximum=2)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and "longest wait, 2 seconds" in output
    assert 1 <= time.monotonic() - began < 20


def test_an_image_with_nothing_waits_for_the_maximum(script: Path, llama: Engine, tmp_path: Path) -> None:
    process = begin(script, llama, image(tmp_path), SHELLS[0], maximum=2)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and "no python3, curl or wget" in output and "longest wait" in output
    assert llama.reads == []


def test_the_minimum_passes_first(script: Path, llama: Engine, tmp_path: Path) -> None:
    began = time.monotonic()
    process = begin(script, llama, image(tmp_path, "curl", quick=False), SHELLS[0], minimum=2)
    process.communicate(timeout=30)
    assert llama.reads[0] - began >= 2


@pytest.mark.parametrize("tool", ["python3", "curl", "wget"])
def test_an_engine_that_does_not_answer_may_be_at_work(script: Path, llama: Engine, tmp_path: Path, tool: str) -> None:
    llama.broken = True
    process = begin(script, llama, image(tmp_path, tool), SHELLS[0], maximum=2)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and "longest wait" in output and llama.reads


def test_the_command(llama: Engine) -> None:
    llama.running = 1
    process = start(
        "drained", "--engine", llama.kind, "--metrics-url", llama.url, "--minimum-seconds", "0", "--maximum-seconds", "60",
        environment={"http_proxy": "http://127.0.0.1:9"},
    )  # fmt: skip
    while not llama.reads:
        assert process.poll() is None
        time.sleep(0.05)
    llama.running = 0
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and "no request is left" in output


def test_the_script_is_the_same_for_root_and_others(script: Path) -> None:
    assert script.stat().st_mode & 0o777 == 0o755
    assert os.access(script, os.X_OK)
