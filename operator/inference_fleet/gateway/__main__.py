"""`python -m inference_fleet.gateway`: the command `gateway` alone."""

from __future__ import annotations

import argparse
import sys

from inference_fleet.gateway.commands import add_arguments, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="inference-fleet gateway")
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
