"""A real draft: staged and verified before the engine starts, its guesses counted by the engine itself."""

from __future__ import annotations

import re

import openai

from hack.images.catalog import GEMMA3, SMOLLM2
from hack.models.extra import DRAFT
from tests.e2e import objects
from tests.e2e.conftest import Fleet, condition

STORY = [{"role": "user", "content": "Tell me about the sea in three sentences."}]


def total(metrics: str, name: str) -> float:
    """Sum of a counter over its labels."""
    values = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", metrics, re.MULTILINE)
    assert values, f"there is no {name} in\n{metrics}"
    return sum(map(float, values))


def test_guesses_are_accepted_but_not_all(fleet: Fleet, namespace: str, cpu: str) -> None:
    entry = objects.entry(
        cpu,
        batching={"maxSequences": 2},
        speculation={"method": "DraftModel", "draftRef": {"name": "draft"}, "maxDepth": 4},
    )
    fleet.cluster.apply(objects.accelerator(cpu, memory="1Gi"))
    fleet.cluster.apply(
        objects.model("smollm2", SMOLLM2),
        objects.model("draft", DRAFT),
        objects.policy("drafted", entry),
        namespace=namespace,
    )
    fleet.ready("drafted", namespace)
    with openai.OpenAI(base_url=f"{fleet.url('drafted', namespace)}/v1", api_key=objects.KEY, max_retries=0) as client:
        for number in range(4):
            client.chat.completions.create(model="small", messages=STORY, max_tokens=64, temperature=0, seed=number)

    (pod,) = fleet.pods("drafted", namespace)
    sidecar = next(container for container in pod["spec"]["initContainers"] if container["name"] == "draft")
    assert sidecar["restartPolicy"] == "Always" and "startupProbe" in sidecar
    metrics = fleet.metrics(pod, 8000)
    drafted = total(metrics, "llamacpp:spec_decode_num_draft_tokens_total")
    accepted = total(metrics, "llamacpp:spec_decode_num_accepted_tokens_total")
    assert 0 < accepted < drafted, f"{accepted} of {drafted} guesses accepted"

    def reported() -> bool:
        found = fleet.cluster.get("ipol", "drafted", namespace) or {}
        (variant,) = found["status"]["variants"]
        percent = variant.get("speculation", {}).get("acceptedPercent")
        assert percent is not None and 0 < percent < 100, variant
        effective = condition(found, "SpeculationEffective")
        assert (effective["status"], effective["reason"]) == ("Unknown", "NoBaseline"), effective
        assert condition(found, "Ready")["status"] == "True"
        return True

    fleet.cluster.wait_for("the status shows how many guesses are accepted", reported, 120, namespace)
    own = fleet.metrics(pod, 8011)
    assert "accept" in own, own


def test_a_draft_of_another_vocabulary_is_refused_before_any_engine_starts(
    fleet: Fleet, namespace: str, cpu: str
) -> None:
    entry = objects.entry(
        cpu,
        "gemma",
        "AsStored",
        speculation={"method": "DraftModel", "draftRef": {"name": "smollm2"}, "maxDepth": 4},
    )
    fleet.cluster.apply(
        objects.accelerator(cpu, memory="2Gi"),
    )
    fleet.cluster.apply(
        objects.model("gemma", GEMMA3),
        objects.model("smollm2", SMOLLM2),
        objects.policy("odd", entry),
        namespace=namespace,
    )

    def refused() -> str:
        found = fleet.cluster.get("ipol", "odd", namespace) or {}
        reason = condition(found, "Ready")
        assert reason.get("reason") == "VocabularyMismatch", found.get("status")
        return str(reason["message"])

    message = fleet.cluster.wait_for("the draft is refused", refused, 120, namespace)
    plain = message.replace(",", "")
    assert "49152" in plain and "262144" in plain, message
    assert not fleet.engines("odd", namespace) and not fleet.pods("odd", namespace)


def test_a_model_that_does_not_fit_is_refused_with_what_would(fleet: Fleet, namespace: str, cpu: str) -> None:
    fleet.cluster.apply(objects.accelerator(cpu, memory="400Mi"))
    entry = objects.entry(cpu, contextTokens=8192, batching={"maxSequences": 8})
    fleet.cluster.apply(objects.model("smollm2", SMOLLM2), objects.policy("large", entry), namespace=namespace)

    def refused() -> str:
        found = fleet.cluster.get("ipol", "large", namespace) or {}
        memory = condition(found, "FitsMemory")
        assert memory.get("status") == "False", found.get("status")
        assert condition(found, "Ready")["status"] == "False"
        return str(memory["message"])

    message = fleet.cluster.wait_for("the model is refused", refused, 120, namespace)
    assert "Needs" in message and "GiB" in message, message
    assert re.search(r"sequence|context|KV|device", message), f"it does not say what would fit: {message}"
    assert not fleet.engines("large", namespace) and not fleet.pods("large", namespace)

    # And what it says is true: with one sequence of a short context it runs.
    smaller = objects.entry(cpu, contextTokens=512, batching={"maxSequences": 1})
    fleet.patch("large", namespace, {"models": [smaller]})
    fleet.ready("large", namespace)
