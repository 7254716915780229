"""From the snapshots to one Observation. Pure: everything comes in as values, nothing is read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache

from inference_fleet.api.conditions import Condition
from inference_fleet.cluster.claims import Ledger
from inference_fleet.cluster.client import FIELD_MANAGER, SCALE_FIELD_MANAGER
from inference_fleet.cluster.seen import ClassSeen, DeploymentSeen, ModelSeen, NodeSeen, ObjectSeen, PodSeen, PolicySeen
from inference_fleet.cluster.stock import Usage, usage
from inference_fleet.naming import (
    COMPONENT_LABEL,
    CONFIGURATION_ANNOTATION,
    IDENTITY_ANNOTATION,
    POLICY_LABEL,
    RENDER_REVISION_ANNOTATION,
    RENDERED_HASH_ANNOTATION,
    SIDECAR_IMAGE_ANNOTATION,
    TEMPLATE_HASH_ANNOTATION,
    VARIANT_LABEL,
)
from inference_fleet.plan.observation import (
    ClassView,
    GatewayView,
    ModelView,
    Observation,
    OperatorSettings,
    PodView,
    PolicyView,
    VariantIdentity,
    VariantView,
)
from inference_fleet.signals.readings import Measured

TEMPLATE_HASH_LABEL = "pod-template-hash"
NOBODY = "before-first-apply"
"""What the API server calls the owner of fields that had none, at the first apply after managedFields were cleared."""

OWN_MANAGERS = frozenset({FIELD_MANAGER, SCALE_FIELD_MANAGER, NOBODY})
TEXTS_KEPT = 8192
"""Texts whose reading is remembered: several passes, and every count of the stock, read the same annotations again."""


@dataclass(frozen=True, slots=True)
class World:
    """Everything of the snapshots that one policy's pass may look at."""

    policy: PolicySeen
    models: tuple[ModelSeen, ...]
    classes: tuple[ClassSeen, ...]
    deployments: tuple[DeploymentSeen, ...]
    """Those of this policy."""
    pods: tuple[PodSeen, ...]
    """Those of this policy."""
    routes: ObjectSeen | None
    usages: Mapping[str, Usage]
    """Class → devices; a class is absent where nodes or pods cannot be read."""
    held: Mapping[str, Mapping[str, int]]
    """Class → policy key → devices that its pods occupy."""
    incomplete: tuple[str, ...] = ()


def observe(
    world: World,
    settings: OperatorSettings,
    ledger: Ledger,
    measured: Measured,
    applied: Mapping[str, str],
) -> Observation:
    """One pass's view. `applied`: uid → version mark after our last apply of that object (see `apply.mark`)."""
    policy = world.policy
    revision, drain = read_routes(world.routes)
    owned = [d for d in world.deployments if d.meta.owner_uid == policy.meta.uid]
    return Observation(
        policy=_policy(policy),
        settings=settings,
        models={m.meta.name: view for m in world.models if (view := _model(m)) is not None},
        classes={c.meta.name: _class(c, world, ledger, policy.meta.key) for c in world.classes if c.spec is not None},
        variants=tuple(
            _variant(d, world.pods, measured, applied)
            for d in sorted(owned, key=lambda d: d.meta.name)
            if d.meta.labels.get(COMPONENT_LABEL) == "engine"
        ),
        gateway=_gateway(owned, world.pods, measured),
        traffic=measured.traffic,
        routes_revision=revision,
        routes_drain=drain,
        incomplete=world.incomplete,
    )


def _policy(seen: PolicySeen) -> PolicyView:
    return PolicyView(
        namespace=seen.meta.namespace,
        name=seen.meta.name,
        uid=seen.meta.uid,
        generation=seen.meta.generation,
        created=seen.meta.created,
        spec=seen.spec,
        invalid_message=seen.invalid_message,
        annotations=seen.meta.annotations,
        conditions=read_conditions(seen.status),
        deleting=seen.meta.deleting,
    )


