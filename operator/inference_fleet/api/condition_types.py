"""Every condition in the order in which it is shown: what True, False and Unknown mean, and the reasons it can have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from inference_fleet.api.conditions import ConditionType, Status
from inference_fleet.api.reasons import APPLYING, GROUPS, PLACEMENT, POD, REFUSAL, SOURCE, Reason, ReasonGroup

MODEL, CLASS, POLICY = "InferenceModel", "AcceleratorClass", "InferencePolicy"


@dataclass(frozen=True, slots=True)
class ConditionMeaning:
    """One condition of one kind. `own` are its reasons by status; `groups` are further reasons for False (or Unknown)."""

    kind: str
    type: ConditionType
    true: str
    false: str
    unknown: str = ""
    own: tuple[tuple[Status, Reason], ...] = ()
    groups: tuple[ReasonGroup, ...] = ()


def _yes(name: str, meaning: str) -> tuple[Status, Reason]:
    return Status.TRUE, Reason(name, meaning)


def _no(name: str, meaning: str, remedy: str = "") -> tuple[Status, Reason]:
    return Status.FALSE, Reason(name, meaning, remedy)


def _unknown(name: str, meaning: str, remedy: str = "") -> tuple[Status, Reason]:
    return Status.UNKNOWN, Reason(name, meaning, remedy)


CONDITIONS: tuple[ConditionMeaning, ...] = (
    ConditionMeaning(
        POLICY,
        ConditionType.READY,
        true="Clients are answered: Accepted, ModelsReady, FitsMemory, WorkloadAvailable and GatewayAvailable are all True.",
        false="One of those is not; reason and message are taken from the first that is not.",
        unknown="mode is Plan: nothing is applied.",
        own=(
            _yes("Ready", "Every model answers behind the gateway."),
            _unknown("PlanOnly", "mode is Plan: the plan is in the status, nothing is applied.", "Set mode: Apply."),
        ),
        groups=(REFUSAL, PLACEMENT, POD, APPLYING, SOURCE),
    ),
    ConditionMeaning(
        POLICY,
        ConditionType.ACCEPTED,
        true="The declaration can be carried out by this operator and these engines.",
        false="It cannot; what was accepted before still stands, and nothing is deleted.",
        own=(_yes("Valid", "The declaration can be carried out."),),
        groups=(REFUSAL, APPLYING),
    ),
    ConditionMeaning(
        POLICY,
        ConditionType.MODELS_READY,
        true="Every model and draft exists, is inspected, and suits its engine and each other.",
        false="One does not; what runs goes on.",
        own=(_yes("Inspected", "Every model and draft is inspected."),),
        groups=(SOURCE, PLACEMENT, REFUSAL),
    ),
    ConditionMeaning(
        POLICY,
        ConditionType.FITS_MEMORY,
        true="Each model fits the memory of its devices, by the engine's own rule; the message has the numbers.",
        false="One does not; the message says what would.",
        unknown="A model is not inspected, so that its memory is not known.",
        own=(
            _yes("Fits", "Every model fits."),
            _unknown("NotInspected", "Memory is worked out when every model is inspected.", "See ModelsReady."),
        ),
        groups=(PLACEMENT,),
    ),
    ConditionMeaning(
        POLICY,
        ConditionType.SCHEDULED,
        true="Every replica has its devices.",
        false="Devices are missing, or a pod finds no node. Replicas that run may still serve.",
        unknown="Stock cannot be known.",
        own=(_yes("Placed", "Every replica has its devices."),),
        groups=(PLACEMENT, POD),
    ),
    ConditionMeaning(
        POLICY,
        ConditionType.WORKLOAD_AVAILABLE,
        true="Every model has at least one Ready replica.",
        false="One has none.",
        own=(_yes("Serving", "Engine replicas are Ready."),),
        groups=(POD, REFUSAL, PLACEMENT, SOURCE),
    ),
    ConditionMeaning(
        POLICY,
        ConditionType.UP_TO_DATE,
        true="What runs is what is declared.",
        false="Something older runs: a rollout is under way, cannot go on, or waits for you.",
        own=(
            _yes("AsDeclared", "What runs is what is declared."),
            _no("RollingOut", "Pods are being replaced.", "Wait."),
            _no("Replacing", "Another variant takes over.", "Wait."),
            _no(
                "RolloutBlocked",
                "A rollout makes no progress; the message names the pod that holds it back.",
                "Mend the cause, or take the change back.",
            ),
            _no(
                "LastAcceptedStands",
                "The present declaration cannot be carried out; what was accepted before runs.",
                "See Accepted, ModelsReady, FitsMemory, Scheduled.",
            ),
            _no(
                "OlderRevision",
                "Rendered by an earlier version of the operator; it keeps running as it is.",
                "Annotate the policy with inference-fleet.dev/upgrade: now to roll it.",
            ),
            _no(
                "SelectorConflict",
                "A Deployment of that name has another selector and was not made by this operator.",
                "Delete or rename it.",
            ),
        ),
    ),
    ConditionMeaning(
        POLICY,
        ConditionType.GATEWAY_AVAILABLE,
        true="At least one gateway replica is Ready.",
        false="None is.",
        own=(_yes("Serving", "Gateway replicas are Ready."),),
        groups=(POD, APPLYING),
    ),
    ConditionMeaning(
        POLICY,
        ConditionType.SCALING_ACTIVE,
        true="Replicas follow the policy.",
        false="Someone else scales a Deployment; the operator leaves its replicas alone.",
        own=(
            _yes("Operator", "Replicas follow the policy."),
            _no(
                "ForeignScaler",
                "Another field manager owns spec.replicas of a Deployment.",
                "Remove that writer (an HPA, a script) to give scaling back to the policy.",
            ),
        ),
    ),
    ConditionMeaning(
        POLICY,
        ConditionType.METRICS_FRESH,
        true="The gateway's metrics are current.",
        false="They could not be read lately. Missing is not zero: nothing is scaled down for want of metrics.",
        own=(
            _yes("Fresh", "The gateway's metrics are current."),
            _no(
                "GatewayUnread",
                "A gateway replica could not be read.",
                "Check its pod and network policies (port 9090).",
            ),
        ),
    ),
    ConditionMeaning(
        POLICY,
        ConditionType.LATENCY_SLO_MET,
        true="Every objective holds over its window. Only where slo is declared; never part of Ready.",
        false="One is missed; details in status.objectives.",
        unknown="It cannot be judged.",
        own=(
            _yes("Met", "Every objective holds."),
            _no(
                "Missed",
                "An objective is missed.",
                "More replicas, faster devices, a smaller model, or a wider objective.",
            ),
            _unknown("TooFewSamples", "Too few requests in the window to judge."),
            _unknown("MetricsStale", "The gateway's metrics are not current.", "See MetricsFresh."),
        ),
    ),
    ConditionMeaning(
        POLICY,
        ConditionType.SPECULATION_EFFECTIVE,
        true="Tokens a second with drafts were measured higher than without, at equal concurrency.",
        false="Drafting does not happen, or does not pay.",
        unknown="Not measured: acceptance alone says nothing.",
        own=(
            _no(
                "NotDrafting",
                "Tokens are generated and nothing is drafted.",
                "See the logs of the containers draft and engine.",
            ),
            _unknown("NoBaseline", "There is no measurement without drafts to compare with."),
            _unknown("NotDeclared", "No model declares speculation."),
        ),
    ),
    ConditionMeaning(
        MODEL,
        ConditionType.READY,
        true="Inspected: policies can use it.",
        false="It cannot be used; reason and message are those of Inspected.",
        unknown="Not inspected yet.",
        own=(
            _yes("Inspected", "Its headers were read."),
            _unknown("Inspecting", "A Job reads the headers.", "Wait; the Job is named MODEL-inspect-…."),
        ),
        groups=(SOURCE, APPLYING),
    ),
    ConditionMeaning(
        MODEL,
        ConditionType.INSPECTED,
        true="The headers of the weights were read; status.resolved and status.facts hold what was found.",
        false="They could not be read, or contradict spec.facts.",
        unknown="The inspection has not answered yet.",
        own=(
            _yes("Inspected", "Its headers were read."),
            _unknown("Inspecting", "A Job reads the headers.", "Wait; the Job is named MODEL-inspect-…."),
        ),
        groups=(SOURCE, APPLYING),
    ),
    ConditionMeaning(
        CLASS,
        ConditionType.READY,
        true="Nodes with these devices exist, or an autoscaler may bring them.",
        false="No node has such devices.",
        unknown="Nodes cannot be read.",
        own=(
            _yes("DevicesFound", "Matching nodes offer devices."),
            _yes("Elastic", "An autoscaler brings nodes."),
            _no("NoDevices", "No matching node offers devices.", "Correct nodeSelector, tolerations or resourceName."),
            _unknown("StockUnknown", "Nodes cannot be read in this installation."),
        ),
        groups=(APPLYING,),
    ),
    ConditionMeaning(
        CLASS,
        ConditionType.PRICE_CURRENT,
        true="A price is declared and in effect.",
        false="There is no price, or it is not in effect yet, or it is old.",
        unknown="The price has no date.",
        own=(
            _yes("PriceCurrent", "The price is in effect."),
            _no("PriceNotYetEffective", "effectiveDate is in the future.", "Correct the date, or wait."),
            _no("PriceStale", "effectiveDate is more than a year ago.", "Check the price and set a new date."),
            _no("PriceMissing", "No price is declared: costs are unknown, never zero.", "Declare one to see costs."),
            _unknown("PriceUndated", "The price has no effectiveDate.", "Give the day from which it holds."),
        ),
    ),
)
"""Every condition; those of InferencePolicy in the order of its status, Ready first."""


def known_reasons() -> frozenset[str]:
    """The names of all reasons."""
    return frozenset(_names())


def _names() -> Iterator[str]:
    for group in GROUPS:
        yield from (reason.name for reason in group.reasons)
    for meaning in CONDITIONS:
        yield from (reason.name for _, reason in meaning.own)
