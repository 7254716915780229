"""From one state to another: nothing is broken before its replacement stands, nothing is done on half a view."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inference_fleet.api.conditions import find
from inference_fleet.plan.outcome import Action
from tests.unit.plan.world import World, accelerator, entry, model, observation, spec


def running(*models: dict[str, object], **over: object) -> World:
    world = World(observation(spec(*models), **over))  # type: ignore[arg-type]
    world.settle()
    world.fewest_ready = 10**9
    return world


def quantized(kind: str, **over: object) -> dict[str, object]:
    build = {"name": "q4", "modelRef": {"name": "smollm2"}, "quantization": {"keyValueCache": kind}}
    return entry(builds=[build], **over)


def test_planning_its_own_outcome_changes_nothing() -> None:
    world = running()
    again = world.step()
    assert (again.changes, again.removals) == ((), ())
    assert [d.action for d in again.decisions] == [Action.KEEP]
    assert again.requeue_after_seconds is None


def test_another_identity_is_made_before_the_old_one_is_broken() -> None:
    world = running(entry(replicas={"min": 2}))
    world.edit(spec(quantized("Q8_0", replicas={"min": 2})))
    world.loading = True
    for _ in range(5):
        world.step()
    assert len(world.seen.variants) == 2
    assert world.fewest_ready == 2
    said = find(world.plans[-1].conditions, "UpToDate")
    assert said is not None
    assert said.reason == "Replacing"
    world.loading = False
    world.settle()
    assert len(world.seen.variants) == 1
    assert world.fewest_ready >= 2


def test_a_variant_is_removed_only_when_the_gateways_show_it_out_of_routing() -> None:
    world = running()
    world.gateway_reads = False
    world.edit(spec(quantized("Q8_0")))
    removed_after = next(i for i in range(60) if world.step().removals)
    assert removed_after * 5 >= 60, "an unread gateway holds it up for the whole deadline, and no longer"


def test_where_devices_are_short_they_are_swapped_one_for_one() -> None:
    world = running(entry(replicas={"min": 3}), classes={"cpu": accelerator(devices=3)})
    world.edit(spec(quantized("Q8_0", replicas={"min": 3})))
    world.settle()
    assert len(world.seen.variants) == 1
    assert world.ready == 3
    assert world.fewest_ready >= 2
    assert world.most_devices["cpu"] <= 3


def test_with_a_single_device_the_swap_goes_through_zero_and_back() -> None:
    world = running(classes={"cpu": accelerator(devices=1)})
    world.edit(spec(quantized("Q8_0")))
    world.settle()
    assert world.ready == 1
    assert world.most_devices["cpu"] == 1


def test_more_devices_a_replica_on_scarce_stock_gives_up_enough_at_once() -> None:
    world = running(entry(replicas={"min": 4}), classes={"cpu": accelerator(devices=4)})
    choice = {"name": "cpu", "classRef": {"name": "cpu"}, "devicesPerReplica": 2}
    world.edit(spec(entry(accelerators=[choice], replicas={"min": 2})))
    world.settle()
    assert [v.desired_replicas for v in world.seen.variants] == [2]
    assert world.most_devices["cpu"] <= 4


def test_scale_down_drains_the_youngest_first_and_tells_the_victims() -> None:
    world = running(entry(replicas={"min": 3}))
    world.edit(spec(entry(replicas={"min": 2})))
    first = world.step()
    assert first.changes == ()
    assert len(first.routes.drain) == 1 if first.routes else False
    second = world.step()
    assert [(c.before, c.after, c.victims) for c in second.changes] == [(3, 2, first.routes.drain)]  # type: ignore[union-attr]
    world.settle()
    assert world.ready == 2
    assert world.memory.drains == {}


def test_nothing_goes_down_on_an_incomplete_view() -> None:
    world = running(entry(replicas={"min": 3}))
    world.seen = replace(world.seen, incomplete=("pods",))
    world.edit(spec(quantized("Q8_0", replicas={"min": 1})))
    for _ in range(20):
        outcome = world.step()
        assert (outcome.removals, [c for c in outcome.changes if c.after < c.before]) == ((), [])
    assert world.fewest_ready >= 3


def test_a_policy_that_cannot_be_read_any_more_takes_nothing_down() -> None:
    world = running()
    world.edit(None)
    outcome = world.step()
    assert (outcome.changes, outcome.removals, outcome.routes, outcome.gateway) == ((), (), None, None)
    accepted = find(outcome.conditions, "Accepted")
    assert accepted is not None
    assert accepted.status == "False"
    assert world.ready == 1
    assert outcome.claims == {"cpu": 1}


@pytest.mark.parametrize("loss", ["model", "class", "fit"])
def test_what_can_no_longer_be_placed_keeps_running(loss: str) -> None:
    world = running()
    if loss == "model":
        world.seen = replace(world.seen, models={})
    elif loss == "class":
        world.seen = replace(world.seen, classes={})
    else:
        world.seen = replace(world.seen, classes={"cpu": accelerator(memory="32Mi")})
    world.settle()
    assert world.ready == 1
    assert world.fewest_ready == 1
    routes = world.plans[-1].routes
    assert routes is not None
    assert [v.weight for v in routes.models[0].variants] == [100]


def test_the_same_weights_under_a_new_object_change_nothing() -> None:
    world = running()
    name = world.seen.variants[0].name
    world.seen = replace(world.seen, models={"smollm2": replace(model(), uid="another")})
    world.settle()
    assert [v.name for v in world.seen.variants] == [name]


def test_a_model_that_is_no_longer_declared_is_drained_and_removed() -> None:
    world = running(entry("one"), entry("two"))
    world.edit(spec(entry("one")))
    world.settle()
    assert [v.identity.model for v in world.seen.variants if v.identity] == ["one"]


def test_a_foreign_owner_of_replicas_is_not_fought() -> None:
    world = running()
    hpa = replace(world.seen.variants[0], foreign_scaler="hpa", desired_replicas=3)
    world.seen = replace(world.seen, variants=(hpa,))
    outcome = world.step()
    assert outcome.changes == ()
    scaling = find(outcome.conditions, "ScalingActive")
    assert scaling is not None
    assert (scaling.status, scaling.reason) == ("False", "ForeignScaler")
    assert "hpa" in scaling.message


def test_an_older_revision_keeps_running_and_is_reported() -> None:
    world = running()
    world.seen = replace(
        world.seen, settings=replace(world.seen.settings, render_revision=2, image="inference-fleet:2")
    )
    outcome = world.settle()
    assert [(v.render_revision, v.sidecar_image) for v in outcome.variants] == [(1, "inference-fleet:1")]
    said = find(outcome.conditions, "UpToDate")
    assert said is not None
    assert said.reason == "OlderRevision"
    world.seen = replace(
        world.seen, policy=replace(world.seen.policy, annotations={"inference-fleet.dev/upgrade": "now"})
    )
    assert [(v.render_revision, v.sidecar_image) for v in world.step().variants] == [(2, "inference-fleet:2")]


def test_surge_follows_desired_replicas_not_the_surge_pod_itself() -> None:
    world = running(entry(replicas={"min": 1}), classes={"cpu": accelerator(devices=2)})
    assert world.step().variants[0].surge
    v = world.seen.variants[0]
    rolling = replace(v, pods=(*v.pods, replace(v.pods[0], name="surge", uid="surge")), replicas=2, updated_replicas=1)
    world.seen = replace(world.seen, variants=(rolling,))
    assert world.plans[-1].variants[0].surge


def test_an_unreadable_identity_is_kept_and_reported() -> None:
    world = running()
    world.seen = replace(world.seen, variants=(replace(world.seen.variants[0], identity=None),))
    outcome = world.step()
    assert [(d.action, d.reason) for d in outcome.decisions if d.reason == "IdentityUnreadable"]
    assert outcome.removals == ()
