"""Kubernetes quantities: `75Gi`, `500m`, `4`. Written as strings (or whole numbers), exact inside, never floats."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
DECIMAL = {"m": Decimal("0.001"), "": Decimal(1), "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9),
           "T": Decimal(10**12), "P": Decimal(10**15)}  # fmt: skip
GIB = 2**30

_QUANTITY = re.compile(r"^([0-9]{1,18}(?:\.[0-9]{1,9})?)(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$")


def parse(text: str) -> Decimal:
    """The exact value of a quantity such as `75Gi`, `1.5G`, `500m` or `4`.

    Raises ValueError for anything else: a sign, an exponent, a space, an unknown suffix.
    """
    match = _QUANTITY.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity such as 75Gi, 1500M, 500m or 4")
    number, suffix = Decimal(match[1]), match[2] or ""
    return number * BINARY[suffix] if suffix in BINARY else number * DECIMAL[suffix]


def parse_bytes(text: str) -> int:
    """Whole bytes of a quantity, rounded up as Kubernetes does. Raises ValueError."""
    return int(parse(text).to_integral_value(ROUND_CEILING))


def parse_cores(text: str) -> Decimal:
    """CPU cores of a quantity: `500m` is 0.5. Raises ValueError."""
    return parse(text)


def format_bytes(count: int) -> str:
    """Bytes for people: GiB with one decimal, MiB below one tenth of a GiB, bytes below one MiB. `80530636800` → `75.0 GiB`."""
    magnitude = abs(count)
    if magnitude >= GIB // 10:
        return f"{Decimal(count) / GIB:.1f} GiB"
    if magnitude >= 2**20:
        return f"{Decimal(count) / 2**20:.1f} MiB"
    return f"{count} bytes"


class Quantity(str):
    """A positive quantity as it was written. `.bytes` and `.cores` give its value; equal text is equal, not equal value."""

    __slots__ = ()

    @property
    def bytes(self) -> int:
        """Whole bytes, rounded up."""
        return parse_bytes(self)

    @property
    def cores(self) -> Decimal:
        """CPU cores, exact."""
        return parse_cores(self)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Accept text and whole numbers, as Kubernetes does."""
        return core_schema.no_info_plain_validator_function(
            cls._read, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Int-or-string, as every Kubernetes quantity; the pattern speaks of the string, the minimum of the number."""
        return {
            "x-kubernetes-int-or-string": True,
            "pattern": r"^([0-9]{1,18}(\.[0-9]{1,9})?)(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$",
            "minimum": 1,
            "maxLength": 32,
        }

    @classmethod
    def _read(cls, value: Any) -> Quantity:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise PydanticCustomError("quantity", "must be a quantity such as 75Gi, 1500M, 500m or 4")
        try:
            amount = parse(str(value))
        except ValueError:
            raise PydanticCustomError("quantity", "must be a quantity such as 75Gi, 1500M, 500m or 4") from None
        if amount <= 0:
            raise PydanticCustomError("quantity", "must be more than zero")
        return cls(value)
