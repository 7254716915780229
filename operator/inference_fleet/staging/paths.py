"""Where an engine finds its weights. Pure: the renderer and the staging module ask the same question."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from inference_fleet.api.model import ModelSource
from inference_fleet.facts.parts import split_parts

TARGET_FOLDER = "/models/target"
DRAFT_FOLDER = "/models/draft"


def engine_path(source: ModelSource, into: str) -> str:
    """The path to hand to the engine when `source` is staged (or its claim mounted) at the folder `into`.

    A file of a split GGUF stands for its first part, from which llama.cpp finds the others. A safetensors file stands for its
    folder, which is what an engine loads.
    """
    folder = PurePosixPath(into)
    if source.http is not None:
        return str(folder / file_name(source.http.url))
    if source.hugging_face is not None:
        file = source.hugging_face.file
        return str(folder if file is None else folder / _loaded(file))
    if source.volume_claim is not None:
        return str(folder / _loaded(source.volume_claim.path))
    raise ValueError("the source is empty")


def needs_staging(source: ModelSource) -> bool:
    """Whether anything has to be copied before an engine can start; a claim is mounted where it is needed."""
    return source.volume_claim is None


def file_name(url: str) -> str:
    """The name of the file behind a URL: the last part of its path, percent-encoding undone."""
    last = re.split(r"[?#]", url, maxsplit=1)[0].rpartition("/")[2]
    octets = re.sub(rb"%([0-9A-Fa-f]{2})", lambda match: bytes([int(match[1], 16)]), last.encode())
    return octets.decode("utf-8", "replace").rpartition("/")[2]


def _loaded(path: str) -> PurePosixPath:
    return PurePosixPath(path).parent if path.endswith(".safetensors") else PurePosixPath(split_parts(path)[0])
