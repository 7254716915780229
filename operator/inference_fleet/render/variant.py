"""A desired variant → its Deployment and its headless Service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from inference_fleet.engines.base import Engine, Refusal, engine
from inference_fleet.engines.contract import HTTP_PORT
from inference_fleet.naming import (
    CONFIGURATION_ANNOTATION,
    IDENTITY_ANNOTATION,
    MODEL_LABEL,
    RENDER_REVISION_ANNOTATION,
    SIDECAR_IMAGE_ANNOTATION,
    TEMPLATE_HASH_ANNOTATION,
    VARIANT_LABEL,
    canonical_json,
    digest,
    identity_json,
)
from inference_fleet.plan.observation import OperatorSettings, PolicyView
from inference_fleet.plan.outcome import DesiredVariant
from inference_fleet.render import weights
from inference_fleet.render.engine_pod import DRAFT_START_SECONDS, pod_spec
from inference_fleet.render.manifests import SHA256_HEX_DIGITS, Manifest, metadata, stamped
from inference_fleet.render.pod_template import merged_template
from inference_fleet.render.revisions import NEWEST

IMAGE_PULL_SECONDS = 900
"""How long a rollout may wait for a node and for the engine's image (10 GB and more) before it counts as stuck."""

MIN_READY_SECONDS = 3

Renderer = Callable[[DesiredVariant, PolicyView, OperatorSettings], tuple[Manifest, ...]]


def render_variant(desired: DesiredVariant, policy: PolicyView, settings: OperatorSettings) -> tuple[Manifest, ...]:
    """Deployment and Service of a variant, by the revision that it was made with.

    The Deployment has no `spec.replicas`: `with_replicas` adds them for its creation. A revision that is no longer rendered
    gives way to the newest. Raises ValueError for an engine that is not known, which a plan never holds.
    """
    renderer = RENDERERS.get(desired.render_revision, RENDERERS[NEWEST])
    resting = desired if desired.resting_surge is None else replace(desired, surge=desired.resting_surge)
    kept = renderer(resting, policy, settings)
    if template_hash(kept[0]) == desired.running_template_hash:
        return kept
    newest = desired.render_revision == NEWEST and desired.sidecar_image == settings.image
    if newest or not desired.running_template_hash:
        return kept if resting is desired else renderer(desired, policy, settings)
    # Its pods roll for another reason: then they may as well become what the newest operator renders.
    moved = replace(desired, render_revision=NEWEST, sidecar_image=settings.image)
    return RENDERERS[NEWEST](moved, policy, settings)


def template_hash(deployment: Mapping[str, Any]) -> str:
    """The hash of the pod template that a rendered Deployment carries."""
    return str(deployment["metadata"]["annotations"][TEMPLATE_HASH_ANNOTATION])


def _revision_1(desired: DesiredVariant, policy: PolicyView, settings: OperatorSettings) -> tuple[Manifest, ...]:
    known = engine(desired.engine.engine, desired.engine.version)
    if isinstance(known, Refusal):
        raise ValueError(known.message)
    return (
        stamped(_deployment(desired, policy, settings, known, revision=1)),
        stamped(_service(desired, policy)),
    )


RENDERERS: Mapping[int, Renderer] = {1: _revision_1}
"""By revision: the newest and those that are still kept for what runs."""


def configuration_json(desired: DesiredVariant) -> str:
    """What a later pass needs to know of a variant that it no longer wants."""
    price = desired.price_per_hour
    return canonical_json(
        {
            "model": desired.model.name,
            "build": desired.build,
            "accelerator": desired.accelerator,
            "acceleratorClass": desired.accelerator_class.name,
            "devicesPerReplica": desired.engine.devices,
            "pricePerHour": None if price is None else str(price),
        }
    )


def _labels(desired: DesiredVariant) -> dict[str, str]:
    return {MODEL_LABEL: desired.model.name, VARIANT_LABEL: desired.name}


def _deployment(
    desired: DesiredVariant, policy: PolicyView, settings: OperatorSettings, known: Engine, revision: int
) -> Manifest:
    described = metadata(policy, desired.name, "engine", _labels(desired))
    pod = {"metadata": {"labels": described["labels"]}, "spec": pod_spec(desired, known, settings)}
    template = merged_template(pod, desired.model.pod_template)
    annotations = {
        TEMPLATE_HASH_ANNOTATION: digest(canonical_json(template), SHA256_HEX_DIGITS),
        RENDER_REVISION_ANNOTATION: str(revision),
        SIDECAR_IMAGE_ANNOTATION: desired.sidecar_image,
        IDENTITY_ANNOTATION: identity_json(desired.identity),
        CONFIGURATION_ANNOTATION: configuration_json(desired),
    }
    described = {**described, "annotations": annotations}
    surge = {"maxSurge": 1, "maxUnavailable": 0} if desired.surge else {"maxSurge": 0, "maxUnavailable": 1}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": described,
        "spec": {
            "selector": {"matchLabels": {VARIANT_LABEL: desired.name}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": surge},
            "minReadySeconds": MIN_READY_SECONDS,
            "progressDeadlineSeconds": _progress_seconds(desired, known),
            "revisionHistoryLimit": 2,
            "template": template,
        },
    }


def _progress_seconds(desired: DesiredVariant, known: Engine) -> int:
    """The longest that one pod may take to become Ready: image, weights, loading."""
    staging = weights.staging_seconds(desired.target)
    if desired.draft is not None:
        staging += DRAFT_START_SECONDS + weights.staging_seconds(desired.draft)
    return IMAGE_PULL_SECONDS + staging + known.probes(desired.engine).startup.budget_seconds


def _service(desired: DesiredVariant, policy: PolicyView) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(policy, desired.name, "engine", _labels(desired)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": False,
            "selector": {VARIANT_LABEL: desired.name},
            "ports": [{"name": "http", "port": HTTP_PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }
