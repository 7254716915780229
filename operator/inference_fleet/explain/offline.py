"""What would be observed of a cluster in which exactly these resources were applied and nothing ran yet. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from inference_fleet.api.model import Format, InferenceModel, ModelFacts, ModelSource, ResolvedArtifact
from inference_fleet.api.policy import InferencePolicy
from inference_fleet.explain.files import Declared
from inference_fleet.plan.observation import ClassView, ModelView, Observation, OperatorSettings, PolicyView


def observe(
    policy: InferencePolicy, declared: Declared, settings: OperatorSettings, devices: Mapping[str, int]
) -> Observation:
    """The Observation of `policy`. `devices` gives the stock of classes by name; a class that is not in it has unknown stock.

    A model's facts come from its status, else from its `spec.facts` when those are complete, else it counts as not inspected.
    """
    namespace = policy.metadata.namespace or "default"
    models = {m.metadata.name: _model(m) for m in declared.models if (m.metadata.namespace or "default") == namespace}
    return Observation(
        policy=PolicyView(
            namespace=namespace,
            name=policy.metadata.name,
            uid="",
            generation=policy.metadata.generation or 1,
            created=datetime(1970, 1, 1, tzinfo=UTC),
            spec=policy.spec,
            annotations=policy.metadata.annotations or {},
        ),
        settings=settings,
        models=models,
        classes={
            c.metadata.name: ClassView(c.metadata.name, c.spec, devices.get(c.metadata.name)) for c in declared.classes
        },
    )


def _model(model: InferenceModel) -> ModelView:
    facts = model.status.facts
    resolved = model.status.resolved
    missing: tuple[str, ...] = ()
    if facts is None and model.spec.facts is not None:
        facts = model.spec.facts.complete()
        missing = model.spec.facts.missing()
    if facts is not None and resolved is None:
        resolved = _guessed(model.spec.source, facts)
    said = f"spec.facts lacks {', '.join(missing)}; " if missing else ""
    return ModelView(
        name=model.metadata.name,
        uid=model.metadata.uid or "",
        spec=model.spec,
        resolved=resolved,
        facts=facts,
        not_ready_reason="NotInspected",
        not_ready_message=f"{said}give the model's spec.facts completely, or add --inspect to read its headers.",
    )


def _guessed(source: ModelSource, facts: ModelFacts) -> ResolvedArtifact:
    """What the source stands for as far as its declaration tells; sizes from parameters and bits."""
    if source.http is not None:
        name, digest = source.http.url.partition("?")[0], f"sha256:{source.http.sha256}"
    elif source.hugging_face is not None:
        name, digest = source.hugging_face.file or "", f"revision:{source.hugging_face.revision}"
    else:
        assert source.volume_claim is not None
        name, digest = source.volume_claim.path, f"claim:{source.volume_claim.name}"
    return ResolvedArtifact(
        digest=digest,
        format=Format.GGUF if name.endswith(".gguf") else Format.SAFETENSORS,
        weight_bytes=-(-facts.parameters * facts.weight_bits // 8),
    )
