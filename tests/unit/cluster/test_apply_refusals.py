"""What a refused write means: a stale view, a mistake to report, a failing API server, or no answer at all."""

from __future__ import annotations

from typing import Any, cast

import pytest

from inference_fleet.cluster.apply import Applier
from inference_fleet.cluster.client import ApiError, ClusterClient
from inference_fleet.cluster.snapshot import Snapshots

SERVICE = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "d"}, "spec": {}}


class Refusing:
    """Answers every apply with one refusal; nothing exists, or what is given."""

    def __init__(self, status: int, live: dict[str, Any] | None = None) -> None:
        self.status, self.live = status, live

    async def apply(self, *_: object, **__: object) -> dict[str, Any]:
        raise ApiError(self.status, "Reason", "why")

    async def get(self, *_: object, **__: object) -> dict[str, Any]:
        if self.live is None:
            raise ApiError(404, "NotFound", "none")
        return self.live


def applier(status: int, live: dict[str, Any] | None = None) -> Applier:
    client = cast("ClusterClient", Refusing(status, live))
    return Applier(client, Snapshots(client, (), lambda *_: None, lambda: 0.0), "uid-ours", {})


@pytest.mark.parametrize("status", [400, 403, 422, 500])
async def test_what_will_be_refused_again_is_noted_and_the_other_objects_are_still_written(status: int) -> None:
    it = applier(status)
    await it.ensure([SERVICE, {**SERVICE, "metadata": {"name": "t", "namespace": "d"}}])
    assert [(r.name, r.status) for r in it.outcome.refused] == [("s", status), ("t", status)]
    assert not it.outcome.stale


@pytest.mark.parametrize("status", [401, 429, 501])
async def test_what_says_nothing_about_the_object_ends_the_pass(status: int) -> None:
    with pytest.raises(ApiError):
        await applier(status).ensure([SERVICE])


def live(uid: str, **metadata: Any) -> dict[str, Any]:
    owners = [{"uid": uid, "controller": True}] if uid else []
    return {"metadata": {"name": "s", "namespace": "d", "uid": "u", "ownerReferences": owners, **metadata}}


async def test_a_strangers_object_is_named_and_not_taken_for_a_stale_view() -> None:
    for owner in ("", "uid-theirs"):
        it = applier(409, live(owner))
        await it.ensure([SERVICE])
        assert [r.status for r in it.outcome.refused] == [403]
        assert "d/s exists" in it.outcome.refused[0].message
        assert not it.outcome.stale


async def test_our_own_or_one_that_is_going_is_looked_at_again() -> None:
    for found in (live("uid-ours"), live("uid-theirs", deletionTimestamp="2026-12-01T00:00:00Z")):
        it = applier(409, found)
        await it.ensure([SERVICE])
        assert (it.outcome.refused, it.outcome.stale) == ([], True)
