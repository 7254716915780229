"""The gateway's metrics: one table of definitions, from which the registry and the reference page are made.

Labels are bounded: models and variants by the routes, tenants by the keys and by TENANT_LIMIT, codes by what the
gateway answers. Nothing of a prompt, an answer or a key is ever a label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

TENANT_LIMIT = 200
OTHER_TENANTS = "other"

LATENCY_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 15, 30, 60, 120, 300, 600)
TOKEN_BUCKETS = (0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2)


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """One metric. Compared by identity: it is looked up with every request."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()


REQUESTS = Definition(
    "inference_fleet_requests_total",
    "counter",
    ("model", "tenant", "code"),
    "Requests that ended, by HTTP status. 499: the client left before the end. 502 also counts a stream that failed "
    "after its first byte, when 200 had been sent. Model or tenant is empty where the request ended before it was known.",
)
OBJECTIVE_REQUESTS = Definition(
    "inference_fleet_objective_requests_total",
    "counter",
    ("objective",),
    "Requests that an objective of the policy judges.",
)
OBJECTIVE_WITHIN = Definition(
    "inference_fleet_objective_within_total",
    "counter",
    ("objective",),
    "Requests that were within the objective, from the client's side.",
)
FIRST_TOKEN = Definition(
    "inference_fleet_time_to_first_token_seconds",
    "histogram",
    ("model",),
    "From the request's arrival to its first generated token. An answer without a stream counts where the engine "
    "streamed it to the gateway.",
    LATENCY_BUCKETS,
)
PER_TOKEN = Definition(
    "inference_fleet_time_per_output_token_seconds",
    "histogram",
    ("model",),
    "(last token - first token) / (tokens - 1), one figure a request.",
    TOKEN_BUCKETS,
)
END_TO_END = Definition(
    "inference_fleet_end_to_end_latency_seconds",
    "histogram",
    ("model",),
    "From the request's arrival to the end of its answer, for complete answers.",
    LATENCY_BUCKETS,
)
IN_FLIGHT = Definition(
    "inference_fleet_requests_in_flight", "gauge", ("model",), "Requests that are being answered, held ones included."
)
HELD = Definition(
    "inference_fleet_requests_held", "gauge", ("model",), "Requests that wait for a ready replica of their model."
)
TOKENS = Definition(
    "inference_fleet_tokens_total",
    "counter",
    ("model", "tenant", "kind"),
    "Tokens as the engines counted them; kind: prompt (cached ones included), cached, completion. For an answer that "
    "was cut, completion is the number of chunks that were passed on.",
)
ATTEMPTS = Definition(
    "inference_fleet_upstream_attempts_total",
    "counter",
    ("variant", "outcome"),
    "Requests sent to engines. Outcome: answered; refused (a 4xx or 5xx of the engine, relayed); unavailable (503, "
    "tried again); unreachable (no connection, tried again); disconnected and timed_out (before the first byte); "
    "broken (after it); abandoned (the client left).",
)
ROUTES_INFO = Definition(
    "inference_fleet_gateway_routes_info", "gauge", ("revision",), "1 for the revision of the routes that is in force."
)
ENDPOINTS = Definition(
    "inference_fleet_gateway_endpoints", "gauge", ("model",), "Engines that may get a new request now."
)
CHANNEL_ERRORS = Definition(
    "inference_fleet_gateway_channel_errors_total",
    "counter",
    ("resource",),
    "Failed lists and watches, and documents that could not be read. The last good state stays in force.",
)
CHANNEL_SYNCED = Definition(
    "inference_fleet_gateway_channel_synced_timestamp_seconds",
    "gauge",
    ("resource",),
    "Unix time of the last complete list of the resource.",
)

DEFINITIONS: tuple[Definition, ...] = (
    REQUESTS,
    OBJECTIVE_REQUESTS,
    OBJECTIVE_WITHIN,
    FIRST_TOKEN,
    PER_TOKEN,
    END_TO_END,
    IN_FLIGHT,
    HELD,
    TOKENS,
    ATTEMPTS,
    ROUTES_INFO,
    ENDPOINTS,
    CHANNEL_ERRORS,
    CHANNEL_SYNCED,
)


class Metrics:
    """The gateway's own registry, with the series of each definition looked up once per set of labels."""

    def __init__(self) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self.registry)
        self._counters = {d: Counter(d.name, d.help, d.labels, registry=self.registry) for d in _of("counter")}
        self._gauges = {d: Gauge(d.name, d.help, d.labels, registry=self.registry) for d in _of("gauge")}
        self._histograms = {
            d: Histogram(d.name, d.help, d.labels, buckets=d.buckets, registry=self.registry) for d in _of("histogram")
        }
        self._tenants: set[str] = set()
        # prometheus_client's own look-up takes a lock and builds a tuple of strings each time.
        self._counter_series: dict[tuple[Definition, Sequence[str]], Counter] = {}
        self._histogram_series: dict[tuple[Definition, str], Histogram] = {}
        self._gauge_series: dict[tuple[Definition, str], Gauge] = {}

    def count(self, definition: Definition, *labels: str, by: float = 1) -> None:
        series = self._counter_series.get((definition, labels))
        if series is None:
            series = self._counters[definition].labels(*labels)
            self._counter_series[definition, labels] = series
        series.inc(by)

    def observe(self, definition: Definition, label: str, value: float) -> None:
        series = self._histogram_series.get((definition, label))
        if series is None:
            series = self._histogram_series[definition, label] = self._histograms[definition].labels(label)
        series.observe(value)

    def set(self, definition: Definition, label: str, value: float) -> None:
        self._gauge(definition, label).set(value)

    def add(self, definition: Definition, label: str, by: float) -> None:
        self._gauge(definition, label).inc(by)

    def _gauge(self, definition: Definition, label: str) -> Gauge:
        series = self._gauge_series.get((definition, label))
        if series is None:
            series = self._gauge_series[definition, label] = self._gauges[definition].labels(label)
        return series

    def set_only(self, definition: Definition, values: dict[str, float]) -> None:
        """Gives a gauge exactly these series."""
        gauge = self._gauges[definition]
        gauge.clear()
        self._gauge_series = {key: series for key, series in self._gauge_series.items() if key[0] is not definition}
        for label, value in values.items():
            gauge.labels(label).set(value)

    def tenant(self, name: str) -> str:
        """The label of a tenant: its name, or `other` beyond TENANT_LIMIT different ones."""
        if name not in self._tenants:
            if len(self._tenants) >= TENANT_LIMIT:
                return OTHER_TENANTS
            self._tenants.add(name)
        return name

    def exposition(self) -> bytes:
        return prometheus_client.generate_latest(self.registry)


def _of(kind: str) -> list[Definition]:
    return [definition for definition in DEFINITIONS if definition.kind == kind]
