"""Which accelerator a model takes, what is rejected, and what a refusal says."""

from __future__ import annotations

from dataclasses import replace

from inference_fleet.api.conditions import find
from inference_fleet.plan.decide import plan
from inference_fleet.plan.observation import Claim
from inference_fleet.plan.outcome import Action, Memory, Plan
from tests.unit.plan.world import FACTS, START, World, accelerator, entry, model, observation, spec


def decide(*args: object, **kwargs: object) -> Plan:
    return plan(observation(*args, **kwargs), Memory(), START)[0]  # type: ignore[arg-type]


def said(outcome: Plan, kind: str) -> tuple[str, str, str]:
    condition = find(outcome.conditions, kind)
    assert condition is not None, f"no condition {kind} among {[c.type for c in outcome.conditions]}"
    return condition.status.value, condition.reason, condition.message


def two(*names: str, minimum: int = 1) -> dict[str, object]:
    return entry(accelerators=[{"name": n, "classRef": {"name": n}} for n in names], replicas={"min": minimum})


def test_the_first_accelerator_that_fits_is_taken() -> None:
    outcome = decide(spec(two("small", "big")), classes={"small": accelerator("small"), "big": accelerator("big")})
    assert [v.accelerator for v in outcome.variants] == ["small"]
    assert outcome.decisions[0].reason == "FirstChoice"


def test_one_that_does_not_fit_is_rejected_with_bytes_and_the_next_is_taken() -> None:
    classes = {"tiny": accelerator("tiny", memory="64Mi"), "big": accelerator("big")}
    outcome = decide(spec(two("tiny", "big")), classes=classes)
    assert [v.accelerator for v in outcome.variants] == ["big"]
    rejected = outcome.decisions[0].rejected
    assert [(r.option, r.reason) for r in rejected] == [("tiny", "DoesNotFit")]
    assert "64.0 MiB" in rejected[0].message


def test_one_without_stock_is_rejected_and_the_next_is_taken() -> None:
    classes = {"l4": accelerator("l4", devices=2, others=2), "cpu": accelerator()}
    outcome = decide(spec(two("l4", "cpu")), classes=classes)
    assert [v.accelerator for v in outcome.variants] == ["cpu"]
    assert outcome.decisions[0].rejected[0].reason == "InsufficientDevices"
    assert "2 used outside policies" in outcome.decisions[0].rejected[0].message


def test_nothing_fits_is_refused_and_nothing_is_created() -> None:
    outcome = decide(classes={"cpu": accelerator(memory="64Mi")})
    assert outcome.variants == ()
    status, reason, message = said(outcome, "FitsMemory")
    assert (status, reason) == ("False", "DoesNotFit")
    assert "64.0 MiB" in message
    assert said(outcome, "Ready")[0] == "False"


def test_a_missing_model_a_missing_class_and_an_uninspected_model_are_told_apart() -> None:
    assert said(decide(models={}), "ModelsReady")[:2] == ("False", "ModelMissing")
    assert said(decide(classes={}), "Scheduled")[:2] == ("False", "ClassMissing")
    waiting = decide(models={"smollm2": model(facts=None)})
    assert said(waiting, "ModelsReady")[:2] == ("False", "NotInspected")
    assert said(waiting, "FitsMemory")[0] == "Unknown"


def test_a_draft_of_another_vocabulary_is_refused_with_both_sizes() -> None:
    other = FACTS.model_copy(update={"vocabulary_size": 262144, "tokens_digest": "sha256:other"})
    models = {"smollm2": model("smollm2"), "gemma": model("gemma", digest="sha256:bb", facts=other)}
    speculation = {"method": "DraftModel", "draftRef": {"name": "gemma"}, "maxDepth": 4}
    outcome = decide(spec(entry(speculation=speculation)), models=models)
    assert outcome.variants == ()
    status, _, message = said(outcome, "ModelsReady")
    assert status == "False"
    assert "49152" in message.replace(",", "")
    assert "262144" in message.replace(",", "")


def test_devices_promised_to_a_higher_priority_are_not_taken_and_to_a_lower_one_are() -> None:
    def with_claim(priority: int, held: int = 0) -> Plan:
        claim = Claim("other/policy", "cpu", 1, priority, held)
        return decide(spec(priority=0), classes={"cpu": accelerator(devices=1, claims=(claim,))})

    assert with_claim(5).variants == ()
    assert len(with_claim(-5).variants) == 1
    assert with_claim(-5, held=1).variants == (), "a device that a pod occupies is not taken away"


def test_unknown_stock_places_but_never_surges() -> None:
    outcome = decide(classes={"cpu": accelerator(devices=None)})
    assert len(outcome.variants) == 1
    assert not outcome.variants[0].surge


def test_elastic_stock_counts_what_an_autoscaler_may_bring() -> None:
    elastic = accelerator(devices=0, capacity={"type": "Elastic", "maxDevices": 3})
    outcome = decide(spec(entry(replicas={"min": 3})), classes={"cpu": elastic})
    assert [v.replicas for v in outcome.variants] == [3]


def test_too_few_devices_for_the_minimum_creates_what_fits_and_says_so() -> None:
    outcome = decide(spec(entry(replicas={"min": 5})), classes={"cpu": accelerator(devices=3)})
    assert [v.replicas for v in outcome.variants] == [3]
    status, reason, message = said(outcome, "Scheduled")
    assert (status, reason) == ("False", "InsufficientDevices")
    assert "3 of 5" in message


def test_two_models_of_a_policy_do_not_take_the_same_device() -> None:
    outcome = decide(spec(entry("one"), entry("two")), classes={"cpu": accelerator(devices=1)})
    assert [v.model.name for v in outcome.variants] == ["one"]
    assert said(outcome, "Scheduled")[1] == "InsufficientDevices"


def test_a_price_is_summed_and_an_absent_one_is_unknown_never_zero() -> None:
    outcome = decide(spec(entry(replicas={"min": 2})))
    assert (str(outcome.cost_per_hour), outcome.currency) == ("0.80", "USD")
    assert decide(classes={"cpu": accelerator(price=None)}).cost_per_hour is None
    assert "price unknown" in decide(classes={"cpu": accelerator(price=None)}).summary


def test_plan_mode_decides_and_applies_nothing() -> None:
    outcome = decide(spec(mode="Plan"))
    assert (outcome.variants, outcome.changes, outcome.removals, outcome.routes, outcome.gateway) == (
        (),
        (),
        (),
        None,
        None,
    )
    assert outcome.decisions[0].action is Action.CREATE
    assert said(outcome, "Ready")[:2] == ("Unknown", "PlanOnly")
    assert outcome.claims == {}


def test_what_runs_is_preferred_to_an_equal_alternative() -> None:
    classes = {"l4": accelerator("l4", devices=1, others=1), "cpu": accelerator()}
    world = World(observation(spec(two("l4", "cpu")), classes=classes))
    world.settle()
    world.seen = replace(world.seen, classes={"l4": accelerator("l4", devices=1), "cpu": accelerator()})
    outcome = world.settle()
    assert [v.identity.accelerator_class for v in world.seen.variants if v.identity] == ["cpu"]
    assert outcome.decisions[0].reason == "Incumbent"
