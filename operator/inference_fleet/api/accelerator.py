"""AcceleratorClass: what a replica runs on, what there is of it, what it costs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from inference_fleet.api.base import API_VERSION, ApiModel, ByName, ForeignName, Rule, StatusModel, Unique, Whole
from inference_fleet.api.conditions import Condition
from inference_fleet.api.metadata import Column, ObjectMeta, Resource
from inference_fleet.api.money import Currency, Money
from inference_fleet.api.quantities import Quantity

LabelKey = Annotated[str, Field(min_length=1, max_length=317)]
LabelValue = Annotated[str, Field(max_length=63)]
Devices = Annotated[Whole, Field(ge=0, le=10000000)]

_RESOURCE_NAME = re.compile(r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$")


class Capability(StrEnum):
    """What the hardware can do that quantization may rely on."""

    FP8 = "FP8"
    """Native 8-bit floating point matrix products: needed by quantization method FP8."""


class DeviceRequests(ApiModel):
    """What a pod requests for each device it holds. On a CPU class these are the device."""

    cpu: Quantity | None = None
    """CPU cores for each device, such as `8` or `500m`."""
    memory: Quantity | None = None
    """Memory of the node for each device, such as `64Gi`."""


class TolerationOperator(StrEnum):
    """How a toleration matches a taint."""

    EXISTS = "Exists"
    EQUAL = "Equal"


class TaintEffect(StrEnum):
    """What a taint does to pods that do not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Toleration(ApiModel):
    """A taint that engine pods tolerate, as in a pod."""

    key: Annotated[str, Field(max_length=317)] | None = None
    """Key of the taint; absent with Exists: every taint."""
    operator: TolerationOperator = TolerationOperator.EQUAL
    """Exists: any value. Equal: this value."""
    value: LabelValue | None = None
    """Value of the taint."""
    effect: TaintEffect | None = None
    """Absent: every effect."""
    toleration_seconds: Annotated[Whole, Field(ge=0, le=86400)] | None = None
    """How long a NoExecute taint is tolerated; absent: for ever."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.operator == 'Exists' ? !has(self.value) : has(self.key)",
            message="a toleration with operator Exists must not have a value, one with operator Equal must have a key",
            holds=lambda self: (
                self.value is None if self.operator is TolerationOperator.EXISTS else self.key is not None
            ),
        ),
        Rule(
            cel="!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            message="tolerationSeconds needs effect NoExecute",
            holds=lambda self: self.toleration_seconds is None or self.effect is TaintEffect.NO_EXECUTE,
            field="tolerationSeconds",
        ),
    )


class CapacityType(StrEnum):
    """Whether the number of devices is what the nodes offer now."""

    FIXED = "Fixed"
    ELASTIC = "Elastic"


class Capacity(ApiModel):
    """How many devices there are."""

    type: CapacityType = CapacityType.FIXED
    """Fixed: what the matching nodes offer. Elastic: an autoscaler brings nodes, a pending pod is expected."""
    max_devices: Annotated[Whole, Field(ge=1, le=1000000)] | None = None
    """Elastic only: most devices that may be in use at once."""
    provisioning_seconds: Annotated[Whole, Field(ge=10, le=7200)] | None = None
    """Elastic only: how long a node usually takes to come; absent: 600. That a pod waits longer means that there is none."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="(self.type == 'Elastic') == has(self.maxDevices)",
            message="maxDevices must be given with type Elastic, and only with it",
            holds=lambda self: (self.type is CapacityType.ELASTIC) == (self.max_devices is not None),
            field="maxDevices",
        ),
    )


class Price(ApiModel):
    """What one device costs. Yours: prices are never built in."""

    currency: Currency
    """ISO 4217 code, such as USD."""
    on_demand_per_hour: Money
    """Price of one device for one hour, such as `"3.99"`."""
    effective_date: date | None = None
    """The day from which this price holds, such as `"2026-11-09"`. PriceCurrent speaks of its age."""


