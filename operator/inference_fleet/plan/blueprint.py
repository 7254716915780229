"""What each declared model should run as: the artefact, the first accelerator that fits and has stock, and why not the others.

An ordered chain of checks, each giving `(condition, reason, message)` or nothing; the first that refuses decides. A message says
what must hold and what to do. Nothing here looks at what runs except to prefer the accelerator a model already has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from inference_fleet.api.engine import SpeculationMethod
from inference_fleet.api.entries import AcceleratorChoice, Build, ModelEntry
from inference_fleet.api.model import ModelFacts
from inference_fleet.engines import base as engines
from inference_fleet.engines.config import Artifact, EngineConfig, MemoryEstimate, SpeculationConfig
from inference_fleet.naming import variant_name
from inference_fleet.plan.observation import ClassView, ModelView, Observation, VariantIdentity, VariantView
from inference_fleet.plan.outcome import DesiredVariant, Rejected, Want
from inference_fleet.plan.stock import Stock
from inference_fleet.plan.stock_out import NO_STOCK_OUTS, StockOut
from inference_fleet.staging.paths import engine_path

TARGET_DIRECTORY = "/models/target"
DRAFT_DIRECTORY = "/models/draft"

LONGEST_GENERATION_SECONDS = 600
"""How long a drain waits for what an engine still generates. Streams longer than this are cut when a replica is removed."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a model cannot run as declared: which condition says so, its reason, and a message with the remedy."""

    condition: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Blueprint:
    """One declared model: either `variant`, or the `problem` that prevents it. `memory` is the arithmetic of the last option."""

    entry: ModelEntry
    variant: DesiredVariant | None
    problem: Problem | None
    rejected: tuple[Rejected, ...]
    memory: MemoryEstimate | None = None
    reason: str = ""
    message: str = ""
    wants: Mapping[str, Want] = field(default_factory=dict)
    """Accelerator classes that were passed over for want of devices."""


def draw(
    observation: Observation,
    entry: ModelEntry,
    stock: Stock,
    stock_outs: Mapping[str, StockOut] = NO_STOCK_OUTS,
    upgrading: str = "",
) -> Blueprint:
    """What `entry` should run as, given the devices left by the models before it.

    `stock_outs`: variants whose pods wait for nodes that do not come. `upgrading`: the variant that moves to the newest
    revision now.
    """
    build = entry.builds[0]
    found = _artifacts(observation, entry, build)
    if isinstance(found, Problem):
        return Blueprint(entry, None, found, ())
    target, draft = found
    engine = engines.engine(entry.engine.type.value, entry.engine.version)
    if isinstance(engine, engines.Refusal):
        return Blueprint(entry, None, Problem("Accepted", engine.reason, engine.message), ())

    running = [v for v in observation.variants if v.identity is not None and v.identity.model == entry.name]
    rejected: list[Rejected] = []
    problems: list[Problem] = []
    memory: MemoryEstimate | None = None
    stuck: Blueprint | None = None
    wants: dict[str, Want] = {}
    for choice in _preferred(entry.accelerators, running):
        view = observation.classes.get(choice.class_ref.name)
        problem: Problem | None
        if view is None:
            problem = Problem(
                "Scheduled",
                "ClassMissing",
                f"AcceleratorClass {choice.class_ref.name!r} does not exist; create it or take it out of accelerators.",
            )
        else:
            config = _configuration(entry, build, choice, view, target, draft)
            refusal = engine.check(config)
            memory = engine.memory(config)
            problem = None
            if refusal is not None:
                problem = Problem(_condition_of(refusal.reason), refusal.reason, refusal.message)
            elif not memory.fits:
                problem = Problem("FitsMemory", "DoesNotFit", f"On {choice.name}: {memory.message}")
            else:
                name, identity = identify(observation, entry, build, choice, target)
                problem = _out_of_stock(entry, choice, view, running, name, stock)
                if problem is None:
                    variant = _variant(
                        observation,
                        entry,
                        build,
                        choice,
                        view,
                        target,
                        draft,
                        engine,
                        config,
                        memory,
                        name,
                        identity,
                        stock,
                        upgrading,
                    )
                    chosen = Blueprint(
                        entry, variant, None, tuple(rejected), memory, *_why(choice, entry, running, rejected),
                        wants,
                    )  # fmt: skip
                    stock_out = stock_outs.get(name)
                    if stock_out is None or stock_out.ready_replicas > 0:
                        return chosen
                    stuck = stuck or chosen
                    problem = Problem("Scheduled", "StockOut", stock_out.message)
                else:
                    wants[view.name] = Want(entry.replicas.min * choice.devices_per_replica, choice.devices_per_replica)
        problems.append(problem)
        rejected.append(Rejected(choice.name, problem.reason, problem.message))
    if stuck is not None:
        return replace(stuck, rejected=tuple(rejected), wants=wants)  # nothing else is to be had: it goes on waiting
    # Short of devices is the milder answer: it mends itself, where the others need an edit.
    waiting = [p for p in problems if p.reason == "InsufficientDevices"]
    return Blueprint(entry, None, (waiting or problems)[0], tuple(rejected), memory, wants=wants)


