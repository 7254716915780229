"""One vocabulary has one digest, whichever file it is read from."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_fleet.facts.gguf import read_gguf
from inference_fleet.facts.head import open_file
from inference_fleet.facts.tokenizer import from_sentence_piece, from_tokenizer_json, read_vocabulary
from inference_fleet.facts.tokens import byte_level, sentence_piece, word_piece
from tests.support.small_models import TOKENS, tokenizer_json, write_gguf


def digest_of(path: Path) -> str:
    vocabulary = read_gguf(open_file(path)).vocabulary
    assert vocabulary is not None
    return vocabulary.digest


def test_byte_level_tokens_are_turned_back_into_bytes() -> None:
    assert byte_level("Ġthe") == b" the"
    assert byte_level("Ċ") == b"\n"
    assert byte_level("Ã©") == "é".encode()
    assert byte_level("<|im_start|>") == b"<|im_start|>"
    assert byte_level("<｜begin▁of▁sentence｜>") == "<｜begin of sentence｜>".encode()


def test_sentence_piece_tokens_are_turned_back_into_bytes() -> None:
    assert sentence_piece("▁the") == b" the"
    assert sentence_piece("<0x0A>") == b"\n"
    assert sentence_piece("<0xFF>") == b"\xff"
    assert sentence_piece("<0x0A>x") == b"<0x0A>x"


def test_word_piece_marks_the_beginning_of_a_word() -> None:
    assert word_piece("▁cat") == b" cat"
    assert word_piece("ing") == b"ing"
    assert word_piece("[CLS]") == b"[CLS]"
    assert word_piece("▁[unused1]") == b"[unused1]"


def test_gguf_and_tokenizer_json_of_a_byte_level_vocabulary_agree(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    assert from_tokenizer_json(tokenizer_json(TOKENS), "t").digest == digest_of(path)


def test_added_tokens_count_wherever_they_stand(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tokens=(*TOKENS, "<|end of turn|>"))
    found = from_tokenizer_json(tokenizer_json(TOKENS, added=[(10, "<|end of turn|>")]), "t")
    assert (found.digest, found.size, found.model) == (digest_of(path), 11, "gpt2")


def test_padding_that_a_converter_adds_does_not_change_the_digest(tmp_path: Path) -> None:
    padded = (*TOKENS, "[PAD10]", "[PAD11]")
    assert (
        digest_of(write_gguf(tmp_path / "p.gguf", tokens=padded))
        == from_tokenizer_json(tokenizer_json(TOKENS), "t").digest
    )


def test_a_hole_in_the_ids_is_padding_on_both_sides(tmp_path: Path) -> None:
    holed = (*TOKENS, "[PAD10]", "<|last|>")
    found = from_tokenizer_json(tokenizer_json(TOKENS, added=[(11, "<|last|>")]), "t")
    assert found.digest == digest_of(write_gguf(tmp_path / "h.gguf", tokens=holed))
    assert found.digest != from_tokenizer_json(tokenizer_json(TOKENS), "t").digest


def test_order_and_boundaries_matter() -> None:
    digests = {
        from_tokenizer_json(tokenizer_json(tokens), "t").digest for tokens in (("ab", "c"), ("a", "bc"), ("c", "ab"))
    }
    assert len(digests) == 3


def test_the_kind_of_tokenizer_may_be_written_after_its_tokens(tmp_path: Path) -> None:
    tokens = ("<unk>", "▁the", "<0x0A>")
    early = write_gguf(tmp_path / "early.gguf", tokens=tokens, model="llama")
    late = write_gguf(tmp_path / "late.gguf", tokens=tokens, model="llama", vocabulary_first=True)
    assert digest_of(early) == digest_of(late)


def protobuf_piece(text: str) -> bytes:
    raw = text.encode()
    body = b"\x0a" + bytes([len(raw)]) + raw + b"\x15\x00\x00\x80\xbf"  # piece, score -1.0
    return b"\x0a" + bytes([len(body)]) + body


SENTENCE_PIECES = ("<unk>", "<s>", "</s>", "<0x0A>", "▁the", "é")


def sentence_piece_json() -> bytes:
    model = {
        "type": "BPE",
        "byte_fallback": True,
        "vocab": {text: n for n, text in enumerate(SENTENCE_PIECES)},
        "merges": [],
    }
    return json.dumps({"model": model, "added_tokens": [], "decoder": {"type": "Sequence", "decoders": []}}).encode()


def test_tokenizer_model_tokenizer_json_and_gguf_of_a_sentence_piece_vocabulary_agree(tmp_path: Path) -> None:
    content = b"".join(protobuf_piece(text) for text in SENTENCE_PIECES) + b"\x12\x02\x08\x01"  # and a trainer_spec
    binary = from_sentence_piece(content, {}, "tokenizer.model")
    text = from_tokenizer_json(sentence_piece_json(), "tokenizer.json")
    path = write_gguf(tmp_path / "s.gguf", tokens=SENTENCE_PIECES, model="llama")
    assert binary.digest == text.digest == digest_of(path)
    assert binary.model == text.model == "llama"


def test_word_piece_vocabularies_agree(tmp_path: Path) -> None:
    spelled = {"[PAD]": 0, "[CLS]": 1, "the": 2, "##ing": 3}
    document = {
        "added_tokens": [
            {"id": 0, "content": "[PAD]", "special": True},
            {"id": 1, "content": "[CLS]", "special": True},
        ],
        "model": {"type": "WordPiece", "vocab": spelled},
    }
    path = write_gguf(tmp_path / "b.gguf", tokens=("[PAD]", "[CLS]", "▁the", "ing"), model="bert")
    assert from_tokenizer_json(json.dumps(document).encode(), "t").digest == digest_of(path)


def test_older_files_are_read_where_there_is_no_tokenizer_json() -> None:
    files = {
        "vocab.json": json.dumps({text: number for number, text in enumerate(TOKENS)}).encode(),
        "added_tokens.json": b'{"<|x|>": 10}',
    }
    found = read_vocabulary(files, files.__getitem__, "folder")
    assert found is not None
    assert found.digest == from_tokenizer_json(tokenizer_json(TOKENS, added=[(10, "<|x|>")]), "t").digest


def test_a_tokenizer_of_an_unread_kind_equals_only_itself() -> None:
    found = read_vocabulary({"tekken.json": b""}, lambda name: b"{}", "folder")
    assert found is not None and found.digest.startswith("file:") and found.size == 0


@given(st.lists(st.binary(min_size=1, max_size=12), min_size=1, max_size=30, unique=True))
def test_any_bytes_survive_gguf_as_they_are(tmp_path_factory: pytest.TempPathFactory, texts: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("any") / "m.gguf"
    write_gguf(path, tokens=texts)
    header = read_gguf(open_file(path), keep_tokens=True)
    assert header.vocabulary is not None and header.vocabulary.texts == tuple(texts)
    reference = gguf.GGUFReader(path).fields["tokenizer.ggml.tokens"]
    assert [bytes(reference.parts[index]) for index in reference.data] == texts
