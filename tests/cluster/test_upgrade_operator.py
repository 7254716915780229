"""A newer operator, with another image and another way to render: no engine pod restarts until somebody asks for it."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import KwokCluster
from tests.support.fleet import Fleet, accelerator_class, add_gpu_node, cluster, inspected, model, policy
from tests.support.running_operator import RunningOperator

__all__ = ["cluster"]

NEWER = """
import sys
from inference_fleet.render import revisions
revisions.NEWEST = 2
from inference_fleet.naming import TEMPLATE_HASH_ANNOTATION, canonical_json, digest
from inference_fleet.engines.base import engine
from inference_fleet.render import variant
from inference_fleet.render.manifests import stamped

def second(desired, policy, settings):
    known = engine(desired.engine.engine, desired.engine.version)
    made = variant._deployment(desired, policy, settings, known, revision=2)
    template = made["spec"]["template"]
    template["spec"]["containers"][0].setdefault("env", []).append({"name": "RENDERED_BY", "value": "2"})
    made["metadata"]["annotations"][TEMPLATE_HASH_ANNOTATION] = digest(canonical_json(template), 64)
    return stamped(made), stamped(variant._service(desired, policy))

variant.RENDERERS = {**variant.RENDERERS, 2: second}
from inference_fleet.cli import main
sys.exit(main())
"""
"""The operator with one more revision: a flag of the engine's container has changed."""

REVISION = "inference-fleet.dev/render-revision"
IMAGE = "inference-fleet.dev/sidecar-image"


