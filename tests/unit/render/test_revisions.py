"""What an operator upgrade does to what runs: nothing, until the variant's pods roll for a reason of its own."""

from __future__ import annotations

from dataclasses import replace

from inference_fleet.plan.outcome import DesiredVariant
from inference_fleet.render.variant import render_variant, template_hash
from tests.unit.render.samples import SETTINGS, llama_plain, policy

UPGRADED = replace(SETTINGS, image="inference-fleet:next")


def running() -> DesiredVariant:
    """A variant made by the operator before the upgrade."""
    desired = llama_plain()
    made = render_variant(desired, policy(), SETTINGS)[0]
    return replace(desired, running_template_hash=template_hash(made))


def sidecar_image(desired: DesiredVariant) -> str:
    rendered = render_variant(desired, policy(), UPGRADED)[0]
    return str(rendered["spec"]["template"]["spec"]["initContainers"][0]["image"])


def test_an_upgrade_alone_renders_the_same_template() -> None:
    desired = running()
    assert template_hash(render_variant(desired, policy(), UPGRADED)[0]) == desired.running_template_hash
    assert sidecar_image(desired) == desired.sidecar_image


def test_a_change_that_rolls_no_pod_does_not_move_it_on() -> None:
    desired = replace(running(), surge=not llama_plain().surge, price_per_hour=None)
    assert template_hash(render_variant(desired, policy(), UPGRADED)[0]) == desired.running_template_hash


def test_a_change_that_rolls_pods_anyway_takes_the_newest_image_along() -> None:
    desired = running()
    changed = replace(desired, engine=replace(desired.engine, max_sequences=desired.engine.max_sequences + 1))
    assert sidecar_image(changed) == "inference-fleet:next"


def test_what_does_not_run_yet_is_rendered_as_planned() -> None:
    assert sidecar_image(llama_plain()) == llama_plain().sidecar_image
