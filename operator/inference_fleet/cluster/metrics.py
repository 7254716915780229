"""The operator's own metrics. kopf has none."""

from __future__ import annotations

from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

_PASS_EDGES = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LAG_EDGES = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


@dataclass(slots=True)
class OperatorMetrics:
    """Every metric of the operator, in a registry of its own (tests run several operators in one process)."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    queue_depth: Gauge = field(init=False)
    queue_age: Gauge = field(init=False)
    queue_wait: Histogram = field(init=False)
    passes: Counter = field(init=False)
    step_duration: Histogram = field(init=False)
    writes: Counter = field(init=False)
    conflicts: Counter = field(init=False)
    decisions: Counter = field(init=False)
    events: Counter = field(init=False)
    loop_lag: Histogram = field(init=False)
    leading: Gauge = field(init=False)
    lease_remaining: Gauge = field(init=False)
    snapshot_objects: Gauge = field(init=False)
    scrapes: Counter = field(init=False)
    build: Info = field(init=False)

    def __post_init__(self) -> None:
        """Register everything."""
        registry, prefix = self.registry, "inference_fleet_operator_"
        self.queue_depth = Gauge(f"{prefix}queue_depth", "Keys due and not yet taken.", registry=registry)
        self.queue_age = Gauge(
            f"{prefix}queue_age_seconds", "How long the longest-waiting due key has been due.", registry=registry
        )
        self.queue_wait = Histogram(
            f"{prefix}queue_wait_seconds",
            "Time from due to taken, of each key.",
            buckets=_PASS_EDGES,
            registry=registry,
        )
        self.passes = Counter(
            f"{prefix}passes", "Passes by kind of object and result.", ("kind", "result"), registry=registry
        )
        self.step_duration = Histogram(
            f"{prefix}step_duration_seconds",
            "Duration of each step of a pass.",
            ("step",),
            buckets=_PASS_EDGES,
            registry=registry,
        )
        self.writes = Counter(
            f"{prefix}api_writes",
            "Requests that change something, by verb and kind.",
            ("verb", "kind"),
            registry=registry,
        )
        self.conflicts = Counter(
            f"{prefix}stale_writes",
            "Writes that the API server refused because the object had changed or gone.",
            registry=registry,
        )
        self.decisions = Counter(
            f"{prefix}decisions",
            "Decisions by action and reason, once for each change.",
            ("action", "reason"),
            registry=registry,
        )
        self.events = Counter(f"{prefix}events", "Kubernetes Events sent, by reason.", ("reason",), registry=registry)
        self.loop_lag = Histogram(
            f"{prefix}loop_lag_seconds", "How late the event loop wakes.", buckets=_LAG_EDGES, registry=registry
        )
        self.leading = Gauge(f"{prefix}leading", "1 while this process holds the lease.", registry=registry)
        self.lease_remaining = Gauge(
            f"{prefix}lease_remaining_seconds", "How long the lease lives without another renewal.", registry=registry
        )
        self.snapshot_objects = Gauge(f"{prefix}snapshot_objects", "Objects held in the snapshots.", registry=registry)
        self.scrapes = Counter(
            f"{prefix}scrapes", "Reads of gateways and draft sidecars, by target and result.", ("target", "result"),
            registry=registry,
        )  # fmt: skip
        self.build = Info(f"{prefix}build", "Version of the operator.", registry=registry)
