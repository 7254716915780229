"""What the gateways counted: latency as the clients felt it, and which routes each gateway runs by.

Each replica counts for itself. Growth over the objective's window is taken for each and added, so that a replica that comes,
goes or restarts is neither a jump nor a loss. A replica that cannot be read is named as missing; it is never taken for idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from inference_fleet.api.policy import Objective
from inference_fleet.plan.observation import ObjectiveReading, TrafficView
from inference_fleet.signals.exposition import Samples, parse
from inference_fleet.signals.readings import Target
from inference_fleet.signals.window import CounterHistory, Edges, oldest_age, quantile, summed

ADMIN_PORT = 9090
MISSED_SCRAPES = 2.5
"""A replica is missing once its newest sample is older than this many scrape periods: one lost scrape is no news."""

OBJECTIVE_REQUESTS = "inference_fleet_objective_requests_total"
OBJECTIVE_WITHIN = "inference_fleet_objective_within_total"
ROUTES_INFO = "inference_fleet_gateway_routes_info"
HISTOGRAMS: Mapping[str, str] = {
    "TimeToFirstToken": "inference_fleet_time_to_first_token_seconds_bucket",
    "TimePerOutputToken": "inference_fleet_time_per_output_token_seconds_bucket",
    "EndToEndLatency": "inference_fleet_end_to_end_latency_seconds_bucket",
}


@dataclass(frozen=True, slots=True)
class GatewayCounters:
    """One reading of one replica."""

    requests: Mapping[str, float]
    within: Mapping[str, float]
    latency: Mapping[str, Edges]
    """Metric of an objective → buckets, summed over models."""
    revision: str | None


def read_counters(text: str) -> GatewayCounters:
    """From a replica's `/metrics`. Raises ValueError for text in another format."""
    samples = parse(text)
    return GatewayCounters(
        requests=samples.by_label(OBJECTIVE_REQUESTS, "objective"),
        within=samples.by_label(OBJECTIVE_WITHIN, "objective"),
        latency={metric: _edges(samples, name) for metric, name in HISTOGRAMS.items()},
        revision=next(
            (revision for revision, value in samples.by_label(ROUTES_INFO, "revision").items() if value == 1), None
        ),
    )


def _edges(samples: Samples, name: str) -> Edges:
    return {float(edge): count for edge, count in samples.by_label(name, "le").items()}


@dataclass(slots=True)
class ReplicaHistory:
    """One replica's counters over time."""

    born: float | None
    requests: dict[str, CounterHistory] = field(default_factory=dict)
    within: dict[str, CounterHistory] = field(default_factory=dict)
    latency: dict[tuple[str, float], CounterHistory] = field(default_factory=dict)
    read_at: float | None = None

    def add(self, counters: GatewayCounters, at: float, keep_seconds: float) -> None:
        """Note one reading."""
        for name, value in counters.requests.items():
            self.requests.setdefault(name, CounterHistory()).add(at, value, keep_seconds)
        for name, value in counters.within.items():
            self.within.setdefault(name, CounterHistory()).add(at, value, keep_seconds)
        for metric, edges in counters.latency.items():
            for edge, value in edges.items():
                self.latency.setdefault((metric, edge), CounterHistory()).add(at, value, keep_seconds)
        self.read_at = at


@dataclass(slots=True)
class GatewayHistory:
    """All replicas of one policy's gateway. Replicas that are gone stay until what they counted has left the window."""

    replicas: dict[str, ReplicaHistory] = field(default_factory=dict)
    """Pod uid → history."""
    revisions: dict[str, str | None] = field(default_factory=dict)
    """Pod name → revision it showed last; None: it could not be read."""

    def add(self, target: Target, counters: GatewayCounters, at: float, window_seconds: float) -> None:
        """Note one reading of one replica."""
        history = self.replicas.setdefault(target.uid, ReplicaHistory(target.born))
        history.add(counters, at, window_seconds)
        self.revisions[target.pod] = counters.revision

    def unread(self, target: Target) -> None:
        """A replica could not be read: nothing is known of its routes."""
        self.revisions[target.pod] = None

    def prune(self, live: Iterable[Target], now: float, window_seconds: float) -> None:
        """Forget replicas that are gone and whose counts are out of the window."""
        targets = tuple(live)
        uids, names = {t.uid for t in targets}, {t.pod for t in targets}
        self.revisions = {name: revision for name, revision in self.revisions.items() if name in names}
        self.replicas = {
            uid: history
            for uid, history in self.replicas.items()
            if uid in uids or (history.read_at is not None and now - history.read_at < window_seconds)
        }

    def traffic(
        self,
        live: Sequence[Target],
        objectives: Sequence[Objective],
        window_seconds: float,
        now: float,
        scrape_seconds: float,
    ) -> TrafficView:
        """What the replicas counted in the window that ends now."""
        times: list[float] = []
        missing: list[str] = []
        for target in live:
            history = self.replicas.get(target.uid)
            read_at = history.read_at if history is not None else None
            if read_at is not None:
                times.append(read_at)
            if read_at is None or now - read_at > MISSED_SCRAPES * scrape_seconds:
                missing.append(target.pod)
        readable = any(history.read_at is not None for history in self.replicas.values())
        return TrafficView(
            objectives=tuple(self._reading(o, now - window_seconds, now) for o in objectives) if readable else (),
            age_seconds=oldest_age(times, now),
            missing_sources=tuple(sorted(missing)),
        )

    def _reading(self, objective: Objective, since: float, now: float) -> ObjectiveReading:
        metric = objective.metric.value
        requests = within = 0.0
        grown: list[Edges] = []
        for replica in self.replicas.values():
            requests += _increase(replica.requests.get(objective.name), since, now, replica.born)
            within += _increase(replica.within.get(objective.name), since, now, replica.born)
            grown.append(
                {
                    edge: _increase(history, since, now, replica.born)
                    for (name, edge), history in replica.latency.items()
                    if name == metric
                }
            )
        observed = quantile(summed(grown), objective.percentile)
        return ObjectiveReading(
            name=objective.name,
            requests=round(requests),
            within=min(round(within), round(requests)),
            observed_milliseconds=Decimal(str(round(observed * 1000, 3))) if observed is not None else None,
        )


def _increase(history: CounterHistory | None, since: float, until: float, born: float | None) -> float:
    return history.increase(since, until, born) if history is not None else 0.0
