"""The escape hatch: a piece of a pod that is merged into the engine pods. Part of InferencePolicy.

Only what rules speak of is declared; every other field of a pod passes through as it is (`x-kubernetes-preserve-unknown-fields`),
and the API server judges the merged pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from inference_fleet.api.base import ApiModel, ByName, ItemName, Rule

OUR_LABELS = "inference-fleet.dev/"
OUR_CONTAINERS = frozenset({"stage", "draft"})

Labels = Annotated[Mapping[str, Annotated[str, Field(max_length=63)]], Field(max_length=32)]
Annotations = Annotated[Mapping[str, Annotated[str, Field(max_length=8192)]], Field(max_length=32)]


class Fragment(ApiModel):
    """A piece of a Kubernetes object of which only some fields are declared."""

    model_config = ConfigDict(extra="allow")

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Keep what is not declared."""
        return {
            **super().__get_pydantic_json_schema__(schema, handler),
            "x-kubernetes-preserve-unknown-fields": True,
        }


class ContainerFragment(Fragment):
    """A container, with whatever fields a container has."""

    name: ItemName
    """`engine` is the container that we render; other names add containers."""
    image: Annotated[str, Field(max_length=512)] | None = None
    """Not for `engine`: that is engine.image."""
    command: Annotated[tuple[Annotated[str, Field(max_length=4096)], ...], Field(max_length=64)] | None = None
    """Not for `engine`."""
    args: Annotated[tuple[Annotated[str, Field(max_length=4096)], ...], Field(max_length=64)] | None = None
    """Not for `engine`: that is engine.extraArguments."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.name != 'engine' || (!has(self.image) && !has(self.command) && !has(self.args))",
            message="the container engine may not set image, command or args: use engine.image and engine.extraArguments",
            holds=lambda self: (
                self.name != "engine" or (self.image is None and self.command is None and self.args is None)
            ),
        ),
        Rule(
            cel="!(self.name in ['stage', 'draft'])",
            message="containers named stage and draft are the operator's: choose another name",
            holds=lambda self: self.name not in OUR_CONTAINERS,
            field="name",
        ),
    )


class PodSpecFragment(Fragment):
    """A pod's spec, with whatever fields a pod has."""

    host_network: bool | None = None
    """Must not be true."""
    host_pid: Annotated[bool | None, Field(alias="hostPID")] = None
    """Must not be true."""
    host_ipc: Annotated[bool | None, Field(alias="hostIPC")] = None
    """Must not be true."""
    containers: Annotated[tuple[ContainerFragment, ...], Field(max_length=16), ByName()] | None = None
    """Merged by name."""
    init_containers: Annotated[tuple[ContainerFragment, ...], Field(max_length=16), ByName()] | None = None
    """Merged by name."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="(!has(self.hostNetwork) || !self.hostNetwork) && (!has(self.hostPID) || !self.hostPID)"
            " && (!has(self.hostIPC) || !self.hostIPC)",
            message="podTemplate may not share the node's namespaces: leave out hostNetwork, hostPID and hostIPC",
            holds=lambda self: not (self.host_network or self.host_pid or self.host_ipc),
        ),
        Rule(
            cel="!has(self.initContainers) || self.initContainers.all(container, container.name != 'engine')",
            message="the container engine is not an init container",
            holds=lambda self: all(container.name != "engine" for container in self.init_containers or ()),
            field="initContainers",
        ),
    )


class TemplateMetadata(ApiModel):
    """Labels and annotations of the pods."""

    labels: Labels | None = None
    """Added to ours."""
    annotations: Annotations | None = None
    """Added to ours."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="(!has(self.labels) || self.labels.all(key, !key.startsWith('inference-fleet.dev/')"
            " && !key.startsWith('app.kubernetes.io/')))"
            " && (!has(self.annotations) || self.annotations.all(key, !key.startsWith('inference-fleet.dev/')))",
            message="labels under inference-fleet.dev/ and app.kubernetes.io/, and annotations under inference-fleet.dev/,"
            " are the operator's",
            holds=lambda self: (
                not any(key.startswith((OUR_LABELS, "app.kubernetes.io/")) for key in self.labels or ())
                and not any(key.startswith(OUR_LABELS) for key in self.annotations or ())
            ),
        ),
    )


class PodTemplate(ApiModel):
    """A piece of a pod, merged strategically into the pods that we render."""

    metadata: TemplateMetadata | None = None
    """Labels and annotations."""
    spec: PodSpecFragment | None = None
    """Any field of a pod's spec. A server-side dry run checks the result (reason TemplateInvalid)."""
