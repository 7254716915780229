"""Tiny model files, made on the spot: GGUF by the reference writer (PyPI `gguf`), safetensors and hub folders by hand."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy

TOKENS = ("<s>", "</s>", "<unk>", "<a>", "<b>", "Ġthe", "Ġcat", "Ċ", "é", "Ġ")


def write_gguf(
    path: Path,
    tokens: Sequence[str | bytes] = TOKENS,
    architecture: str = "llama",
    model: str = "gpt2",
    numbers: Mapping[str, int | Sequence[int] | Sequence[bool]] | None = None,
    extra: Mapping[str, int | bool | str] | None = None,
    vocabulary_first: bool = False,
) -> Path:
    """A model of two layers. `numbers` are metadata under the architecture and override the defaults; None removes."""
    writer = gguf.GGUFWriter(path, architecture)
    if vocabulary_first:
        writer.add_token_list(list(tokens))
    shape: dict[str, Any] = {
        "block_count": 2,
        "context_length": 512,
        "embedding_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        **(numbers or {}),
    }
    for name, value in shape.items():
        key = f"{architecture}.{name}"
        if isinstance(value, int):
            writer.add_uint32(key, value)
        elif value is not None:
            writer.add_array(key, list(value))
    writer.add_tokenizer_model(model)
    if not vocabulary_first:
        writer.add_token_list(list(tokens))
    for name, value in (extra or {}).items():
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        else:
            writer.add_string(name, value)
    writer.add_tensor("token_embd.weight", numpy.zeros((len(tokens), 64), dtype=numpy.float16))
    writer.add_tensor("output_norm.weight", numpy.zeros((64,), dtype=numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def safetensors_bytes(tensors: Mapping[str, tuple[str, Sequence[int], int]]) -> bytes:
    """A safetensors file of zeros: name → (type, shape, bytes)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (kind, shape, size) in tensors.items():
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(offset)


def tokenizer_json(tokens: Sequence[str], added: Sequence[tuple[int, str]] = ()) -> bytes:
    """A byte-level BPE `tokenizer.json`."""
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [{"id": number, "content": text, "special": True} for number, text in added],
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split"}, {"type": "ByteLevel"}]},
            "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "vocab": {text: number for number, text in enumerate(tokens)}, "merges": []},
        }
    ).encode()


LLAMA_CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "vocab_size": 10,
}


def folder_files() -> dict[str, bytes]:
    """A small Llama as a hub folder: two shards, index, configuration, tokenizer."""
    first = safetensors_bytes({"model.embed_tokens.weight": ("BF16", (10, 64), 1280)})
    second = safetensors_bytes({"model.norm.weight": ("BF16", (64,), 128)})
    index = {
        "metadata": {"total_size": 1408},
        "weight_map": {
            "model.embed_tokens.weight": "model-00001-of-00002.safetensors",
            "model.norm.weight": "model-00002-of-00002.safetensors",
        },
    }
    return {
        "config.json": json.dumps(LLAMA_CONFIG).encode(),
        "tokenizer.json": tokenizer_json(TOKENS),
        "model.safetensors.index.json": json.dumps(index).encode(),
        "model-00001-of-00002.safetensors": first,
        "model-00002-of-00002.safetensors": second,
        "README.md": b"# A small model\n",
    }


def write_folder(root: Path, files: Mapping[str, bytes] | None = None) -> Path:
    """The same on disk."""
    for name, content in (files or folder_files()).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root
