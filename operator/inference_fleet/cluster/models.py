"""An InferenceModel: inspected once by a Job that reads only headers, and what came of that. Pure.

The Job answers by its pod's termination message. A failure is tried again after a delay that grows; the failed Job stays until
then, so that its log can be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import orjson
from pydantic import ValidationError

from inference_fleet.api.conditions import Condition, ConditionType, Status, with_times
from inference_fleet.api.model import InferenceModelStatus, ModelFacts, ResolvedArtifact
from inference_fleet.cluster.kinds import GROUP
from inference_fleet.cluster.seen import JobSeen, ModelSeen, PodSeen

ATTEMPT_ANNOTATION = f"{GROUP}/attempt"
FIRST_RETRY_SECONDS = 30.0
LARGEST_RETRY_SECONDS = 1800.0

REMEDIES = {
    "NotFound": "Check the source's address, revision and file.",
    "Unauthorized": "Check the token and its access to the repository.",
    "Unreachable": "Check the network, and the hub's address.",
    "DigestMismatch": "The file is not the one whose digest was declared: correct sha256 or the URL.",
    "Unsupported": "Only GGUF and safetensors are read.",
    "Malformed": "The file is damaged or not what its name says.",
    "SecretMissing": "Create the Secret that the source refers to, in the same namespace.",
}


@dataclass(frozen=True, slots=True)
class Inspected:
    """What an inspection found."""

    resolved: ResolvedArtifact
    facts: ModelFacts


@dataclass(frozen=True, slots=True)
class Failed:
    """Why an inspection found nothing."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """What one pass over a model does. `create`: the attempt to start. `remove`: finished Jobs that make room for it."""

    status: dict[str, Any]
    create: int | None = None
    remove: tuple[JobSeen, ...] = ()
    requeue_after_seconds: float | None = None


def read_answer(words: str) -> Inspected | Failed:
    """From a termination message."""
    try:
        document = orjson.loads(words)
        if "error" in document:
            error = document["error"]
            return Failed(str(error["reason"])[:64] or "InspectionFailed", str(error.get("message", "")))
        return Inspected(
            ResolvedArtifact.model_validate(document["resolved"]), ModelFacts.model_validate(document["facts"])
        )
    except (orjson.JSONDecodeError, ValidationError, KeyError, TypeError) as error:
        said = words.strip()[:200]
        return Failed("NoAnswer", f"The inspection ended without a usable answer ({type(error).__name__}): {said!r}")


def attempt_of(job: JobSeen) -> int:
    """Which attempt a Job is; the first where it does not say."""
    text = job.meta.annotations.get(ATTEMPT_ANNOTATION, "1")
    return int(text) if text.isdigit() else 1


def retry_seconds(attempt: int) -> float:
    """How long after the end of a failed attempt the next begins."""
    return min(LARGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(attempt - 1, 16))


def plan_model(
    seen: ModelSeen, jobs: Iterable[JobSeen], pods: Sequence[PodSeen], previous: Sequence[Condition], now: datetime
) -> ModelPlan:
    """One pass. `jobs` are this model's own, `pods` those of its Jobs."""
    if seen.spec is None:
        return ModelPlan(_status(seen, None, Failed("InvalidSpec", seen.invalid_message), previous, now))
    if seen.resolved is not None and seen.facts is not None:
        return ModelPlan(_status(seen, Inspected(seen.resolved, seen.facts), None, previous, now))
    job = max(jobs, key=lambda j: (attempt_of(j), j.meta.created), default=None)
    if job is None:
        return ModelPlan(_status(seen, None, None, previous, now), create=1)
    pod = max((p for p in pods if p.meta.owner_uid == job.meta.uid), key=lambda p: p.meta.created, default=None)
    if not job.finished:
        held_back = Failed(pod.reason, pod.message) if pod is not None and pod.reason else None
        said = read_answer(pod.last_words) if pod is not None and pod.last_words else None
        if isinstance(said, Failed):
            held_back = said  # the Job tries again by itself, but people need not wait to know why
        return ModelPlan(_status(seen, None, held_back, previous, now))
    answer = read_answer(pod.last_words) if pod is not None and pod.last_words else _without_words(job, pod)
    if isinstance(answer, Inspected):
        return ModelPlan(_status(seen, answer, None, previous, now))
    attempt = attempt_of(job)
    wait = retry_seconds(attempt)
    due = (job.finished_at or job.meta.created) + timedelta(seconds=wait)
    status = _status(seen, None, answer, previous, now, f" Tried again {wait:.0f} s after attempt {attempt}.")
    if now < due:
        return ModelPlan(status, requeue_after_seconds=(due - now).total_seconds() + 0.5)
    return ModelPlan(status, create=attempt + 1, remove=(job,))


def _without_words(job: JobSeen, pod: PodSeen | None) -> Failed:
    if pod is not None and pod.reason:
        return Failed(pod.reason, pod.message)
    return Failed("NoAnswer", job.message or "The inspection ended without an answer, or its pod is gone.")


def _status(
    seen: ModelSeen,
    found: Inspected | None,
    failed: Failed | None,
    previous: Sequence[Condition],
    now: datetime,
    more: str = "",
) -> dict[str, Any]:
    inspected = _inspected(seen, found, failed, more)
    ready = inspected.model_copy(update={"type": ConditionType.READY.value})
    return InferenceModelStatus(
        observed_generation=seen.meta.generation,
        resolved=found.resolved if found is not None else seen.resolved,
        facts=found.facts if found is not None else seen.facts,
        conditions=with_times(previous, (ready, inspected), now),
    ).to_dict()


def _inspected(seen: ModelSeen, found: Inspected | None, failed: Failed | None, more: str) -> Condition:
    def say(status: Status, reason: str, message: str) -> Condition:
        return Condition(
            type=ConditionType.INSPECTED.value,
            status=status,
            reason=reason,
            message=message,
            observed_generation=seen.meta.generation,
        )

    if found is not None:
        declared = seen.spec.facts if seen.spec is not None else None
        wrong = declared.contradictions(found.facts) if declared is not None else ()
        if wrong:
            message = f"spec.facts contradicts what was found: {'; '.join(wrong)}. Correct spec.facts or leave it out."
            return say(Status.FALSE, "FactsContradicted", message)
        return say(
            Status.TRUE, "Inspected", f"{found.resolved.format.value}, {found.resolved.weight_bytes} bytes of weights."
        )
    if failed is not None:
        remedy = REMEDIES.get(failed.reason, "")
        text = " ".join(part for part in (_sentence(failed.message), remedy) if part)
        return say(Status.FALSE, _word(failed.reason), f"{text}{more}")
    return say(Status.UNKNOWN, "Inspecting", "A Job reads the headers.")


def _sentence(text: str) -> str:
    plain = text.strip()
    return plain if not plain or plain[-1] in ".!?" else f"{plain}."


def _word(reason: str) -> str:
    """A reason as a condition allows it."""
    plain = "".join(c for c in reason if c.isalnum())
    return plain if plain[:1].isalpha() and plain[:1].isupper() else "InspectionFailed"
