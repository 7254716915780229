"""The routing table: `routes.json` as the operator writes it, parsed into frozen values.

The format is fixed in docs/designs/001-seams.md. Fields that are not known here are ignored, so that a newer operator
can talk to an older gateway; a field that is missing or of the wrong kind refuses the whole document, because half a
routing table is worse than the last good one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import orjson


class MalformedRoutes(ValueError):
    """The document is not a routing table; the message names the field."""


class Metric(StrEnum):
    """What an objective bounds."""

    TIME_TO_FIRST_TOKEN = "TimeToFirstToken"
    TIME_PER_OUTPUT_TOKEN = "TimePerOutputToken"
    END_TO_END_LATENCY = "EndToEndLatency"


@dataclass(frozen=True, slots=True)
class Objective:
    """One latency that requests are judged by."""

    name: str
    metric: Metric
    limit_seconds: float


@dataclass(frozen=True, slots=True)
class Variant:
    """One Deployment of engines that serves a model."""

    name: str
    service: str
    port: int
    weight: int
    """Relative within the model; 0 gets no new request."""
    engine: str
    endpoints: tuple[str, ...] = ()
    """Fixed `host:port` addresses, for running without a cluster."""


@dataclass(frozen=True, slots=True)
class Model:
    """One declared model; `name` is what its engines call it."""

    name: str
    served_names: tuple[str, ...]
    context_tokens: int
    default: bool
    variants: tuple[Variant, ...]

    @property
    def public_names(self) -> tuple[str, ...]:
        """What `/v1/models` lists."""
        return self.served_names or (self.name,)


@dataclass(frozen=True, slots=True)
class Routes:
    """One revision of the routing table."""

    revision: str
    policy: str
    namespace: str
    hold_seconds: float
    max_body_bytes: int
    objectives: tuple[Objective, ...]
    models: tuple[Model, ...]
    drain: frozenset[str]
    """Names of pods that get no new request."""
    by_name: Mapping[str, Model] = field(repr=False)
    """Every name a client may put in `model`."""

    def resolve(self, requested: str) -> Model | None:
        """The model a client means, or None when nobody declares that name."""
        return self.by_name.get(requested)


class _Reader:
    """Takes typed fields out of a JSON object and names the one that is wrong."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise MalformedRoutes(f"{where}: an object is expected")
        self._value: dict[str, Any] = value
        self._where = where

    def _get(self, key: str, kind: type, default: object) -> Any:
        value = self._value.get(key, default)
        # bool is an int to Python, not to a reader of JSON.
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise MalformedRoutes(f"{self._where}.{key}: {kind.__name__} is expected")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        return str(self._get(key, str, default))

    def whole(self, key: str, default: int | None = None) -> int:
        value = int(self._get(key, int, default))
        if value < 0:
            raise MalformedRoutes(f"{self._where}.{key}: must not be negative")
        return value

    def flag(self, key: str, default: bool) -> bool:
        return bool(self._get(key, bool, default))

    def texts(self, key: str) -> tuple[str, ...]:
        values = self._get(key, list, [])
        if not all(isinstance(value, str) for value in values):
            raise MalformedRoutes(f"{self._where}.{key}: strings are expected")
        return tuple(values)

    def parts(self, key: str) -> list[_Reader]:
        values = self._get(key, list, [])
        return [_Reader(value, f"{self._where}.{key}[{index}]") for index, value in enumerate(values)]

    def metric(self, key: str) -> Metric:
        try:
            return Metric(self.text(key))
        except ValueError:
            raise MalformedRoutes(f"{self._where}.{key}: one of {', '.join(Metric)} is expected") from None


def _variant(reader: _Reader) -> Variant:
    return Variant(
        name=reader.text("name"),
        service=reader.text("service", ""),
        port=reader.whole("port", 8000),
        weight=reader.whole("weight"),
        engine=reader.text("engine"),
        endpoints=reader.texts("endpoints"),
    )


def _model(reader: _Reader) -> Model:
    return Model(
        name=reader.text("name"),
        served_names=reader.texts("servedNames"),
        context_tokens=reader.whole("contextTokens", 0),
        default=reader.flag("default", False),
        variants=tuple(_variant(part) for part in reader.parts("variants")),
    )


def _names(policy: str, models: tuple[Model, ...]) -> dict[str, Model]:
    """Names to models. A served name wins over a model's own name, and both over the policy's."""
    names: dict[str, Model] = {}
    for model in models:
        if model.default:
            names.setdefault(policy, model)
    names.update({model.name: model for model in models})
    for model in models:
        names.update(dict.fromkeys(model.served_names, model))
    return names


def parse(document: bytes | str) -> Routes:
    """Reads `routes.json`.

    Raises MalformedRoutes with the field that is wrong.
    """
    try:
        value = orjson.loads(document)
    except orjson.JSONDecodeError as error:
        raise MalformedRoutes(f"not JSON: {error}") from None
    reader = _Reader(value, "routes")
    policy = reader.text("policy")
    models = tuple(_model(part) for part in reader.parts("models"))
    return Routes(
        revision=reader.text("revision"),
        policy=policy,
        namespace=reader.text("namespace", ""),
        hold_seconds=float(reader.whole("holdSeconds")),
        max_body_bytes=reader.whole("maxBodyBytes"),
        objectives=tuple(
            Objective(part.text("name"), part.metric("metric"), part.whole("milliseconds") / 1000)
            for part in reader.parts("objectives")
        ),
        models=models,
        drain=frozenset(reader.texts("drain")),
        by_name=_names(policy, models),
    )
