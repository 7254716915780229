"""The HTTP side of Kubernetes: `kubernetes.aio` does TLS, credentials and their refresh; paths and bodies are ours.

Objects are plain dicts: they are trimmed on reading and rendered as manifests on writing, so typed models would only be built to
be taken apart. Every request that changes something passes one gate (`Guard`): the lease must outlive the request.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import orjson
from kubernetes.aio import client as kubernetes_client
from kubernetes.aio import config as kubernetes_config

from inference_fleet.cluster.kinds import Kind

FIELD_MANAGER = "inference-fleet"
SCALE_FIELD_MANAGER = "inference-fleet-scale"
WRITE_TIMEOUT_SECONDS = 10.0
READ_TIMEOUT_SECONDS = 30.0
WATCH_SERVER_SECONDS = 300
WATCH_CLIENT_SECONDS = 310.0
PAGE_SIZE = 500

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


class ApiError(Exception):
    """The API server refused. `status` is the HTTP status, `reason` its machine-readable word (NotFound, Conflict, …)."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def gone(self) -> bool:
        """The object is not there."""
        return self.status == 404

    @property
    def stale(self) -> bool:
        """What the request was based on is no longer so: the next pass, from newer facts, is the answer."""
        return self.status in (404, 409, 412)


class NamespaceEnding(ApiError):
    """The namespace is being deleted: nothing new is made in it, and what is there will go."""


class ApiUnreachable(Exception):
    """No answer came (connection, TLS or time), or one that says to come back later (429, 502, 503, 504)."""

    def __init__(self, message: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        """How long the server asks us to stay away."""


class Guard(Protocol):
    """Asked before each write. Raises when this process may not write any more."""

    def require(self, seconds: float) -> None:
        """Raise unless the lease lives at least that long."""


class Unguarded:
    """For tools and tests that hold no lease."""

    def require(self, seconds: float) -> None:
        """Nothing to require."""


@dataclass(slots=True)
class Reachability:
    """Since when the API server has answered without a failure in between (monotonic seconds; None: it does not)."""

    since: float | None = None
    last_answer: float | None = None

    def answered(self, now: float) -> None:
        """A request was answered, whatever the answer."""
        self.last_answer = now
        if self.since is None:
            self.since = now

    def failed(self) -> None:
        """A request was not answered."""
        self.since = None


async def load_configuration(kubeconfig: str = "") -> Any:
    """The connection's settings: the pod's service account, or a kubeconfig file where one is named or there is no pod."""
    configuration = kubernetes_client.Configuration()
    if not kubeconfig and "KUBERNETES_SERVICE_HOST" in os.environ:
        kubernetes_config.load_incluster_config(  # type: ignore[no-untyped-call]
            client_configuration=configuration
        )
    else:
        path = kubeconfig or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
        await kubernetes_config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=path, client_configuration=configuration
        )
    configuration.connection_pool_maxsize = 0  # each watch holds a connection: a bound would starve the writes
    return configuration


