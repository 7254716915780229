"""Who gets devices when there are too few, and what is said of nodes that do not come."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from inference_fleet.api.conditions import find
from inference_fleet.plan.decide import plan
from inference_fleet.plan.observation import Claim, ClassView, PodView
from inference_fleet.plan.outcome import Action, Memory, Plan, Want
from inference_fleet.plan.stock import free_devices, owed_devices
from tests.unit.plan.world import START, World, accelerator, entry, observation, spec

ELASTIC = {"type": "Elastic", "maxDevices": 4, "provisioningSeconds": 120}
HIGHER = Claim("other/high", "cpu", 1, 10)


def said(outcome: Plan, kind: str) -> tuple[str, str, str]:
    found = find(outcome.conditions, kind)
    assert found is not None
    return found.status.value, found.reason, found.message


def waiting(world: World, count: int, **over: object) -> None:
    """The youngest `count` pods of the first variant have no node."""
    v = world.seen.variants[0]
    fields = {"ready": False, "scheduled": False, "node": "", "reason": "Unschedulable", "message": "0/1 nodes", **over}
    kept = len(v.pods) - count
    pods = (*v.pods[:kept], *(replace(p, **fields) for p in v.pods[kept:]))  # type: ignore[arg-type]
    view = replace(v, pods=pods, ready_replicas=kept)
    world.seen = replace(world.seen, variants=(view, *world.seen.variants[1:]))


def with_class(world: World, *views: ClassView) -> None:
    world.seen = replace(world.seen, classes={view.name: view for view in views})


@pytest.mark.parametrize(
    ("claims", "own", "occupied", "owed"),
    [
        ((), 3, 1, 0),
        ((HIGHER,), 3, 1, 1),  # 3 devices, 1 occupied: 2 left, 1 goes to the higher one, we wait for 2
        ((replace(HIGHER, devices=2),), 3, 1, 2),
        ((replace(HIGHER, held_devices=1),), 2, 1, 0),
        ((replace(HIGHER, priority=0),), 3, 1, 0),
        ((replace(HIGHER, devices=9),), 3, 3, 0),
        ((HIGHER, Claim("other/low", "cpu", 2, -1, 2)), 1, 0, 1),
    ],
)
def test_what_is_owed_to_higher_priorities(claims: tuple[Claim, ...], own: int, occupied: int, owed: int) -> None:
    assert owed_devices(accelerator(devices=3, claims=claims), 0, own, occupied) == owed
    assert owed_devices(accelerator(devices=None, claims=claims), 0, own, occupied) == 0


def test_replicas_that_wait_give_way_to_a_higher_priority_and_those_that_run_do_not() -> None:
    world = World(observation(spec(entry(replicas={"min": 3})), classes={"cpu": accelerator(devices=3)}))
    world.settle()
    waiting(world, 1)
    youngest = world.seen.variants[0].pods[-1].name
    with_class(world, accelerator(devices=2, claims=(HIGHER,)))
    outcome = plan(world.seen, world.memory, world.now)[0]
    assert [(c.before, c.after, c.victims) for c in outcome.changes] == [(3, 2, (youngest,))]
    assert [d.reason for d in outcome.decisions] == ["GivesWay"]
    assert said(outcome, "Scheduled")[:2] == ("False", "InsufficientDevices")
    assert outcome.wants == {"cpu": Want(1, 1)}
    world.step()
    again = plan(world.seen, world.memory, world.now)[0]
    assert again.changes == ()
    assert [d.action for d in again.decisions] == [Action.WAIT]
    # The devices come: it grows again.
    with_class(world, accelerator(devices=4, claims=(HIGHER,)))
    assert [(c.before, c.after) for c in plan(world.seen, world.memory, world.now)[0].changes] == [(2, 3)]


def test_nothing_gives_way_on_half_a_view_or_to_an_equal() -> None:
    world = World(observation(spec(entry(replicas={"min": 2})), classes={"cpu": accelerator(devices=2)}))
    world.settle()
    waiting(world, 1)
    with_class(world, accelerator(devices=1, claims=(HIGHER,)))
    blind = replace(world.seen, incomplete=("pods",))
    assert plan(blind, world.memory, world.now)[0].changes == ()
    with_class(world, accelerator(devices=1, claims=(replace(HIGHER, priority=0),)))
    outcome = plan(world.seen, world.memory, world.now)[0]
    assert outcome.changes == ()
    assert said(outcome, "Scheduled")[1] == "Unschedulable"


def test_a_pending_pod_on_an_elastic_class_is_expected_until_the_usual_time_has_passed() -> None:
    world = World(observation(classes={"cpu": accelerator(devices=0, capacity=ELASTIC)}))
    world.settle()
    waiting(world, 1, created=world.now)
    outcome = plan(world.seen, world.memory, world.now + timedelta(seconds=30))[0]
    assert said(outcome, "Scheduled")[:2] == ("False", "Provisioning")
    assert outcome.requeue_after_seconds == 90
    outcome = plan(world.seen, world.memory, world.now + timedelta(seconds=121))[0]
    assert said(outcome, "Scheduled")[:2] == ("False", "StockOut")
    assert "120 s" in said(outcome, "Scheduled")[2]
    assert (outcome.changes, outcome.removals) == ((), ()), "there is nothing else to be had: it waits on"
    assert len(outcome.variants) == 1


def test_after_a_stock_out_the_next_accelerator_is_taken_and_kept() -> None:
    choices = [{"name": n, "classRef": {"name": n}} for n in ("gpu", "cpu")]
    elastic = accelerator("gpu", devices=0, capacity=ELASTIC)
    world = World(observation(spec(entry(accelerators=choices)), classes={"gpu": elastic, "cpu": accelerator()}))
    world.loading = True
    world.step()
    waiting(world, 1, created=world.now)
    world.now += timedelta(seconds=200)
    outcome = world.step()
    assert [v.accelerator for v in outcome.variants] == ["cpu"]
    assert [(r.option, r.reason) for r in outcome.decisions[0].rejected] == [("gpu", "StockOut")]
    world.loading = False
    world.settle()
    assert [v.accelerator for v in world.plans[-1].variants] == ["cpu"]
    assert [v.identity.accelerator_class for v in world.seen.variants if v.identity] == ["cpu"]


def test_with_replicas_that_serve_a_stock_out_moves_nothing() -> None:
    choices = [{"name": n, "classRef": {"name": n}} for n in ("gpu", "cpu")]
    elastic = accelerator("gpu", devices=0, capacity=ELASTIC)
    declared = spec(entry(accelerators=choices, replicas={"min": 2}))
    world = World(observation(declared, classes={"gpu": elastic, "cpu": accelerator()}))
    world.settle()
    waiting(world, 1, created=world.now - timedelta(seconds=500))
    outcome = plan(world.seen, world.memory, world.now)[0]
    assert [v.accelerator for v in outcome.variants] == ["gpu"]
    assert said(outcome, "Scheduled")[1] == "StockOut"
    assert said(outcome, "WorkloadAvailable")[0] == "True"


def rolling(world: World, *extra: PodView, **over: object) -> Plan:
    v = world.seen.variants[0]
    fields = {"replicas": v.desired_replicas + 1, "updated_replicas": 1, "pods": (*v.pods, *extra), **over}
    world.seen = replace(world.seen, variants=(replace(v, **fields),))  # type: ignore[arg-type]
    return plan(world.seen, world.memory, world.now)[0]


@pytest.mark.parametrize("reason", ["Unschedulable", "ImagePullBackOff", "CrashLoopBackOff"])
def test_a_rollout_that_cannot_go_on_says_which_pod_holds_it_back(reason: str) -> None:
    world = World(observation())
    world.settle()
    pod = PodView(
        "new-1", "uid-new", START, False, reason != "Unschedulable", False, reason=reason, message="why", container="c"
    )
    outcome = rolling(world, pod)
    status, why, message = said(outcome, "UpToDate")
    assert (status, why) == ("False", "RolloutBlocked")
    assert "new-1" in message
    assert "why" in message
    assert said(outcome, "Ready")[0] == "True", "the old replica serves"
    assert said(rolling(world, replace(pod, reason="", message="")), "UpToDate")[1] == "RolloutBlocked"


def test_a_rollout_whose_new_pod_only_starts_is_under_way() -> None:
    world = World(observation())
    world.settle()
    pod = PodView("new-1", "uid-new", START, False, True, False)
    assert said(rolling(world, pod), "UpToDate")[1] == "RollingOut"


def test_surge_is_decided_when_pods_roll_and_not_before() -> None:
    world = World(observation(classes={"cpu": accelerator(devices=2)}))
    world.settle()
    v = world.seen.variants[0]
    world.seen = replace(world.seen, variants=(replace(v, surge=True),))
    with_class(world, accelerator(devices=1))
    (wanted,) = plan(world.seen, Memory(), world.now)[0].variants
    assert (wanted.surge, wanted.resting_surge) == (False, True)
    (wanted,) = rolling(world).variants
    assert (wanted.surge, wanted.resting_surge) == (False, None)


def test_what_more_devices_would_change_is_known() -> None:
    short = plan(
        observation(spec(entry(replicas={"min": 5})), classes={"cpu": accelerator(devices=3)}), Memory(), START
    )[0]
    none = plan(observation(classes={"cpu": accelerator(devices=0)}), Memory(), START)[0]
    enough = plan(observation(), Memory(), START)[0]
    assert (short.wants, none.wants, enough.wants) == ({"cpu": Want(2, 1)}, {"cpu": Want(1, 1)}, {})


@pytest.mark.parametrize(
    ("wanted", "at_once", "priority", "free"),
    [(1, 1, 10, 2), (9, 1, 10, 0), (4, 4, 10, 3), (2, 2, 10, 1), (9, 2, 10, 1), (9, 1, 0, 3), (9, 1, -5, 3)],
)
def test_what_a_higher_priority_would_take_now_is_not_free_for_a_lower_one(
    wanted: int, at_once: int, priority: int, free: int
) -> None:
    claim = Claim("other/wants", "cpu", 1, priority, 1, wanted, at_once)
    assert free_devices(accelerator(devices=4, claims=(claim,)), 0, 0) == free
