"""The engines that are known, and what each must be able to say about a configuration. All of it is pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from inference_fleet.engines.config import EngineConfig, MemoryEstimate, Refusal
from inference_fleet.engines.contract import Metrics, Probes
from inference_fleet.engines.llama_cpp import LlamaCpp
from inference_fleet.engines.vllm import VLLM

__all__ = ["ENGINES", "Engine", "EngineConfig", "MemoryEstimate", "Metrics", "Probes", "Refusal", "engine", "metrics"]


class Engine(Protocol):
    """One engine in one version."""

    @property
    def type(self) -> str:
        """LlamaCpp or VLLM."""

    @property
    def metrics(self) -> Metrics:
        """Names in its `/metrics`."""

    def check(self, config: EngineConfig) -> Refusal | None:
        """Why it cannot run this configuration, before memory is looked at; None where it can."""

    def arguments(self, config: EngineConfig) -> list[str]:
        """Arguments of the official image's entrypoint, in a fixed order, the user's extra arguments last."""

    def environment(self, config: EngineConfig) -> Mapping[str, str]:
        """Variables that it needs beside its arguments."""

    def memory(self, config: EngineConfig) -> MemoryEstimate:
        """What it would allocate, against what there is."""

    def probes(self, config: EngineConfig) -> Probes:
        """Startup, readiness and liveness."""

    def shared_memory_bytes(self, config: EngineConfig) -> int | None:
        """Size of /dev/shm that its processes need to talk to each other; None: the container's own is enough."""

    def scratch_bytes(self, config: EngineConfig) -> int:
        """Disk for /tmp and its home: caches, uploads."""

    def image(self, config: EngineConfig) -> str:
        """The official image of this version for these devices."""


ENGINES: Mapping[str, type[LlamaCpp] | type[VLLM]] = {"LlamaCpp": LlamaCpp, "VLLM": VLLM}


def engine(type_name: str, version: str) -> Engine | Refusal:
    """The engine of this type and version; a Refusal that names the known ones where there is none."""
    found = ENGINES.get(type_name)
    if found is None:
        known = ", ".join(sorted(ENGINES))
        return Refusal("EngineUnknown", f"Engine {type_name!r} is not known; set engine.type to one of: {known}.")
    if not found.supports(version):
        known = ", ".join(found.VERSIONS)
        return Refusal(
            "EngineVersionUnknown",
            f"{type_name} {version!r} is not a version whose flags are known here; set engine.version to one of: {known}.",
        )
    return found(version)


def metrics(type_name: str) -> Metrics:
    """The metric names of an engine. Raises KeyError for an engine that is not known."""
    return ENGINES[type_name].METRICS
