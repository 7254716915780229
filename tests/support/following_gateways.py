"""Gateways of KWOK's pods that do as gateways do: each shows the revision of its policy's routes as soon as it changes."""

from __future__ import annotations

import itertools
import json
import random
import threading
import urllib.request
from contextlib import ExitStack
from typing import Any

from tests.support.fake_gateway import FakeGateway

PERIOD_SECONDS = 0.2


class FollowingGateways:
    """For all policies of one namespace. `api`: a URL where the API server answers without credentials."""

    def __init__(self, api: str, namespace: str) -> None:
        self._place = f"{api}/api/v1/namespaces/{namespace}"
        self._stack = ExitStack()
        self._by_pod: dict[str, FakeGateway] = {}
        self._addresses = (f"127.{random.randint(64, 250)}.{random.randint(1, 250)}.{n}" for n in itertools.count(2))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> FollowingGateways:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)
        self._stack.close()

    def _run(self) -> None:
        while not self._stop.wait(PERIOD_SECONDS):
            try:
                self._follow()
            except (OSError, ValueError):
                continue

    def _ask(self, path: str, method: str = "GET", body: object = None) -> Any:
        headers = {"Content-Type": "application/merge-patch+json", "User-Agent": "following-gateways"}
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self._place + path, data=data, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=5) as answer:
            return json.load(answer)

    def _follow(self) -> None:
        revisions: dict[str, str] = {}
        for item in self._ask("/configmaps")["items"]:
            if "routes.json" in item.get("data", {}):
                policy = item["metadata"]["labels"]["inference-fleet.dev/policy"]
                revisions[policy] = json.loads(item["data"]["routes.json"])["revision"]
        for pod in self._ask("/pods?labelSelector=inference-fleet.dev/component%3Dgateway")["items"]:
            metadata, status = pod["metadata"], pod.get("status", {})
            if "podIP" not in status:
                continue
            gateway = self._by_pod.get(metadata["uid"])
            if gateway is None:
                gateway = self._stack.enter_context(FakeGateway(next(self._addresses)))
                self._by_pod[metadata["uid"]] = gateway
            gateway.revision = revisions.get(metadata["labels"]["inference-fleet.dev/policy"], "")
            if status["podIP"] != gateway.address:
                addresses = {"podIP": gateway.address, "podIPs": [{"ip": gateway.address}]}
                self._ask(f"/pods/{metadata['name']}/status", "PATCH", {"status": addresses})
