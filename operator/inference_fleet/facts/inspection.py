"""What a source holds, found out from headers alone: `status.resolved` and `status.facts` of an InferenceModel."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

import orjson
from pydantic import ValidationError

from inference_fleet.api.model import Format, HuggingFaceSource, ModelFacts, ModelSource, ResolvedArtifact, ResolvedFile
from inference_fleet.facts.failure import TERMINATION_BYTES, Reason, SourceFailure, malformed
from inference_fleet.facts.folder import (
    Folder,
    HubFolder,
    LocalFolder,
    configuration_files,
    listing_digest,
    local_folder,
    sampled_digest,
)
from inference_fleet.facts.from_config import read_shape
from inference_fleet.facts.from_gguf import facts_from_gguf
from inference_fleet.facts.gguf import GgufHeader, Tensor, read_gguf
from inference_fleet.facts.head import Head
from inference_fleet.facts.hub import PUBLIC_HUB, Hub, ListedFile
from inference_fleet.facts.parts import split_parts
from inference_fleet.facts.safetensors import Tensor as StoredTensor
from inference_fleet.facts.safetensors import count_weights, read_safetensors
from inference_fleet.facts.tokenizer import MAX_TOKENIZER_BYTES, read_vocabulary
from inference_fleet.facts.web import Retries, Web

CLAIM_MOUNT = Path("/models/source")
MAX_CONFIG_BYTES = 16 * 2**20
MAX_LISTED_FILES = 64
"""`status.resolved.files` holds no more; a longer list is left out and listed again, by its digest, at staging."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """The answer of `inspect`."""

    resolved: ResolvedArtifact
    facts: ModelFacts

    def to_dict(self) -> dict[str, Any]:
        """`{"resolved": …, "facts": …}` as in the resource's status."""
        return {"resolved": self.resolved.to_dict(), "facts": self.facts.to_dict()}

    def encode(self) -> bytes:
        """As a termination message of at most 4,096 bytes: without the file list where that is too long."""
        payload = orjson.dumps(self.to_dict())
        if len(payload) <= TERMINATION_BYTES:
            return payload
        return orjson.dumps({"resolved": {**self.resolved.to_dict(), "files": []}, "facts": self.facts.to_dict()})


@dataclass(frozen=True, slots=True)
class Reach:
    """How sources are reached: the hub and its token, patience, and where a claim is mounted."""

    hub_endpoint: str = PUBLIC_HUB
    hub_token: str = field(default="", repr=False)
    retries: Retries = field(default_factory=Retries)
    timeout_seconds: float = 30.0
    claim_mount: Path = CLAIM_MOUNT

    @property
    def hub(self) -> Hub:
        """The Hugging Face hub or its mirror."""
        return Hub(self.hub_endpoint, self.hub_token, self.retries, self.timeout_seconds)

    @property
    def web(self) -> Web:
        """Plain HTTP, without any token."""
        return Web(timeout_seconds=self.timeout_seconds, retries=self.retries)


def reach_from_environment() -> Reach:
    """`HF_ENDPOINT` and `HF_TOKEN`, as the hub's own tools read them."""
    return Reach(
        hub_endpoint=os.environ.get("HF_ENDPOINT") or PUBLIC_HUB, hub_token=os.environ.get("HF_TOKEN", "").strip()
    )


def inspect_source(source: ModelSource, reach: Reach) -> Inspection:
    """Inspect one `spec.source`. Raises SourceFailure and nothing else."""
    with _possible():
        return _inspect(source, reach)


def _inspect(source: ModelSource, reach: Reach) -> Inspection:
    if source.http is not None:
        return _inspect_http(source.http.url, f"sha256:{source.http.sha256}", reach)
    if source.hugging_face is not None:
        return _inspect_repository(source.hugging_face, reach)
    if source.volume_claim is not None:
        name = f"claim {source.volume_claim.name}"
        return _inspect_path(reach.claim_mount / source.volume_claim.path, f"{source.volume_claim.path} on {name}")
    raise SourceFailure(Reason.UNSUPPORTED, "the source is empty")


def inspect_local(path: Path, shown: str) -> Inspection:
    """A file or folder on this machine. Raises SourceFailure and nothing else."""
    with _possible():
        return _inspect_path(path, shown)