def read_conditions(status: Mapping[str, object]) -> tuple[Condition, ...]:
    """The conditions of a stored status; those of another version's making are left out."""
    listed = status.get("conditions")
    conditions: list[Condition] = []
    for item in listed if isinstance(listed, list) else []:
        try:
            conditions.append(Condition.model_validate(item))
        except ValueError:
            continue
    return tuple(conditions)


def _model(seen: ModelSeen) -> ModelView | None:
    if seen.spec is None or seen.meta.deleting:
        return None
    status, reason, message = seen.ready
    facts = seen.facts
    if facts is None and seen.spec.facts is not None:
        facts = seen.spec.facts.complete()
    # What was found and contradicts what was declared must not be run: one of the two is wrong about the weights.
    contradicted = status == "False" and reason == "FactsContradicted"
    return ModelView(
        name=seen.meta.name,
        uid=seen.meta.uid,
        spec=seen.spec,
        resolved=None if contradicted else seen.resolved,
        facts=facts,
        not_ready_reason=reason if status != "True" else "",
        not_ready_message=message if status != "True" else "",
    )


def _class(seen: ClassSeen, world: World, ledger: Ledger, policy: str) -> ClassView:
    assert seen.spec is not None
    name = seen.meta.name
    known = world.usages.get(name)
    return ClassView(
        name=name,
        spec=seen.spec,
        allocatable_devices=known.allocatable if known is not None else None,
        used_by_others=known.used_by_others if known is not None else 0,
        claims=ledger.of_others(policy, name, world.held.get(name, {})),
    )


def read_identity(deployment: DeploymentSeen) -> VariantIdentity | None:
    """The identity in a Deployment's annotation; None where it is missing or was written by a version we cannot read."""
    return _identity(deployment.meta.annotations.get(IDENTITY_ANNOTATION, ""))


@lru_cache(maxsize=TEXTS_KEPT)
def _identity(text: str) -> VariantIdentity | None:
    try:
        return VariantIdentity(**json.loads(text))
    except (TypeError, ValueError):
        return None


def _configuration(deployment: DeploymentSeen) -> Mapping[str, object]:
    try:
        value = json.loads(deployment.meta.annotations.get(CONFIGURATION_ANNOTATION, "{}"))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _price(configuration: Mapping[str, object]) -> Decimal | None:
    text = configuration.get("pricePerHour", configuration.get("price_per_hour"))
    try:
        return Decimal(str(text)) if text is not None else None
    except InvalidOperation:
        return None


def _variant(
    deployment: DeploymentSeen, pods: Iterable[PodSeen], measured: Measured, applied: Mapping[str, str]
) -> VariantView:
    meta = deployment.meta
    configuration = _configuration(deployment)
    revision = meta.annotations.get(RENDER_REVISION_ANNOTATION, "0")
    applied_generation = applied.get(meta.uid, "0")
    foreign = [name for name in deployment.replicas_owners if name not in OWN_MANAGERS]
    own = tuple(
        sorted(
            (_pod(p) for p in pods if p.meta.labels.get(VARIANT_LABEL) == meta.name and not p.finished),
            key=lambda p: (p.created, p.name),
        )
    )
    selected = deployment.selector.get(VARIANT_LABEL) == meta.name and len(deployment.selector) == 1
    return VariantView(
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        identity=read_identity(deployment),
        build=str(configuration.get("build", "")),
        accelerator=str(configuration.get("accelerator", "")),
        generation=meta.generation,
        observed_generation=deployment.observed_generation,
        desired_replicas=deployment.desired_replicas,
        replicas=deployment.replicas,
        updated_replicas=deployment.updated_replicas,
        ready_replicas=deployment.ready_replicas,
        template_hash=meta.annotations.get(TEMPLATE_HASH_ANNOTATION, ""),
        render_revision=int(revision) if revision.isdigit() else 0,
        sidecar_image=meta.annotations.get(SIDECAR_IMAGE_ANNOTATION, ""),
        price_per_hour=_price(configuration),
        foreign_scaler=foreign[0] if foreign else "",
        deleting=meta.deleting,
        progress_deadline_exceeded=deployment.progress_deadline_exceeded,
        applied_generation=int(applied_generation) if applied_generation.isdigit() else 0,
        pods=own,
        speculation=measured.speculation.get(meta.name),
        selector_conflict="" if selected else f"selects by {dict(deployment.selector)}",
        surge=deployment.surge,
    )


