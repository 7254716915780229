"""The user's piece of a pod merged with ours, as `kubectl patch --type strategic` would; what we render wins.

Maps are merged key by key. Lists whose items have a key are merged by it: our items first, then the user's own ones. Other
lists are one value: ours where we render one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inference_fleet.api.template import PodTemplate
from inference_fleet.render.manifests import Manifest

KEYS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort", "protocol"),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "resourceClaims": ("name",),
    # A set of whole items: Kubernetes replaces this list, but a class's tolerations and the user's are both meant.
    "tolerations": ("key", "operator", "value", "effect"),
}
"""Lists in a pod that are merged, by what their items are told apart. Source: patchMergeKey in k8s.io/api/core/v1."""

_DEFAULTS: Mapping[str, Any] = {"protocol": "TCP", "operator": "Equal"}


def merged_template(ours: Manifest, template: PodTemplate | None) -> Manifest:
    """Our pod template (`metadata` and `spec`) with the user's piece in it."""
    if template is None:
        return ours
    theirs = template.model_dump(mode="json", by_alias=True, exclude_none=True)
    merged: Manifest = _merged_maps(theirs, ours)
    return merged


def _merged(name: str, theirs: Any, ours: Any) -> Any:
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        return _merged_maps(theirs, ours)
    if name in KEYS and isinstance(theirs, Sequence) and isinstance(ours, Sequence):
        return _merged_lists(KEYS[name], theirs, ours)
    return ours


def _merged_maps(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Manifest:
    both = {key: _merged(key, theirs[key], value) if key in theirs else value for key, value in ours.items()}
    return {**both, **{key: value for key, value in theirs.items() if key not in ours}}


def _merged_lists(keys: tuple[str, ...], theirs: Sequence[Any], ours: Sequence[Any]) -> list[Any]:
    by_key = {_key(keys, item): item for item in theirs}
    mine = {_key(keys, item) for item in ours}
    first = [_merged("", by_key[_key(keys, item)], item) if _key(keys, item) in by_key else item for item in ours]
    return [*first, *(item for item in theirs if _key(keys, item) not in mine)]


def _key(keys: tuple[str, ...], item: Any) -> tuple[Any, ...]:
    return tuple(item.get(key, _DEFAULTS.get(key)) for key in keys)
