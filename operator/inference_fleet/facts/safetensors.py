"""safetensors headers: what tensors there are, and how many weights they stand for when they are packed.

Source of the format: https://huggingface.co/docs/safetensors (8 bytes length, little-endian, then that much JSON).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import orjson

from inference_fleet.facts.failure import malformed
from inference_fleet.facts.head import Head

MAX_HEADER_BYTES = 100_000_000
"""The reference implementation's own limit."""
MAX_TENSORS = 1_000_000

BITS: Mapping[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32,
    "U32": 32, "F32": 32, "F64": 64, "I64": 64, "U64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
"""Bits of one element of each type."""

_SIDE_DATA = (
    "scales", "qzeros", "g_idx", "weight_scale", "weight_scale_2", "weight_scale_inv", "input_scale", "weight_shape",
    "weight_g_idx", "weight_zero_point", "absmax", "quant_map", "nested_absmax", "nested_quant_map", "k_scale", "v_scale",
    "scale_inv", "perm",
)  # fmt: skip
"""Last parts of names of tensors that only help to unpack others: they are bytes, but not weights."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a header: its elements as stored, and its bytes."""

    name: str
    type: str
    elements: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Weights:
    """Tensors of all files together: how many weights, and the bits that most of them are stored in."""

    parameters: int
    bits: int


def read_safetensors(head: Head) -> tuple[Tensor, ...]:
    """The tensors of one file. Raises SourceFailure(Malformed)."""
    length: int = struct.unpack("<Q", head.read(8))[0]
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise malformed(f"{head.name} announces a header of {length} bytes: it is not a safetensors file")
    try:
        header = orjson.loads(head.read(length))
    except orjson.JSONDecodeError as error:
        raise malformed(f"{head.name} has a header that is not JSON: {error}") from error
    if not isinstance(header, dict) or len(header) > MAX_TENSORS:
        raise malformed(f"{head.name} has a header that lists no tensors")
    tensors = tuple(_tensor(head, name, entry) for name, entry in header.items() if name != "__metadata__")
    end = (
        8
        + length
        + max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
    )
    if head.size is not None and end > head.size:
        raise malformed(f"{head.name} is {head.size} bytes long but its tensors end at byte {end}: it was cut short")
    return tensors


def _tensor(head: Head, name: str, entry: Any) -> Tensor:
    try:
        kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        whole = [kind.__class__ is str, *(number.__class__ is int and number >= 0 for number in (*shape, begin, end))]
    except (KeyError, TypeError, ValueError):
        raise malformed(f"{head.name} describes tensor {name[:100]!r} in an unknown way") from None
    if not all(whole) or end < begin:
        raise malformed(f"{head.name} describes tensor {name[:100]!r} in an unknown way")
    elements = prod(shape)
    if kind in BITS and (elements * BITS[kind] + 7) // 8 != end - begin:
        raise malformed(
            f"{head.name} gives tensor {name[:100]!r} {end - begin} bytes, which its shape and type contradict"
        )
    return Tensor(name, kind, elements, end - begin)


def count_weights(tensors: Iterable[Tensor], quantization: Mapping[str, Any]) -> Weights:
    """How many weights the tensors stand for. `quantization` is config.json's `quantization_config`, empty where it has none.

    GPTQ, AWQ and compressed-tensors pack several weights into one 32-bit number, bitsandbytes, MXFP4 and NVFP4 two into a byte.
    """
    packed_bits = _packed_bits(quantization)
    four_bit_bytes = _four_bits_in_bytes(quantization)
    by_bits: Counter[int] = Counter()
    for tensor in tensors:
        last = tensor.name.rpartition(".")[2]
        if last in _SIDE_DATA or last.endswith("_scales") or "quant_state" in tensor.name:
            continue
        if last in ("qweight", "weight_packed") and tensor.type in ("I32", "U32", "I64"):
            by_bits[packed_bits] += tensor.elements * BITS[tensor.type] // packed_bits
        elif tensor.type == "U8" and (last == "weight_packed" or last.endswith("_blocks") or four_bit_bytes):
            by_bits[4] += tensor.elements * 2
        else:
            by_bits[BITS.get(tensor.type, 8 * tensor.bytes // max(1, tensor.elements) or 1)] += tensor.elements
    bits = by_bits.most_common(1)[0][0] if by_bits else 16
    return Weights(parameters=by_bits.total(), bits=bits)


def _packed_bits(quantization: Mapping[str, Any]) -> int:
    """Bits of one packed weight: `bits`, or the first group of compressed-tensors; 4 where nothing is said."""
    found: Any = quantization.get("bits", quantization.get("w_bit"))
    groups = quantization.get("config_groups")
    if found is None and isinstance(groups, dict):
        for group in groups.values():
            weights = group.get("weights") if isinstance(group, dict) else None
            found = weights.get("num_bits") if isinstance(weights, dict) else None
            break
    return found if isinstance(found, int) and 1 <= found <= 32 else 4


def _four_bits_in_bytes(quantization: Mapping[str, Any]) -> bool:
    """Whether plain `U8` weights hold two 4-bit numbers each."""
    algorithm = str(quantization.get("quant_algo", ""))
    return bool(quantization.get("load_in_4bit")) or "FP4" in algorithm.upper()
