"""An InferenceModel's pass: when a Job is started, what its answer becomes, when it is tried again."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from inference_fleet.cluster import kinds
from inference_fleet.cluster.models import ModelPlan, plan_model, read_answer, retry_seconds
from inference_fleet.cluster.observe import read_conditions
from inference_fleet.cluster.reading import READERS
from inference_fleet.cluster.report import worth_writing
from inference_fleet.cluster.seen import JobSeen, ModelSeen, PodSeen
from tests.unit.cluster.objects import OURS, metadata, pod_seen

NOW = datetime(2026, 12, 1, 13, 0, tzinfo=UTC)
FACTS = {
    "architecture": "llama", "parameters": 10, "layers": 2, "hiddenSize": 8, "keyValueHeads": 1, "attentionHeads": 2,
    "headDimension": 4, "attention": "GQA", "vocabularySize": 32, "tokensDigest": "d", "maxContextTokens": 64, "weightBits": 4,
}  # fmt: skip
RESOLVED = {"digest": "sha256:aa", "format": "GGUF", "weightBytes": 100}
FOUND = json.dumps({"resolved": RESOLVED, "facts": FACTS})


INSPECTED = {"resolved": RESOLVED, "facts": FACTS}


def model(status: dict[str, Any] | None = None, declared: dict[str, Any] | None = None) -> ModelSeen:
    spec: dict[str, Any] = {"source": {"http": {"url": "https://h/m.gguf", "sha256": "a" * 64}}}
    if declared:
        spec["facts"] = declared
    seen = READERS[kinds.MODEL]({"metadata": metadata("tiny"), "spec": spec, "status": status or {}})
    assert isinstance(seen, ModelSeen)
    return seen


def job(end: str = "", attempt: int = 1, ended: str = "2026-12-01T12:59:50Z") -> JobSeen:
    conditions = [{"type": end, "status": "True", "lastTransitionTime": ended}] if end else []
    seen = READERS[kinds.JOB](
        {
            "metadata": metadata("job", annotations={"inference-fleet.dev/attempt": str(attempt)}),
            "status": {"conditions": conditions},
        }
    )
    assert isinstance(seen, JobSeen)
    return seen


def answered(words: str, code: int = 0, **status: Any) -> PodSeen:
    shown = {"containerStatuses": [{"name": "inspect", "state": {"terminated": {"exitCode": code, "message": words}}}]}
    seen = pod_seen("p", labels={**OURS, "inference-fleet.dev/component": "inspect"}, status={**shown, **status})
    return replace(seen, meta=replace(seen.meta, owner_uid="uid-job"))


def conditions(plan: ModelPlan) -> dict[str, tuple[str, str, str]]:
    return {c["type"]: (c["status"], c["reason"], c["message"]) for c in plan.status["conditions"]}


def test_a_new_model_is_inspected_by_a_job() -> None:
    plan = plan_model(model(), [], [], (), NOW)
    assert plan.create == 1
    assert conditions(plan)["Inspected"][:2] == ("Unknown", "Inspecting")


def test_its_answer_becomes_the_status() -> None:
    plan = plan_model(model(), [job("Complete")], [answered(FOUND)], (), NOW)
    assert plan.create is None
    assert plan.status["facts"]["layers"] == 2
    assert plan.status["resolved"]["digest"] == "sha256:aa"
    assert conditions(plan)["Ready"][:2] == ("True", "Inspected")


def test_once_inspected_nothing_is_started_again() -> None:
    plan = plan_model(model(INSPECTED), [], [], (), NOW)
    assert (plan.create, plan.remove, plan.requeue_after_seconds) == (None, (), None)
    assert conditions(plan)["Ready"][0] == "True"


def test_declared_facts_that_contradict_what_was_found_are_named() -> None:
    plan = plan_model(model(declared={"layers": 3}), [job("Complete")], [answered(FOUND)], (), NOW)
    status, reason, message = conditions(plan)["Inspected"]
    assert (status, reason) == ("False", "FactsContradicted")
    assert "layers: declared 3, found 2" in message


@pytest.mark.parametrize(
    "reason", ["NotFound", "Unauthorized", "Unreachable", "DigestMismatch", "Unsupported", "Malformed"]
)
def test_a_failure_keeps_its_reason_gives_a_remedy_and_is_tried_again_later(reason: str) -> None:
    words = json.dumps({"error": {"reason": reason, "message": "it went wrong"}})
    plan = plan_model(model(), [job("Failed")], [answered(words, 1)], (), NOW)
    status, said, message = conditions(plan)["Ready"]
    assert (status, said) == ("False", reason)
    assert message.startswith("it went wrong. ")
    assert "attempt 1" in message
    assert (plan.create, plan.remove) == (None, ())
    assert plan.requeue_after_seconds == pytest.approx(20.5)


def test_when_the_delay_is_over_the_failed_job_makes_room_for_the_next_attempt() -> None:
    failed = job("Failed", attempt=2)
    plan = plan_model(model(), [failed], [answered("{}", 1)], (), NOW + timedelta(seconds=retry_seconds(2)))
    assert plan.create == 3
    assert plan.remove == (failed,)


def test_retries_come_later_each_time_and_never_end() -> None:
    assert [retry_seconds(n) for n in (1, 2, 3, 7, 50)] == [30, 60, 120, 1800, 1800]


def test_what_holds_a_running_inspection_back_is_said_while_it_lasts() -> None:
    held = replace(answered(""), reason="SecretMissing", message='secret "hf" not found', last_words="")
    plan = plan_model(model(), [job()], [held], (), NOW)
    assert conditions(plan)["Inspected"][:2] == ("False", "SecretMissing")
    assert "Create the Secret" in conditions(plan)["Inspected"][2]


def test_an_early_answer_of_a_job_that_still_tries_is_said() -> None:
    words = json.dumps({"error": {"reason": "NotFound", "message": "404"}})
    plan = plan_model(model(), [job()], [answered(words, 1)], (), NOW)
    assert conditions(plan)["Inspected"][:2] == ("False", "NotFound")
    assert plan.create is None


@pytest.mark.parametrize("words", ["", "not json", "[]", "{}", '{"error": {}}', '{"resolved": {}, "facts": {}}'])
def test_an_answer_that_is_none_is_a_failure_not_a_crash(words: str) -> None:
    answer = read_answer(words)
    assert type(answer).__name__ == "Failed"


def test_a_pod_that_is_gone_left_no_answer() -> None:
    plan = plan_model(model(), [job("Complete")], [], (), NOW)
    assert conditions(plan)["Inspected"][:2] == ("False", "NoAnswer")


def test_an_unchanged_model_computes_the_status_it_has() -> None:
    first = plan_model(model(INSPECTED), [], [], (), NOW).status
    again = plan_model(model(first), [], [], read_conditions(first), NOW + timedelta(hours=1)).status
    assert again == first
    assert not worth_writing(first, again, 1e9)
