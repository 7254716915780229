"""Two published models (SmolLM2-135M, Gemma-3-270M), read by our parser and by the reference reader (PyPI `gguf`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest

from inference_fleet.api.model import Attention
from inference_fleet.facts.from_gguf import facts_from_gguf
from inference_fleet.facts.gguf import GgufHeader, read_gguf
from inference_fleet.facts.head import open_file
from inference_fleet.facts.tokenizer import from_tokenizer_json
from inference_fleet.facts.tokens import byte_level
from tests.support.llama import gemma3, smollm2

SMOLLM2: dict[str, Any] = {
    "architecture": "llama", "parameters": 134_515_008, "layers": 30, "hidden_size": 576, "key_value_heads": 3,
    "attention_heads": 9, "head_dimension": 64, "attention": Attention.GQA, "sliding_window_tokens": None,
    "vocabulary_size": 49_152, "max_context_tokens": 8192, "weight_bits": 4, "tokenizer_model": "gpt2",
}  # fmt: skip
GEMMA3: dict[str, Any] = {
    "architecture": "gemma3", "parameters": 268_098_176, "layers": 18, "hidden_size": 640, "key_value_heads": 1,
    "attention_heads": 4, "head_dimension": 256, "attention": Attention.HYBRID, "sliding_window_tokens": 512,
    "vocabulary_size": 262_144, "max_context_tokens": 32_768, "weight_bits": 8, "tokenizer_model": "llama",
}  # fmt: skip


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def model(request: pytest.FixtureRequest) -> tuple[str, Path, GgufHeader]:
    path = {"smollm2": smollm2, "gemma3": gemma3}[request.param]()
    return request.param, path, read_gguf(open_file(path), keep_tokens=True)


def test_the_reference_reader_agrees(model: tuple[str, Path, GgufHeader]) -> None:
    _, path, header = model
    reference = gguf.GGUFReader(path)
    assert [(tensor.name, tensor.type, tensor.elements, tensor.bytes) for tensor in header.tensors] == [
        (tensor.name, tensor.tensor_type.name, int(tensor.n_elements), int(tensor.n_bytes))
        for tensor in reference.tensors
    ]
    assert header.data_offset == reference.data_offset
    assert header.vocabulary is not None
    tokens = reference.fields["tokenizer.ggml.tokens"]
    assert header.vocabulary.texts == tuple(bytes(tokens.parts[index]) for index in tokens.data)
    for name, value in header.metadata.items():
        assert reference.fields[name].contents() == (list(value) if isinstance(value, tuple) else value)


def test_facts(model: tuple[str, Path, GgufHeader]) -> None:
    name, path, header = model
    facts = facts_from_gguf(header, header.tensors, path.name)
    expected: dict[str, dict[str, Any]] = {"smollm2": SMOLLM2, "gemma3": GEMMA3}
    assert {field: getattr(facts, field) for field in expected[name]} == expected[name]


def test_the_same_vocabulary_as_tokenizer_json_has_the_same_digest(model: tuple[str, Path, GgufHeader]) -> None:
    _, _, header = model
    assert header.vocabulary is not None
    texts = [text.decode() for text in header.vocabulary.texts]
    byte_level_model = header.vocabulary.model == "gpt2"
    document = {
        "model": {
            "type": "BPE",
            "byte_fallback": not byte_level_model,
            "vocab": {t: n for n, t in enumerate(texts)},
            "merges": [],
        },
        "pre_tokenizer": {"type": "ByteLevel"} if byte_level_model else None,
        "added_tokens": [{"id": number, "content": text, "special": True} for number, text in enumerate(texts[:17])],
    }
    found = from_tokenizer_json(json.dumps(document).encode(), "tokenizer.json")
    assert (found.digest, found.size, found.model) == (header.vocabulary.digest, len(texts), header.vocabulary.model)


def test_byte_level_tokens_of_a_real_vocabulary_cover_all_bytes() -> None:
    header = read_gguf(open_file(smollm2()), keep_tokens=True)
    assert header.vocabulary is not None
    single = {byte_level(text.decode()) for text in header.vocabulary.texts if len(byte_level(text.decode())) == 1}
    assert len(single) > 200
