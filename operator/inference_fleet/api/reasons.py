"""Every reason that a condition or a decision can have: its meaning, and what to do. Nothing else invents reasons."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason, what it means, and the remedy; an empty remedy: there is nothing to do."""

    name: str
    meaning: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class ReasonGroup:
    """Reasons that belong together because they have one origin. `title` and `intro` head their table in the reference."""

    key: str
    title: str
    intro: str
    reasons: tuple[Reason, ...]


SOURCE = ReasonGroup(
    "source",
    "Reading the weights",
    "Why a source could not be inspected or staged.",
    (
        Reason(
            "NotFound",
            "The file, repository, revision or claim does not exist.",
            "Correct the source (in a new InferenceModel: a source cannot be changed).",
        ),
        Reason(
            "Unauthorized",
            "The server refused to hand the files out.",
            "Give a token with tokenSecretRef that has the right to read the repository, and accept its licence there.",
        ),
        Reason(
            "Unreachable",
            "The server could not be reached.",
            "Check DNS, egress policies and proxies of the namespace. It is tried again.",
        ),
        Reason(
            "DigestMismatch",
            "What arrived is not what the digest says. It was not loaded.",
            "Correct sha256, or find out who changed the file.",
        ),
        Reason(
            "Unsupported",
            "The files are of a kind that cannot be served: neither safetensors nor GGUF, or an unknown architecture.",
            "Use other weights.",
        ),
        Reason("Malformed", "A file is broken: its header cannot be read.", "Upload it again; use other weights."),
        Reason("NoSpace", "The weights do not fit on the volume.", "Use a larger volume."),
        Reason(
            "NotWritable", "The volume cannot be written to.", "Check its access mode and the pod's securityContext."
        ),
        Reason(
            "NoAnswer",
            "The inspection ended without a usable answer, or its pod is gone. It is tried again.",
            "See the log of its Job, MODEL-inspect-….",
        ),
        Reason("InspectionFailed", "The inspection failed for a reason without a name.", "See the message."),
        Reason("SecretMissing", "A Secret, or its key, does not exist.", "Create it, or correct the reference."),
        Reason(
            "FactsContradicted",
            "spec.facts says something else than what was found in the headers.",
            "Take the field out of spec.facts; what was found is used.",
        ),
        Reason("NotInspected", "The inspection has not answered yet.", "Wait; its Job is named MODEL-inspect-…."),
    ),
)

REFUSAL = ReasonGroup(
    "refusal",
    "What an engine refuses",
    "An engine cannot run a model as declared. Seen in Accepted and ModelsReady, in `status.models`, and as rejected alternatives.",
    (
        Reason("EngineUnknown", "There is no such engine.", "Correct engine.type."),
        Reason(
            "EngineVersionUnknown",
            "The flags of this version are not known.",
            "Use a version that the message names, or a newer operator.",
        ),
        Reason(
            "ArgumentReserved",
            "engine.extraArguments sets what the operator decides.",
            "Take it out; use the policy's fields.",
        ),
        Reason(
            "FormatUnsupported",
            "The engine does not load files of this format.",
            "GGUF for LlamaCpp, safetensors for VLLM.",
        ),
        Reason(
            "QuantizationMismatch",
            "quantization says something else than the files.",
            "Set weights: AsStored, or refer to the right InferenceModel.",
        ),
        Reason("QuantizationUnsupported", "The engine does not have this method.", "Use one that the message names."),
        Reason(
            "CapabilityMissing",
            "The quantization needs a capability that the AcceleratorClass does not declare.",
            "Add the capability where the hardware has it, or use another build.",
        ),
        Reason(
            "KeyValueCacheUnsupported",
            "The engine, or the model's shape, does not allow this KV cache type.",
            "Use one that the message names.",
        ),
        Reason("ContextTooLong", "contextTokens is more than the model was made for.", "Lower contextTokens."),
        Reason("BatchTooSmall", "maxBatchedTokens is less than one token for each sequence.", "Raise it."),
        Reason(
            "DevicesUneven",
            "The model's heads cannot be shared evenly by the devices of a replica.",
            "Set devicesPerReplica to a number that the message names.",
        ),
        Reason(
            "SpeculationUnsupported",
            "The engine does not speculate by this method.",
            "Use another method, or leave speculation out.",
        ),
        Reason("DraftMissing", "speculation needs a draft model, or has one too many.", "Set or remove draftRef."),
        Reason(
            "VocabularyMismatch",
            "Draft and model have different vocabularies: the engine would refuse or guess nonsense.",
            "Use a draft of the same family.",
        ),
    ),
)

PLACEMENT = ReasonGroup(
    "placement",
    "Finding devices",
    "A model is declared correctly and has nowhere to run.",
    (
        Reason("ModelMissing", "A model or draft does not exist. What runs goes on.", "Create the InferenceModel."),
        Reason("ClassMissing", "An AcceleratorClass does not exist.", "Create it, or take it out of accelerators."),
        Reason(
            "DoesNotFit",
            "Weights, KV cache, draft and overhead need more than the devices of a replica have.",
            "The message says what would fit: fewer sequences, a shorter context, another KV cache type, more devices.",
        ),
        Reason(
            "InsufficientDevices",
            "Not enough free devices.",
            "Add nodes, lower another policy's replicas or priority, or list another accelerator.",
        ),
        Reason(
            "Provisioning",
            "A pod on an elastic class waits for the node that an autoscaler brings.",
            "Wait. After the class's provisioningSeconds it is a StockOut.",
        ),
        Reason(
            "StockOut",
            "Pods on an elastic class have waited longer than a node usually takes to come. With no Ready replica the model goes "
            "to the next accelerator that fits, and stays there; else it waits.",
            "List another accelerator, or ask the provider of the nodes.",
        ),
        Reason(
            "StockUnknown",
            "Nodes cannot be read in this installation.",
            "Install the read-only ClusterRole for nodes, if you may; without it no surge replica is used.",
        ),
    ),
)

