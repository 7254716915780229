"""Routes and endpoints from the Kubernetes API: the policy's `-routes` ConfigMap and its EndpointSlices."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from yarl import URL

from inference_fleet.gateway.fleet import Fleet
from inference_fleet.gateway.watching import ApiFailed, ListWatch

log = logging.getLogger(__name__)

POLICY_LABEL = "inference-fleet.dev/policy"
ROUTES_KEY = "routes.json"
GET_SECONDS = 10.0


class KubernetesApi:
    """Reads of the API server with the official client's configuration and connections.

    Its generated API classes are left out: they would turn every EndpointSlice into models that are read once, and
    importing them takes 25 MB in every gateway pod.
    """

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._rest = RESTClientObject(configuration)

    @classmethod
    async def connect(cls) -> KubernetesApi:
        """As the pod's service account; outside a cluster as the kubeconfig says."""
        configuration = Configuration()
        if os.environ.get("KUBERNETES_SERVICE_HOST"):
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            await config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        return cls(configuration)

    async def _request(
        self, path: str, query: Mapping[str, str], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        settings = await self._configuration.auth_settings()
        tokens: dict[str, dict[str, str]] = settings  # type: ignore[assignment]
        headers = {token["key"]: token["value"] for token in tokens.values() if token["in"] == "header"}
        url = URL(self._configuration.host + path).with_query(query)
        try:
            answer = await self._rest.request(  # type: ignore[no-untyped-call]
                "GET", url, headers={**headers, "Accept": "application/json"}, _request_timeout=timeout
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiFailed(0, f"{type(error).__name__}: {error}") from None
        response: aiohttp.ClientResponse = answer.response
        if response.status != 200:
            response.release()
            raise ApiFailed(response.status, f"status {response.status}")
        return response

    async def get(self, path: str, query: Mapping[str, str]) -> bytes:
        response = await self._request(path, query, aiohttp.ClientTimeout(total=GET_SECONDS))
        try:
            return await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiFailed(0, f"{type(error).__name__}: {error}") from None

    async def lines(self, path: str, query: Mapping[str, str], silence_seconds: float) -> AsyncIterator[bytes]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=GET_SECONDS, sock_read=silence_seconds)
        response = await self._request(path, query, timeout)
        try:
            while line := await response.content.readline():
                yield line
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ApiFailed(0, f"{type(error).__name__}: {error}") from None
        finally:
            response.close()

    async def close(self) -> None:
        await self._rest.close()


class _RoutesSink:
    """The one ConfigMap. When it is deleted its last content stays in force: no document is no decision."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def replace(self, objects: list[dict[str, Any]]) -> None:
        self._fleet.channel_synced("routes")
        for object_ in objects:
            self.upsert(object_)
        if not objects:
            log.warning("routes: the ConfigMap does not exist")

    def upsert(self, object_: dict[str, Any]) -> None:
        document = (object_.get("data") or {}).get(ROUTES_KEY)
        if document is None:
            log.error("routes: the ConfigMap has no key %s", ROUTES_KEY)
            self._fleet.channel_failed("routes")
        else:
            self._fleet.take_routes(document)

    def remove(self, object_: dict[str, Any]) -> None:
        log.warning("routes: the ConfigMap was deleted; revision %s stays in force", self._fleet.routes().revision)

    def failed(self, error: Exception) -> None:
        self._fleet.channel_failed("routes")


class _SlicesSink:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def replace(self, objects: list[dict[str, Any]]) -> None:
        self._fleet.channel_synced("endpoints")
        self._fleet.take_slices(objects)

    def upsert(self, object_: dict[str, Any]) -> None:
        self._fleet.endpoints.upsert(object_)

    def remove(self, object_: dict[str, Any]) -> None:
        self._fleet.endpoints.remove(object_["metadata"]["name"])

    def failed(self, error: Exception) -> None:
        self._fleet.channel_failed("endpoints")


class KubernetesChannel:
    """Feeds a fleet from one namespace of one cluster."""

    def __init__(
        self,
        api: KubernetesApi,
        policy: str,
        namespace: str,
        fleet: Fleet,
        relist_seconds: int,
        retry_seconds: float,
        random: Callable[[], float],
    ) -> None:
        self._api = api
        self._watches = (
            ListWatch(
                api,
                f"/api/v1/namespaces/{namespace}/configmaps",
                {"fieldSelector": f"metadata.name={policy}-routes"},
                _RoutesSink(fleet),
                relist_seconds=relist_seconds,
                retry_seconds=retry_seconds,
                random=random,
            ),
            ListWatch(
                api,
                f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices",
                # The EndpointSlice controller copies the Service's labels.
                {"labelSelector": f"{POLICY_LABEL}={policy}"},
                _SlicesSink(fleet),
                relist_seconds=relist_seconds,
                retry_seconds=retry_seconds,
                random=random,
            ),
        )

    async def run(self) -> None:
        try:
            await asyncio.gather(*(watch.run() for watch in self._watches))
        finally:
            await self._api.close()
