"""Knative's KPA, llm-d's Workload Variant Autoscaler v1, and a load planner as Dynamo's: each from its documentation."""

from __future__ import annotations

import math
from collections.abc import Mapping

from inference_fleet.simulator.baselines.signals import latest, only_variant, pod_rate
from inference_fleet.simulator.view import Phase, PodView, ScalerView, VariantView


class KnativeKpa:
    """Concurrency with a panic mode. Source: knative/serving docs, pkg/autoscaler/scaling/autoscaler.go: stable window 60 s,
    panic window 6 s at twice the capacity, rates of change 1000 up and 2 down, tick 2 s; it scrapes by itself."""

    interval_seconds = 2.0
    scrape_seconds: float | None = 2.0

    def __init__(self, target: float) -> None:
        """Requests inside that a replica should have (the container's limit times the target utilisation)."""
        self._target = target
        self._panic_since = -1.0
        self._panic_most = 0

    def decide(self, view: ScalerView, now: float) -> Mapping[str, int]:
        """One tick."""
        variant = only_variant(view)
        stable = _mean_in_flight(view, now, 60.0)
        panic = _mean_in_flight(view, now, 6.0)
        if math.isnan(stable) or math.isnan(panic):
            return {variant.name: variant.held}
        ready = max(1, variant.ready)
        most, least = ready * 1000, math.floor(ready / 2)
        by_stable = max(least, min(most, math.ceil(stable / self._target)))
        by_panic = max(least, min(most, math.ceil(panic / self._target)))
        if by_panic / ready >= 2:
            if self._panic_since < 0:
                self._panic_most = 0
            self._panic_since = now
        elif self._panic_since >= 0 and now - self._panic_since > 60.0:
            self._panic_since = -1.0
        wanted = by_stable
        if self._panic_since >= 0:
            self._panic_most = max(self._panic_most, by_panic, variant.held)
            wanted = self._panic_most
        return {variant.name: max(variant.minimum, min(variant.maximum, wanted))}


def _mean_in_flight(view: ScalerView, now: float, seconds: float) -> float:
    seen = [s.in_flight for s in view.gateway if now - seconds < s.at <= now]
    return sum(seen) / len(seen) if seen else math.nan


class WvaV1:
    """Saturation of engines, one replica at a time. Source: llm-d workload-variant-autoscaler,
    docs/saturation-scaling-config.md: KV cache .80 and queue 5 saturate a replica, mean spare below .10 or 3 adds one, a
    removal must leave the spare."""

    interval_seconds = 30.0
    scrape_seconds: float | None = None

    def __init__(self, kv: float = 0.80, queue: float = 5.0, spare_kv: float = 0.10, spare_queue: float = 3.0) -> None:
        """Thresholds as published."""
        self._kv, self._queue = kv, queue
        self._spare_kv, self._spare_queue = spare_kv, spare_queue

    def decide(self, view: ScalerView, now: float) -> Mapping[str, int]:
        """One reconcile. It waits while replicas are coming."""
        variant = only_variant(view)
        current = variant.held
        found = [latest(pod, now) for pod in variant.pods if pod.phase is Phase.READY]
        samples = [s for s in found if s is not None]
        if not samples or variant.coming:
            return {variant.name: current}
        free = [s for s in samples if s.kv_usage < self._kv and s.waiting < self._queue]
        wanted = current
        if not free:
            wanted = current + 1
        else:
            kv = sum(self._kv - s.kv_usage for s in free) / len(free)
            queue = sum(self._queue - s.waiting for s in free) / len(free)
            if kv < self._spare_kv or queue < self._spare_queue:
                wanted = current + 1
            elif len(free) >= 2:
                rest = len(free) - 1
                kv_after = self._kv - sum(s.kv_usage for s in free) / rest
                queue_after = self._queue - sum(s.waiting for s in free) / rest
                if kv_after >= self._spare_kv and queue_after >= self._spare_queue:
                    wanted = current - 1
        return {variant.name: max(variant.minimum, min(variant.maximum, wanted))}


