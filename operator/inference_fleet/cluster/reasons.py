"""Reasons of Events that the operator itself gives, beside those of the plan's decisions. One place, CamelCase."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why an Event was sent."""

    INTERNAL_ERROR = "InternalError"
    """A pass failed for a reason nobody foresaw; it is tried again, later each time."""
    APPLY_REFUSED = "ApplyRefused"
    """The API server refused an object, and will again until something is edited."""
    READY = "Ready"
    """The resource became Ready."""
    NOT_READY = "NotReady"
    """The resource is no longer Ready."""
    INSPECTED = "Inspected"
    """A model's headers were read."""
    INSPECTION_FAILED = "InspectionFailed"
    """A model's headers could not be read; it is tried again, later each time."""
