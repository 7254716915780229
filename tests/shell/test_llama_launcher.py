"""The llama-server launcher is the real program where an operator can tell: what it accepts, serves, and how it ends."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.llama import LlamaServer, llama_server, run_launcher, smollm2

DRAFT = ("--spec-type", "draft-simple", "--spec-draft-n-max", "4")


class Answer:
    """A chat completion that is being read by a thread."""

    def __init__(self, server: LlamaServer, tokens: int, stream: bool) -> None:
        self.connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=120)
        messages = [{"role": "user", "content": "Tell a long story."}]
        question = {"messages": messages, "max_tokens": tokens, "ignore_eos": True, "stream": stream}
        self.connection.request(
            "POST", "/v1/chat/completions", json.dumps(question), {"Content-Type": "application/json"}
        )
        self.body = b""
        self.error: Exception | None = None
        self.begun = threading.Event()
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self) -> None:
        try:
            answer = self.connection.getresponse()
            while line := answer.readline():
                self.body += line
                self.begun.set()
        except (OSError, http.client.HTTPException) as error:
            self.error = error

    def finish(self) -> str:
        self.thread.join(120)
        assert not self.thread.is_alive(), "the answer never ended"
        if self.error is not None:
            raise self.error
        return self.body.decode()


def tokens_of(stream: str) -> int:
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    return sum("content" in choice["delta"] for chunk in chunks for choice in chunk["choices"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    arguments = ("-c", "2048", "-np", "2", "--metrics", "-md", str(smollm2()), *DRAFT)
    with llama_server(*arguments, folder=tmp_path_factory.mktemp("llama")) as server:
        yield server


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--no-such-flag"], "error: invalid argument: --no-such-flag"),
        (["-m", "x.gguf", "--port", "abc"], 'error while handling argument "--port"'),
        (["-m", "x.gguf", "-c"], "-c"),
        (["-m", "x.gguf", "--spec-type", "no-such-type"], "--spec-type"),
    ],
)
def test_refuses_what_llama_server_refuses_in_its_own_words(arguments: list[str], message: str) -> None:
    done = run_launcher(*arguments)
    assert done.returncode == 1
    assert message in done.stderr


def test_refuses_a_bad_environment_variable() -> None:
    done = run_launcher("-m", "x.gguf", extra={"LLAMA_ARG_CTX_SIZE": "much"})
    assert done.returncode == 1
    assert "LLAMA_ARG_CTX_SIZE" in done.stderr


def test_a_model_that_is_not_there_ends_it_with_an_error() -> None:
    done = run_launcher("-m", "/no/such/model.gguf", "--port", "0")
    assert done.returncode == 1
    assert "/no/such/model.gguf" in done.stderr


def test_help_and_version_are_llama_servers() -> None:
    shown = run_launcher("--help")
    assert shown.returncode == 0
    assert "--spec-draft-n-max" in shown.stdout and "LLAMA_ARG_ENDPOINT_METRICS" in shown.stdout
    version = run_launcher("--version")
    assert version.returncode == 0
    assert "version:" in version.stdout + version.stderr


def test_streams_an_answer_with_drafts_and_counts_them(server: LlamaServer) -> None:
    body = Answer(server, 24, stream=True).finish()
    assert body.rstrip().endswith("data: [DONE]")
    assert tokens_of(body) >= 1
    metrics = dict(line.rsplit(" ", 1) for line in server.get("/metrics").splitlines() if not line.startswith("#"))
    assert float(metrics["llamacpp:spec_decode_num_accepted_tokens_total"]) > 0


def test_the_environment_sets_what_the_command_line_does_not(tmp_path: Path) -> None:
    extra = {"LLAMA_ARG_N_PARALLEL": "3", "LLAMA_ARG_CTX_SIZE": "1536"}
    with llama_server(folder=tmp_path, extra=extra) as server:
        assert json.loads(server.get("/props"))["total_slots"] == 3


@pytest.mark.parametrize("counted_by", ["metrics", "slots"])
def test_sigterm_cuts_nothing_and_takes_nothing_new(tmp_path: Path, counted_by: str) -> None:
    flags = ["--metrics"] if counted_by == "metrics" else []
    with llama_server("-c", "2048", "-np", "1", *flags, folder=tmp_path) as server:
        first = Answer(server, 60, stream=True)
        assert first.begun.wait(30)
        others = [Answer(server, 20, stream=stream) for stream in (True, False)]  # wait for the only slot
        time.sleep(0.3)  # until the queue has them: nothing shows a request that is still being parsed
        server.process.send_signal(signal.SIGTERM)
        refused = refused_within(server, 5)
        bodies = [answer.finish() for answer in (first, *others)]
        assert server.process.wait(30) == 0
    assert refused, "a new connection was still taken 5 s after SIGTERM"
    assert tokens_of(bodies[0]) >= 50 and bodies[0].rstrip().endswith("data: [DONE]")
    assert bodies[1].rstrip().endswith("data: [DONE]")
    assert json.loads(bodies[2])["usage"]["completion_tokens"] == 20


def refused_within(server: LlamaServer, seconds: float) -> bool:
    host, port = server.url.removeprefix("http://").split(":")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except ConnectionRefusedError:
            return True
        time.sleep(0.1)
    return False


def test_the_deadline_ends_it_with_a_stream_in_flight(tmp_path: Path) -> None:
    with llama_server("-c", "2048", "-np", "1", folder=tmp_path, extra={"LLAMA_SERVER_DRAIN_SECONDS": "1"}) as server:
        answer = Answer(server, 2000, stream=True)
        assert answer.begun.wait(30)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
        assert "the deadline of 1 s has passed" in server.log_end()


def test_sigterm_while_loading_ends_it(tmp_path: Path) -> None:
    with llama_server(folder=tmp_path, wait=False) as server:
        wait_for_line(server, "loading model")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == 0


def wait_for_line(server: LlamaServer, text: str) -> None:
    deadline = time.monotonic() + 30
    while text not in server.log.read_text(errors="replace"):
        assert time.monotonic() < deadline, server.log_end()
        time.sleep(0.01)


def test_metrics_are_off_unless_asked_for(tmp_path: Path) -> None:
    with llama_server(folder=tmp_path) as server:
        connection: Any = http.client.HTTPConnection(server.url.removeprefix("http://"))
        connection.request("GET", "/metrics")
        assert connection.getresponse().status == 501
