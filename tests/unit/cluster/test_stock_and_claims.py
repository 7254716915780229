"""Devices: how many there are, who holds them, whose turn it is."""

from __future__ import annotations

import asyncio

import pytest

from inference_fleet.api.accelerator import AcceleratorClassSpec
from inference_fleet.cluster.claims import Entry, Ledger, Turns
from inference_fleet.cluster.stock import Usage, usage
from inference_fleet.plan.outcome import Want
from tests.unit.cluster.objects import OURS, node_seen, pod_seen

GPU = AcceleratorClassSpec.model_validate(
    {
        "resourceName": "nvidia.com/gpu",
        "memory": "24Gi",
        "nodeSelector": {"pool": "a"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
    }
)
CPU = AcceleratorClassSpec.model_validate({"memory": "4Gi", "requestsPerDevice": {"cpu": "2", "memory": "4Gi"}})
IN_POOL = {"pool": "a"}
FOUR = {"nvidia.com/gpu": "4", "cpu": "8", "memory": "32Gi"}


def test_only_nodes_that_a_pod_could_be_put_on_count() -> None:
    nodes = [
        node_seen("good", FOUR, IN_POOL),
        node_seen("other-pool", FOUR, {"pool": "b"}),
        node_seen("tolerated", FOUR, IN_POOL, taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]),
        node_seen("preferred", FOUR, IN_POOL, taints=[{"key": "x", "value": "", "effect": "PreferNoSchedule"}]),
        node_seen("tainted", FOUR, IN_POOL, taints=[{"key": "x", "value": "", "effect": "NoExecute"}]),
        node_seen("not-ready", FOUR, IN_POOL, ready="Unknown"),
        node_seen("cordoned", FOUR, IN_POOL, unschedulable=True),
    ]
    assert usage(GPU, nodes, ()) == Usage(allocatable=12, used_by_others=0)


def test_pods_of_no_policy_use_devices_until_they_end() -> None:
    one = {"nvidia.com/gpu": "1"}
    pods = [
        pod_seen("theirs", node="n", requests=one),
        pod_seen("ended", node="n", requests=one, status={"phase": "Succeeded"}),
        pod_seen("waiting", requests=one),
        pod_seen("elsewhere", node="m", requests=one),
        pod_seen("ours", node="n", requests=one, labels={**OURS, "inference-fleet.dev/policy": "chat"}),
    ]
    assert usage(GPU, [node_seen("n", FOUR, IN_POOL)], pods) == Usage(allocatable=4, used_by_others=1)


def test_on_a_cpu_class_cores_and_memory_must_both_be_left() -> None:
    nodes = [node_seen("n", FOUR), node_seen("m", {"cpu": "16", "memory": "8Gi"})]
    assert usage(CPU, nodes, ()).allocatable == 4 + 2
    hungry = pod_seen("theirs", node="n", requests={"cpu": "100m", "memory": "20Gi"})
    assert usage(CPU, nodes, [hungry]).used_by_others == 1
    assert usage(CPU, nodes, [pod_seen("theirs", node="n", requests={"cpu": "7", "memory": "1Gi"})]).used_by_others == 4


def test_a_policy_sees_the_claims_of_all_others_with_what_they_hold() -> None:
    ledger = Ledger()
    ledger.enter("d/a", Entry({"gpu": 2}, priority=5))
    ledger.enter("d/b", Entry({"gpu": 1, "cpu": 3}, priority=0))
    (claim,) = ledger.of_others("d/b", "gpu", {"d/a": 1})
    assert (claim.policy, claim.devices, claim.priority, claim.held_devices) == ("d/a", 2, 5, 1)
    assert ledger.total("gpu") == 3


def test_only_those_whom_a_change_concerns_are_woken() -> None:
    ledger = Ledger()
    ledger.enter("d/high", Entry({"gpu": 1}, priority=5))
    ledger.enter("d/low", Entry({"gpu": 1}, priority=-5))
    ledger.enter("d/same", Entry({"gpu": 1}, priority=0))
    ledger.enter("d/wants", Entry({}, priority=9, wants={"gpu": Want(1, 1)}))
    ledger.enter("d/elsewhere", Entry({"cpu": 1}, priority=-5, wants={"cpu": Want(1, 1)}))
    ledger.enter("d/me", Entry({"gpu": 2}, priority=0))
    assert ledger.concerned("d/me", "gpu") == {"d/low", "d/wants"}
    held = {"d/high": 1, "d/low": 1, "d/me": 1}
    assert ledger.unsatisfied("gpu", held) == {"d/wants", "d/me", "d/same"}
    (wanting,) = (c for c in ledger.of_others("d/me", "gpu", held) if c.policy == "d/wants")
    assert (wanting.devices, wanting.wanted_devices, wanting.wanted_at_once) == (0, 1, 1)


