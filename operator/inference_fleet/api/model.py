"""InferenceModel: weights that lie somewhere, and what was found in them."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from inference_fleet.api.base import (
    API_VERSION,
    ApiModel,
    ByName,
    ForeignName,
    Rule,
    SecretKeyReference,
    StatusModel,
    Whole,
)
from inference_fleet.api.conditions import Condition
from inference_fleet.api.metadata import Column, ObjectMeta, Resource

Positive = Annotated[Whole, Field(ge=1, le=2**53)]
RelativePath = Annotated[str, Field(min_length=1, max_length=512)]

_URL = re.compile(r"^https?://[^/?#\s]+/([^?#\s]*/)?[^/?#\s]+([?][^#\s]*)?$", re.ASCII)
_REPOSITORY = re.compile(r"^[A-Za-z0-9][-._A-Za-z0-9]*/[A-Za-z0-9][-._A-Za-z0-9]*$")


def _stays_inside(path: str) -> bool:
    return not path.startswith("/") and ".." not in path.split("/")


class HTTPSource(ApiModel):
    """One GGUF or safetensors file behind a URL."""

    url: Annotated[str, Field(max_length=2048)]
    """`http://` or `https://`, ending in the file's name (a query may follow)."""
    sha256: Annotated[str, Field(max_length=64, pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of the file, 64 lower case hex digits. What arrives with another digest is never loaded."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=r"self.url.matches('^https?://[^/?#\\s]+/([^?#\\s]*/)?[^/?#\\s]+([?][^#\\s]*)?$')",
            message="url must be http:// or https:// and its path must end in a file name, such as https://host/model.gguf",
            holds=lambda self: _URL.fullmatch(self.url) is not None,
            field="url",
        ),
    )


class HuggingFaceSource(ApiModel):
    """A repository of the Hugging Face hub (or a mirror of it that the operator was pointed to)."""

    repository: Annotated[str, Field(max_length=193)]
    """`owner/name`."""
    revision: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][-._/A-Za-z0-9]*$")] = "main"
    """Branch, tag or commit. A branch is resolved to a commit once, at inspection: later pods load the same files."""
    file: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """One GGUF or safetensors file, for a repository that holds several models. Absent: all its safetensors files and its
    configuration."""
    token_secret_ref: SecretKeyReference | None = None
    """Token for a private or gated repository."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.repository.matches('^[A-Za-z0-9][-._A-Za-z0-9]*/[A-Za-z0-9][-._A-Za-z0-9]*$')",
            message="repository must be owner/name, such as Qwen/Qwen3-8B, without a host",
            holds=lambda self: _REPOSITORY.fullmatch(self.repository) is not None,
            field="repository",
        ),
        Rule(
            cel="!has(self.file) || (self.file.matches('[.](gguf|safetensors)$') && !self.file.startsWith('/')"
            " && !self.file.split('/').exists(part, part == '..'))",
            message="file must be the path of a .gguf or .safetensors file inside the repository",
            holds=lambda self: (
                self.file is None or (self.file.endswith((".gguf", ".safetensors")) and _stays_inside(self.file))
            ),
            field="file",
        ),
    )


class VolumeClaimSource(ApiModel):
    """Weights that lie on a PersistentVolumeClaim of the same namespace; mounted read-only, never copied."""

    name: ForeignName
    """Name of the PersistentVolumeClaim."""
    path: RelativePath
    """A GGUF file, a safetensors file, or a folder with safetensors and configuration; relative to the volume's root."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!self.path.startsWith('/') && !self.path.split('/').exists(part, part == '..')",
            message="path must be relative to the volume's root and must not contain '..'",
            holds=lambda self: _stays_inside(self.path),
            field="path",
        ),
    )


