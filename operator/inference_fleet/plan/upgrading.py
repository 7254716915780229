"""Moving variants on to what the present operator renders, when the policy's annotation asks for it.

The annotation is a request, carried out once: which version of the operator was asked is remembered for as long as the annotation
has the same value. A later version of the operator is not asked by it; another value (a date, say) asks anew. The operator never
writes the annotation, so that it may stand in a repository. Variants move one at a time, the next when the one before is Ready.
"""

from __future__ import annotations

from inference_fleet.naming import UPGRADE_ANNOTATION
from inference_fleet.plan.observation import Observation, OperatorSettings, VariantView
from inference_fleet.plan.outcome import UpgradeAsked


def is_older(variant: VariantView, settings: OperatorSettings) -> bool:
    """Whether an earlier version of the operator rendered it."""
    older_image = bool(variant.sidecar_image) and variant.sidecar_image != settings.image
    return variant.render_revision < settings.render_revision or older_image


def asked_of(observation: Observation, remembered: UpgradeAsked | None) -> UpgradeAsked | None:
    """The upgrade that is asked for, done or not."""
    value = observation.policy.annotations.get(UPGRADE_ANNOTATION, "")
    if not value:
        return None
    if remembered is not None and remembered.value == value:
        return remembered
    return UpgradeAsked(value, observation.settings.render_revision, observation.settings.image)


def upgrading(observation: Observation, asked: UpgradeAsked | None) -> str:
    """The variant that is to move on now; empty where none is."""
    settings = observation.settings
    if asked is None or (asked.render_revision, asked.image) != (settings.render_revision, settings.image):
        return ""
    under_way = any(
        (v.rolling or v.ready_replicas < v.desired_replicas) and not is_older(v, settings) for v in observation.variants
    )
    if under_way:
        return ""
    return next((v.name for v in observation.variants if is_older(v, settings) and not v.deleting), "")