@dataclass(slots=True)
class ClusterClient:
    """Requests to one API server. Belongs to one event loop; `close` when done.

    `on_write(verb, kind)` is told of every request that changes something, answered or not.
    """

    configuration: Any
    clock: Callable[[], float]
    guard: Guard = field(default_factory=Unguarded)
    on_write: Callable[[str, str], None] = lambda verb, kind: None
    reachability: Reachability = field(default_factory=Reachability)
    user_agent: str = "inference-fleet"
    write_timeout_seconds: float = WRITE_TIMEOUT_SECONDS
    _client: Any = None

    def _api(self) -> Any:
        if self._client is None:
            self._client = kubernetes_client.ApiClient(self.configuration)
            self._client.user_agent = self.user_agent
        return self._client

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: object,
        content_type: str,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        api = self._api()
        try:
            request = await api.param_serialize(
                method,
                path,
                query_params=list(query.items()),
                header_params={"Accept": "application/json", "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = await api.call_api(*request, _request_timeout=timeout)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self.reachability.failed()
            raise ApiUnreachable(f"{method} {path}: {type(error).__name__} {error}".rstrip()) from error
        self.reachability.answered(self.clock())
        response: aiohttp.ClientResponse = answer.response
        if response.status >= 300:
            refusal = await _error_of(response)
            if isinstance(refusal, ApiUnreachable):
                self.reachability.failed()
            raise refusal
        return response

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
        timeout_seconds: float = READ_TIMEOUT_SECONDS,
    ) -> dict[str, Any]:
        """One request, its JSON answer. Raises ApiError or ApiUnreachable."""
        timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        response = await self._send(method, path, query or {}, body, content_type, timeout)
        try:
            data = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self.reachability.failed()
            raise ApiUnreachable(f"{method} {path}: {type(error).__name__} {error}".rstrip()) from error
        finally:
            response.release()
        answer: dict[str, Any] = orjson.loads(data) if data else {}
        return answer

    async def get(self, kind: Kind, namespace: str, name: str, subresource: str = "") -> dict[str, Any]:
        """One object, live. Raises ApiError with `gone` where there is none."""
        return await self.request("GET", kind.path(namespace, name, subresource))

    async def list_page(self, kind: Kind, namespace: str, selector: str, token: str) -> dict[str, Any]:
        """One page of a collection; `metadata.continue` in the answer leads to the next."""
        query = {"limit": str(PAGE_SIZE)}
        if selector:
            query["labelSelector"] = selector
        if token:
            query["continue"] = token
        return await self.request("GET", kind.path(namespace), query=query)

    async def watch(
        self,
        kind: Kind,
        namespace: str,
        selector: str,
        resource_version: str,
        opened: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Events from a resourceVersion on, bookmarks included, until the server ends the stream. `opened`: it has begun one."""
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(WATCH_SERVER_SECONDS),
        }
        if selector:
            query["labelSelector"] = selector
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=READ_TIMEOUT_SECONDS, sock_read=WATCH_CLIENT_SECONDS)
        path = kind.path(namespace)
        try:
            async with asyncio.timeout(READ_TIMEOUT_SECONDS):  # a stream begins at once, whenever its first event comes
                response = await self._send("GET", path, query, None, "application/json", timeout)
        except TimeoutError as error:
            self.reachability.failed()
            raise ApiUnreachable(f"WATCH {path}: no answer for {READ_TIMEOUT_SECONDS:.0f} s") from error
        opened()
        try:
            while True:
                line = await response.content.readline()
                if not line:
                    return
                yield orjson.loads(line)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            self.reachability.failed()
            raise ApiUnreachable(f"WATCH {path}: {type(error).__name__} {error}".rstrip()) from error
        finally:
            response.close()

    async def _write(
        self,
        verb: str,
        kind: Kind,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        self.guard.require(self.write_timeout_seconds)
        self.on_write(verb, kind.name)
        return await self.request(
            method, path, query=query, body=body, content_type=content_type, timeout_seconds=self.write_timeout_seconds
        )

    async def create(self, kind: Kind, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object; ApiError 409 where it exists."""
        namespace = str(manifest["metadata"].get("namespace", ""))
        return await self._write(
            "create", kind, "POST", kind.path(namespace), query={"fieldManager": FIELD_MANAGER}, body=manifest
        )

    async def apply(self, kind: Kind, manifest: Mapping[str, Any], manager: str = FIELD_MANAGER) -> dict[str, Any]:
        """Server-side apply: the fields in the manifest become ours, those we no longer name go."""
        metadata = manifest["metadata"]
        return await self._write(
            "apply",
            kind,
            "PATCH",
            kind.path(str(metadata.get("namespace", "")), str(metadata["name"])),
            query={"fieldManager": manager, "force": "true"},
            body=manifest,
            content_type=APPLY,
        )

    async def merge(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        subresource: str = "",
        manager: str = FIELD_MANAGER,
    ) -> dict[str, Any]:
        """A JSON merge patch of an object or of one of its subresources."""
        return await self._write(
            f"patch-{subresource}" if subresource else "patch",
            kind,
            "PATCH",
            kind.path(namespace, name, subresource),
            query={"fieldManager": manager},
            body=patch,
            content_type=MERGE,
        )

    async def replace(self, kind: Kind, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Replace an object; its resourceVersion, where given, must still be current."""
        metadata = manifest["metadata"]
        path = kind.path(str(metadata.get("namespace", "")), str(metadata["name"]))
        return await self._write("update", kind, "PUT", path, query={"fieldManager": FIELD_MANAGER}, body=manifest)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str, resource_version: str) -> dict[str, Any]:
        """Delete exactly this object in exactly this version; what it owns goes in the background."""
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": preconditions,
            "propagationPolicy": "Background",
        }
        return await self._write("delete", kind, "DELETE", kind.path(namespace, name), body=body)


async def _error_of(response: aiohttp.ClientResponse) -> Exception:
    """What a refusal says; a Status object where the API server itself answered."""
    try:
        data = await response.read()
    except (aiohttp.ClientError, OSError, TimeoutError):
        data = b""
    finally:
        response.release()
    try:
        status = orjson.loads(data)
    except orjson.JSONDecodeError:
        status = {}
    if not isinstance(status, dict):
        status = {}
    message = str(status.get("message") or data[:200].decode(errors="replace") or response.reason)
    if response.status in (429, 502, 503, 504):
        asked = response.headers.get("Retry-After", "")
        return ApiUnreachable(f"{response.status} {message}", min(float(asked), 60.0) if asked.isdigit() else 0.0)
    causes = (status.get("details") or {}).get("causes") or []
    refusal = NamespaceEnding if any(c.get("reason") == "NamespaceTerminating" for c in causes) else ApiError
    return refusal(response.status, str(status.get("reason") or response.reason or ""), message)


async def list_all(
    client: ClusterClient, kind: Kind, namespace: str, selector: str
) -> tuple[list[dict[str, Any]], str]:
    """Every object of a kind by pages, and the resourceVersion of the list.

    A page token that has expired starts the list over, at most three times: after that the API server is too slow for us.
    """
    for attempt in range(3):
        items: list[dict[str, Any]] = []
        token = ""
        try:
            while True:
                page = await client.list_page(kind, namespace, selector, token)
                items.extend(page.get("items") or [])
                metadata = page.get("metadata") or {}
                token = str(metadata.get("continue") or "")
                if not token:
                    return items, str(metadata.get("resourceVersion") or "")
        except ApiError as error:
            if error.status != 410 or attempt == 2:
                raise
        await asyncio.sleep(0)
    raise AssertionError("unreachable")