class ModelSource(ApiModel):
    """Where the weights lie: exactly one of the three."""

    http: HTTPSource | None = None
    """One file behind a URL."""
    hugging_face: HuggingFaceSource | None = None
    """A repository of the Hugging Face hub."""
    volume_claim: VolumeClaimSource | None = None
    """A claim in the same namespace."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="[has(self.http), has(self.huggingFace), has(self.volumeClaim)].filter(given, given).size() == 1",
            message="exactly one of http, huggingFace and volumeClaim must be given",
            holds=lambda self: [self.http, self.hugging_face, self.volume_claim].count(None) == 2,
        ),
    )


class Attention(StrEnum):
    """How attention keeps keys and values, which decides the size of the KV cache."""

    MHA = "MHA"
    GQA = "GQA"
    MQA = "MQA"
    MLA = "MLA"
    SLIDING_WINDOW = "SlidingWindow"
    HYBRID = "Hybrid"


class Format(StrEnum):
    """Format of the weight files."""

    SAFETENSORS = "Safetensors"
    GGUF = "GGUF"


Architecture = Annotated[str, Field(min_length=1, max_length=128)]
Layers = Annotated[Whole, Field(ge=1, le=4096)]
Width = Annotated[Whole, Field(ge=1, le=1048576)]
Tokens = Annotated[Whole, Field(ge=1, le=1073741824)]
Digest = Annotated[str, Field(min_length=1, max_length=128)]
Bits = Annotated[Whole, Field(ge=1, le=64)]


class ModelFacts(StatusModel):
    """What an inspection found in the headers, or what the user declared completely."""

    architecture: Architecture
    """Name in the file: `LlamaForCausalLM` in config.json, `llama` in a GGUF."""
    parameters: Positive
    """Number of weights."""
    layers: Layers
    """Transformer blocks."""
    hidden_size: Width
    """Width of the residual stream."""
    key_value_heads: Width
    """Heads whose keys and values are kept, a layer. 1 for MLA."""
    attention_heads: Width
    """Query heads a layer."""
    head_dimension: Width
    """Numbers in one key. For MLA: the latent and rotary parts together."""
    value_head_dimension: Width | None = None
    """Numbers in one value, where it differs from headDimension."""
    attention: Attention
    """Kind of attention."""
    sliding_window_tokens: Tokens | None = None
    """Tokens that a layer with a sliding window looks back."""
    vocabulary_size: Tokens
    """Tokens in the vocabulary, as the engine pads it."""
    tokens_digest: Digest | None = None
    """Hash of the ordered token bytes: equal for equal vocabularies, whichever format they were read from. An inspection always
    finds it; facts that a user declared may lack it."""
    max_context_tokens: Tokens
    """Longest sequence that the model was trained for."""
    weight_bits: Bits
    """Bits of most weights as stored: 16, 8, 4, …"""
    tokenizer_model: Annotated[str, Field(max_length=128)] | None = None
    """Kind of tokenizer, such as `gpt2` or `BPE`."""


class DeclaredFacts(ApiModel):
    """Facts from the user: used until the model is inspected, and offline. The same fields as status.facts, all optional."""

    architecture: Architecture | None = None
    """Name in the file: `LlamaForCausalLM` in config.json, `llama` in a GGUF."""
    parameters: Positive | None = None
    """Number of weights."""
    layers: Layers | None = None
    """Transformer blocks."""
    hidden_size: Width | None = None
    """Width of the residual stream."""
    key_value_heads: Width | None = None
    """Heads whose keys and values are kept, a layer. 1 for MLA."""
    attention_heads: Width | None = None
    """Query heads a layer."""
    head_dimension: Width | None = None
    """Numbers in one key. For MLA: the latent and rotary parts together."""
    value_head_dimension: Width | None = None
    """Numbers in one value, where it differs from headDimension."""
    attention: Attention | None = None
    """Kind of attention."""
    sliding_window_tokens: Tokens | None = None
    """Tokens that a layer with a sliding window looks back."""
    vocabulary_size: Tokens | None = None
    """Tokens in the vocabulary, as the engine pads it."""
    tokens_digest: Digest | None = None
    """Hash of the ordered token bytes."""
    max_context_tokens: Tokens | None = None
    """Longest sequence that the model was trained for."""
    weight_bits: Bits | None = None
    """Bits of most weights as stored: 16, 8, 4, …"""
    tokenizer_model: Annotated[str, Field(max_length=128)] | None = None
    """Kind of tokenizer, such as `gpt2` or `BPE`."""

    def missing(self) -> tuple[str, ...]:
        """Fields, in API spelling, without which these facts are not complete."""
        return tuple(
            field.alias or name
            for name, field in ModelFacts.model_fields.items()
            if field.is_required() and getattr(self, name) is None
        )

    def complete(self) -> ModelFacts | None:
        """The same as ModelFacts; None where something is missing."""
        return None if self.missing() else ModelFacts.model_validate(self.model_dump())

    def contradictions(self, found: ModelFacts) -> tuple[str, ...]:
        """Where the declaration differs from what was found: `layers: declared 32, found 28`."""
        return tuple(
            f"{field.alias}: declared {declared}, found {getattr(found, name)}"
            for name, field in type(self).model_fields.items()
            if (declared := getattr(self, name)) is not None and declared != getattr(found, name)
        )


class InferenceModelSpec(ApiModel):
    """Where the weights are, and what is known of them beforehand."""

    source: ModelSource
    """Where the weights lie. Cannot be changed: make a new InferenceModel for new weights."""
    facts: DeclaredFacts | None = None
    """What is known of the model beforehand: used only until it is inspected, and offline. A contradiction with what is found
    makes Inspected False."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.source == oldSelf.source",
            message="source is immutable: make a new InferenceModel for new weights",
            holds=None,
            field="source",
        ),
    )


