"""The objects that a test applies, in the words of the API."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

from hack.images.catalog import GEMMA3, GEMMA3_SHA256, SMOLLM2, SMOLLM2_SHA256
from hack.models import extra

API = "inference-fleet.dev/v1alpha1"
MODELS = "http://models.models.svc.cluster.local"
KEY = "sk-tests-only"
TENANT = "tests"

SHA256 = {SMOLLM2: SMOLLM2_SHA256, GEMMA3: GEMMA3_SHA256}

Object = dict[str, Any]


def accelerator(name: str, memory: str = "768Mi", cpu: str = "150m", **more: Any) -> Object:
    """A CPU class. One device of it is that much of the node."""
    spec = {"memory": memory, "requestsPerDevice": {"cpu": cpu, "memory": memory}, **more}
    return {"apiVersion": API, "kind": "AcceleratorClass", "metadata": {"name": name}, "spec": spec}


def model(name: str, file: str) -> Object:
    """A GGUF file of the models server."""
    sha256 = SHA256.get(file) or extra.digest(file)
    source = {"http": {"url": f"{MODELS}/{file}", "sha256": sha256}}
    return {"apiVersion": API, "kind": "InferenceModel", "metadata": {"name": name}, "spec": {"source": source}}


def keys(name: str = "keys") -> Object:
    """The Secret that lets KEY in as TENANT."""
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {TENANT: f"{digest}\n"}}


def entry(class_name: str, model_name: str = "smollm2", weights: str = "Q4_1", **more: Any) -> Object:
    """One model of a policy, served by llama.cpp: 4 answers at once, 1,024 tokens each."""
    return {
        "name": "small",
        "engine": {"type": "LlamaCpp", "version": "b11549"},
        "builds": [{"name": "build", "modelRef": {"name": model_name}, "quantization": {"weights": weights}}],
        "contextTokens": 1024,
        "batching": {"maxSequences": 4},
        "accelerators": [{"name": "cpu", "classRef": {"name": class_name}}],
        "replicas": {"min": 1},
        **more,
    }


def policy(name: str, *entries: Mapping[str, Any], **more: Any) -> Object:
    """A policy behind the keys of `keys()`."""
    gateway = {"authentication": {"type": "APIKeys", "secretRef": {"name": "keys"}}}
    spec = {"models": [copy.deepcopy(dict(item)) for item in entries], "gateway": gateway, **more}
    return {"apiVersion": API, "kind": "InferencePolicy", "metadata": {"name": name}, "spec": spec}
