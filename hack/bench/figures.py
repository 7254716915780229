"""What a bench says at its end: one JSON object a line, for each figure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """`value` is None where it could not be measured, and `why` says why. `peer` is another program in the same run."""

    bench: str
    measure: str
    value: float | None
    unit: str
    target: float | None = None
    peer: str | None = None
    peer_value: float | None = None
    why: str | None = None

    def as_json(self) -> str:
        record: dict[str, Any] = {"bench": self.bench, "measure": self.measure, "value": self.value, "unit": self.unit}
        optional = {"peer": self.peer, "peer_value": self.peer_value, "target": self.target, "why": self.why}
        record.update({key: value for key, value in optional.items() if value is not None})
        return json.dumps(record)

    @property
    def ratio(self) -> float | None:
        """Ours to the peer's; None where either is missing."""
        return self.value / self.peer_value if self.value is not None and self.peer_value else None

    def as_row(self) -> str:
        """A row of the table that `table` begins."""

        def shown(value: float | None) -> str:
            return "–" if value is None else f"{value:g}"

        ratio = "–" if self.ratio is None else f"{self.ratio:.2f}"
        target = "–" if self.target is None else f"≤ {self.target:g}"
        return f"| {self.measure} | {self.unit} | {shown(self.value)} | {shown(self.peer_value)} | {ratio} | {target} |"


def table(figures: list[Figure], peer: str) -> str:
    head = (f"| measure | unit | gateway | {peer} | ratio | target |", "| --- | --- | ---: | ---: | ---: | ---: |")
    return "\n".join((*head, *(figure.as_row() for figure in figures)))
