"""Writing a status: by the status subresource, only what differs, only against the version it was computed from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inference_fleet.cluster.client import ApiError, ClusterClient
from inference_fleet.cluster.kinds import Kind
from inference_fleet.cluster.report import patch_of
from inference_fleet.cluster.seen import Meta
from inference_fleet.cluster.snapshot import Snapshots


async def write_status(
    client: ClusterClient,
    snapshots: Snapshots,
    kind: Kind,
    meta: Meta,
    stored: Mapping[str, Any],
    computed: Mapping[str, Any],
) -> bool:
    """Write it; False where the object changed or went meanwhile, and another pass is due."""
    patch = {
        "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
        "status": patch_of(stored, computed),
    }
    try:
        answer = await client.merge(kind, meta.namespace, meta.name, patch, subresource="status")
    except ApiError as error:
        if error.stale:
            return False
        raise
    snapshots.wrote(kind, answer)
    return True
