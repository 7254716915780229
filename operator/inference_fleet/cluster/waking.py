"""Which keys an event wakes. Pure: objects before and after in, keys out.

A key is `policy:NAMESPACE/NAME`, `model:NAMESPACE/NAME` or `class:NAME`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from inference_fleet.api.policy import InferencePolicySpec
from inference_fleet.cluster import kinds
from inference_fleet.cluster.kinds import Kind
from inference_fleet.cluster.seen import ClassSeen, JobSeen, ModelSeen, PodSeen, PolicySeen, Seen
from inference_fleet.cluster.store import policy_of
from inference_fleet.naming import COMPONENT_LABEL, MODEL_LABEL

AT_ONCE_SECONDS = 0.05
"""Long enough for a burst of events about one policy to become one pass, too short for anyone to notice."""

STOCK_SECONDS = 5.0
"""Nodes and other people's pods come and go all the time: stock is counted again at most this often."""


@dataclass(frozen=True, slots=True)
class Wake:
    """A key to queue, and after how many seconds."""

    key: str
    delay: float = AT_ONCE_SECONDS


def policy_key(key: str) -> str:
    """The queue's key of a policy, from its `namespace/name`."""
    return f"policy:{key}"


def model_key(key: str) -> str:
    """The queue's key of a model, from its `namespace/name`."""
    return f"model:{key}"


def class_key(name: str) -> str:
    """The queue's key of a class."""
    return f"class:{name}"


def models_of(spec: InferencePolicySpec) -> frozenset[str]:
    """Names of the InferenceModels that a policy refers to, drafts included."""
    names = {build.model_ref.name for model in spec.models for build in model.builds}
    drafts = {m.speculation.draft_ref.name for m in spec.models if m.speculation and m.speculation.draft_ref}
    return frozenset(names | drafts)


def classes_of(spec: InferencePolicySpec) -> frozenset[str]:
    """Names of the AcceleratorClasses that a policy refers to."""
    return frozenset(choice.class_ref.name for model in spec.models for choice in model.accelerators)


@dataclass(slots=True)
class References:
    """Who refers to what, both ways, kept current by the policies' events."""

    by_policy: dict[str, frozenset[str]] = field(default_factory=dict)
    """Policy → keys (`model:…`, `class:…`) it refers to."""
    users: dict[str, set[str]] = field(default_factory=dict)
    """Key → policies (`namespace/name`) that refer to it."""

    def note(self, policy: PolicySeen | None, key: str) -> None:
        """Take a policy's references, None: it is gone. A spec that cannot be read keeps the references it had."""
        if policy is not None and policy.spec is None:
            return
        fresh: frozenset[str] = frozenset()
        if policy is not None and policy.spec is not None:
            models = {model_key(f"{policy.meta.namespace}/{name}") for name in models_of(policy.spec)}
            fresh = frozenset(models | {class_key(name) for name in classes_of(policy.spec)})
        for gone in self.by_policy.get(key, frozenset()) - fresh:
            self.users[gone].discard(key)
        for added in fresh:
            self.users.setdefault(added, set()).add(key)
        if policy is None:
            self.by_policy.pop(key, None)
        else:
            self.by_policy[key] = fresh

    def users_of(self, key: str) -> Iterator[Wake]:
        """The policies to wake when a model or class changes."""
        for policy in sorted(self.users.get(key, ())):
            yield Wake(policy_key(policy))


def wakes(
    kind: Kind, before: Seen | None, after: Seen | None, references: References, classes: Iterable[str]
) -> list[Wake]:
    """Keys that a change wakes. `before` and `after` are known to differ in something that matters."""
    seen = after if after is not None else before
    assert seen is not None
    if isinstance(seen, PolicySeen):
        return [Wake(policy_key(seen.meta.key))]
    if isinstance(seen, ModelSeen):
        own = [Wake(model_key(seen.meta.key))] if _declaration_changed(before, after) else []
        return own + list(references.users_of(model_key(seen.meta.key)))
    if isinstance(seen, ClassSeen):
        return [Wake(class_key(seen.meta.name)), *references.users_of(class_key(seen.meta.name))]
    if isinstance(seen, JobSeen):
        return _of_model(seen)
    if kind is kinds.NODE:
        return [Wake(class_key(name), STOCK_SECONDS) for name in classes]
    if isinstance(seen, PodSeen):
        return _of_pod(seen, before, after, classes)
    policy = policy_of(seen)
    return [Wake(policy_key(policy))] if policy else []


def _declaration_changed(before: Seen | None, after: Seen | None) -> bool:
    """Whether more than our own status differs in a model."""
    if not isinstance(before, ModelSeen) or not isinstance(after, ModelSeen):
        return True
    return before.meta != after.meta or before.resolved != after.resolved or before.facts != after.facts


def _of_model(seen: Seen) -> list[Wake]:
    model = seen.meta.labels.get(MODEL_LABEL, "")
    return [Wake(model_key(f"{seen.meta.namespace}/{model}"))] if model else []


def _of_pod(seen: PodSeen, before: Seen | None, after: Seen | None, classes: Iterable[str]) -> list[Wake]:
    if seen.ours and seen.meta.labels.get(COMPONENT_LABEL) == "inspect":
        return _of_model(seen)
    policy = policy_of(seen) if seen.ours else ""
    found = [Wake(policy_key(policy))] if policy else []
    if _holds(before) != _holds(after) and not policy:
        found += [Wake(class_key(name), STOCK_SECONDS) for name in classes]
    return found


def _holds(pod: Seen | None) -> tuple[str, bool]:
    """Where a pod holds devices, and whether it does."""
    return (pod.node, pod.scheduled and not pod.finished) if isinstance(pod, PodSeen) else ("", False)