def _inspect_path(path: Path, shown: str) -> Inspection:
    """Files on a disk have no digest of their own: a sampled one stands for them."""
    if path.is_dir():
        folder = local_folder(path, shown)
        weights, within = _folder_weights(folder), ""
        chosen: Sequence[str] = (*weights, *configuration_files(folder.files))
    else:
        if not path.is_file():
            raise SourceFailure(Reason.NOT_FOUND, f"{shown} does not exist", "Check the path and what is mounted there")
        beside = {part: ListedFile(part, _size(path.parent / part, shown)) for part in split_parts(path.name)}
        configuration = (
            []
            if path.suffix == ".gguf"
            else [p for p in path.parent.iterdir() if p.suffix != ".safetensors" and p.is_file()]
        )
        beside |= {other.name: ListedFile(other.name, other.stat().st_size) for other in configuration}
        folder = LocalFolder(path.parent, str(PurePosixPath(shown).parent), beside)
        weights, within = split_parts(path.name), ""
        chosen = (*weights, *configuration_files(beside)) if configuration else weights
    listed = [
        ListedFile(name, folder.files[name].bytes, sampled_digest(folder.root / name) if name in weights else "")
        for name in chosen
    ]
    return _inspect_files(folder, weights, within, listed, revision="")


def _size(path: Path, shown: str) -> int:
    if not path.is_file():
        raise SourceFailure(
            Reason.NOT_FOUND, f"{path.name}, another part of {shown}, does not exist", "Put all parts in one folder"
        )
    return path.stat().st_size