class AcceleratorClassSpec(ApiModel):
    """A kind of device."""

    resource_name: Annotated[str, Field(max_length=317)] | None = None
    """Extended resource that pods request, such as `nvidia.com/gpu`. Absent: a CPU class."""
    memory: Quantity
    """Usable memory of one device as its driver reports it, such as `75Gi`. CPU class: what one device's weights and KV cache may
    use; at most requestsPerDevice.memory."""
    capabilities: Annotated[tuple[Capability, ...], Field(max_length=16), Unique()] = ()
    """What quantization may rely on."""
    requests_per_device: DeviceRequests | None = None
    """CPU and memory that a pod requests for each device it holds."""
    runtime_class_name: ForeignName | None = None
    """RuntimeClass of the pods."""
    node_selector: Annotated[Mapping[LabelKey, LabelValue], Field(max_length=16)] | None = None
    """Labels of the nodes that have these devices."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=16)] = ()
    """Taints of those nodes."""
    capacity: Capacity = Capacity()
    """How many devices there are."""
    price: Price | None = None
    """What one device costs. Absent: unknown, never zero."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.resourceName)"
            " || self.resourceName.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$')",
            message="resourceName must be an extended resource such as nvidia.com/gpu; leave it out for a CPU class",
            holds=lambda self: self.resource_name is None or _RESOURCE_NAME.fullmatch(self.resource_name) is not None,
            field="resourceName",
        ),
        Rule(
            cel="has(self.resourceName)"
            " || (has(self.requestsPerDevice) && has(self.requestsPerDevice.cpu) && has(self.requestsPerDevice.memory))",
            message="a CPU class (without resourceName) must give requestsPerDevice.cpu and requestsPerDevice.memory",
            holds=lambda self: (
                self.resource_name is not None
                or (
                    self.requests_per_device is not None
                    and self.requests_per_device.cpu is not None
                    and self.requests_per_device.memory is not None
                )
            ),
            field="requestsPerDevice",
        ),
        Rule(
            cel="has(self.resourceName) || !has(self.requestsPerDevice) || !has(self.requestsPerDevice.memory)"
            " || quantity(string(self.memory)).compareTo(quantity(string(self.requestsPerDevice.memory))) <= 0",
            message="memory of a CPU class (without resourceName) must be at most requestsPerDevice.memory",
            holds=lambda self: (
                self.resource_name is not None
                or self.requests_per_device is None
                or self.requests_per_device.memory is None
                or self.memory.bytes <= self.requests_per_device.memory.bytes
            ),
            field="memory",
        ),
    )


class DeviceCounts(StatusModel):
    """Devices of a class, as last seen. A field is absent where it cannot be known."""

    allocatable: Devices | None = None
    """What the matching nodes offer."""
    used_by_others: Devices | None = None
    """Given out to pods that no InferencePolicy owns."""
    claimed: Devices | None = None
    """Held by, or promised to, InferencePolicies."""


class AcceleratorClassStatus(StatusModel):
    """What there is of a class."""

    observed_generation: Annotated[Whole, Field(ge=0)] | None = None
    """The metadata.generation that this status speaks of."""
    devices: DeviceCounts | None = None
    """Devices, as last seen."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16), ByName("type")] = ()
    """Ready and PriceCurrent."""


class AcceleratorClass(ApiModel):
    """What a replica runs on: a kind of device, how many there are, what one costs."""

    api_version: Literal["inference-fleet.dev/v1alpha1"] = API_VERSION
    kind: Literal["AcceleratorClass"] = "AcceleratorClass"
    metadata: ObjectMeta = ObjectMeta()
    spec: AcceleratorClassSpec
    """The kind of device."""
    status: AcceleratorClassStatus = AcceleratorClassStatus()
    """What there is of it."""

    resource: ClassVar[Resource] = Resource(
        kind="AcceleratorClass",
        plural="acceleratorclasses",
        short_names=("accel",),
        namespaced=False,
        columns=(
            Column("Ready", '.status.conditions[?(@.type=="Ready")].status'),
            Column("Resource", ".spec.resourceName"),
            Column("Memory", ".spec.memory"),
            Column("Allocatable", ".status.devices.allocatable", type="integer"),
            Column("Claimed", ".status.devices.claimed", type="integer"),
            Column("Others", ".status.devices.usedByOthers", type="integer", priority=1),
            Column("Cost/h", ".spec.price.onDemandPerHour"),
            Column("Reason", '.status.conditions[?(@.type=="Ready")].reason', priority=1),
            Column("Age", ".metadata.creationTimestamp", type="date"),
        ),
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.metadata.name.size() <= 63",
            message="the name of an AcceleratorClass must have at most 63 characters",
            holds=lambda self: len(self.metadata.name) <= 63,
        ),
    )
