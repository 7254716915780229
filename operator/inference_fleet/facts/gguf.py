"""GGUF headers: metadata, tensor list and vocabulary, read forward and without the weights.

Source of the format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian). Every length in
the file is bounded before it is believed, so that a damaged or hostile file costs a message and not the memory of the process.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

from inference_fleet.facts.failure import Reason, SourceFailure, malformed
from inference_fleet.facts.head import Head
from inference_fleet.facts.tokens import FAMILIES, TokenDigest, family_of

MAGIC = b"GGUF"
MAX_KEYS = 65_536
MAX_TENSORS = 262_144
MAX_NAME_BYTES = 1024
MAX_KEPT_BYTES = 2**14
"""A longer text or array is passed over: none that describes a model comes near (the longest are lists of one number a layer)."""
MAX_TOKENS = 2**23
MAX_TOKEN_BYTES = 2**16
MAX_DEPTH = 4
MAX_ELEMENTS = 2**50

Scalar = int | float | bool | str
Value = Scalar | tuple[Scalar, ...]

_STRING, _ARRAY = 8, 9
_SCALARS: Mapping[int, struct.Struct] = {
    0: struct.Struct("<B"), 1: struct.Struct("<b"), 2: struct.Struct("<H"), 3: struct.Struct("<h"), 4: struct.Struct("<I"),
    5: struct.Struct("<i"), 6: struct.Struct("<f"), 7: struct.Struct("<?"), 10: struct.Struct("<Q"), 11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}  # fmt: skip
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

TENSOR_TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip
"""Number in the file → (name, elements in a block, bytes of a block); ggml's own table (`ggml_type`, `ggml-common.h`)."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the list: its elements, and its bytes in the file without alignment."""

    name: str
    type: str
    elements: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The token array: how many, and the digest of `tokens.TokenDigest`. `texts` holds them raw, only where asked for."""

    size: int
    digest: str
    model: str
    texts: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """All of a GGUF file but its weights."""

    version: int
    metadata: Mapping[str, Value]
    tensors: tuple[Tensor, ...]
    vocabulary: Vocabulary | None
    data_offset: int
    """Byte at which the weights begin."""


@dataclass(slots=True)
class _Tokens:
    """The token array while it is being read. The tokenizer's kind decides how texts become bytes; it may come later."""

    digests: dict[str, TokenDigest]
    size: int = 0
    texts: list[bytes] = field(default_factory=list)