def _pod(seen: PodSeen) -> PodView:
    return PodView(
        name=seen.meta.name,
        uid=seen.meta.uid,
        created=seen.meta.created,
        ready=seen.ready,
        scheduled=seen.scheduled,
        deleting=seen.meta.deleting,
        node=seen.node,
        template_hash=seen.meta.labels.get(TEMPLATE_HASH_LABEL, ""),
        reason=seen.reason,
        message=seen.message,
        container=seen.container,
        restarts=seen.restarts,
        deletion_cost=seen.deletion_cost,
    )


def is_gateway(labels: Mapping[str, str]) -> bool:
    """Whether these are a gateway object's labels."""
    return labels.get(COMPONENT_LABEL) == "gateway"


def _gateway(owned: Iterable[DeploymentSeen], pods: Iterable[PodSeen], measured: Measured) -> GatewayView:
    deployment = next((d for d in owned if is_gateway(d.meta.labels)), None)
    if deployment is None:
        return GatewayView()
    own = sorted((p for p in pods if is_gateway(p.meta.labels) and not p.finished), key=lambda p: p.meta.name)
    troubled = next((p for p in own if p.reason and not p.ready), None)
    message = troubled.message if troubled is not None else deployment.failure_message
    return GatewayView(
        exists=True,
        desired_replicas=deployment.desired_replicas,
        ready_replicas=deployment.ready_replicas,
        updated_replicas=deployment.updated_replicas,
        generation=deployment.meta.generation,
        observed_generation=deployment.observed_generation,
        rendered_hash=deployment.meta.annotations.get(RENDERED_HASH_ANNOTATION, ""),
        revisions={p.meta.name: measured.revisions.get(p.meta.name) for p in own if p.ready and not p.meta.deleting},
        problem_reason=troubled.reason if troubled is not None else ("ReplicaFailure" if message else ""),
        problem_message=f"pod {troubled.meta.name}: {message}" if troubled is not None else message,
    )


def read_routes(routes: ObjectSeen | None) -> tuple[str, tuple[str, ...]]:
    """Revision and drain list of the routes ConfigMap as it stands; empty where there is none or it cannot be read."""
    return _routes(routes.data.get("routes.json", "")) if routes is not None else ("", ())


@lru_cache(maxsize=TEXTS_KEPT)
def _routes(text: str) -> tuple[str, tuple[str, ...]]:
    try:
        document = json.loads(text)
        return str(document.get("revision", "")), tuple(str(name) for name in document.get("drain", []))
    except (AttributeError, TypeError, ValueError):
        return "", ()


def held_devices(deployments: Iterable[DeploymentSeen], pods: Iterable[PodSeen]) -> Mapping[str, Mapping[str, int]]:
    """Devices that pods of policies occupy: class → policy key → devices. A pod occupies once it has a node."""
    per_variant: dict[str, tuple[str, int]] = {}
    for deployment in deployments:
        identity = read_identity(deployment)
        if identity is not None:
            per_variant[deployment.meta.key] = (identity.accelerator_class, identity.devices_per_replica)
    held: dict[str, dict[str, int]] = {}
    for pod in pods:
        variant = per_variant.get(f"{pod.meta.namespace}/{pod.meta.labels.get(VARIANT_LABEL, '')}")
        if variant is None or not pod.ours or not pod.scheduled or pod.finished:
            continue
        name, devices = variant
        policy = f"{pod.meta.namespace}/{pod.meta.labels.get(POLICY_LABEL, '')}"
        by_policy = held.setdefault(name, {})
        by_policy[policy] = by_policy.get(policy, 0) + devices
    return held


def usages_of(
    classes: Iterable[ClassSeen], nodes: tuple[NodeSeen, ...], pods: tuple[PodSeen, ...]
) -> Mapping[str, Usage]:
    """Stock of each class whose spec can be read."""
    return {c.meta.name: usage(c.spec, nodes, pods) for c in classes if c.spec is not None}