def identify(
    observation: Observation, entry: ModelEntry, build: Build, choice: AcceleratorChoice, target: ModelView
) -> tuple[str, VariantIdentity]:
    """The name and identity of the variant that runs `build` of `entry` on `choice`."""
    assert target.resolved is not None
    identity = VariantIdentity(
        model=entry.name,
        digest=target.resolved.digest,
        weights=build.quantization.weights.value,
        method=build.quantization.method.value,
        key_value_cache=build.quantization.key_value_cache.value,
        engine=entry.engine.type.value,
        accelerator_class=choice.class_ref.name,
        devices_per_replica=choice.devices_per_replica,
    )
    return variant_name(observation.policy.name, identity), identity


def _preferred(choices: tuple[AcceleratorChoice, ...], running: list[VariantView]) -> Iterable[AcceleratorChoice]:
    """The declared order, but first what the model already runs on: moving costs a start-up and needs a reason."""
    held = {
        (v.identity.accelerator_class, v.identity.devices_per_replica)
        for v in running
        if v.identity is not None and v.ready_replicas > 0
    }
    return sorted(choices, key=lambda c: (c.class_ref.name, c.devices_per_replica) not in held)


def _why(
    choice: AcceleratorChoice, entry: ModelEntry, running: list[VariantView], rejected: list[Rejected]
) -> tuple[str, str]:
    if not rejected and choice is entry.accelerators[0]:
        return "FirstChoice", f"{choice.name} is the first accelerator listed; it fits and has stock."
    if not rejected:
        return "Incumbent", f"The model runs on {choice.name} already; it still fits, and moving would cost a start-up."
    return "NextChoice", f"{choice.name} is the first accelerator that fits and has stock."


def _condition_of(reason: str) -> str:
    about_models = {"VocabularyMismatch", "DraftMissing", "FormatUnsupported", "QuantizationMismatch"}
    return "ModelsReady" if reason in about_models else "Accepted"


def _artifacts(
    observation: Observation, entry: ModelEntry, build: Build
) -> tuple[ModelView, ModelView | None] | Problem:
    target = _inspected(observation, build.model_ref.name, "model")
    if isinstance(target, Problem):
        return target
    speculation = entry.speculation
    if speculation is None or speculation.method is not SpeculationMethod.DRAFT_MODEL or speculation.draft_ref is None:
        return target, None
    draft = _inspected(observation, speculation.draft_ref.name, "draft")
    return draft if isinstance(draft, Problem) else (target, draft)


def _inspected(observation: Observation, name: str, role: str) -> ModelView | Problem:
    view = observation.models.get(name)
    namespace = observation.policy.namespace
    if view is None:
        return Problem(
            "ModelsReady",
            "ModelMissing",
            f"The {role} InferenceModel {name!r} does not exist in namespace {namespace!r}; create it. What runs goes on.",
        )
    if view.resolved is None or view.facts is None:
        return Problem(
            "ModelsReady",
            view.not_ready_reason or "NotInspected",
            view.not_ready_message or f"The {role} {name!r} is not inspected yet; its Job reads the headers.",
        )
    return view


def _facts(view: ModelView) -> ModelFacts:
    assert view.facts is not None
    return view.facts


def _artifact(view: ModelView, directory: str) -> Artifact:
    assert view.resolved is not None
    return Artifact(
        path=engine_path(view.spec.source, directory),
        weight_bytes=view.resolved.weight_bytes,
        facts=_facts(view),
        format=view.resolved.format.value,
    )


