"""The status of an AcceleratorClass."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from inference_fleet.cluster import kinds
from inference_fleet.cluster.classes import status_of
from inference_fleet.cluster.reading import READERS
from inference_fleet.cluster.seen import ClassSeen
from inference_fleet.cluster.stock import Usage
from tests.unit.cluster.objects import metadata

NOW = datetime(2026, 12, 1, tzinfo=UTC)


SOME = Usage(4, 1)


def said(spec: dict[str, Any], usage: Usage | None = SOME) -> tuple[dict[str, Any], dict[str, tuple[str, str]]]:
    seen = READERS[kinds.ACCELERATOR_CLASS]({"metadata": metadata("gpu", namespace=None), "spec": spec})
    assert isinstance(seen, ClassSeen)
    status = status_of(seen, usage, 2, (), NOW)
    return status["devices"], {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}


SPEC = {"resourceName": "nvidia.com/gpu", "memory": "24Gi"}


def test_devices_are_counted() -> None:
    devices, conditions = said(SPEC)
    assert devices == {"allocatable": 4, "usedByOthers": 1, "claimed": 2}
    assert conditions["Ready"] == ("True", "DevicesFound")


def test_what_cannot_be_counted_is_absent_not_zero() -> None:
    devices, conditions = said(SPEC, None)
    assert devices == {"claimed": 2}
    assert conditions["Ready"] == ("Unknown", "StockUnknown")


def test_no_device_is_a_problem_unless_an_autoscaler_brings_them() -> None:
    assert said(SPEC, Usage(0, 0))[1]["Ready"] == ("False", "NoDevices")
    elastic = {**SPEC, "capacity": {"type": "Elastic", "maxDevices": 8}}
    assert said(elastic, Usage(0, 0))[1]["Ready"] == ("True", "Elastic")


@pytest.mark.parametrize(
    ("effective", "expected"),
    [
        ("2026-11-01", ("True", "PriceCurrent")),
        ("2026-12-02", ("False", "PriceNotYetEffective")),
        ("2025-11-30", ("False", "PriceStale")),
        (None, ("Unknown", "PriceUndated")),
    ],
)
def test_a_price_has_an_age(effective: str | None, expected: tuple[str, str]) -> None:
    price = {"currency": "USD", "onDemandPerHour": "1.00"} | ({"effectiveDate": effective} if effective else {})
    assert said({**SPEC, "price": price})[1]["PriceCurrent"] == expected


def test_no_price_is_missing_never_zero() -> None:
    assert said(SPEC)[1]["PriceCurrent"] == ("False", "PriceMissing")


def test_a_spec_that_cannot_be_read_says_so() -> None:
    assert said({"memory": "lots"})[1]["Ready"] == ("False", "InvalidSpec")