def test_claims_follow_what_pods_hold_from_count_to_count() -> None:
    ledger = Ledger()
    ledger.enter("d/a", Entry({"gpu": 1}, 0))
    ledger.enter("d/b", Entry({"gpu": 1}, 0))
    assert [c.held_devices for c in ledger.of_others("d/x", "gpu", {"d/a": 1})] == [1, 0]
    assert [c.held_devices for c in ledger.of_others("d/x", "gpu", {"d/b": 1})] == [0, 1]
    ledger.enter("d/b", Entry({"gpu": 2}, 3))
    assert [(c.policy, c.devices, c.priority, c.held_devices) for c in ledger.of_others("d/a", "gpu", {"d/b": 1})] == [
        ("d/b", 2, 3, 1)
    ]
    ledger.drop("d/b")
    assert ledger.of_others("d/a", "gpu", {"d/b": 1}) == ()


def test_pods_that_linger_count_although_their_claim_is_smaller() -> None:
    ledger = Ledger()
    ledger.enter("d/a", Entry({"gpu": 1}, 0))
    (claim,) = ledger.of_others("d/b", "gpu", {"d/a": 3})
    assert claim.devices == 3


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        (None, Entry({"gpu": 1}, 0), {"gpu"}),
        (Entry({"gpu": 1}, 0), Entry({"gpu": 1}, 0), set()),
        (Entry({"gpu": 2}, 0), Entry({"gpu": 1, "cpu": 1}, 0), {"gpu", "cpu"}),
        (Entry({"gpu": 2}, 0), Entry({"gpu": 2}, 9), {"gpu"}),
        (Entry({"gpu": 2}, 0), Entry({}, 0), {"gpu"}),
    ],
)
def test_entering_says_for_which_classes_others_must_look_again(
    before: Entry | None, after: Entry, changed: set[str]
) -> None:
    ledger = Ledger()
    if before is not None:
        ledger.enter("d/a", before)
    assert ledger.enter("d/a", after) == changed


def test_a_policy_that_is_gone_frees_its_classes() -> None:
    ledger = Ledger()
    ledger.enter("d/a", Entry({"gpu": 2}, 0))
    assert ledger.drop("d/a") == {"gpu"}
    assert ledger.drop("d/a") == frozenset()
    assert ledger.total("gpu") == 0


async def test_passes_that_touch_one_class_take_turns_and_others_do_not_wait() -> None:
    turns, running, most = Turns(), 0, 0
    order: list[str] = []

    async def touch(name: str, *classes: str) -> None:
        nonlocal running, most
        async with turns.of(classes):
            running += 1
            most = max(most, running)
            for _ in range(3):
                await asyncio.sleep(0)
            order.append(name)
            running -= 1

    await asyncio.wait_for(asyncio.gather(touch("1", "a", "b"), touch("2", "b", "a"), touch("3", "b")), 1)
    assert most == 1
    await asyncio.wait_for(asyncio.gather(touch("4", "a"), touch("5", "c")), 1)
    assert most == 2


async def test_a_turn_is_given_back_when_a_pass_fails_or_is_cancelled() -> None:
    turns = Turns()
    with pytest.raises(ValueError, match="x"):
        async with turns.of(["a"]):
            raise ValueError("x")

    async def hold() -> None:
        async with turns.of(["a", "b"]):
            await asyncio.sleep(60)

    task = asyncio.create_task(hold())
    await asyncio.sleep(0)
    waiting = asyncio.create_task(hold())
    await asyncio.sleep(0)
    waiting.cancel()
    task.cancel()
    await asyncio.gather(task, waiting, return_exceptions=True)

    async def take() -> None:
        async with turns.of(["a", "b"]):
            pass

    await asyncio.wait_for(take(), 1)
