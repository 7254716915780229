"""Reading Prometheus' text format into plain numbers. A figure that is not a number (NaN, infinite) was not measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Samples:
    """Sample name → labels → value."""

    values: Mapping[str, Mapping[Labels, float]]

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """The values of a series by one of its labels, summed over the others; empty where there is no such series."""
        found: dict[str, float] = {}
        for labels, value in self.values.get(name, {}).items():
            key = dict(labels).get(label, "")
            found[key] = found.get(key, 0.0) + value
        return found


def parse(text: str) -> Samples:
    """All samples of an exposition. Raises ValueError for text in another format."""
    values: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if math.isfinite(sample.value):
                values.setdefault(sample.name, {})[frozenset(sample.labels.items())] = float(sample.value)
    return Samples(values)
