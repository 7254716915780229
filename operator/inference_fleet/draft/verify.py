"""Does the draft fit the target? On the files themselves, which is more than facts can tell."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from inference_fleet.facts.failure import Reason, SourceFailure
from inference_fleet.facts.gguf import GgufHeader, Value, read_gguf
from inference_fleet.facts.head import open_file
from inference_fleet.facts.inspection import inspect_local
from inference_fleet.facts.vocabulary import LEFT_TO_ENGINE, Compatibility, Tokenizer, compatible, compatible_tokens


def verify(engine: str, target: Path, draft: Path) -> Compatibility:
    """The engine's own rule. Raises SourceFailure where a file cannot be read, or where the vocabularies do not fit."""
    if engine == "LlamaCpp":
        verdict = compatible_tokens(read_tokenizer(target), read_tokenizer(draft))
    else:
        verdict = compatible(engine, inspect_local(target, str(target)).facts, inspect_local(draft, str(draft)).facts)
    if not verdict.ok:
        raise SourceFailure(
            Reason.VOCABULARY_MISMATCH, verdict.message.rstrip("."), "Choose a draft of the same family"
        )
    return verdict


def read_tokenizer(path: Path) -> Tokenizer:
    """The vocabulary of a GGUF file as llama.cpp compares it."""
    with closing(open_file(path)) as head:
        header = read_gguf(head, keep_tokens=True)
    if header.vocabulary is None:
        raise SourceFailure(Reason.UNSUPPORTED, f"{path} has no vocabulary", "Give the first part of a split model")
    return Tokenizer(header.vocabulary.model, header.vocabulary.texts, _added(header, "bos"), _added(header, "eos"))


def _added(header: GgufHeader, which: str) -> int | None:
    adds: Value | None = header.metadata.get(f"tokenizer.ggml.add_{which}_token")
    if adds is None:
        return LEFT_TO_ENGINE
    token = header.metadata.get(f"tokenizer.ggml.{which}_token_id")
    return (token if isinstance(token, int) else LEFT_TO_ENGINE) if adds else None