class LoadPlanner:
    """Every engine's predicted TTFT and TPOT against the SLO, every 5 s: all beyond it, one more; all at `consolidate` of it
    with one engine less, one less. Source: NVIDIA Dynamo, docs/planner (load-based planning). It predicts by lines fitted
    online to what it saw of each engine: seconds a token over sequences and KV use, prompt tokens a second at most."""

    interval_seconds = 5.0
    scrape_seconds: float | None = 5.0
    KEPT = 400

    def __init__(self, consolidate: float = 0.8) -> None:
        """Nothing learned."""
        self._consolidate = consolidate
        self._seen: list[tuple[float, float]] = []
        self._prompt_rate = 1000.0

    def decide(self, view: ScalerView, now: float) -> Mapping[str, int]:
        """One tick. It waits while replicas are coming or going."""
        variant = only_variant(view)
        current = variant.held
        ready = [pod for pod in variant.pods if pod.phase is Phase.READY]
        prompt = _mean_prompt(view, now)
        loads = [found for pod in ready if (found := self._load(pod, now)) is not None]
        if not loads or variant.coming or len(ready) != len(variant.pods) or prompt is None:
            return {variant.name: current}
        wanted = current
        factor = len(ready) / (len(ready) - 1) if len(ready) > 1 else math.inf
        if all(self._share(view, running, waiting, prompt) > 1 for running, waiting in loads):
            wanted = current + 1
        elif factor < math.inf and all(
            self._share(view, running * factor, waiting * factor, prompt) < self._consolidate
            and not self._full(variant, pod, factor)
            for (running, waiting), pod in zip(loads, ready, strict=False)
        ):
            wanted = current - 1
        return {variant.name: max(variant.minimum, min(variant.maximum, wanted))}

    def _load(self, pod: PodView, now: float) -> tuple[float, float] | None:
        seen = [s for s in pod.samples if now - 30.0 < s.at <= now]
        if len(seen) < 2:
            return None
        running = sum(s.running for s in seen) / len(seen)
        waiting = float(seen[-1].waiting)
        tokens = pod_rate(pod, now, 30.0, lambda s: s.generation_tokens)
        prompts = pod_rate(pod, now, 30.0, lambda s: s.prompt_tokens)
        if tokens and running:
            self._seen.append((running, running / tokens))
            del self._seen[: -self.KEPT]
        if prompts:
            self._prompt_rate = max(self._prompt_rate * 0.9995, prompts)
        return running, waiting

    def _share(self, view: ScalerView, running: float, waiting: float, prompt: float) -> float:
        """The worse of predicted TTFT and TPOT over its bound."""
        worst = 0.0
        if view.objectives.ttft is not None:
            worst = (waiting + 1) * prompt / self._prompt_rate / view.objectives.ttft
        if view.objectives.tpot is not None:
            worst = max(worst, self._tpot(running) / view.objectives.tpot)
        return worst

    def _tpot(self, running: float) -> float:
        count = len(self._seen)
        if not count:
            return 0.0
        mean_x = sum(x for x, _ in self._seen) / count
        mean_y = sum(y for _, y in self._seen) / count
        spread = sum((x - mean_x) ** 2 for x, _ in self._seen)
        slope = (
            sum((x - mean_x) * (y - mean_y) for x, y in self._seen) / spread
            if spread > count
            else mean_y / max(1.0, mean_x)
        )
        return mean_y + max(0.0, slope) * (running - mean_x)

    @staticmethod
    def _full(variant: VariantView, pod: PodView, factor: float) -> bool:
        return bool(pod.samples) and pod.samples[-1].kv_usage * factor > 0.9


def _mean_prompt(view: ScalerView, now: float) -> float | None:
    seen = [s for s in view.gateway if now - 120.0 < s.at <= now]
    if len(seen) < 2 or seen[-1].arrivals == seen[0].arrivals:
        return None
    return (seen[-1].prompt_tokens - seen[0].prompt_tokens) / (seen[-1].arrivals - seen[0].arrivals)
