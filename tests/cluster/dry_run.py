"""Hundreds of resources judged in seconds: dry runs over one connection, where kubectl would be a process for each."""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from inference_fleet.api.base import API_VERSION
from tests.unit.api.resources import BY_NAME


class DryRun:
    """Asks an API server, as the administrator of a kubeconfig, what it would say of a new resource. Nothing is stored."""

    def __init__(self, kubeconfig: Path) -> None:
        document = json.loads(kubeconfig.read_text())
        cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
        context = ssl.create_default_context(cafile=cluster["certificate-authority"])
        context.load_cert_chain(user["client-certificate"], user["client-key"])
        self.connection = http.client.HTTPSConnection(urlsplit(cluster["server"]).netloc, context=context)

    def create(self, document: dict[str, Any]) -> str:
        """Empty when the server would take it, otherwise what it complains of."""
        resource = BY_NAME[document["kind"]].resource
        place = "/namespaces/default" if resource.namespaced else ""
        path = f"/apis/{API_VERSION}{place}/{resource.plural}?dryRun=All&fieldValidation=Strict"
        self.connection.request("POST", path, json.dumps(document), {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        body = json.loads(answer.read())
        return "" if answer.status == 201 else str(body["message"])
