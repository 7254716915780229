"""Laws of planning over generated histories: edits, losses, half views and slow starts in any order."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from inference_fleet.plan.decide import plan
from inference_fleet.plan.observation import Observation
from inference_fleet.plan.outcome import Memory
from tests.unit.plan.world import START, World, accelerator, entry, model, observation, spec

KINDS = st.sampled_from(["Auto", "F16", "Q8_0", "Q4_0"])
MINIMA = st.integers(1, 4)
EDITS = st.one_of(
    st.tuples(st.just("declare"), KINDS, MINIMA, st.integers(1, 2)),
    st.tuples(st.just("loading"), st.booleans()),
    st.tuples(st.just("blind"), st.booleans()),
    st.tuples(st.just("model"), st.booleans()),
    st.tuples(st.just("reads"), st.booleans()),
    st.tuples(st.just("broken")),
)
LAWS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def declared(kind: str, minimum: int, devices: int) -> object:
    build = {"name": "q4", "modelRef": {"name": "smollm2"}, "quantization": {"keyValueCache": kind}}
    choice = {"name": "cpu", "classRef": {"name": "cpu"}, "devicesPerReplica": devices}
    return spec(entry(builds=[build], accelerators=[choice], replicas={"min": minimum}))


def carry_out(world: World, edit: tuple) -> None:  # type: ignore[type-arg]
    match edit:
        case ("declare", kind, minimum, devices):
            world.edit(declared(kind, minimum, devices))  # type: ignore[arg-type]
        case ("loading", loading):
            world.loading = loading
        case ("blind", blind):
            world.seen = replace(world.seen, incomplete=("pods",) if blind else ())
        case ("model", there):
            world.seen = replace(world.seen, models={"smollm2": model()} if there else {})
        case ("reads", reads):
            world.gateway_reads = reads
        case _:
            world.edit(None)


@LAWS
@given(edits=st.lists(EDITS, max_size=8), stock=st.integers(2, 16))
def test_whatever_happened_it_comes_to_rest_as_declared(edits: list, stock: int) -> None:  # type: ignore[type-arg]
    world = World(observation(classes={"cpu": accelerator(devices=stock)}))
    for edit in edits:
        carry_out(world, edit)
        world.step()
        world.step()
    world.loading, world.gateway_reads = False, True
    world.seen = replace(world.seen, incomplete=(), models={"smollm2": model()})
    world.edit(declared("Q8_0", 2, 1))  # type: ignore[arg-type]
    world.settle()
    assert [(v.desired_replicas, v.ready_replicas) for v in world.seen.variants] == [(2, 2)]
    assert world.most_devices.get("cpu", 0) <= stock


@LAWS
@given(edits=st.lists(EDITS, max_size=8))
def test_with_devices_to_spare_no_change_takes_routed_replicas_below_what_was_and_will_be(edits: list) -> None:  # type: ignore[type-arg]
    world = World(observation(classes={"cpu": accelerator(devices=64)}))
    world.settle()
    floor = world.ready
    world.fewest_ready = 10**9
    for edit in edits:
        if edit[0] == "declare":
            floor = min(floor, edit[2])
        carry_out(world, edit)
        for _ in range(3):
            world.step()
    assert world.fewest_ready >= floor


@LAWS
@given(edits=st.lists(EDITS, max_size=6))
def test_a_half_view_never_removes_or_scales_down(edits: list) -> None:  # type: ignore[type-arg]
    world = World(observation(classes={"cpu": accelerator(devices=8)}))
    world.settle()
    for edit in edits:
        carry_out(world, edit)
        blind = replace(world.seen, incomplete=("pods",))
        outcome, _ = plan(blind, world.memory, world.now)
        assert outcome.removals == ()
        assert [c for c in outcome.changes if c.after < c.before] == []
        world.step()


@LAWS
@given(edits=st.lists(EDITS, max_size=6))
def test_a_decision_can_be_replayed_from_a_file(edits: list) -> None:  # type: ignore[type-arg]
    world = World(observation())
    for edit in edits:
        carry_out(world, edit)
        world.step()
    adapter = TypeAdapter(Observation)
    again = adapter.validate_json(adapter.dump_json(world.seen))
    assert plan(again, Memory(), START) == plan(world.seen, Memory(), START)
