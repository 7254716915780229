"""The Kubernetes HorizontalPodAutoscaler's arithmetic, and the scalers that are an HPA on some metric.

Source: kubernetes/pkg/controller/podautoscaler (replica_calculator.go, horizontal.go): tolerance 10 %, sync every 15 s, pods
that are not ready counted as idle when scaling up, missing ones as idle up and at target down, stabilization over
recommendations, policies per period. Default behaviour: up max(100 %, 4 pods) per 15 s at once, down 100 % per 15 s after 300 s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from inference_fleet.simulator.baselines.signals import only_variant, over_ready, pod_rate
from inference_fleet.simulator.view import Phase, ScalerView, VariantView

TOLERANCE = 0.1
SYNC_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Policy:
    """At most this many pods, or this many percent, in a period."""

    period_seconds: float
    pods: int = 0
    percent: int = 0

    def limit(self, current: int, changed: int, sign: int) -> int:
        """The furthest count that is allowed, `changed` replicas having been changed in the period already."""
        start = current - sign * changed
        if self.pods:
            return start + sign * self.pods
        return (
            math.ceil(start * (1 + sign * self.percent / 100))
            if sign > 0
            else math.floor(start * (1 - self.percent / 100))
        )


@dataclass(frozen=True, slots=True)
class Behaviour:
    """`spec.behavior`: of several policies the one that changes most (selectPolicy Max)."""

    up: tuple[Policy, ...] = (Policy(15, pods=4), Policy(15, percent=100))
    up_window: float = 0.0
    down: tuple[Policy, ...] = (Policy(15, percent=100),)
    down_window: float = 300.0


DEFAULT = Behaviour()


class Limiter:
    """Applies a behaviour to recommendations; remembers them and the changes it made."""

    def __init__(self, behaviour: Behaviour = DEFAULT) -> None:
        """Nothing was recommended yet."""
        self._behaviour = behaviour
        self._recommended: list[tuple[float, int]] = []
        self._ups: list[tuple[float, int]] = []
        self._downs: list[tuple[float, int]] = []

    def apply(self, current: int, wanted: int, minimum: int, maximum: int, now: float) -> int:
        """The count to set."""
        behaviour = self._behaviour
        longest = max(behaviour.up_window, behaviour.down_window)
        if not self._recommended:
            self._recommended.append((now, current))
        kept = [(t, n) for t, n in self._recommended if now - t < longest]
        lowest = min([wanted, *(n for t, n in kept if now - t < behaviour.up_window)])
        highest = max([wanted, *(n for t, n in kept if now - t < behaviour.down_window)])
        self._recommended = [*kept, (now, wanted)]
        stable = current
        stable = max(stable, lowest)
        stable = min(stable, highest)
        if stable > current:
            limits = [p.limit(current, _changed(self._ups, now, p.period_seconds), 1) for p in behaviour.up]
            stable = min(stable, max(current, *limits))
        elif stable < current:
            limits = [p.limit(current, _changed(self._downs, now, p.period_seconds), -1) for p in behaviour.down]
            stable = max(stable, min(current, *limits))
        result = max(minimum, min(maximum, stable))
        if result > current:
            self._ups.append((now, result - current))
        elif result < current:
            self._downs.append((now, current - result))
        return result


def _changed(events: Sequence[tuple[float, int]], now: float, period: float) -> int:
    return sum(n for t, n in events if now - t < period)


def by_pods(values: Sequence[float], unready: int, missing: int, current: int, target: float) -> int:
    """`plainMetricReplicaCount`: the count for an average of `target` over pods, some of which have no figure."""
    if not values:
        return current
    ratio = sum(values) / len(values) / target
    if unready == 0 and missing == 0:
        return current if abs(ratio - 1) <= TOLERANCE else math.ceil(ratio * len(values))
    total = sum(values)
    count = len(values)
    if missing:
        total += missing * (target if ratio < 1 else 0.0)
        count += missing
    if ratio > 1:
        count += unready
    again = total / count / target
    if abs(again - 1) <= TOLERANCE or (ratio < 1) != (again < 1):
        return current
    wanted = math.ceil(again * count)
    if (again < 1 and wanted > current) or (again > 1 and wanted < current):
        return current
    return wanted


class OnPods:
    """An HPA with a Pods metric."""

    interval_seconds = SYNC_SECONDS
    scrape_seconds: float | None = None

    def __init__(
        self, read: Callable[[VariantView, float], list[float]], target: float, behaviour: Behaviour = DEFAULT
    ):
        """`read` gives the metric of every ready pod that has one."""
        self._read = read
        self._target = target
        self._limiter = Limiter(behaviour)

    def decide(self, view: ScalerView, now: float) -> Mapping[str, int]:
        """One sync."""
        variant = only_variant(view)
        current = variant.held
        values = self._read(variant, now)
        wanted = by_pods(values, variant.coming, max(0, variant.ready - len(values)), current, self._target)
        return {variant.name: self._limiter.apply(current, wanted, variant.minimum, variant.maximum, now)}


def on_concurrency(target: float) -> OnPods:
    """Requests inside a pod, running and waiting: the usual custom metric for inference."""
    return OnPods(lambda v, now: over_ready(v, now, lambda s: float(s.running + s.waiting)), target)


def on_gpu_use(target: float) -> OnPods:
    """DCGM_FI_DEV_GPU_UTIL over a minute: the share of time in which any kernel ran, which a single request can bring to one."""

    def read(variant: VariantView, now: float) -> list[float]:
        ready = [pod for pod in variant.pods if pod.phase is Phase.READY]
        rates = [pod_rate(pod, now, 60.0, lambda s: s.busy_seconds) for pod in ready]
        return [rate for rate in rates if rate is not None]

    return OnPods(read, target)


class KedaWaiting:
    """KEDA on `sum(vllm:num_requests_waiting)` with a threshold for each replica (vLLM production-stack's guide: 5): an
    external metric of type AverageValue."""

    interval_seconds = SYNC_SECONDS
    scrape_seconds: float | None = None

    def __init__(self, threshold: float = 5.0) -> None:
        """Waiting requests that a replica may have."""
        self._threshold = threshold
        self._limiter = Limiter()

    def decide(self, view: ScalerView, now: float) -> Mapping[str, int]:
        """One sync. No sample at all: KEDA's scaler errs and the HPA stays."""
        variant = only_variant(view)
        waiting = over_ready(variant, now, lambda s: float(s.waiting))
        current = variant.held
        if not waiting:
            return {variant.name: current}
        total = sum(waiting)
        ratio = total / (self._threshold * max(1, variant.ready))
        wanted = current if abs(ratio - 1) <= TOLERANCE else math.ceil(total / self._threshold)
        return {variant.name: self._limiter.apply(current, wanted, variant.minimum, variant.maximum, now)}
