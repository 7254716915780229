"""safetensors headers, and the weights that packed tensors stand for."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_fleet.facts.failure import Reason, SourceFailure
from inference_fleet.facts.head import Head
from inference_fleet.facts.safetensors import Tensor, Weights, count_weights, read_safetensors
from tests.support.small_models import safetensors_bytes


def read(content: bytes, size: int | None = None) -> tuple[Tensor, ...]:
    return read_safetensors(Head("m.safetensors", iter([content]), len(content) if size is None else size))


def with_header(header: Any) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


def test_tensors_of_a_file() -> None:
    assert read(safetensors_bytes({"a": ("BF16", (3, 4), 24), "b": ("F32", (), 4)})) == (
        Tensor("a", "BF16", 12, 24),
        Tensor("b", "F32", 1, 4),
    )


def test_a_file_that_was_cut_short_is_told_although_its_header_is_whole() -> None:
    content = safetensors_bytes({"a": ("F32", (4,), 16)})
    with pytest.raises(SourceFailure) as caught:
        read(content, size=len(content) - 1)
    assert caught.value.reason is Reason.MALFORMED and "cut short" in caught.value.message


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01",
        struct.pack("<Q", 2**62),
        struct.pack("<Q", 100_000_001) + b"{}",
        struct.pack("<Q", 3) + b"{x}",
        with_header([]),
        with_header({"a": 1}),
        with_header({"a": {"dtype": "F32", "shape": [4]}}),
        with_header({"a": {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]}}),
        with_header({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 17]}}),
        with_header({"a": {"dtype": "F32", "shape": [4], "data_offsets": [16, 0]}}),
        with_header({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}),
        with_header({"a": {"dtype": 3, "shape": [4], "data_offsets": [0, 16]}}),
        with_header({"a": {"dtype": "F32", "shape": "44", "data_offsets": [0, 16]}}),
    ],
)
def test_what_is_no_safetensors_file(content: bytes) -> None:
    with pytest.raises(SourceFailure) as caught:
        read(content)
    assert caught.value.reason is Reason.MALFORMED


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(content: bytes) -> None:
    try:
        read(content)
    except SourceFailure:
        pass


AWQ = {"quant_method": "awq", "bits": 4}
COMPRESSED = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8}}}}


@pytest.mark.parametrize(
    ("tensors", "quantization", "weights"),
    [
        ([("w.weight", "BF16", 1000), ("norm.weight", "F32", 10)], {}, Weights(1010, 16)),
        ([("w.qweight", "I32", 125), ("w.qzeros", "I32", 8), ("w.scales", "F16", 8)], AWQ, Weights(1000, 4)),
        ([("w.qweight", "I32", 125), ("w.g_idx", "I32", 64)], {"bits": 8}, Weights(500, 8)),
        ([("w.weight_packed", "I32", 125), ("w.weight_scale", "BF16", 8), ("w.weight_shape", "I64", 2)],
         COMPRESSED, Weights(500, 8)),
        ([("w.weight", "F8_E4M3", 1000), ("w.weight_scale_inv", "F32", 8)], {"quant_method": "fp8"}, Weights(1000, 8)),
        ([("w.blocks", "BF16", 10), ("gate_up_proj_blocks", "U8", 500), ("gate_up_proj_scales", "U8", 31)], {}, Weights(1010, 4)),
        ([("w.weight", "U8", 500), ("w.weight.absmax", "F32", 16)], {"load_in_4bit": True}, Weights(1000, 4)),
        ([("w.weight", "U8", 500), ("w.weight_scale", "F8_E4M3", 62)], {"quant_algo": "NVFP4"}, Weights(1000, 4)),
        ([], {}, Weights(0, 16)),
    ],
)  # fmt: skip
def test_packed_weights_are_counted_one_by_one(
    tensors: Sequence[tuple[str, str, int]], quantization: Mapping[str, Any], weights: Weights
) -> None:
    bits = {"BF16": 16, "F16": 16, "F32": 32, "I32": 32, "I64": 64}
    listed = [Tensor(name, kind, elements, elements * bits.get(kind, 8) // 8) for name, kind, elements in tensors]
    assert count_weights(listed, quantization) == weights
