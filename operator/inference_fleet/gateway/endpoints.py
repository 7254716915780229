"""Which engine pods may get a new request now: EndpointSlices, minus what drains, minus what just failed.

An EndpointSlice is kept whole under its name and replaced whole, so that a lost event costs at most one re-list. What
is in flight on an endpoint is counted here too and outlives the endpoint's removal: those requests go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference_fleet.gateway.routes import Model, Routes, Variant

SERVICE_LABEL = "kubernetes.io/service-name"

FIRST_EJECTION_SECONDS = 1.0
LONGEST_EJECTION_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One engine that can be asked."""

    address: str
    """`host:port`, ready for a URL."""
    pod: str
    """The pod's name, or the address where there is no pod."""


@dataclass(frozen=True, slots=True)
class _Listed:
    endpoint: Endpoint
    usable: bool


@dataclass(slots=True)
class _Ejection:
    failures: int
    until: float


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _port(ports: Iterable[Mapping[str, Any]], wanted: int) -> int:
    """The port of a slice that the variant's Service means. The slice knows the pods' port, the route the Service's."""
    listed = [port for port in ports if isinstance(port.get("port"), int)]
    for port in listed:
        if port["port"] == wanted or port.get("name") == "http":
            return int(port["port"])
    return int(listed[0]["port"]) if len(listed) == 1 else wanted


def _read_slice(slice_: Mapping[str, Any], port: int) -> list[_Listed]:
    number = _port(slice_.get("ports") or (), port)
    listed = []
    for entry in slice_.get("endpoints") or ():
        conditions = entry.get("conditions") or {}
        # An absent `ready` means unknown, which the API asks to read as ready.
        usable = conditions.get("ready") is not False and not conditions.get("terminating")
        for address in (entry.get("addresses") or ())[:1]:
            key = f"{_host(address)}:{number}"
            pod = (entry.get("targetRef") or {}).get("name") or key
            listed.append(_Listed(Endpoint(key, pod), usable))
    return listed


class EndpointView:
    """The endpoints of one policy. `clock` is monotonic, in seconds; `changed` is called after every change."""

    def __init__(self, clock: Callable[[], float], changed: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self._changed = changed
        self._slices: dict[str, Mapping[str, Any]] = {}
        self._ejections: dict[str, _Ejection] = {}
        self._in_flight: dict[str, int] = {}
        self._ready_by_variant: dict[str, tuple[Endpoint, ...]] = {}

    def replace(self, slices: Iterable[Mapping[str, Any]]) -> None:
        """Takes a re-list as the whole truth."""
        self._slices = {slice_["metadata"]["name"]: slice_ for slice_ in slices}
        self._reset()

    def upsert(self, slice_: Mapping[str, Any]) -> None:
        """Takes one slice as it is now; a slice that is being deleted is gone."""
        if slice_["metadata"].get("deletionTimestamp"):
            self._slices.pop(slice_["metadata"]["name"], None)
        else:
            self._slices[slice_["metadata"]["name"]] = slice_
        self._reset()

    def remove(self, name: str) -> None:
        self._slices.pop(name, None)
        self._reset()

    def _reset(self) -> None:
        self._ready_by_variant = {}
        self._changed()

    def _ready(self, variant: Variant) -> tuple[Endpoint, ...]:
        """Endpoints that Kubernetes calls ready and not terminating; worked out once after each change."""
        ready = self._ready_by_variant.get(variant.name)
        if ready is None:
            ready = self._ready_by_variant[variant.name] = self._list(variant)
        return ready

    def _list(self, variant: Variant) -> tuple[Endpoint, ...]:
        found = {address: _Listed(Endpoint(address, address), True) for address in variant.endpoints}
        for slice_ in self._slices.values():
            labels = slice_["metadata"].get("labels") or {}
            if variant.service and labels.get(SERVICE_LABEL) == variant.service:
                for listed in _read_slice(slice_, variant.port):
                    # While an endpoint moves between slices it is in both: the more careful of the two is believed.
                    known = found.get(listed.endpoint.address)
                    if known is None or known.usable:
                        found[listed.endpoint.address] = listed
        return tuple(listed.endpoint for listed in found.values() if listed.usable)

    def routes_changed(self) -> None:
        """Forgets what was derived from the routes before."""
        self._reset()

    def usable(self, routes: Routes, variant: Variant) -> Sequence[Endpoint]:
        """Endpoints that may get a new request: ready, not terminating, not draining, not ejected."""
        ready = self._ready(variant)
        if not routes.drain and not self._ejections:
            return ready
        now = self._clock()
        return [
            endpoint for endpoint in ready if endpoint.pod not in routes.drain and not self._is_ejected(endpoint, now)
        ]

    def _is_ejected(self, endpoint: Endpoint, now: float) -> bool:
        ejection = self._ejections.get(endpoint.address)
        return ejection is not None and now < ejection.until

    def count(self, routes: Routes, model: Model) -> int:
        """Usable endpoints of a model over its variants that have a weight."""
        return sum(len(self.usable(routes, variant)) for variant in model.variants if variant.weight)

    def next_return(self, model: Model) -> float | None:
        """When the first ejected endpoint of a model may be tried again, on the clock; None if none is ejected."""
        now = self._clock()
        times = [
            self._ejections[endpoint.address].until
            for variant in model.variants
            for endpoint in self._ready(variant)
            if self._is_ejected(endpoint, now)
        ]
        return min(times, default=None)

    def failed(self, endpoint: Endpoint) -> None:
        """Ejects an endpoint that did not answer: 1 s at first, doubling to 30 s while it keeps failing.

        EndpointSlices lag behind a dead node by tens of seconds, and a lost event by a whole re-list.
        """
        ejection = self._ejections.get(endpoint.address)
        failures = ejection.failures + 1 if ejection else 1
        seconds = min(FIRST_EJECTION_SECONDS * 2 ** min(failures - 1, 10), LONGEST_EJECTION_SECONDS)
        self._ejections[endpoint.address] = _Ejection(failures, self._clock() + seconds)
        if len(self._ejections) > 1024:
            # Addresses of pods long gone: none of them is listed any more.
            oldest = min(self._ejections, key=lambda address: self._ejections[address].until)
            del self._ejections[oldest]

    def answered(self, endpoint: Endpoint) -> None:
        """An endpoint that answers is forgiven what came before."""
        if self._ejections and self._ejections.pop(endpoint.address, None) is not None:
            self._changed()

    def started(self, endpoint: Endpoint) -> None:
        self._in_flight[endpoint.address] = self._in_flight.get(endpoint.address, 0) + 1

    def ended(self, endpoint: Endpoint) -> None:
        left = self._in_flight.get(endpoint.address, 0) - 1
        if left > 0:
            self._in_flight[endpoint.address] = left
        else:
            self._in_flight.pop(endpoint.address, None)

    def load(self, endpoint: Endpoint) -> int:
        """Requests of this gateway in flight on an endpoint."""
        return self._in_flight.get(endpoint.address, 0)
