"""Quantities and money: exact, as Kubernetes reads them, never floats."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from inference_fleet.api.money import Money, format_money, parse_money
from inference_fleet.api.quantities import Quantity, format_bytes, parse, parse_bytes, parse_cores


class Figures(BaseModel):
    memory: Quantity = Quantity("1Gi")
    price: Money = Money("1.00")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("75Gi", 75 * 2**30), ("1Ki", 1024), ("3500M", 3_500_000_000), ("0.5Gi", 2**29), ("4", 4), ("2e9", 2_000_000_000),
        ("1.5E3", 1500), ("1E", 10**18), ("100m", 1), ("1.", 1), (".5k", 500), ("1Ei", 2**60), ("12E-1", 2), ("+4Mi", 4 * 2**20),
    ],
)  # fmt: skip
def test_bytes(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("500m", "0.5"), ("4", "4"), ("1.5", "1.5"), ("250u", "0.00025"), ("1n", "1E-9")]
)
def test_cores(text: str, value: str) -> None:
    assert parse_cores(text) == Decimal(value)


@pytest.mark.parametrize(
    "text", ["", "Gi", "75 Gi", "75GB", "75gi", "1e", "1e5Gi", "0x10", "1,5Gi", "NaN", "4Gi\n", "1" * 40, "٣Gi"]
)
def test_not_a_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        parse(text)


@pytest.mark.parametrize("value", ["0", "0Gi", "-1", -1, 0, 1.5, True, None, "lots"])
def test_a_quantity_in_a_resource_is_positive(value: object) -> None:
    with pytest.raises(ValidationError, match="must be a quantity above zero"):
        Figures.model_validate({"memory": value})


def test_a_quantity_stays_as_written() -> None:
    figures = Figures.model_validate({"memory": 8})
    assert figures.memory == "8" and figures.memory.bytes == 8 and figures.memory.cores == 8
    assert Figures.model_validate({"memory": "79.5Gi"}).model_dump_json() == '{"memory":"79.5Gi","price":"1.00"}'


@pytest.mark.parametrize(
    ("count", "text"),
    [(80530636800, "75.0 GiB"), (1073741824, "1.0 GiB"), (188743680, "0.2 GiB"), (52428800, "50.0 MiB"), (1024, "1024 bytes"),
     (0, "0 bytes"), (-2147483648, "-2.0 GiB")],
)  # fmt: skip
def test_bytes_for_people(count: int, text: str) -> None:
    assert format_bytes(count) == text


@given(st.integers(1, 2**60), st.sampled_from(["", "k", "M", "Ki", "Mi", "Gi"]))
def test_a_quantity_is_a_number_and_a_factor(number: int, suffix: str) -> None:
    assert parse(f"{number}{suffix}") == number * parse(f"1{suffix}")


@pytest.mark.parametrize(
    "value", ["-1.00", "1e3", "1,50", "$4", "", ".5", "5.", 3.99, 4, "1.1234567", "1.00\n", "1" * 10]
)
def test_not_an_amount(value: object) -> None:
    with pytest.raises(ValidationError, match="must be an amount"):
        Figures.model_validate({"price": value})


@given(st.decimals(0, 999999, places=6))
def test_money_comes_back(amount: Decimal) -> None:
    assert parse_money(format_money(amount)) == amount
    assert Money.of(amount).amount == amount


@pytest.mark.parametrize(
    ("amount", "text"), [("3.9900", "3.99"), ("4", "4.00"), ("0.1", "0.10"), ("0.000125", "0.000125")]
)
def test_money_for_a_status(amount: str, text: str) -> None:
    assert format_money(Decimal(amount)) == text