def _configuration(
    entry: ModelEntry,
    build: Build,
    choice: AcceleratorChoice,
    view: ClassView,
    target: ModelView,
    draft: ModelView | None,
) -> EngineConfig:
    speculation = None
    if entry.speculation is not None:
        speculation = SpeculationConfig(
            method=entry.speculation.method.value,
            depth=entry.speculation.max_depth,
            draft=_artifact(draft, DRAFT_DIRECTORY) if draft is not None else None,
        )
    devices = choice.devices_per_replica
    requests = view.spec.requests_per_device
    cores = requests.cpu.cores * devices if requests is not None and requests.cpu is not None else None
    return EngineConfig(
        engine=entry.engine.type.value,
        version=entry.engine.version,
        served_name=entry.name,
        target=_artifact(target, TARGET_DIRECTORY),
        weights=build.quantization.weights.value,
        method=build.quantization.method.value,
        key_value_cache=build.quantization.key_value_cache.value,
        context_tokens=entry.context_tokens,
        max_sequences=entry.batching.max_sequences,
        max_batched_tokens=entry.batching.max_batched_tokens,
        speculation=speculation,
        devices=devices,
        on_gpu=view.spec.resource_name is not None,
        memory_bytes=view.spec.memory.bytes * devices,
        cpu_cores=max(1, int(cores)) if cores is not None else None,
        extra_arguments=tuple(entry.engine.extra_arguments),
        capabilities=tuple(c.value for c in view.spec.capabilities),
    )


def _out_of_stock(
    entry: ModelEntry,
    choice: AcceleratorChoice,
    view: ClassView,
    running: list[VariantView],
    name: str,
    stock: Stock,
) -> Problem | None:
    """None when at least one replica can be placed, counting devices of this model's own variants that it would replace."""
    if any(v.name == name and v.desired_replicas > 0 for v in running):
        return None
    free = stock.of_class(view.name)
    own = sum(
        v.desired_replicas * v.identity.devices_per_replica
        for v in running
        if v.identity is not None and v.identity.accelerator_class == view.name
    )
    if free is None or free + own >= choice.devices_per_replica:
        return None
    allocatable = "unknown" if view.allocatable_devices is None else str(view.allocatable_devices)
    claimed = sum(claim.devices for claim in view.claims)
    return Problem(
        "Scheduled",
        "InsufficientDevices",
        f"One replica of {entry.name!r} on {choice.name} needs {choice.devices_per_replica} devices of {view.name!r}; "
        f"{free} are free ({allocatable} allocatable, {view.used_by_others} used outside policies, {claimed} claimed by "
        f"other policies). Add nodes, lower another policy, or list another accelerator.",
    )


def _variant(
    observation: Observation,
    entry: ModelEntry,
    build: Build,
    choice: AcceleratorChoice,
    view: ClassView,
    target: ModelView,
    draft: ModelView | None,
    engine: engines.Engine,
    config: EngineConfig,
    memory: MemoryEstimate,
    name: str,
    identity: VariantIdentity,
    stock: Stock,
    upgrading: str,
) -> DesiredVariant:
    settings = observation.settings
    existing = next((v for v in observation.variants if v.name == name), None)
    kept = existing is not None and name != upgrading
    revision = existing.render_revision if kept and existing is not None else settings.render_revision
    image = existing.sidecar_image if kept and existing is not None else settings.image
    installed = settings.llama_cpp_image if config.engine == "LlamaCpp" else settings.vllm_image
    price = view.spec.price
    return DesiredVariant(
        name=name,
        identity=identity,
        model=entry,
        build=build.name,
        accelerator=choice.name,
        engine=config,
        engine_image=entry.engine.image or installed or engine.image(config),
        target=target,
        draft=draft,
        accelerator_class=replace(view, claims=()),
        replicas=entry.replicas.min,
        render_revision=revision or settings.render_revision,
        sidecar_image=image or settings.image,
        running_template_hash=existing.template_hash if kept and existing is not None else "",
        # Counted from desired replicas, not from pods: otherwise the surge pod itself would take the surge away half-way.
        surge=stock.of_class(view.name) is not None and stock.allows(view.name, choice.devices_per_replica),
        resting_surge=existing.surge if existing is not None and not existing.rolling else None,
        longest_generation_seconds=LONGEST_GENERATION_SECONDS,
        price_per_hour=price.on_demand_per_hour.amount * choice.devices_per_replica if price is not None else None,
        memory=memory,
    )