class ResolvedFile(StatusModel):
    """One file that a pod stages."""

    path: Annotated[str, Field(min_length=1, max_length=512)]
    """Path inside the source."""
    bytes: Annotated[Whole, Field(ge=0, le=2**53)]
    """Size."""
    digest: Annotated[str, Field(max_length=128)] = ""
    """`sha256:…`; empty where the source gives none."""


class ResolvedArtifact(StatusModel):
    """What the source stood for when it was inspected; every pod loads exactly this."""

    revision: Annotated[str, Field(max_length=128)] = ""
    """Commit of the repository; empty for sources that have none."""
    digest: Digest
    """One digest of everything that is loaded."""
    format: Format
    """Format of the weight files."""
    weight_bytes: Positive
    """Bytes of all weight files together."""
    files: Annotated[tuple[ResolvedFile, ...], Field(max_length=64), ByName("path")] = ()
    """What is staged."""


class InferenceModelStatus(StatusModel):
    """What was found out about the weights."""

    observed_generation: Annotated[Whole, Field(ge=0)] | None = None
    """The metadata.generation that this status speaks of."""
    resolved: ResolvedArtifact | None = None
    """What the source stood for when it was inspected. Renderers use only this."""
    facts: ModelFacts | None = None
    """What was found in the headers."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16), ByName("type")] = ()
    """Ready and Inspected."""


class InferenceModel(ApiModel):
    """Weights that an InferencePolicy can serve, or use as a draft. Inspected once, by reading only their headers."""

    api_version: Literal["inference-fleet.dev/v1alpha1"] = API_VERSION
    kind: Literal["InferenceModel"] = "InferenceModel"
    metadata: ObjectMeta = ObjectMeta()
    spec: InferenceModelSpec
    """Where the weights are."""
    status: InferenceModelStatus = InferenceModelStatus()
    """What was found out about them."""

    resource: ClassVar[Resource] = Resource(
        kind="InferenceModel",
        plural="inferencemodels",
        short_names=("imodel",),
        namespaced=True,
        columns=(
            Column("Ready", '.status.conditions[?(@.type=="Ready")].status'),
            Column("Architecture", ".status.facts.architecture"),
            Column("Parameters", ".status.facts.parameters", type="integer"),
            Column("Format", ".status.resolved.format"),
            Column("Bytes", ".status.resolved.weightBytes", type="integer", priority=1),
            Column("Reason", '.status.conditions[?(@.type=="Ready")].reason', priority=1),
            Column("Age", ".metadata.creationTimestamp", type="date"),
        ),
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.metadata.name.size() <= 63",
            message="the name of an InferenceModel must have at most 63 characters",
            holds=lambda self: len(self.metadata.name) <= 63,
        ),
    )
