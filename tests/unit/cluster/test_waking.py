"""Which passes an event causes."""

from __future__ import annotations

from inference_fleet.cluster import kinds
from inference_fleet.cluster.reading import READERS
from inference_fleet.cluster.waking import References, wakes
from tests.unit.cluster.objects import OURS, deployment_seen, metadata, node_seen, pod_seen, policy_seen

CLASSES = ("gpu", "cpu")


def references() -> References:
    found = References()
    found.note(policy_seen("chat"), "default/chat")
    return found


def keys(*arguments: object) -> list[str]:
    return [wake.key for wake in wakes(*arguments, references(), CLASSES)]  # type: ignore[arg-type]


def model(name: str, version: int = 1, **status: object) -> object:
    source = {"http": {"url": "https://h/m.gguf", "sha256": "a" * 64}}
    return READERS[kinds.MODEL]({"metadata": metadata(name, version), "spec": {"source": source}, "status": status})


def test_a_policy_wakes_itself() -> None:
    assert keys(kinds.POLICY, None, policy_seen("chat")) == ["policy:default/chat"]
    assert keys(kinds.POLICY, policy_seen("chat"), None) == ["policy:default/chat"]


def test_a_model_wakes_itself_and_the_policies_that_use_it() -> None:
    assert keys(kinds.MODEL, None, model("tiny")) == ["model:default/tiny", "policy:default/chat"]
    assert keys(kinds.MODEL, None, model("unused")) == ["model:default/unused"]


def test_our_own_verdict_on_a_model_wakes_only_its_policies() -> None:
    ready = {"conditions": [{"type": "Ready", "status": "False", "reason": "NotFound"}]}
    assert keys(kinds.MODEL, model("tiny"), model("tiny", 2, **ready)) == ["policy:default/chat"]


def test_what_a_policy_owns_wakes_it() -> None:
    assert keys(kinds.DEPLOYMENT, None, deployment_seen("chat-small-1")) == ["policy:default/chat"]
    engine = {**OURS, "inference-fleet.dev/policy": "chat", "inference-fleet.dev/component": "engine"}
    assert keys(kinds.POD, None, pod_seen("p", labels=engine)) == ["policy:default/chat"]


def test_an_inspections_pod_and_job_wake_the_model() -> None:
    labels = {**OURS, "inference-fleet.dev/component": "inspect", "inference-fleet.dev/model": "tiny"}
    assert keys(kinds.POD, None, pod_seen("p", labels=labels)) == ["model:default/tiny"]
    job = READERS[kinds.JOB]({"metadata": metadata("j", labels=labels), "status": {}})
    assert keys(kinds.JOB, None, job) == ["model:default/tiny"]


def test_nodes_and_other_peoples_pods_make_classes_be_counted_again_but_not_at_once() -> None:
    node = node_seen("n", {"nvidia.com/gpu": "4"})
    found = wakes(kinds.NODE, None, node, references(), CLASSES)
    assert [w.key for w in found] == ["class:gpu", "class:cpu"]
    assert all(w.delay >= 1 for w in found)
    assert keys(kinds.POD, None, pod_seen("theirs", node="n")) == ["class:gpu", "class:cpu"]
    assert keys(kinds.POD, None, pod_seen("theirs")) == [], "it holds nothing yet"


def test_references_follow_the_policy_and_survive_a_spec_that_cannot_be_read() -> None:
    found = references()
    broken = policy_seen("chat", spec={"models": []})
    assert broken.spec is None
    found.note(broken, "default/chat")
    assert [w.key for w in found.users_of("model:default/tiny")] == ["policy:default/chat"]
    found.note(None, "default/chat")
    assert list(found.users_of("model:default/tiny")) == []
