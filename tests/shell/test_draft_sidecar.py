"""The draft sidecar as a process: it gates the engine, refuses what does not fit, measures, and leaves when told."""

from __future__ import annotations

import hashlib
import json
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import start
from tests.support.small_models import TOKENS, folder_files, safetensors_bytes, tokenizer_json, write_folder, write_gguf
from tests.support.weights_server import WeightsServer, weights_server

RECORDED = Path(__file__).resolve().parents[1] / "data" / "speculation"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Sidecar:
    """A running sidecar and what can be asked of it."""

    process: subprocess.Popen[str]
    port: int
    termination_log: Path

    def get(self, path: str) -> tuple[int, str]:
        """Status and body; (0, "") while nothing answers."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def speculation(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.get("/speculation")[1])
        return document

    def until(self, condition: Callable[[], bool], seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.05)

    def end(self) -> tuple[int, float]:
        """SIGTERM; exit status and seconds until it had left."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(10), time.monotonic() - began


@dataclass
class Pod:
    """A target on disk, a draft behind a URL, an engine's metrics, and a way to start the sidecar."""

    folder: Path
    server: WeightsServer
    running: list[Sidecar]

    def draft_arguments(self, content: bytes) -> list[str]:
        self.server.files["/draft.gguf"] = content
        sha256 = hashlib.sha256(content).hexdigest()
        source = {"http": {"url": f"{self.server.url}/draft.gguf", "sha256": sha256}}
        resolved = {"digest": f"sha256:{sha256}", "format": "GGUF", "weightBytes": len(content)}
        return self._artifact(source, resolved)

    def _artifact(self, source: object, resolved: object) -> list[str]:
        into = str(self.folder / "draft")
        return ["--source", json.dumps(source), "--resolved", json.dumps(resolved), "--into", into]

    def start(self, arguments: Sequence[str], engine: str = "LlamaCpp") -> Sidecar:
        port, log = free_port(), self.folder / "log"
        process = start(
            "draft", "--engine", engine, "--metrics-url", f"{self.server.url}/metrics", "--port", str(port),
            "--poll-seconds", "0.1", "--termination-log", str(log), *arguments,
            environment={"http_proxy": "http://127.0.0.1:9", "no_proxy": "127.0.0.1"},
        )  # fmt: skip
        self.running.append(Sidecar(process, port, log))
        return self.running[-1]

    def target(self, **how: Any) -> list[str]:
        return ["--target", str(write_gguf(self.folder / "target.gguf", **how))]

    def show(self, file: str, **counters: int) -> None:
        """Have the engine show a recording, with some of its counters changed."""
        lines = (RECORDED / file).read_text().splitlines()
        for name, value in counters.items():
            lines = [f"{line.split()[0]} {value}" if line.startswith(f"llamacpp:{name} ") else line for line in lines]
        self.server.files["/metrics"] = "\n".join([*lines, ""]).encode()


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    with weights_server() as server:
        pod = Pod(tmp_path, server, [])
        yield pod
        for sidecar in pod.running:
            if sidecar.process.poll() is None:
                sidecar.process.kill()
            sidecar.process.communicate()


def small(path: Path, tokens: Sequence[str] = TOKENS, **how: Any) -> bytes:
    return write_gguf(path / "made.gguf", tokens=tokens, **how).read_bytes()


def test_it_is_ready_only_when_the_draft_is_there_and_fits(pod: Pod) -> None:
    content = small(pod.folder)
    pod.server.manners.gate = threading.Event()
    sidecar = pod.start([*pod.draft_arguments(content), *pod.target()])
    sidecar.until(lambda: sidecar.get("/health")[0] == 200)
    assert sidecar.get("/ready") == (503, '{"ready": false, "phase": "Preparing"}')
    pod.server.manners.gate.set()
    sidecar.until(lambda: sidecar.get("/ready")[0] == 200)
    assert (pod.folder / "draft" / "draft.gguf").read_bytes() == content
    status, seconds = sidecar.end()
    assert status == 0 and seconds < 5


def test_it_leaves_at_once_in_the_middle_of_staging(pod: Pod) -> None:
    pod.server.manners.gate = threading.Event()
    sidecar = pod.start([*pod.draft_arguments(small(pod.folder)), *pod.target()])
    sidecar.until(lambda: bool(pod.server.seen) and sidecar.get("/health")[0] == 200)
    status, seconds = sidecar.end()
    assert status == 0 and seconds < 5
    pod.server.manners.gate.set()


@pytest.mark.parametrize(
    ("tokens", "how", "says"),
    [
        ([*TOKENS, *(f"x{number}" for number in range(129))], {}, "10 and 139 tokens"),
        ([*TOKENS[:9], "other"], {}, "10 and 10 tokens, but token 9 differs"),
        (TOKENS, {"model": "llama"}, "different kinds"),
        (TOKENS, {"extra": {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 1}}, "added at the begin differ"),
    ],
)  # fmt: skip
def test_a_draft_that_does_not_fit_never_lets_the_engine_start(
    pod: Pod, tokens: Sequence[str], how: dict[str, Any], says: str
) -> None:
    draft = small(pod.folder, tokens, **how)
    target = pod.target(extra={"tokenizer.ggml.add_bos_token": False})
    sidecar = pod.start([*pod.draft_arguments(draft), *target])
    output, _ = sidecar.process.communicate(timeout=30)
    assert sidecar.process.returncode == 1, output
    error = json.loads(sidecar.termination_log.read_bytes())["error"]
    assert error["reason"] == "VocabularyMismatch" and says in error["message"]