def _inspect_http(url: str, digest: str, reach: Reach) -> Inspection:
    name = PurePosixPath(unquote(urlsplit(url).path)).name
    with closing(reach.web.head(url)) as head:
        header = _gguf_of(head, name)
        if len(split_parts(name)) > 1 or header.metadata.get("split.count", 1) not in (0, 1):
            raise SourceFailure(
                Reason.UNSUPPORTED,
                f"{head.name} is one part of a split model",
                "Join the parts (llama-gguf-split --merge), or use a huggingFace or volumeClaim source",
            )
        size = head.size or header.data_offset + sum(-(-tensor.bytes // 32) * 32 for tensor in header.tensors)
    file = ListedFile(name, size, digest)
    return _answer([file], [file], "", Format.GGUF, facts_from_gguf(header, header.tensors, head.name))


def _gguf_of(head: Head, name: str) -> GgufHeader:
    if not name.endswith(".gguf"):
        raise SourceFailure(
            Reason.UNSUPPORTED,
            f"{head.name} is not a .gguf file, and other formats need the configuration beside them",
            "Use a huggingFace or volumeClaim source for safetensors",
        )
    return read_gguf(head)


def _inspect_repository(source: HuggingFaceSource, reach: Reach) -> Inspection:
    commit = reach.hub.commit(source.repository, source.revision)
    files = {file.path: file for file in reach.hub.files(source.repository, commit)}
    folder = HubFolder(reach.hub, source.repository, commit, files)
    weights, chosen, within = choose_files(folder, source.file)
    return _inspect_files(folder, weights, within, [files[path] for path in chosen], commit)


def choose_files(folder: Folder, file: str | None) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Which files of a repository are loaded: weights, all of them with configuration, and the folder they are in.

    Raises SourceFailure where a file is missing, or nothing can be chosen.
    """
    if file is None:
        weights = _folder_weights(folder)
        return weights, (*weights, *configuration_files(folder.files)), ""
    weights = split_parts(file)
    missing = [part for part in weights if part not in folder.files]
    if missing:
        raise SourceFailure(
            Reason.NOT_FOUND,
            f"{folder.name} has no file {missing[0]}",
            _alternatives(folder, PurePosixPath(file).suffix),
        )
    if file.endswith(".gguf"):
        return weights, weights, ""
    within = str(PurePosixPath(file).parent)
    within = "" if within == "." else within
    return weights, (*weights, *configuration_files(folder.files, within)), within


def _alternatives(folder: Folder, suffix: str) -> str:
    names = [path for path in folder.files if path.endswith(suffix)]
    return (
        f"It has {', '.join(names[:8])}{' and more' if len(names) > 8 else ''}"
        if names
        else f"It has no {suffix} file at all"
    )


def _folder_weights(folder: Folder) -> tuple[str, ...]:
    """The safetensors files of a whole model: those that the index names, else all (Mistral's `consolidated` copies left out)."""
    top = [path for path in folder.files if path.endswith(".safetensors") and "/" not in path]
    index = "model.safetensors.index.json"
    if index in folder.files:
        listing = _json_file(folder, index).get("weight_map")
        named = sorted({str(name) for name in listing.values()}) if isinstance(listing, dict) else []
        missing = [name for name in named if name not in folder.files]
        if missing or not named:
            raise malformed(f"{folder.name}/{index} names {missing[0] if missing else 'no files'}, which is not there")
        return tuple(named)
    whole = (
        ["model.safetensors"]
        if "model.safetensors" in top
        else [path for path in top if not path.startswith("consolidated")]
    )
    if not whole:
        gguf = [path for path in folder.files if path.endswith(".gguf")]
        if gguf:
            raise SourceFailure(
                Reason.UNSUPPORTED, f"{folder.name} holds GGUF files: one must be named", _alternatives(folder, ".gguf")
            )
        raise SourceFailure(
            Reason.UNSUPPORTED,
            f"{folder.name} has no safetensors weights at its top",
            "Give a repository or folder with *.safetensors",
        )
    return tuple(sorted(whole))


def _inspect_files(
    folder: Folder, weights: Sequence[str], within: str, listed: Sequence[ListedFile], revision: str
) -> Inspection:
    loaded = [folder.files[path] for path in weights]
    if weights[0].endswith(".gguf"):
        return _answer(listed, loaded, revision, Format.GGUF, _gguf_facts(folder, weights))
    return _answer(listed, loaded, revision, Format.SAFETENSORS, _safetensors_facts(folder, weights, within))


def _gguf_facts(folder: Folder, parts: Sequence[str]) -> ModelFacts:
    tensors: list[Tensor] = []
    first: GgufHeader | None = None
    for part in parts:
        with closing(folder.open(part)) as head:
            header = read_gguf(head)
        first = first or header
        tensors += header.tensors
    if first is None:
        raise SourceFailure(Reason.NOT_FOUND, f"{folder.name} has no weights")
    return facts_from_gguf(first, tensors, f"{folder.name}/{parts[0]}")


def _safetensors_facts(folder: Folder, weights: Sequence[str], within: str) -> ModelFacts:
    inside = (lambda name: f"{within}/{name}") if within else (lambda name: name)
    if inside("config.json") not in folder.files:
        raise SourceFailure(
            Reason.UNSUPPORTED,
            f"{folder.name} has no {inside('config.json')}",
            "Put the model's configuration beside its weights",
        )
    config = _json_file(folder, inside("config.json"))
    shape = read_shape(config, f"{folder.name}/{inside('config.json')}")
    names = {path.removeprefix(f"{within}/"): path for path in configuration_files(folder.files, within)}
    vocabulary = read_vocabulary(names, lambda name: folder.read(names[name], MAX_TOKENIZER_BYTES), folder.name)
    if vocabulary is None:
        raise SourceFailure(
            Reason.UNSUPPORTED, f"{folder.name} has no tokenizer.json", "Put the model's tokenizer beside its weights"
        )
    tensors: list[StoredTensor] = []
    for path in weights:
        with closing(folder.open(path)) as head:
            tensors += read_safetensors(head)
    quantization = config.get("quantization_config")
    counted = count_weights(tensors, quantization if isinstance(quantization, dict) else {})
    return ModelFacts(
        architecture=shape.architecture,
        parameters=max(1, counted.parameters),
        layers=shape.layers,
        hidden_size=shape.hidden_size,
        key_value_heads=shape.key_value_heads,
        attention_heads=shape.attention_heads,
        head_dimension=shape.head_dimension,
        value_head_dimension=shape.value_head_dimension,
        attention=shape.attention,
        sliding_window_tokens=shape.sliding_window_tokens,
        vocabulary_size=shape.vocabulary_size or vocabulary.size,
        tokens_digest=vocabulary.digest,
        max_context_tokens=shape.max_context_tokens,
        weight_bits=counted.bits,
        tokenizer_model=vocabulary.model,
    )


def _json_file(folder: Folder, path: str) -> Mapping[str, Any]:
    try:
        document = orjson.loads(folder.read(path, MAX_CONFIG_BYTES))
    except orjson.JSONDecodeError as error:
        raise malformed(f"{folder.name}/{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise malformed(f"{folder.name}/{path} is not a JSON object")
    return document


def _answer(
    listed: Sequence[ListedFile], weights: Sequence[ListedFile], revision: str, kind: Format, facts: ModelFacts
) -> Inspection:
    files = tuple(ResolvedFile(path=file.path, bytes=file.bytes, digest=file.digest) for file in listed)
    resolved = ResolvedArtifact(
        revision=revision,
        digest=listing_digest(listed),
        format=kind,
        weight_bytes=max(1, sum(file.bytes for file in weights)),
        files=files if len(files) <= MAX_LISTED_FILES else (),
    )
    return Inspection(resolved, facts)


@contextmanager
def _possible() -> Iterator[None]:
    """Numbers out of any range are the file's fault: SourceFailure(Malformed) instead of pydantic's error."""
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise malformed(f"the model's header gives an impossible {where}: {first['msg']}") from error
