"""Kubernetes quantities as they are rendered."""

from __future__ import annotations

import re
from decimal import Decimal

MIB = 2**20

_PARTS = re.compile(r"([0-9.]+)([A-Za-z]*)")


def mebibytes(count: int) -> str:
    """Bytes as whole MiB, rounded up."""
    return f"{-(-count // MIB)}Mi"


def times(quantity: str, factor: int) -> str:
    """A quantity multiplied, in its own unit: `64Gi` × 2 is `128Gi`, `500m` × 3 is `1500m`."""
    match = _PARTS.fullmatch(quantity)
    if match is None:
        raise ValueError(f"{quantity!r} is not a quantity")
    number = f"{Decimal(match[1]) * factor:f}"
    if "." in number:
        number = number.rstrip("0").rstrip(".")
    return f"{number}{match[2]}"
