"""Other GGUF files made of one: a smaller draft with the same vocabulary, or the same model with 8-bit weights.

    python -m hack.models.rewrite --layers 28 MODEL.gguf DRAFT.gguf
    python -m hack.models.rewrite --q8-0 MODEL.gguf MODEL-Q8_0.gguf

A draft that keeps only the first layers guesses worse the more are cut (SmolLM2-135M, 30 layers: about a third of the guesses
are right with 28), but it is a real GGUF that a real engine drafts with. The same input gives the same bytes.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize

BLOCK = re.compile(r"^blk\.(\d+)\.")
OWN = re.compile(r"^(GGUF\.|general\.architecture$)")
"""Fields that the writer writes by itself."""
PLAIN = {GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16}


def first_layers(source: Path, target: Path, layers: int) -> None:
    """Writes `source` with its first `layers` layers. Raises ValueError where it has fewer."""
    reader = GGUFReader(source)
    count = f"{architecture(reader)}.block_count"
    has = int(reader.fields[count].contents())
    if not 0 < layers <= has:
        raise ValueError(f"{source} has {has} layers: {layers} of them cannot be kept")
    write(reader, target, {count: layers}, layers=layers)


def with_q8_0(source: Path, target: Path) -> None:
    """Writes `source` with its quantized weights as Q8_0: computed from what is left of them, so no better, but another build."""
    reader = GGUFReader(source)
    write(reader, target, {"general.file_type": int(LlamaFileType.MOSTLY_Q8_0)}, weights=GGMLQuantizationType.Q8_0)


def architecture(reader: GGUFReader) -> str:
    return str(reader.fields["general.architecture"].contents())


def write(
    reader: GGUFReader,
    target: Path,
    changed: dict[str, Any],
    layers: int | None = None,
    weights: GGMLQuantizationType | None = None,
) -> None:
    """Writes what was read, with some fields changed, layers cut, quantized tensors in another format."""
    partial = target.with_name(f"{target.name}.partial")
    writer = GGUFWriter(partial, architecture(reader))
    for name, field in reader.fields.items():
        if not OWN.match(name):
            kind = field.types[0]
            items = field.types[-1] if kind is GGUFValueType.ARRAY else None
            writer.add_key_value(name, changed.get(name, field.contents()), kind, items)
    for tensor in reader.tensors:
        block = BLOCK.match(tensor.name)
        if layers is not None and block is not None and int(block[1]) >= layers:
            continue
        if weights is None or tensor.tensor_type in PLAIN:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        else:
            writer.add_tensor(
                tensor.name, quantize(dequantize(tensor.data, tensor.tensor_type), weights), raw_dtype=weights
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(target)


def main() -> int:
    parser = argparse.ArgumentParser(description="Make another GGUF file of one.")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--layers", type=int, help="keep the first so many layers")
    how.add_argument("--q8-0", action="store_true", help="write quantized weights as Q8_0")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    try:
        if options.q8_0:
            with_q8_0(options.source, options.target)
        else:
            first_layers(options.source, options.target, options.layers)
    except (OSError, ValueError) as error:
        print(f"rewrite: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
