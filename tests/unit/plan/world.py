"""A small world for planning tests: resources with sensible defaults, and what the cluster would do with a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from inference_fleet.api.accelerator import AcceleratorClassSpec
from inference_fleet.api.model import Attention, Format, InferenceModelSpec, ModelFacts, ResolvedArtifact
from inference_fleet.api.policy import InferencePolicySpec
from inference_fleet.plan.decide import plan
from inference_fleet.plan.observation import (
    Claim,
    ClassView,
    GatewayView,
    ModelView,
    Observation,
    OperatorSettings,
    PodView,
    PolicyView,
    TrafficView,
    VariantView,
)
from inference_fleet.plan.outcome import Memory, Plan

START = datetime(2026, 11, 9, 12, 0, tzinfo=UTC)
SETTINGS = OperatorSettings(
    image="inference-fleet:1", llama_cpp_image="llama:1", vllm_image="vllm:1", render_revision=1
)
FACTS = ModelFacts(
    architecture="llama",
    parameters=134515008,
    layers=30,
    hidden_size=576,
    key_value_heads=3,
    attention_heads=9,
    head_dimension=64,
    attention=Attention.GQA,
    vocabulary_size=49152,
    tokens_digest="sha256:tokens",
    max_context_tokens=8192,
    weight_bits=4,
    tokenizer_model="gpt2",
)


def model(name: str = "smollm2", *, digest: str = "sha256:aa", facts: ModelFacts | None = FACTS, weight_bytes: int = 91_000_000,
          **rest: Any) -> ModelView:  # fmt: skip
    """An inspected GGUF model."""
    spec = InferenceModelSpec.model_validate(
        {"source": {"http": {"url": f"http://models/{name}.gguf", "sha256": "a" * 64}}}
    )
    resolved = ResolvedArtifact(digest=digest, format=Format.GGUF, weight_bytes=weight_bytes) if facts else None
    return ModelView(name=name, uid=f"uid-{name}", spec=spec, resolved=resolved, facts=facts, **rest)


def accelerator(name: str = "cpu", *, devices: int | None = 4, memory: str = "4Gi", price: str | None = "0.40", others: int = 0,
                claims: tuple[Claim, ...] = (), **spec: Any) -> ClassView:  # fmt: skip
    """A class with stock; a CPU class unless a resourceName is given."""
    body: dict[str, Any] = {"memory": memory, "requestsPerDevice": {"cpu": "1", "memory": memory}, **spec}
    if price is not None:
        body["price"] = {"currency": "USD", "onDemandPerHour": price}
    return ClassView(name, AcceleratorClassSpec.model_validate(body), devices, others, claims)


def entry(name: str = "small", **over: Any) -> dict[str, Any]:
    """A model of the policy, in API spelling."""
    return {
        "name": name,
        "engine": {"type": "LlamaCpp", "version": "b11549"},
        "builds": [{"name": "q4", "modelRef": {"name": "smollm2"}}],
        "contextTokens": 2048,
        "batching": {"maxSequences": 2},
        "accelerators": [{"name": "cpu", "classRef": {"name": "cpu"}}],
        "replicas": {"min": 1},
        **over,
    }


def spec(*models: dict[str, Any], **over: Any) -> InferencePolicySpec:
    """A policy's spec with these models (one by default) and no authentication."""
    body = {"models": list(models) or [entry()], "gateway": {"authentication": {"type": "None"}}, **over}
    return InferencePolicySpec.model_validate(body)


def observation(policy_spec: InferencePolicySpec | None = None, **over: Any) -> Observation:
    """What is seen before anything runs."""
    base = Observation(
        policy=PolicyView(
            namespace="default", name="chat", uid="uid-chat", generation=1, created=START, spec=policy_spec or spec()
        ),
        settings=SETTINGS,
        models={"smollm2": model()},
        classes={"cpu": accelerator()},
    )
    return replace(base, **over)


