"""Prices: decimal strings such as `3.99`, never floats."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

PATTERN = r"^[0-9]{1,9}(\.[0-9]{1,6})?$"

_MONEY = re.compile(PATTERN)


def parse_money(text: str) -> Decimal:
    """The exact amount of `3.99`. Raises ValueError for a sign, an exponent, a separator, or more than six decimals."""
    if not _MONEY.fullmatch(text):
        raise ValueError(f"{text!r} is not an amount such as 3.99")
    return Decimal(text)


def format_money(amount: Decimal) -> str:
    """An amount as it goes into a status: at least two decimals, at most six, no needless zeros after that."""
    text = f"{amount:.6f}".rstrip("0")
    whole, _, decimals = text.partition(".")
    return f"{whole}.{decimals:0<2}"


class Money(str):
    """An amount that is not negative, as it was written; `.amount` is its value."""

    __slots__ = ()

    @property
    def amount(self) -> Decimal:
        """The exact value."""
        return parse_money(self)

    @classmethod
    def of(cls, amount: Decimal) -> Money:
        """The amount rounded to six decimals."""
        return cls(format_money(amount))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Accept text only: a YAML number would be a float."""
        return core_schema.no_info_plain_validator_function(
            cls._read, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """A bounded string."""
        return {"type": "string", "pattern": PATTERN, "maxLength": 16}

    @classmethod
    def _read(cls, value: Any) -> Money:
        if not isinstance(value, str):
            raise PydanticCustomError("money", 'must be an amount in quotes, such as "3.99"')
        if not _MONEY.fullmatch(value):
            raise PydanticCustomError("money", 'must be an amount such as "3.99", not negative, at most six decimals')
        return cls(value)


Currency = Annotated[str, Field(pattern=r"^[A-Z]{3}$", max_length=3)]
"""ISO 4217 code, such as USD."""
