"""An upgrade of the operator moves nothing by itself; the annotation moves variants on, one at a time, once."""

from __future__ import annotations

from dataclasses import replace

from inference_fleet.api.conditions import find
from inference_fleet.cluster.memory import Remembered, decode, encode
from inference_fleet.plan.observation import OperatorSettings
from inference_fleet.plan.outcome import Plan
from tests.unit.plan.world import World, accelerator, entry, observation, spec

ANNOTATION = "inference-fleet.dev/upgrade"


def two_models() -> World:
    world = World(observation(spec(entry("one"), entry("two")), classes={"cpu": accelerator(devices=8)}))
    world.settle()
    return world


def install(world: World, revision: int) -> OperatorSettings:
    settings = replace(world.seen.settings, render_revision=revision, image=f"inference-fleet:{revision}")
    world.seen = replace(world.seen, settings=settings)
    return settings


def annotate(world: World, value: str | None) -> None:
    annotations = {ANNOTATION: value} if value is not None else {}
    world.seen = replace(world.seen, policy=replace(world.seen.policy, annotations=annotations))


def revisions(outcome: Plan) -> list[int]:
    return [v.render_revision for v in outcome.variants]


def roll(world: World, outcome: Plan, *, ready: bool = True) -> None:
    """What the cluster does with a Deployment that moved on."""
    wanted = {v.name: v for v in outcome.variants}
    world.seen = replace(
        world.seen,
        variants=tuple(
            replace(v, render_revision=wanted[v.name].render_revision, sidecar_image=wanted[v.name].sidecar_image,
                    ready_replicas=v.desired_replicas if ready or wanted[v.name].render_revision == v.render_revision else 0)
            for v in world.seen.variants
        ),
    )  # fmt: skip


def up_to_date(outcome: Plan) -> str:
    found = find(outcome.conditions, "UpToDate")
    assert found is not None
    return found.reason


def test_without_the_annotation_nothing_moves() -> None:
    world = two_models()
    install(world, 2)
    outcome = world.step()
    assert revisions(outcome) == [1, 1]
    assert up_to_date(outcome) == "OlderRevision"


def test_variants_move_one_at_a_time_each_when_the_one_before_is_ready() -> None:
    world = two_models()
    install(world, 2)
    annotate(world, "now")
    first = world.step()
    assert sorted(revisions(first)) == [1, 2]
    roll(world, first, ready=False)
    loading = world.seen.variants
    outcome = world.step()
    assert sorted(revisions(outcome)) == [1, 2], "the second waits"
    world.seen = replace(world.seen, variants=loading)
    roll(world, outcome)
    second = world.step()
    assert revisions(second) == [2, 2]
    roll(world, second)
    assert up_to_date(world.step()) == "AsDeclared"


def test_once_done_the_annotation_asks_nothing_of_a_later_version() -> None:
    world = two_models()
    install(world, 2)
    annotate(world, "now")
    for _ in range(3):
        roll(world, world.step())
    assert up_to_date(world.step()) == "AsDeclared"
    install(world, 3)
    outcome = world.step()
    assert revisions(outcome) == [2, 2]
    assert up_to_date(outcome) == "OlderRevision"
    annotate(world, "2026-12-01")
    assert sorted(revisions(world.step())) == [2, 3]
    annotate(world, None)
    world.step()
    assert world.memory.upgrade is None


def test_a_restart_of_the_operator_remembers_what_was_asked() -> None:
    world = two_models()
    install(world, 2)
    annotate(world, "now")
    world.step()
    assert world.memory.upgrade is not None
    again = decode(encode(Remembered(plan=world.memory))).plan
    assert again.upgrade == world.memory.upgrade
