"""`tokensDigest`: one hash for a vocabulary, the same from a GGUF file and from a `tokenizer.json`.

SHA-256 over the tokens in the order of their ids, each as its length (4 bytes, little-endian) and the bytes it stands for. The two
formats spell those bytes differently, so each token's text is first turned back into bytes:

- byte-level BPE (GGUF `gpt2`): every character stands for one byte by GPT-2's table; a token that has a character outside the
  table is an added token and stands for itself;
- SentencePiece (GGUF `llama`, `t5`, …): `▁` is a space, `<0xNN>` is the byte NN;
- WordPiece (GGUF `bert`): GGUF marks the beginning of a word with `▁` where `vocab.txt` marks the continuation with `##`; both
  become a leading space at the beginning of a word, and a bracketed special token stays as it is.

`[PADn]`, which converters put where id n has no token, counts as a token only if a real one follows: so a padded vocabulary and its
unpadded tokenizer have one digest.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Mapping

BYTE_LEVEL, SENTENCE_PIECE, WORD_PIECE = "ByteLevel", "SentencePiece", "WordPiece"
FAMILIES = (BYTE_LEVEL, SENTENCE_PIECE, WORD_PIECE)

_LENGTH = struct.Struct("<I")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def family_of(model: str) -> str:
    """How a tokenizer of this kind (GGUF's `tokenizer.ggml.model`) spells its tokens."""
    return {"gpt2": BYTE_LEVEL, "bert": WORD_PIECE}.get(model, SENTENCE_PIECE)


def _gpt2_bytes() -> Mapping[str, int]:
    """GPT-2's table: printable characters of Latin-1 stand for themselves, the 68 others are moved up from U+0100."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in printable}
    moved = (byte for byte in range(256) if byte not in set(printable))
    return table | {chr(256 + index): byte for index, byte in enumerate(moved)}


_BYTE_OF = _gpt2_bytes()


def byte_level(text: str) -> bytes:
    """Bytes of a byte-level token: `Ġthe` → ` the`."""
    try:
        return bytes([_BYTE_OF[character] for character in text])
    except KeyError:
        return _spaced(text)


def sentence_piece(text: str) -> bytes:
    """Bytes of a SentencePiece token: `▁the` → ` the`, `<0x0A>` → newline."""
    byte = _BYTE_TOKEN.fullmatch(text)
    return bytes([int(byte[1], 16)]) if byte else _spaced(text)


def word_piece(text: str) -> bytes:
    """Bytes of a WordPiece token as GGUF spells it: `▁the` → ` the`, `ing` → `ing`, `[CLS]` → `[CLS]`."""
    plain = _spaced(text)
    bracketed = plain.startswith(b" [") and plain.endswith(b"]")
    return plain[1:] if bracketed else plain


def word_piece_from_json(text: str, special: bool) -> str:
    """A WordPiece token of `tokenizer.json` in GGUF's spelling: `##ing` → `ing`, `the` → `▁the`."""
    if special:
        return text
    return text[2:] if text.startswith("##") else "▁" + text


def _spaced(text: str) -> bytes:
    return text.replace("▁", " ").encode("utf-8", "surrogateescape")


_TO_BYTES: Mapping[str, Callable[[str], bytes]] = {
    BYTE_LEVEL: byte_level,
    SENTENCE_PIECE: sentence_piece,
    WORD_PIECE: word_piece,
}


class TokenDigest:
    """Takes the tokens' raw texts in the order of their ids."""

    def __init__(self, family: str) -> None:
        self._to_bytes = _TO_BYTES[family]
        self._hash = hashlib.sha256()
        self._count = 0
        self._padding: list[bytes] = []

    def add(self, text: bytes) -> None:
        """The next token, as UTF-8 (or not: some vocabularies hold broken bytes)."""
        token = self._to_bytes(text.decode("utf-8", "surrogateescape"))
        padding = token.startswith(b"[PAD") and token == b"[PAD%d]" % self._count
        self._count += 1
        if padding:
            self._padding.append(token)
            return
        for pending in self._padding:
            self._feed(pending)
        self._padding.clear()
        self._feed(token)

    def _feed(self, token: bytes) -> None:
        self._hash.update(_LENGTH.pack(len(token)))
        self._hash.update(token)

    def hexdigest(self) -> str:
        """64 hexadecimal digits."""
        return self._hash.hexdigest()