@dataclass
class World:
    """Carries plans out the way a cluster would, and remembers the worst that clients saw."""

    seen: Observation
    memory: Memory = field(default_factory=Memory)
    now: datetime = START
    loading: bool = False
    """While True new pods stay unready."""
    gateway_reads: bool = True
    fewest_ready: int = 10**9
    most_devices: Mapping[str, int] = field(default_factory=dict)
    serial: int = 0
    plans: list[Plan] = field(default_factory=list)

    def edit(self, policy_spec: InferencePolicySpec | None) -> None:
        """What a user's edit does."""
        policy = replace(self.seen.policy, spec=policy_spec, generation=self.seen.policy.generation + 1)
        self.seen = replace(self.seen, policy=policy)

    def step(self) -> Plan:
        """One pass, carried out; then pods start and leave."""
        outcome, self.memory = plan(self.seen, self.memory, self.now)
        self.plans.append(outcome)
        self._apply(outcome)
        self._settle()
        self.now += timedelta(seconds=5)
        return outcome

    def settle(self, most: int = 40) -> Plan:
        """Passes until a plan changes nothing. Fails after `most` passes, with what the last ones decided."""
        for _ in range(most):
            before = self.seen
            outcome = self.step()
            if before == self.seen:
                return outcome
        raise AssertionError(f"no rest after {most} passes: {[p.decisions for p in self.plans[-3:]]}")

    @property
    def ready(self) -> int:
        """Replicas that answer and are routed to."""
        return sum(v.ready_replicas for v in self.seen.variants)

    def _apply(self, outcome: Plan) -> None:
        variants = {v.name: v for v in self.seen.variants}
        for removal in outcome.removals:
            assert variants[removal.variant].resource_version == removal.resource_version
            del variants[removal.variant]
        for change in outcome.changes:
            old = variants[change.variant]
            assert (old.resource_version, old.desired_replicas) == (change.resource_version, change.before)
            pods = tuple(p for p in old.pods if p.name not in change.victims)
            variants[change.variant] = self._moved(replace(old, desired_replicas=change.after, pods=pods))
        for wanted in outcome.variants:
            if wanted.name not in variants:
                variants[wanted.name] = VariantView(
                    name=wanted.name, uid=f"uid-{wanted.name}", resource_version="1", identity=wanted.identity,
                    build=wanted.build, accelerator=wanted.accelerator, generation=1, observed_generation=1,
                    desired_replicas=wanted.replicas, replicas=0, updated_replicas=0, ready_replicas=0,
                    template_hash="hash", render_revision=wanted.render_revision, sidecar_image=wanted.sidecar_image,
                    price_per_hour=wanted.price_per_hour,
                )  # fmt: skip
        routes = outcome.routes
        revision = repr(routes) if routes is not None else self.seen.routes_revision
        gateway = self.seen.gateway
        if outcome.gateway is not None:
            shown = {"gw-1": revision if self.gateway_reads else None}
            gateway = GatewayView(True, 1, 1, 1, 1, 1, "hash", shown)
        self.seen = replace(
            self.seen,
            variants=tuple(sorted(variants.values(), key=lambda v: v.name)),
            routes_revision=revision,
            routes_drain=routes.drain if routes is not None else self.seen.routes_drain,
            gateway=gateway,
            traffic=TrafficView(age_seconds=1.0),
        )

    def _settle(self) -> None:
        settled = []
        for v in self.seen.variants:
            pods = list(v.pods)
            while len(pods) < v.desired_replicas:
                self.serial += 1
                pods.append(
                    PodView(
                        f"{v.name}-{self.serial}",
                        f"uid-{self.serial}",
                        self.now,
                        not self.loading,
                        True,
                        False,
                        "node-1",
                    )
                )
            while len(pods) > v.desired_replicas:
                pods.pop()
            pods = [replace(p, ready=p.ready or (p.scheduled and not self.loading)) for p in pods]
            ready = sum(p.ready for p in pods)
            changed = replace(v, pods=tuple(pods), replicas=len(pods), updated_replicas=len(pods), ready_replicas=ready)
            settled.append(changed)
        self.seen = replace(self.seen, variants=tuple(settled))
        drained = set(self.seen.routes_drain)
        serving = sum(p.ready and p.name not in drained for v in self.seen.variants for p in v.pods)
        self.fewest_ready = min(self.fewest_ready, serving)
        used: dict[str, int] = {}
        for v in self.seen.variants:
            if v.identity is not None:
                name = v.identity.accelerator_class
                used[name] = used.get(name, 0) + len(v.pods) * v.identity.devices_per_replica
        self.most_devices = {n: max(used.get(n, 0), self.most_devices.get(n, 0)) for n in {*used, *self.most_devices}}

    @staticmethod
    def _moved(view: VariantView) -> VariantView:
        return replace(view, resource_version=str(int(view.resource_version) + 1))
