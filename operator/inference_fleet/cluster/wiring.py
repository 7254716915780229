"""kopf as the shell: it watches the resources users write, and every handler only passes the event on.

It runs in a thread with an event loop of its own: kopf ends by cancelling every task of its loop, and its work must not delay the
passes. No `on.create/update/delete`, no finalizers, no patches, no timers, no events of kopf's own.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, repeat
from typing import Any

import kopf

from inference_fleet.cluster import kinds
from inference_fleet.cluster.client import load_configuration
from inference_fleet.cluster.kinds import Kind
from inference_fleet.cluster.settings import OperatorOptions

log = logging.getLogger("inference_fleet.kopf")

WATCHED: tuple[Kind, ...] = (kinds.POLICY, kinds.MODEL, kinds.ACCELERATOR_CLASS)
Pass = Callable[[Kind, str | None, Mapping[str, Any]], None]
"""Takes (kind, event type, object) in the operator's loop."""


class Patience:
    """Waits between attempts, without an end: kopf ends its process when they run out, and an API that is away is no reason to."""

    def __iter__(self) -> Iterator[float]:
        return chain((1.0, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0), repeat(30.0))


def configure(settings: kopf.OperatorSettings) -> None:
    """kopf's settings: it only watches."""
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.networking.request_timeout = 10
    settings.networking.error_backoffs = Patience()
    settings.networking.trust_env = True
    settings.process.ultimate_exiting_timeout = None


def registry(pass_on: Pass, kubeconfig: str, give_up: Callable[[str], None]) -> kopf.OperatorRegistry:
    """The handlers, each one line. `give_up` is told why there are no credentials: kopf would wait for them for ever."""
    handlers = kopf.OperatorRegistry()

    @kopf.on.startup(registry=handlers)
    def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)

    @kopf.on.login(registry=handlers)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        try:
            return await log_in(kubeconfig)
        except Exception as error:
            give_up(f"kopf has no credentials: {error}")
            raise kopf.PermanentError(f"no credentials: {error}") from error

    def watch(kind: Kind) -> None:
        @kopf.on.event(kind.group, kind.version, kind.plural, registry=handlers, id=f"pass-on-{kind.plural}")
        async def pass_event(event: Mapping[str, Any], **_: Any) -> None:
            pass_on(kind, event.get("type"), event["object"])

    for kind in WATCHED:
        watch(kind)
    return handlers


async def log_in(kubeconfig: str) -> kopf.ConnectionInfo:
    """The same credentials as our own client's. kopf asks again when they are refused: a token may have been renewed."""
    configuration = await load_configuration(kubeconfig)
    header = await configuration.get_api_key_with_prefix("BearerToken") or ""
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        token=header.rpartition(" ")[2] or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        proxy_url=configuration.proxy,
        trust_env=True,
    )


class KopfShell:
    """kopf in its thread. `died`: why it ended by itself; empty while it runs or was told to end."""

    def __init__(self, options: OperatorOptions, loop: asyncio.AbstractEventLoop, pass_on: Pass) -> None:
        self.died = ""
        self._options = options
        self._loop = loop
        self._pass_on = pass_on
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self, timeout_seconds: float = 10.0) -> None:
        """End the watches. Blocks."""
        self._stop.set()
        self._thread.join(timeout_seconds)

    def _hand_over(self, kind: Kind, event_type: str | None, obj: Mapping[str, Any]) -> None:
        # The object is kopf's own, which it goes on using: it is read in the other loop, never changed.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._pass_on, kind, event_type, obj)

    def _give_up(self, why: str) -> None:
        """Ends kopf, and by that the process: a new one starts from the credentials as they then are."""
        self.died = why
        self._stop.set()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        try:
            await kopf.operator(
                registry=registry(self._hand_over, self._options.kubeconfig, self._give_up),
                clusterwide=self._options.clusterwide,
                namespaces=self._options.namespaces,
                standalone=True,
                stop_flag=self._stop,
            )
        except Exception as error:
            log.exception("kopf ended")
            self.died = f"kopf ended: {error!r}"
        else:
            if not self._stop.is_set():
                self.died = "kopf ended by itself"
        finally:
            self._stop.set()  # kopf waits for the flag in a thread, which would outlive it
