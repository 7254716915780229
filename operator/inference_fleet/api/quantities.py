"""Kubernetes quantities: `75Gi`, `500m`, `4`. Written as strings (or whole numbers), exact inside, never floats."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

GIB = 2**30
MESSAGE = "must be a quantity above zero, such as 75Gi, 1500M, 500m or 4"

_FACTORS = {
    "": Decimal(1),
    **{suffix: Decimal(1000) ** (index - 3) for index, suffix in enumerate(("n", "u", "m"))},
    **{suffix: Decimal(1000) ** index for index, suffix in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{suffix: Decimal(1024) ** index for index, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
}
_QUANTITY = re.compile(
    r"^(?P<number>[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+))((?P<suffix>[numkMGTPE]|[KMGTPE]i)|[eE](?P<exponent>[+-]?[0-9]{1,3}))?$"
)


def parse(text: str) -> Decimal:
    """The exact value of a quantity such as `75Gi`, `1.5G`, `500m`, `4` or `2e9`, as Kubernetes reads it.

    Raises ValueError for anything else.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or len(text) > 32:
        raise ValueError(f"{text!r} is not a quantity such as 75Gi, 1500M, 500m or 4")
    number = Decimal(match["number"])
    if match["exponent"] is not None:
        return number.scaleb(int(match["exponent"]))
    return number * _FACTORS[match["suffix"] or ""]


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
        """Int-or-string, as every Kubernetes quantity, with a rule in place of a pattern: its message can be read."""
        return {
            "x-kubernetes-int-or-string": True,
            "maxLength": 32,
            "x-kubernetes-validations": [
                {
                    "rule": "isQuantity(string(self)) && quantity(string(self)).isGreaterThan(quantity('0'))",
                    "message": MESSAGE,
                }
            ],
        }

    @classmethod
    def _read(cls, value: Any) -> Quantity:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise PydanticCustomError("quantity", MESSAGE)
        try:
            positive = parse(str(value)) > 0
        except ValueError:
            positive = False
        if not positive:
            raise PydanticCustomError("quantity", MESSAGE)
        return cls(value)
