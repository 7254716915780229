"""What users change while clients stream: not one request may fail, not one stream may be cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hack.images.catalog import SMOLLM2
from hack.models.extra import EIGHT_BIT
from tests.e2e import objects
from tests.e2e.conftest import Fleet
from tests.e2e.load import Load

STREAMS = 100
"""Each change is judged over at least so many streams."""

Change = Callable[[Fleet, str, str], dict[str, Any]]


def another_quantization(fleet: Fleet, namespace: str, cpu: str) -> dict[str, Any]:
    fleet.cluster.apply(objects.model("smollm2-q8", EIGHT_BIT), namespace=namespace)
    return objects.entry(cpu, "smollm2-q8", "Q8_0")


def another_accelerator(fleet: Fleet, namespace: str, cpu: str) -> dict[str, Any]:
    return objects.entry(f"{cpu}-b")


def two_devices(fleet: Fleet, namespace: str, cpu: str) -> dict[str, Any]:
    return objects.entry(cpu, accelerators=[{"name": "cpu", "classRef": {"name": cpu}, "devicesPerReplica": 2}])


def other_flags(fleet: Fleet, namespace: str, cpu: str) -> dict[str, Any]:
    return objects.entry(cpu, contextTokens=1280, batching={"maxSequences": 6})


REPLACING = {"quantization": another_quantization, "accelerator": another_accelerator, "devices": two_devices}
"""Another variant takes over."""


def started(fleet: Fleet, namespace: str, cpu: str, replicas: int = 1) -> str:
    """A policy that serves; its URL."""
    fleet.cluster.apply(objects.accelerator(f"{cpu}-b", memory="800Mi"))
    fleet.cluster.apply(
        objects.model("smollm2", SMOLLM2),
        objects.policy("busy", objects.entry(cpu, replicas={"min": replicas})),
        namespace=namespace,
    )
    fleet.ready("busy", namespace)
    return fleet.url("busy", namespace)


def judged(fleet: Fleet, namespace: str, load: Load) -> None:
    """Prints the figures, and fails on a failed request or a cut stream, with what gateway and engines have to say."""
    tally = load.tally
    print(tally)
    if tally.failures or tally.cuts:
        gateways = fleet.pods("busy", namespace, "gateway")
        attempts = [
            line for pod in gateways for line in fleet.metrics(pod, 9090).splitlines() if "upstream_attempts" in line
        ]
        decisions = [fleet.cluster.fetch(f"http://{pod['status']['podIP']}:9090/debug/decisions") for pod in gateways]
        said = [*tally.failures[:10], *tally.cuts[:10], *attempts, *decisions, fleet.cluster.describe(namespace)]
        pytest.fail(f"{tally}\n" + "\n".join(said))
    assert tally.whole >= STREAMS, str(tally)


@pytest.fixture(autouse=True)
def second_class(fleet: Fleet, cpu: str) -> Any:
    yield
    fleet.cluster.run("kubectl", "delete", "acceleratorclass", f"{cpu}-b", "--ignore-not-found", "--wait=false")


@pytest.mark.parametrize("change", REPLACING.values(), ids=REPLACING.keys())
def test_another_variant_takes_over(fleet: Fleet, namespace: str, cpu: str, change: Change) -> None:
    load = Load(started(fleet, namespace, cpu), "small")
    (before,) = fleet.engines("busy", namespace)
    with load.running(STREAMS):
        fleet.patch("busy", namespace, {"models": [change(fleet, namespace, cpu)]})
        fleet.ready("busy", namespace, 240)

        def alone() -> dict[str, Any]:
            (after,) = fleet.engines("busy", namespace)
            assert after["metadata"]["name"] != before["metadata"]["name"]
            return after

        fleet.cluster.wait_for("the old variant is gone", alone, 180, namespace)
    judged(fleet, namespace, load)


def test_a_flag_rolls_the_same_variant(fleet: Fleet, namespace: str, cpu: str) -> None:
    load = Load(started(fleet, namespace, cpu, replicas=2), "small")
    (before,) = fleet.engines("busy", namespace)
    old = {pod["metadata"]["name"] for pod in fleet.pods("busy", namespace)}
    with load.running(STREAMS):
        entry = other_flags(fleet, namespace, cpu)
        fleet.patch("busy", namespace, {"models": [{**entry, "replicas": {"min": 2}}]})
        fleet.ready("busy", namespace, 300)
        (rolled,) = fleet.engines("busy", namespace)
        assert rolled["status"]["updatedReplicas"] == 2, "UpToDate was said before it was so"
        fleet.cluster.wait_rollout(before["metadata"]["name"], namespace, 240)
    judged(fleet, namespace, load)
    (after,) = fleet.engines("busy", namespace)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    new = fleet.pods("busy", namespace)
    assert len(new) == 2 and not old & {pod["metadata"]["name"] for pod in new}
    arguments = next(c for c in new[0]["spec"]["containers"] if c["name"] == "engine")["args"]
    assert arguments[arguments.index("--parallel") + 1] == "6"


def test_scaling_down(fleet: Fleet, namespace: str, cpu: str) -> None:
    load = Load(started(fleet, namespace, cpu, replicas=3), "small", clients=6)
    with load.running(STREAMS):
        fleet.patch("busy", namespace, {"models": [objects.entry(cpu, replicas={"min": 1})]})
        fleet.cluster.wait_for("one pod is left", lambda: len(fleet.pods("busy", namespace)) == 1, 240, namespace)
    judged(fleet, namespace, load)
    fleet.ready("busy", namespace)