def read_gguf(head: Head, keep_tokens: bool = False) -> GgufHeader:
    """Read the header. Raises SourceFailure: Malformed, or Unsupported for another version, byte order or tensor type."""
    if head.read(4) != MAGIC:
        raise malformed(f"{head.name} does not begin as a GGUF file does")
    version = _u32(head)
    if version not in (2, 3):
        order = " (big-endian)" if version in (2 << 24, 3 << 24) else ""
        raise SourceFailure(
            Reason.UNSUPPORTED,
            f"{head.name} is GGUF version {version}{order}",
            "Convert it to version 3, little-endian",
        )
    tensor_count, key_count = _u64(head), _u64(head)
    _bound(head, "tensors", tensor_count, MAX_TENSORS)
    _bound(head, "metadata keys", key_count, MAX_KEYS)

    metadata: dict[str, Value] = {}
    tokens: _Tokens | None = None
    for _ in range(key_count):
        key, kind = _text(head, MAX_NAME_BYTES), _u32(head)
        if key == "tokenizer.ggml.tokens" and kind == _ARRAY and tokens is None:
            tokens = _read_tokens(head, metadata, keep_tokens)
        elif (value := _read_value(head, kind)) is not None:
            metadata[key] = value

    entries = [_read_tensor(head) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= 2**20:
        raise malformed(f"{head.name} gives {alignment!r} as its alignment")
    data_offset = -(-head.position // alignment) * alignment
    return GgufHeader(
        version=version,
        metadata=metadata,
        tensors=tuple(_sizes(head, entries, data_offset)),
        vocabulary=_vocabulary(tokens, metadata),
        data_offset=data_offset,
    )


def _u32(head: Head) -> int:
    value: int = _U32.unpack(head.read(4))[0]
    return value


def _u64(head: Head) -> int:
    value: int = _U64.unpack(head.read(8))[0]
    return value


def _bound(head: Head, what: str, count: int, limit: int) -> int:
    if count > limit:
        raise malformed(f"{head.name} announces {count} {what} at byte {head.position}, more than {limit}")
    return count


def _text(head: Head, limit: int) -> str:
    return head.read(_bound(head, "bytes of text", _u64(head), limit)).decode("utf-8", "replace")


def _read_value(head: Head, kind: int) -> Value | None:
    """One metadata value; None for what was passed over."""
    if kind in _SCALARS:
        scalar = _SCALARS[kind]
        value: Scalar = scalar.unpack(head.read(scalar.size))[0]
        return value
    if kind == _STRING:
        length = _u64(head)
        if length > MAX_KEPT_BYTES:
            head.skip(length)
            return None
        return head.read(length).decode("utf-8", "replace")
    if kind == _ARRAY:
        return _read_array(head, depth=1)
    raise malformed(f"{head.name} has a metadata value of unknown type {kind} at byte {head.position}")


def _read_array(head: Head, depth: int) -> tuple[Scalar, ...] | None:
    kind, count = _u32(head), _u64(head)
    if kind in _SCALARS:
        scalar = _SCALARS[kind]
        if count * scalar.size > MAX_KEPT_BYTES:
            head.skip(count * scalar.size)
            return None
        return tuple(row[0] for row in scalar.iter_unpack(head.read(count * scalar.size)))
    _bound(head, "array items", count, MAX_TOKENS)
    if kind == _STRING:
        for _ in range(count):
            head.skip(_u64(head))
        return None
    if kind == _ARRAY and depth < MAX_DEPTH:
        for _ in range(count):
            _read_array(head, depth + 1)
        return None
    raise malformed(f"{head.name} has an array of unknown type {kind}, or nested too deep, at byte {head.position}")


def _read_tokens(head: Head, metadata: Mapping[str, Value], keep: bool) -> _Tokens:
    kind, count = _u32(head), _bound(head, "tokens", _u64(head), MAX_TOKENS)
    if kind != _STRING:
        raise malformed(f"{head.name} has a vocabulary of type {kind} instead of text")
    model = metadata.get("tokenizer.ggml.model")
    families = (family_of(model),) if isinstance(model, str) else FAMILIES
    tokens = _Tokens({family: TokenDigest(family) for family in families}, size=count)
    digests = tuple(tokens.digests.values())
    for _ in range(count):
        text = head.read(_bound(head, "bytes in one token", _u64(head), MAX_TOKEN_BYTES))
        for digest in digests:
            digest.add(text)
        if keep:
            tokens.texts.append(text)
    return tokens


def _vocabulary(tokens: _Tokens | None, metadata: Mapping[str, Value]) -> Vocabulary | None:
    if tokens is None:
        return None
    model = metadata.get("tokenizer.ggml.model")
    name = model if isinstance(model, str) else ""
    return Vocabulary(tokens.size, tokens.digests[family_of(name)].hexdigest(), name, tuple(tokens.texts))


def _read_tensor(head: Head) -> tuple[str, int, int, int]:
    """Name, elements, type number, offset."""
    name, dimensions = _text(head, MAX_NAME_BYTES), _bound(head, "dimensions", _u32(head), 8)
    elements = prod(_u64(head) for _ in range(dimensions))
    if elements > MAX_ELEMENTS:
        raise malformed(f"{head.name} announces {elements} elements in tensor {name!r}")
    return name, elements, _u32(head), _u64(head)


def _sizes(head: Head, entries: list[tuple[str, int, int, int]], data_offset: int) -> Iterator[Tensor]:
    """Tensors with their bytes: by ggml's table, and for a type newer than it by the distance to the next tensor."""
    unknown = {kind for _, _, kind, _ in entries if kind not in TENSOR_TYPES}
    room: dict[int, int] = {}
    if unknown:
        if head.size is None:
            raise SourceFailure(
                Reason.UNSUPPORTED,
                f"{head.name} has tensors of unknown type {min(unknown)} and its server does not tell its length",
                "Update this program, or serve the file with a Content-Length",
            )
        bounds = sorted({offset for *_, offset in entries} | {max(0, head.size - data_offset)})
        room = {start: end - start for start, end in pairwise(bounds)}
    for name, elements, kind, offset in entries:
        if kind in TENSOR_TYPES:
            label, block, size = TENSOR_TYPES[kind]
            length = -(-elements // block) * size
        else:
            label, length = f"type {kind}", room.get(offset, 0)
        if head.size is not None and data_offset + offset + length > head.size:
            raise malformed(f"{head.name} ends before tensor {name!r} does: it was cut short")
        yield Tensor(name, label, elements, length)