class Operators:
    """One after the other, under the same lease."""

    def __init__(self, cluster: KwokCluster, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        self._name = f"upgrade-{uuid.uuid4().hex[:6]}"
        self.current: RunningOperator | None = None

    def install(self, image: str, *, newer: bool = False) -> RunningOperator:
        if self.current is not None:
            assert self.current.stop() == 0
        flags = ("--resync-seconds", "2", "--scrape-seconds", "3", "--image", image)
        found = RunningOperator(self._cluster.kubeconfig, self._folder, self._name, *flags)
        if newer:
            found._words[:3] = [sys.executable, "-c", NEWER]
        self.current = found.start()
        return found


@pytest.fixture
def operators(cluster: KwokCluster, tmp_path: Path) -> Iterator[Operators]:
    found = Operators(cluster, tmp_path)
    try:
        yield found
    finally:
        if found.current is not None:
            found.current.kill()


@pytest.fixture
def place(cluster: KwokCluster, operators: Operators) -> Iterator[Fleet]:
    with cluster.namespace("upgrade") as namespace:
        add_gpu_node(cluster, f"gpu-{namespace}", namespace, gpus=8)
        cluster.apply(accelerator_class(namespace))
        cluster.apply(model("tiny"), namespace=namespace)
        inspected(cluster, namespace, "tiny")
        try:
            yield Fleet(cluster, namespace, operators.install("inference-fleet:1"))
        finally:
            cluster.run("kubectl", "delete", "accel", namespace)
            cluster.remove_node(f"gpu-{namespace}")


def declare(place: Fleet, *names: str) -> None:
    document = policy("chat", place.pool)
    (entry,) = document["spec"]["models"]
    document["spec"]["models"] = [{**entry, "name": name} for name in names]
    place.cluster.apply(document, namespace=place.namespace)


def templates(place: Fleet) -> dict[str, tuple[int, str]]:
    return {d["metadata"]["name"]: (d["metadata"]["generation"], str(d["spec"]["template"])) for d in place.engines()}


def pods(place: Fleet) -> dict[str, dict[str, Any]]:
    found = place.cluster.list("pod", place.namespace, "inference-fleet.dev/component=engine")
    return {p["metadata"]["uid"]: p for p in found if not p["metadata"].get("deletionTimestamp")}


def versions(place: Fleet) -> dict[str, tuple[str, str]]:
    annotations = {
        d["metadata"]["labels"]["inference-fleet.dev/model"]: d["metadata"]["annotations"] for d in place.engines()
    }
    return {name: (found[REVISION], found[IMAGE]) for name, found in annotations.items()}


def older(place: Fleet) -> dict[str, Any]:
    def look() -> dict[str, Any]:
        found: dict[str, Any] = place.condition("chat", "UpToDate", "False", seconds=0)
        assert found["reason"] == "OlderRevision", found
        return found

    found: dict[str, Any] = place.wait("an older revision is reported", look)
    return found


def annotate(place: Fleet, value: str) -> None:
    place.cluster.kubectl(
        "-n", place.namespace, "annotate", "--overwrite", "ipol", "chat", f"inference-fleet.dev/upgrade={value}"
    )


def became_ready(pod: dict[str, Any]) -> datetime:
    (ready,) = (c for c in pod["status"]["conditions"] if c["type"] == "Ready")
    return datetime.fromisoformat(ready["lastTransitionTime"])


def test_an_upgrade_of_the_operator_restarts_no_engine_until_it_is_asked_for(
    place: Fleet, operators: Operators
) -> None:
    declare(place, "one", "two", "three")
    place.condition("chat", "Ready")
    place.condition("chat", "UpToDate")
    place.settled()
    before, running = templates(place), set(pods(place))

    # Another image and another rendering.
    place.operator = operators.install("inference-fleet:2", newer=True)
    assert "upgrade=now" in older(place)["message"]
    place.settled()
    assert templates(place) == before
    assert set(pods(place)) == running
    assert set(versions(place).values()) == {("1", "inference-fleet:1")}
    place.condition("chat", "Ready")
    gateway = place.get("deployment", "chat-gateway")
    assert gateway is not None
    assert gateway["spec"]["template"]["spec"]["containers"][0]["image"] == "inference-fleet:2"

    # Scaling is no reason to roll.
    place.patch("ipol", "chat", {"op": "replace", "path": "/spec/models/0/replicas/min", "value": 2})
    place.wait("one more replica", lambda: len(pods(place)) == 4)
    assert running < set(pods(place))
    assert versions(place)["one"] == ("1", "inference-fleet:1")

    # What rolls anyway moves on with it.
    place.patch("ipol", "chat", {"op": "replace", "path": "/spec/models/0/contextTokens", "value": 1024})
    place.wait("the first has moved on", lambda: versions(place)["one"] == ("2", "inference-fleet:2"))
    assert versions(place)["two"] == versions(place)["three"] == ("1", "inference-fleet:1")
    older(place)

    # The annotation moves the others, one at a time.
    running = set(pods(place))
    annotate(place, "now")
    place.condition("chat", "UpToDate", seconds=60)
    assert set(versions(place).values()) == {("2", "inference-fleet:2")}
    fresh = sorted((p for uid, p in pods(place).items() if uid not in running), key=became_ready)
    assert len(fresh) == 2
    assert datetime.fromisoformat(fresh[1]["metadata"]["creationTimestamp"]) >= became_ready(fresh[0])
    assert all(
        p["spec"]["containers"][0]["env"][-1] == {"name": "RENDERED_BY", "value": "2"} for p in pods(place).values()
    )


def test_the_annotation_is_carried_out_once_and_another_value_asks_anew(place: Fleet, operators: Operators) -> None:
    declare(place, "one")
    place.condition("chat", "Ready")
    place.operator = operators.install("inference-fleet:2", newer=True)
    older(place)
    annotate(place, "now")
    place.condition("chat", "UpToDate", seconds=60)
    place.settled()
    assert (place.get("ipol", "chat") or {})["metadata"]["annotations"]["inference-fleet.dev/upgrade"] == "now"
    before, running = templates(place), set(pods(place))

    # A later version is not asked by it: that it was carried out outlives the process.
    place.operator = operators.install("inference-fleet:3", newer=True)
    assert "another value" in older(place)["message"]
    time.sleep(3)
    assert templates(place) == before
    assert set(pods(place)) == running
    annotate(place, "2026-12-01")
    place.condition("chat", "UpToDate", seconds=60)
    assert versions(place) == {"one": ("2", "inference-fleet:3")}
    assert not running & set(pods(place))
