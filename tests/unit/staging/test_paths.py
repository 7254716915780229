"""Where an engine finds its weights."""

from __future__ import annotations

import pytest

from inference_fleet.api.model import HTTPSource, HuggingFaceSource, ModelSource, VolumeClaimSource
from inference_fleet.staging.paths import engine_path, needs_staging


def http(url: str) -> ModelSource:
    return ModelSource(http=HTTPSource(url=url, sha256="0" * 64))


def hub(file: str | None = None) -> ModelSource:
    return ModelSource(hugging_face=HuggingFaceSource(repository="a/b", file=file))


def claim(path: str) -> ModelSource:
    return ModelSource(volume_claim=VolumeClaimSource(name="w", path=path))


@pytest.mark.parametrize(
    ("source", "path"),
    [
        (http("https://host/dir/model.gguf"), "/models/target/model.gguf"),
        (http("https://host/model.gguf?X-Amz-Signature=a/b&c=d"), "/models/target/model.gguf"),
        (http("https://host/my%20model.gguf"), "/models/target/my model.gguf"),
        (http("https://host/..%2F..%2Fetc%2Fpasswd"), "/models/target/passwd"),
        (hub(), "/models/target"),
        (hub("q4/model.gguf"), "/models/target/q4/model.gguf"),
        (hub("m-00002-of-00003.gguf"), "/models/target/m-00001-of-00003.gguf"),
        (hub("model.safetensors"), "/models/target"),
        (claim("models/qwen"), "/models/target/models/qwen"),
        (claim("models/m.gguf"), "/models/target/models/m.gguf"),
        (claim("m-00001-of-00002.gguf"), "/models/target/m-00001-of-00002.gguf"),
    ],
)
def test_engine_path(source: ModelSource, path: str) -> None:
    assert engine_path(source, "/models/target") == path


def test_only_a_claim_is_not_staged() -> None:
    assert needs_staging(http("https://host/m.gguf")) and needs_staging(hub())
    assert not needs_staging(claim("m.gguf"))
