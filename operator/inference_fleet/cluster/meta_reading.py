"""Reading object metadata and times."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from inference_fleet.cluster.kinds import GROUP
from inference_fleet.cluster.seen import Meta

Object = Mapping[str, Any]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_time(text: object) -> datetime | None:
    """An RFC 3339 time as the API writes it; None where there is none."""
    if not isinstance(text, str) or not text:
        return None
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def read_meta(obj: Object) -> Meta:
    """Metadata, with our annotations only."""
    metadata = obj["metadata"]
    owners = metadata.get("ownerReferences") or []
    return Meta(
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        generation=int(metadata.get("generation") or 0),
        created=read_time(metadata.get("creationTimestamp")) or EPOCH,
        deleting=bool(metadata.get("deletionTimestamp")),
        labels=dict(metadata.get("labels") or {}),
        annotations={k: v for k, v in (metadata.get("annotations") or {}).items() if k.startswith(f"{GROUP}/")},
        owner_uid=next((str(o.get("uid", "")) for o in owners if o.get("controller")), ""),
    )