def test_a_few_tokens_more_are_tolerated_as_llama_cpp_does(pod: Pod) -> None:
    sidecar = pod.start([*pod.draft_arguments(small(pod.folder, [*TOKENS, "x", "y"])), *pod.target()])
    sidecar.until(lambda: sidecar.get("/ready")[0] == 200)


def test_vllm_wants_equal_sizes(pod: Pod) -> None:
    target = write_folder(pod.folder / "target")
    files = {
        **folder_files(),
        "config.json": folder_files()["config.json"].replace(b'"vocab_size": 10', b'"vocab_size": 12'),
        "tokenizer.json": tokenizer_json((*TOKENS, "x", "y")),
        "model.safetensors": safetensors_bytes({"w": ("BF16", (4,), 8)}),
    }
    del files["model.safetensors.index.json"]
    write_folder(pod.folder / "draft" / "small", files)
    source = {"volumeClaim": {"name": "drafts", "path": "small"}}
    resolved = {"digest": "x", "format": "Safetensors", "weightBytes": 8}
    sidecar = pod.start([*pod._artifact(source, resolved), "--target", str(target)], engine="VLLM")
    output, _ = sidecar.process.communicate(timeout=30)
    assert sidecar.process.returncode == 1, output
    error = json.loads(sidecar.termination_log.read_bytes())["error"]
    assert error["reason"] == "VocabularyMismatch" and "10 and 12 tokens" in error["message"]


def test_a_draft_that_cannot_be_staged(pod: Pod) -> None:
    arguments = pod.draft_arguments(small(pod.folder))
    pod.server.files.clear()
    sidecar = pod.start([*arguments, *pod.target()])
    sidecar.process.communicate(timeout=30)
    assert sidecar.process.returncode == 1
    assert json.loads(sidecar.termination_log.read_bytes())["error"]["reason"] == "NotFound"


def test_it_measures_without_a_draft_model(pod: Pod) -> None:
    """n-gram speculation, and an engine that starts after its sidecar."""
    sidecar = pod.start(["--depth", "5"])
    sidecar.until(lambda: sidecar.get("/ready")[0] == 200)
    assert sidecar.speculation() == {"engine": "LlamaCpp", "depth": 5, "tokensPerSecond": []}
    pod.show("llamacpp-b11549.txt")
    sidecar.until(lambda: "drafts" in sidecar.speculation())
    found = sidecar.speculation()
    assert (found["drafts"], found["draftTokens"], found["acceptedTokens"]) == (21, 96, 96)
    assert (found["acceptance"], found["drafting"], found["acceptedPerPosition"]) == (1.0, True, [21, 21, 18, 18, 18])
    metrics = sidecar.get("/metrics")[1]
    assert "inference_fleet_speculation_acceptance_ratio 1.0" in metrics
    assert "inference_fleet_speculation_depth 5.0" in metrics


def test_it_tells_an_engine_that_was_to_draft_and_does_not(pod: Pod) -> None:
    none = {f"spec_decode_num_{name}_total": 0 for name in ("drafts", "draft_tokens", "accepted_tokens")}
    pod.show("llamacpp-b11549.txt", tokens_predicted_total=0, **none)
    sidecar = pod.start([])
    sidecar.until(lambda: "drafts" in sidecar.speculation() if sidecar.get("/ready")[0] == 200 else False)
    assert "drafting" not in sidecar.speculation() and "acceptance" not in sidecar.speculation()
    pod.show("llamacpp-b11549.txt", tokens_predicted_total=64, **none)
    sidecar.until(lambda: "drafting" in sidecar.speculation())
    assert sidecar.speculation()["drafting"] is False
    assert "inference_fleet_speculation_drafting 0.0" in sidecar.get("/metrics")[1]


def test_it_reads_the_engine_no_faster_than_once_a_second(pod: Pod) -> None:
    pod.show("llamacpp-b11549.txt")
    sidecar = pod.start([])
    sidecar.until(lambda: len(pod.server.seen) >= 2)
    time.sleep(2)
    assert len(pod.server.seen) <= 5


def test_an_engine_that_fails_is_not_an_engine_at_zero(pod: Pod) -> None:
    pod.show("llamacpp-b11549.txt")
    sidecar = pod.start([])
    sidecar.until(lambda: "drafts" in sidecar.speculation() if sidecar.get("/ready")[0] == 200 else False)
    pod.server.files["/metrics"] = b"<html>"
    time.sleep(1.5)
    assert sidecar.speculation()["drafts"] == 21


@pytest.mark.parametrize("arguments", [["--source", "{}"], ["--into", "/tmp"], ["--resolved", "{}", "--into", "/tmp"]])
def test_half_an_artefact_is_a_mistake(pod: Pod, arguments: list[str]) -> None:
    sidecar = pod.start(arguments)
    output, _ = sidecar.process.communicate(timeout=30)
    assert sidecar.process.returncode == 2 and "belong together" in output
