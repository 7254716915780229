"""Our rule for drafts, and what we read from the counters, against the real llama.cpp server."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.models.rewrite import first_layers
from inference_fleet.draft.engine_metrics import Snapshot, read_snapshot
from inference_fleet.draft.measure import Measurement, fold
from inference_fleet.draft.verify import verify
from inference_fleet.engines.base import metrics
from inference_fleet.facts.failure import SourceFailure
from tests.support.llama import LlamaServer, gemma3, llama_server, smollm2

TOKENS = 80
DEPTH = 4


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("draft") / "draft.gguf"
    first_layers(smollm2(), path, 28)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for file in tmp_path.glob("*.gguf"):
        file.unlink()


def changed(draft: Path, folder: Path, old: bytes, new: bytes) -> Path:
    """The draft with some bytes of its header changed."""
    content = draft.read_bytes()
    at = content.index(old)
    path = folder / "changed.gguf"
    path.write_bytes(content[:at] + new + content[at + len(old) :])
    return path


def after_some_tokens(draft: Path, folder: Path) -> tuple[Snapshot, LlamaServer]:
    """What the engine counts after it was told to draft with this file and has generated."""
    speculation = ("-md", str(draft), "--spec-type", "draft-simple", "--spec-draft-n-max", str(DEPTH))
    with llama_server("-c", "512", "-np", "1", "--metrics", *speculation, folder=folder) as server:
        body = json.dumps({"prompt": "The sea is", "n_predict": TOKENS, "ignore_eos": True, "temperature": 0}).encode()
        request = urllib.request.Request(f"{server.url}/completion", body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=120).read()
        return read_snapshot(metrics("LlamaCpp"), server.get("/metrics"), at=1.0), server


def test_a_draft_that_fits_is_used_and_its_counters_add_up(draft: Path, folder: Path) -> None:
    assert verify("LlamaCpp", smollm2(), draft).ok
    seen, _ = after_some_tokens(draft, folder)
    measured = fold(Measurement(), seen)
    assert measured.drafting is True and measured.acceptance is not None and 0 < measured.acceptance < 1
    assert len(measured.accepted_per_position) == DEPTH
    # What is generated is one token a step and slot, and the guesses that stood: so steps tell the pace while requests run.
    assert seen.slot_steps is not None and seen.accepted_tokens is not None
    assert seen.slot_steps + seen.accepted_tokens == pytest.approx(seen.generation_tokens, abs=2)


@pytest.mark.parametrize(
    ("old", "new", "fits"),
    [
        (b"<reponame>", b"<reponamX>", True),
        (b"<file_sep>", b"<file_seX>", False),
        (b"add_bos_token\x07\0\0\0\0", b"add_bos_token\x07\0\0\0\1", False),
    ],
    ids=["token-4", "token-5", "begin"],
)
def test_the_engine_judges_as_we_do(draft: Path, folder: Path, old: bytes, new: bytes, fits: bool) -> None:
    """Where it does not fit the engine runs on without drafting: its counters are how that is noticed."""
    path = changed(draft, folder, old, new)
    if fits:
        assert verify("LlamaCpp", smollm2(), path).ok
    else:
        with pytest.raises(SourceFailure, match="49152 and 49152 tokens"):
            verify("LlamaCpp", smollm2(), path)
    seen, server = after_some_tokens(path, folder)
    assert fold(Measurement(), seen).drafting is fits, server.log_end()


def test_a_draft_of_another_family(folder: Path) -> None:
    with pytest.raises(SourceFailure, match="49152 and 262144 tokens and are of different kinds"):
        verify("LlamaCpp", smollm2(), gemma3())
