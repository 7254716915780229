"""From a Plan to writes: in one order, each only where something differs, each valid only against what was seen.

Templates go by server-side apply, replicas never with them: a Deployment is created with its replicas, whose ownership then passes
to a field manager of its own, and after that they move only through `/scale`. A refusal because something changed meanwhile (409,
404, 412) is no error: the next pass sees what changed.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from inference_fleet.cluster import kinds
from inference_fleet.cluster.client import SCALE_FIELD_MANAGER, ApiError, ClusterClient, NamespaceEnding
from inference_fleet.cluster.kinds import Kind, kind_of
from inference_fleet.cluster.meta_reading import read_meta
from inference_fleet.cluster.pod_reading import DELETION_COST
from inference_fleet.cluster.reading import read_deployment
from inference_fleet.cluster.seen import DeploymentSeen, Meta, ObjectSeen, PodSeen
from inference_fleet.cluster.snapshot import Snapshots
from inference_fleet.naming import FIELD_MANAGER, RENDERED_HASH_ANNOTATION, VARIANT_LABEL
from inference_fleet.plan.outcome import Removal, ReplicaChange

log = logging.getLogger("inference_fleet.apply")

VICTIM_COST = -1000
HAND_OVER_ATTEMPTS = 5
NEVER = "1"
"""A resourceVersion that no object has: an apply against it creates, and is refused (409) where there is something."""
Manifest = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Refused:
    """A write that the API server will refuse again unless somebody edits something; or, with status 500, that it failed to do."""

    kind: str
    name: str
    status: int
    message: str
    variant: bool = False


@dataclass(slots=True)
class Outcome:
    """What one pass wrote."""

    written: int = 0
    stale: bool = False
    """Something had changed since it was observed: another pass is due at once."""
    acted: bool = False
    """Something was created, scaled or removed: what is remembered must be written down."""
    rolled: list[str] = field(default_factory=list)
    """Deployments that were there and got another template: what was observed of them before speaks of the old one."""
    refused: list[Refused] = field(default_factory=list)


def mark(meta: Meta) -> str:
    """What moves when somebody edits an object: its generation, or its resourceVersion where its kind has none."""
    return str(meta.generation) if meta.generation else meta.resource_version


class Applier:
    """Writes one policy's objects. `applied` is shared: uid → mark after our last apply."""

    def __init__(
        self, client: ClusterClient, snapshots: Snapshots, owner_uid: str, applied: MutableMapping[str, str]
    ) -> None:
        self._client = client
        self._snapshots = snapshots
        self._owner_uid = owner_uid
        self._applied = applied
        self._touched: set[str] = set()
        self.outcome = Outcome()

    async def ensure(self, manifests: Iterable[Manifest], *, variant: bool = False) -> None:
        """Bring each object to what was rendered."""
        for manifest in manifests:
            kind, metadata = kind_of(dict(manifest)), manifest["metadata"]
            try:
                await self._ensure(kind, manifest)
            except ApiError as error:
                self._note(error, kind, metadata["name"], variant)
                if error.stale:
                    await self._look_again(kind, str(metadata["namespace"]), str(metadata["name"]))

    def _note(self, error: ApiError, kind: Kind, name: str, variant: bool = False) -> None:
        if isinstance(error, NamespaceEnding):
            raise error
        if error.stale:
            log.info("%s %s changed meanwhile: %s", kind.name, name, error.message)
            self.outcome.stale = True
        elif (400 <= error.status < 500 and error.status not in (401, 429)) or error.status == 500:
            log.error("%s %s was refused: %s", kind.name, name, error)
            self.outcome.refused.append(Refused(kind.name, name, error.status, error.message, variant))
        else:
            raise error

    async def _look_again(self, kind: Kind, namespace: str, name: str) -> None:
        """After a refusal: what is there now, in case the event that says so is lost."""
        try:
            self._snapshots.wrote(kind, await self._client.get(kind, namespace, name))
        except ApiError as error:
            known = self._seen(kind, namespace, name)
            if error.gone and known is not None:
                self._snapshots.removed(kind, namespace, name, known.meta.uid)

    def _seen(self, kind: Kind, namespace: str, name: str) -> DeploymentSeen | ObjectSeen | None:
        found = self._snapshots.get(kind, f"{namespace}/{name}")
        return found if isinstance(found, DeploymentSeen | ObjectSeen) else None

    async def _ensure(self, kind: Kind, manifest: Manifest) -> None:
        metadata = manifest["metadata"]
        namespace, name = str(metadata["namespace"]), str(metadata["name"])
        seen = self._seen(kind, namespace, name)
        if seen is None:
            await self._create(kind, namespace, name, manifest)
            return
        if seen.meta.owner_uid != self._owner_uid:
            raise self._taken(kind, seen.meta)
        if seen.meta.deleting:
            self.outcome.stale = True
            return
        if isinstance(seen, DeploymentSeen) and only_template_owns_replicas(seen):
            # The hand-over at creation did not happen: dropping the field later would reset it to 1.
            await self._hand_over_replicas(kind, namespace, name, seen.desired_replicas, seen.meta.resource_version)
            self.outcome.stale = True
            return
        rendered = (metadata.get("annotations") or {}).get(RENDERED_HASH_ANNOTATION, "")
        same = seen.meta.annotations.get(RENDERED_HASH_ANNOTATION, "") == rendered
        if same and self._applied.get(seen.meta.uid) == mark(seen.meta):
            return
        body = without_replicas(manifest)
        # Against the version that was looked at: a leader that lost its lease unknowingly changes nothing.
        body["metadata"] = {**metadata, "resourceVersion": seen.meta.resource_version}
        answer = await self._client.apply(kind, body)
        self._took(kind, answer)
        if isinstance(seen, DeploymentSeen) and read_meta(answer).generation != seen.meta.generation:
            self.outcome.rolled.append(name)

    def _taken(self, kind: Kind, meta: Meta) -> ApiError:
        if meta.deleting:
            return ApiError(409, "Conflict", f"{kind.name} {meta.key} of a former owner is being removed")
        return _name_taken(kind, meta)

    async def _create(self, kind: Kind, namespace: str, name: str, manifest: Manifest) -> None:
        """Create what the snapshot does not have; a stranger's object of that name is never taken over."""
        replicas = (manifest.get("spec") or {}).get("replicas") if kind is kinds.DEPLOYMENT else None
        try:
            made = await self._client.apply(kind, if_absent(manifest))
        except ApiError as error:
            if error.status != 409:
                raise
            live = read_meta(await self._client.get(kind, namespace, name))
            if live.owner_uid != self._owner_uid:
                raise self._taken(kind, live) from error
            self.outcome.stale = True  # ours, but the snapshot does not show it yet
            return
        self.outcome.acted = True
        self._took(kind, made)
        if replicas is not None:
            # Also where it is the default of 1: of a field that nobody owns the API server does not say who scaled it.
            await self._hand_over_replicas(kind, namespace, name, int(replicas), read_meta(made).resource_version)

    async def _hand_over_replicas(
        self, kind: Kind, namespace: str, name: str, replicas: int, resource_version: str
    ) -> None:
        """Only as long as they are what the template made them: the Deployment's own controller moves its version at once."""
        for _ in range(HAND_OVER_ATTEMPTS):
            body = {
                "apiVersion": kind.api_version,
                "kind": kind.name,
                "metadata": {"name": name, "namespace": namespace, "resourceVersion": resource_version},
                "spec": {"replicas": replicas},
            }
            try:
                self._took(kind, await self._client.apply(kind, body, manager=SCALE_FIELD_MANAGER))
                return
            except ApiError as error:
                if error.status != 409:
                    raise
            live = read_deployment(await self._client.get(kind, namespace, name))
            if live.desired_replicas != replicas or not only_template_owns_replicas(live):
                break
            resource_version = live.meta.resource_version
        self.outcome.stale = True  # noticed again before the template drops the field

    def _took(self, kind: Kind, answer: Mapping[str, Any]) -> None:
        meta = read_meta(answer)
        self._applied[meta.uid] = mark(meta)
        self._touched.add(meta.uid)
        self.outcome.written += 1
        self._snapshots.wrote(kind, answer)

    async def scale(self, change: ReplicaChange, namespace: str, pods: Iterable[PodSeen]) -> None:
        """Carry out a replica change, through `/scale` and only against the version it was decided on."""
        if change.uid in self._touched:
            self.outcome.stale = True  # its template was written in this very pass: decide again on what that made
            return
        try:
            if change.after < change.before:
                if not await self._still(
                    kinds.DEPLOYMENT, namespace, change.variant, change.uid, change.resource_version
                ):
                    return
                await self._mark_victims(change, pods)
            await self._client.merge(
                kinds.DEPLOYMENT,
                namespace,
                change.variant,
                {"metadata": {"resourceVersion": change.resource_version}, "spec": {"replicas": change.after}},
                subresource="scale",
                manager=SCALE_FIELD_MANAGER,
            )
            self.outcome.acted = True
            self.outcome.written += 1
            self._touched.add(change.uid)
            self._took_scale(await self._client.get(kinds.DEPLOYMENT, namespace, change.variant), change)
        except ApiError as error:
            self._note(error, kinds.DEPLOYMENT, change.variant)

    def _took_scale(self, live: Mapping[str, Any], change: ReplicaChange) -> None:
        """A scale moves the generation too; that is no hand edit, as long as it moved by no more than our own write."""
        seen = read_deployment(live)
        before = self._applied.get(change.uid)
        ours_alone = before is not None and before.isdigit() and seen.meta.generation == int(before) + 1
        if seen.meta.uid == change.uid and ours_alone and seen.desired_replicas == change.after:
            self._applied[change.uid] = mark(seen.meta)
        self._snapshots.wrote(kinds.DEPLOYMENT, live)

    async def _mark_victims(self, change: ReplicaChange, pods: Iterable[PodSeen]) -> None:
        """Tell the ReplicaSet controller whom to take: the victims first, and nobody who was marked for an earlier plan."""
        for pod in pods:
            if pod.meta.labels.get(VARIANT_LABEL) != change.variant or pod.meta.deleting:
                continue
            wanted = VICTIM_COST if pod.meta.name in change.victims else max(0, pod.deletion_cost)
            if pod.deletion_cost != wanted:
                same = {"uid": pod.meta.uid, "resourceVersion": pod.meta.resource_version}
                patch = {"metadata": {**same, "annotations": {DELETION_COST: str(wanted)}}}
                answer = await self._client.merge(kinds.POD, pod.meta.namespace, pod.meta.name, patch)
                self.outcome.written += 1
                self._snapshots.wrote(kinds.POD, answer)

    async def _still(self, kind: Kind, namespace: str, name: str, uid: str, resource_version: str) -> bool:
        """A live look before what destroys: whether the object is still exactly what was decided on."""
        live = read_meta(await self._client.get(kind, namespace, name))
        same = live.uid == uid and live.resource_version == resource_version and not live.deleting
        if not same:
            self.outcome.stale = True
        return same

    async def remove(self, removal: Removal, namespace: str) -> None:
        """Delete a variant's Deployment, then its Service."""
        try:
            if not await self._still(
                kinds.DEPLOYMENT, namespace, removal.variant, removal.uid, removal.resource_version
            ):
                return
            self.outcome.acted = True
            await self._delete(kinds.DEPLOYMENT, namespace, removal.variant, removal.uid, removal.resource_version)
        except ApiError as error:
            self._note(error, kinds.DEPLOYMENT, removal.variant)

    async def _delete(self, kind: Kind, namespace: str, name: str, uid: str, resource_version: str) -> None:
        await self._client.delete(kind, namespace, name, uid, resource_version)
        self.outcome.written += 1
        self._applied.pop(uid, None)
        self._snapshots.removed(kind, namespace, name, uid)

    async def sweep(self, leftovers: Iterable[ObjectSeen], kind: Kind) -> None:
        """Delete objects of variants that are gone."""
        for seen in leftovers:
            meta = seen.meta
            try:
                if await self._still(kind, meta.namespace, meta.name, meta.uid, meta.resource_version):
                    await self._delete(kind, meta.namespace, meta.name, meta.uid, meta.resource_version)
            except ApiError as error:
                self._note(error, kind, meta.name)


def _name_taken(kind: Kind, meta: Meta) -> ApiError:
    owner = "belongs to another owner" if meta.owner_uid else "was not made by this operator"
    return ApiError(403, "NameTaken", f"{kind.name} {meta.key} exists and {owner}; remove it or rename the policy")


def if_absent(manifest: Manifest) -> dict[str, Any]:
    """The same object, valid only where there is none: an apply that was held up must not undo what came after it."""
    return {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": NEVER}}


def without_replicas(manifest: Manifest) -> dict[str, Any]:
    """The same object without `spec.replicas`, which an apply must never name once the object exists."""
    body = copy.copy(dict(manifest))
    if body.get("kind") == kinds.DEPLOYMENT.name and "replicas" in body.get("spec", {}):
        body["spec"] = {key: value for key, value in body["spec"].items() if key != "replicas"}
    return body


def only_template_owns_replicas(seen: DeploymentSeen) -> bool:
    """Whether `spec.replicas` would be lost if our template no longer named it."""
    return seen.replicas_owners == (FIELD_MANAGER,)
