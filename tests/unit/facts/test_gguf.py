"""GGUF headers: the reference reader agrees, and nothing that is damaged or hostile gets through."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_fleet.api.model import Attention, ModelFacts
from inference_fleet.facts.failure import Reason, SourceFailure
from inference_fleet.facts.from_gguf import facts_from_gguf
from inference_fleet.facts.gguf import TENSOR_TYPES, GgufHeader, read_gguf
from inference_fleet.facts.head import Head, open_file
from tests.support.small_models import write_gguf


def facts_of(path: Path) -> ModelFacts:
    header = read_gguf(open_file(path))
    return facts_from_gguf(header, header.tensors, path.name)


def in_pieces(content: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


def read_bytes(content: bytes, piece: int = 4096) -> GgufHeader:
    return read_gguf(Head("m.gguf", in_pieces(content, piece), len(content)))


def test_the_table_of_tensor_types_is_the_reference_table() -> None:
    reference = {int(kind): (kind.name, *gguf.GGML_QUANT_SIZES[kind]) for kind in gguf.GGMLQuantizationType}
    assert dict(TENSOR_TYPES) == reference


def test_a_small_model(tmp_path: Path) -> None:
    assert facts_of(write_gguf(tmp_path / "m.gguf")) == ModelFacts(
        architecture="llama",
        parameters=10 * 64 + 64,
        layers=2,
        hidden_size=64,
        key_value_heads=2,
        attention_heads=4,
        head_dimension=16,
        attention=Attention.GQA,
        vocabulary_size=10,
        tokens_digest=facts_of(tmp_path / "m.gguf").tokens_digest,
        max_context_tokens=512,
        weight_bits=16,
        tokenizer_model="gpt2",
    )


@pytest.mark.parametrize(
    ("architecture", "numbers", "attention", "window"),
    [
        ("llama", {"attention.head_count_kv": 4}, Attention.MHA, None),
        ("llama", {"attention.head_count_kv": None}, Attention.MHA, None),
        ("llama", {"attention.head_count_kv": 1}, Attention.MQA, None),
        ("llama", {"attention.head_count_kv": [1, 2]}, Attention.HYBRID, None),
        ("jamba", {"attention.head_count_kv": [0, 2]}, Attention.HYBRID, None),
        ("jamba", {"ssm.state_size": 16}, Attention.HYBRID, None),
        ("llama", {"attention.sliding_window": 128}, Attention.SLIDING_WINDOW, 128),
        ("llama", {"attention.sliding_window": 512}, Attention.GQA, None),
        ("gemma3", {"attention.sliding_window": 128}, Attention.HYBRID, 128),
        ("gpt-oss", {"attention.sliding_window": 128}, Attention.HYBRID, 128),
        ("any", {"attention.sliding_window": 128, "attention.sliding_window_pattern": 6}, Attention.HYBRID, 128),
        ("any", {"attention.sliding_window": 128, "attention.sliding_window_pattern": [True, False]}, Attention.HYBRID, 128),
        ("any", {"attention.sliding_window": 128, "attention.sliding_window_pattern": [True, True]}, Attention.SLIDING_WINDOW, 128),
    ],
)  # fmt: skip
def test_kinds_of_attention(
    tmp_path: Path, architecture: str, numbers: dict[str, object], attention: Attention, window: int | None
) -> None:
    facts = facts_of(write_gguf(tmp_path / "m.gguf", architecture=architecture, numbers=numbers))  # type: ignore[arg-type]
    assert (facts.attention, facts.sliding_window_tokens) == (attention, window)


def test_latent_attention_keeps_one_vector_a_token(tmp_path: Path) -> None:
    numbers = {
        "attention.kv_lora_rank": 512,
        "rope.dimension_count": 64,
        "attention.key_length": 192,
        "attention.value_length": 128,
    }
    facts = facts_of(write_gguf(tmp_path / "m.gguf", architecture="deepseek2", numbers=numbers))
    assert (facts.attention, facts.key_value_heads, facts.head_dimension) == (Attention.MLA, 1, 576)


def test_keys_and_values_of_different_width(tmp_path: Path) -> None:
    facts = facts_of(
        write_gguf(tmp_path / "m.gguf", numbers={"attention.key_length": 192, "attention.value_length": 128})
    )
    assert (facts.head_dimension, facts.value_head_dimension) == (192, 128)


@pytest.mark.parametrize(
    ("extra", "numbers", "reason"),
    [
        ({"general.type": "adapter"}, {}, Reason.UNSUPPORTED),
        ({}, {"attention.head_count": None, "attention.head_count_kv": None}, Reason.UNSUPPORTED),
        ({}, {"block_count": None}, Reason.MALFORMED),
        ({}, {"context_length": None}, Reason.MALFORMED),
    ],
)
def test_what_is_no_language_model(
    tmp_path: Path, extra: dict[str, str], numbers: dict[str, object], reason: Reason
) -> None:
    path = write_gguf(tmp_path / "m.gguf", extra=extra, numbers=numbers)  # type: ignore[arg-type]
    with pytest.raises(SourceFailure) as caught:
        facts_of(path)
    assert caught.value.reason is reason


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 64, 100_000])
def test_any_split_of_the_bytes_gives_the_same_header(tmp_path: Path, piece: int) -> None:
    content = write_gguf(tmp_path / "m.gguf").read_bytes()
    assert read_bytes(content, piece) == read_gguf(open_file(tmp_path / "m.gguf"))


def test_every_truncation_is_told_as_such(tmp_path: Path) -> None:
    content = write_gguf(tmp_path / "m.gguf").read_bytes()
    for length in range(len(content)):
        with pytest.raises(SourceFailure) as caught:
            read_bytes(content[:length])
        assert caught.value.reason is Reason.MALFORMED


def count(value: int) -> bytes:
    return struct.pack("<Q", value)


HUGE = 2**63 - 1
KEY = count(1) + b"k"


@pytest.mark.parametrize(
    "content",
    [
        b"GGUF" + struct.pack("<I", 3) + count(HUGE) + count(0),
        b"GGUF" + struct.pack("<I", 3) + count(0) + count(HUGE),
        b"GGUF" + struct.pack("<I", 3) + count(0) + count(1) + count(HUGE),
        b"GGUF" + struct.pack("<I", 3) + count(0) + count(1) + KEY + struct.pack("<I", 8) + count(HUGE),
        b"GGUF" + struct.pack("<I", 3) + count(0) + count(1) + KEY + struct.pack("<II", 9, 4) + count(HUGE),
        b"GGUF" + struct.pack("<I", 3) + count(0) + count(1) + KEY + struct.pack("<II", 9, 8) + count(HUGE),
        b"GGUF" + struct.pack("<I", 3) + count(0) + count(1) + KEY + struct.pack("<I", 99),
        b"GGUF" + struct.pack("<I", 3) + count(0) + count(1) + KEY + (struct.pack("<II", 9, 9) + count(1)) * 10,
        b"GGUF" + struct.pack("<I", 3) + count(0) + count(1) + count(21) + b"tokenizer.ggml.tokens" + struct.pack("<II", 9, 8)
        + count(2**22) + count(HUGE),
        b"GGUF" + struct.pack("<I", 3) + count(1) + count(0) + KEY + struct.pack("<I", 4) + count(2**40) * 4 + bytes(12),
        b"PK\x03\x04" + bytes(100),
    ],
)  # fmt: skip
def test_absurd_lengths_cost_nothing(content: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(SourceFailure) as caught:
        read_bytes(content + bytes(64))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.reason is Reason.MALFORMED
    assert peak < 4 * 2**20


@pytest.mark.parametrize("version", [0, 1, 4, 3 << 24])
def test_other_versions_and_byte_orders(version: int) -> None:
    with pytest.raises(SourceFailure) as caught:
        read_bytes(b"GGUF" + struct.pack("<I", version) + bytes(64))
    assert caught.value.reason is Reason.UNSUPPORTED and "Convert" in caught.value.remedy


def test_an_unknown_tensor_type_takes_the_room_to_the_next(tmp_path: Path) -> None:
    content = bytearray(write_gguf(tmp_path / "m.gguf").read_bytes())
    at = content.index(b"token_embd.weight") + len("token_embd.weight") + 4 + 16
    assert struct.unpack_from("<I", content, at) == (1,)
    struct.pack_into("<I", content, at, 77)
    embedding = read_bytes(bytes(content)).tensors[0]
    assert (embedding.type, embedding.bytes) == ("type 77", 10 * 64 * 2)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_file_is_read_or_refused_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(SMALL or SMALL_FILE(tmp_path_factory))
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, 700))
        content[place : place + 1] = data.draw(st.binary(min_size=0, max_size=9))
    try:
        header = read_bytes(bytes(content))
        facts_from_gguf(header, header.tensors, "m.gguf")
    except SourceFailure:
        pass
    except ValueError as error:  # pydantic's, turned into Malformed by the caller
        assert type(error).__name__ == "ValidationError"


SMALL = b""


def SMALL_FILE(factory: pytest.TempPathFactory) -> bytes:  # noqa: N802 - fills SMALL once
    global SMALL
    SMALL = write_gguf(factory.mktemp("small") / "m.gguf").read_bytes()
    return SMALL
