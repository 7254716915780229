"""The command `images/pack`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hack.images.catalog import IMAGES, models_image
from hack.tools.progress import Failure


def main() -> int:
    parser = argparse.ArgumentParser(prog="pack", description="Pack container images as docker-archives.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(IMAGES)}")
    parser.add_argument("--extra-models", type=Path, metavar="DIR", help="GGUF files to serve beside the usual ones")
    options = parser.parse_args()
    unknown = set(options.names) - set(IMAGES)
    if unknown:
        parser.error(f"there is no image {', '.join(sorted(unknown))}; there are {', '.join(IMAGES)}")
    try:
        for name in options.names or IMAGES:
            image = models_image(options.extra_models) if name == "models" else IMAGES[name]()
            print(image.archive(), flush=True)
    except Failure as failure:
        print(f"pack: {failure}", file=sys.stderr)
        return 1
    return 0
