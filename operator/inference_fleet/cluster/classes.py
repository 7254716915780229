"""The status of an AcceleratorClass: how many devices there are, who holds them, whether its price can be relied on. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

from inference_fleet.api.accelerator import AcceleratorClassSpec, AcceleratorClassStatus, CapacityType, DeviceCounts
from inference_fleet.api.conditions import Condition, ConditionType, Status, with_times
from inference_fleet.cluster.seen import ClassSeen
from inference_fleet.cluster.stock import Usage

STALE_PRICE_DAYS = 365


def status_of(
    seen: ClassSeen, usage: Usage | None, claimed: int, previous: Sequence[Condition], now: datetime
) -> dict[str, Any]:
    """The whole status as it should stand, in API spelling. `usage`: None where nodes cannot be read."""
    conditions = with_times(previous, _conditions(seen, usage, now), now)
    devices = DeviceCounts(
        allocatable=usage.allocatable if usage is not None else None,
        used_by_others=usage.used_by_others if usage is not None else None,
        claimed=claimed,
    )
    return AcceleratorClassStatus(
        observed_generation=seen.meta.generation, devices=devices, conditions=conditions
    ).to_dict()


def _conditions(seen: ClassSeen, usage: Usage | None, now: datetime) -> tuple[Condition, ...]:
    def say(kind: ConditionType, status: Status, reason: str, message: str) -> Condition:
        return Condition(
            type=kind.value, status=status, reason=reason, message=message, observed_generation=seen.meta.generation
        )

    spec = seen.spec
    if spec is None:
        return (say(ConditionType.READY, Status.FALSE, "InvalidSpec", seen.invalid_message),)
    return (
        say(ConditionType.READY, *_readiness(spec, usage)),
        say(ConditionType.PRICE_CURRENT, *_price(spec, now.date())),
    )


def _readiness(spec: AcceleratorClassSpec, usage: Usage | None) -> tuple[Status, str, str]:
    if usage is None:
        return Status.UNKNOWN, "StockUnknown", "Nodes cannot be read; placing is not checked against stock."
    if spec.capacity.type is CapacityType.ELASTIC:
        return Status.TRUE, "Elastic", f"An autoscaler brings nodes, up to {spec.capacity.max_devices} devices."
    if usage.allocatable == 0:
        return (
            Status.FALSE,
            "NoDevices",
            "No Ready node that matches nodeSelector and tolerations offers a device; check them, or add nodes.",
        )
    return Status.TRUE, "DevicesFound", "Ready nodes match and offer devices."


def _price(spec: AcceleratorClassSpec, today: date) -> tuple[Status, str, str]:
    price = spec.price
    if price is None:
        return Status.FALSE, "PriceMissing", "No price is given; costs are unknown and cost goals are refused."
    since = price.effective_date
    if since is None:
        return Status.UNKNOWN, "PriceUndated", "price.effectiveDate is not given: the age of the price is unknown."
    if since > today:
        return Status.FALSE, "PriceNotYetEffective", f"The price holds from {since.isoformat()} on."
    if (today - since).days > STALE_PRICE_DAYS:
        message = f"The price is from {since.isoformat()}, more than {STALE_PRICE_DAYS} days ago; check it and set effectiveDate."
        return Status.FALSE, "PriceStale", message
    return Status.TRUE, "PriceCurrent", f"The price holds since {since.isoformat()}."