POD = ReasonGroup(
    "pod",
    "What holds a pod back",
    "As Kubernetes says it, of the pod that explains most. Any other reason of a kubelet can appear here as it is.",
    (
        Reason("Unschedulable", "No node takes the pod.", "See the message: resources, taints, selectors."),
        Reason("ImagePullBackOff", "The image cannot be pulled.", "Check engine.image, pull secrets, the registry."),
        Reason("ErrImagePull", "The image cannot be pulled.", "Check engine.image, pull secrets, the registry."),
        Reason(
            "CrashLoopBackOff",
            "A container ends again and again.",
            "The message has its last words; see its log.",
        ),
        Reason(
            "OOMKilled",
            "A container used more memory than it may.",
            "Raise requestsPerDevice.memory of the class, or shorten the context.",
        ),
        Reason("SecretMissing", "A Secret that the pod needs does not exist.", "Create it, or correct the reference."),
        Reason("Error", "A container ended with an error.", "The message has its last words; see its log."),
        Reason("ReplicaFailure", "Kubernetes refuses to create pods: quota, admission.", "See the message."),
        Reason("Loading", "Engines are starting: staging weights or loading them.", "Wait; see the log of stage."),
        Reason("NotCreated", "No engine is created yet.", "See the other conditions."),
        Reason("Starting", "Gateway pods are starting.", "Wait."),
    ),
)

APPLYING = ReasonGroup(
    "applying",
    "What the API server refuses",
    "What was decided could not be written. It is tried again.",
    (
        Reason("TemplateInvalid", "The pod merged with podTemplate is not a valid pod.", "Correct podTemplate."),
        Reason("ApplyRefused", "The API server refused an object.", "See the message: quota, admission, RBAC."),
        Reason(
            "InvalidSpec",
            "The stored spec cannot be read by this version of the operator. What runs goes on unchanged.",
            "Correct the resource, or install the operator that belongs to the CRDs.",
        ),
    ),
)

DECISION = ReasonGroup(
    "decision",
    "Why something was decided",
    "In `status.plan.decisions`, and in Events.",
    (
        Reason("FirstChoice", "The first accelerator listed fits and has stock."),
        Reason("NextChoice", "An earlier accelerator was rejected; this is the first that fits and has stock."),
        Reason("Incumbent", "The model runs there already and it still fits; moving would cost a start-up."),
        Reason("BelowMinimum", "Fewer replicas than replicas.min."),
        Reason(
            "GivesWay",
            "Replicas whose pods have no node yet are given up: a policy of higher priority was promised the devices. "
            "Pods that run are never taken away.",
            "Add nodes, or raise priority.",
        ),
        Reason("AboveMinimum", "More replicas than replicas.min; the surplus is drained first."),
        Reason("Replacing", "Serves until its replacement is Ready with equal capacity."),
        Reason("Replaced", "Its replacement is Ready with equal capacity."),
        Reason("SwappingDevices", "No device is free for the replacement: replicas are exchanged one for one."),
        Reason("RollingOut", "Pods are being replaced by ones with the present configuration."),
        Reason("ModelDropped", "The policy no longer declares the model."),
        Reason(
            "ObservationIncomplete",
            "Part of the cluster could not be read: nothing is deleted or scaled down.",
            "See the operator's log for what cannot be read.",
        ),
        Reason(
            "ForeignScaler",
            "Someone else owns spec.replicas of the Deployment; it is left alone.",
            "Remove that writer (an HPA, a script) to give scaling back to the policy.",
        ),
        Reason(
            "IdentityUnreadable",
            "The Deployment's identity annotation cannot be read; it is kept.",
            "Delete the Deployment to have it made anew.",
        ),
        Reason("InvalidSpec", "The policy cannot be read; what runs is kept.", "Correct the policy."),
        Reason("PlanOnly", "mode is Plan: decided, not done.", "Set mode: Apply."),
    ),
)

EVENT = ReasonGroup(
    "event",
    "Events",
    "Events on a resource beside those of decisions.",
    (
        Reason("Ready", "The resource became Ready."),
        Reason("NotReady", "The resource is no longer Ready.", "See its conditions."),
        Reason("Inspected", "A model's headers were read."),
        Reason("InspectionFailed", "A model's headers could not be read. It is tried again, later each time."),
        Reason("ApplyRefused", "The API server refused an object.", "See the message: quota, admission, RBAC."),
        Reason(
            "InternalError",
            "A pass failed for a reason that nobody foresaw. It is tried again, later each time.",
            "Report it with the operator's log.",
        ),
    ),
)

GROUPS: tuple[ReasonGroup, ...] = (SOURCE, REFUSAL, PLACEMENT, POD, APPLYING, DECISION, EVENT)
"""Reasons with an origin of their own; those of single conditions are in `condition_types`."""
