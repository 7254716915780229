"""What all resources have around spec and status: object metadata, and how their CRD is named and printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ConfigDict

from inference_fleet.api.base import ApiModel


class ObjectMeta(ApiModel):
    """The part of `metav1.ObjectMeta` that this project reads; the rest is left out."""

    model_config = ConfigDict(extra="ignore")

    name: str = ""
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    generation: int | None = None
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`; priority 1 shows it only with `-o wide`."""

    name: str
    json_path: str
    type: str = "string"
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Resource:
    """Names and scope of a kind, as its CRD has them."""

    kind: str
    plural: str
    short_names: tuple[str, ...]
    namespaced: bool
    columns: tuple[Column, ...]
