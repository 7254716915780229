"""The vocabulary of a model folder: `tokenizer.json`, or the older files it may have instead."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from inference_fleet.facts.failure import malformed
from inference_fleet.facts.tokens import WORD_PIECE, TokenDigest, family_of, word_piece_from_json

MAX_TOKENIZER_BYTES = 256 * 2**20
MAX_ID = 2**23

VOCABULARY_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json", "tiktoken.model", "vocab.txt")
"""In order of preference; the first that a folder has is read."""


@dataclass(frozen=True, slots=True)
class FolderVocabulary:
    """What a tokenizer file says. `size` counts ids up to the highest; the model may pad it. `model` in GGUF's words."""

    size: int
    digest: str
    model: str


def read_vocabulary(names: Mapping[str, object], read: Callable[[str], bytes], folder: str) -> FolderVocabulary | None:
    """The folder's vocabulary; None where it has none of the known files. `read` gives a file's content by name.

    A kind of file that cannot be read token by token (`tekken.json`, `tiktoken.model`) is hashed whole, as `file:…`: equal only to
    itself.
    """
    name = next((candidate for candidate in VOCABULARY_FILES if candidate in names), None)
    if name is None:
        return None
    shown, content = f"{folder}/{name}".lstrip("/"), read(name)
    if name == "tokenizer.json":
        return from_tokenizer_json(content, shown)
    if name == "tokenizer.model":
        added = _json(read("added_tokens.json"), "added_tokens.json") if "added_tokens.json" in names else {}
        return from_sentence_piece(content, _ids(added, "added_tokens.json"), shown)
    if name == "vocab.json":
        added = _json(read("added_tokens.json"), "added_tokens.json") if "added_tokens.json" in names else {}
        return _digest(_ids(_json(content, shown), shown) | _ids(added, "added_tokens.json"), "gpt2", shown)
    if name == "vocab.txt":
        return _word_piece(dict(enumerate(content.decode("utf-8", "replace").splitlines())), frozenset(), shown)
    return FolderVocabulary(0, f"file:{hashlib.sha256(content).hexdigest()}", name.removesuffix(".json"))


def from_tokenizer_json(content: bytes, shown: str) -> FolderVocabulary:
    """The vocabulary of Hugging Face's `tokenizer.json`: the model's tokens and the added ones."""
    document = _json(content, shown)
    model = document.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(model, dict) or not isinstance(vocabulary, dict | list):
        raise malformed(f"{shown} has no vocabulary")
    if isinstance(vocabulary, list):  # Unigram: [[piece, score], …]
        tokens = {index: item[0] for index, item in enumerate(vocabulary) if isinstance(item, list) and item}
    else:
        tokens = _ids(vocabulary, shown)
    added, special = {}, set()
    for item in document.get("added_tokens") or []:
        if isinstance(item, dict) and isinstance(item.get("id"), int) and isinstance(item.get("content"), str):
            added[item["id"]] = item["content"]
            special.add(item["id"])
    kind = _kind(document, model)
    if family_of(kind) == WORD_PIECE:
        return _word_piece(tokens | added, frozenset(special), shown)
    return _digest(tokens | added, kind, shown)


def _kind(document: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """The kind in GGUF's words (`tokenizer.ggml.model`)."""
    kind = model.get("type")
    if kind == "WordPiece":
        return "bert"
    if kind == "Unigram":
        return "t5"
    byte_level = any(_mentions(document.get(part), "ByteLevel") for part in ("pre_tokenizer", "decoder"))
    return "gpt2" if byte_level or not model.get("byte_fallback") else "llama"


def _mentions(part: Any, kind: str) -> bool:
    """Whether a (possibly nested) pre-tokenizer or decoder is of this kind."""
    if not isinstance(part, dict):
        return False
    nested = [*(part.get("pretokenizers") or []), *(part.get("decoders") or [])]
    return part.get("type") == kind or any(_mentions(item, kind) for item in nested)


def from_sentence_piece(content: bytes, added: Mapping[int, str], shown: str) -> FolderVocabulary:
    """The vocabulary of a SentencePiece model: a protocol buffer whose repeated field 1 is a piece, whose field 1 is its text."""
    pieces = {
        index: bytes(_first(piece, 1, shown)).decode("utf-8", "surrogateescape")
        for index, piece in enumerate(value for number, value in _fields(memoryview(content), shown) if number == 1)
    }
    if not pieces:
        raise malformed(f"{shown} has no vocabulary")
    return _digest(pieces | dict(added), "llama", shown)


def _first(message: memoryview, wanted: int, shown: str) -> memoryview:
    return next((value for number, value in _fields(message, shown) if number == wanted), memoryview(b""))


def _fields(message: memoryview, shown: str) -> Iterator[tuple[int, memoryview]]:
    """Length-delimited fields of a protocol buffer message; the others are passed over."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position, shown)
        wire = tag & 7
        if wire == 2:
            length, position = _varint(message, position, shown)
            if position + length > len(message):
                raise malformed(f"{shown} is cut short")
            yield tag >> 3, message[position : position + length]
            position += length
        elif wire == 0:
            _, position = _varint(message, position, shown)
        elif wire in (1, 5):
            position += 8 if wire == 1 else 4
        else:
            raise malformed(f"{shown} is not a SentencePiece model")


def _varint(message: memoryview, position: int, shown: str) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            raise malformed(f"{shown} is cut short")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise malformed(f"{shown} is not a SentencePiece model")


def _json(content: bytes, shown: str) -> dict[str, Any]:
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise malformed(f"{shown} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise malformed(f"{shown} is not a JSON object")
    return document


def _ids(vocabulary: Mapping[str, Any], shown: str) -> dict[int, str]:
    """Text by id, from id by text."""
    if not all(isinstance(number, int) and 0 <= number < MAX_ID for number in vocabulary.values()):
        raise malformed(f"{shown} has tokens without a usable id")
    return {number: text for text, number in vocabulary.items()}


def _word_piece(tokens: Mapping[int, str], special: frozenset[int], shown: str) -> FolderVocabulary:
    spelled = {number: word_piece_from_json(text, number in special) for number, text in tokens.items()}
    return _digest(spelled, "bert", shown)


def _digest(tokens: Mapping[int, str], model: str, shown: str) -> FolderVocabulary:
    if not tokens or min(tokens) < 0 or max(tokens) >= MAX_ID:
        raise malformed(f"{shown} has tokens without a usable id")
    digest, size = TokenDigest(family_of(model)), max(tokens) + 1
    for number in range(size):
        digest.add(tokens.get(number, f"[PAD{number}]").encode("utf-8", "surrogateescape"))
    return FolderVocabulary(size, digest.hexdigest(), model)
