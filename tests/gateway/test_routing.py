"""Routes, endpoints and the choice between them: pure, no sockets, no sleeping."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_fleet.gateway.choose import choose
from inference_fleet.gateway.endpoints import LONGEST_EJECTION_SECONDS, Endpoint, EndpointView
from inference_fleet.gateway.routes import MalformedRoutes, Metric, Routes, Variant, parse
from tests.gateway.harness import model, routes, variant


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def table(*models: dict[str, Any], **changes: Any) -> Routes:
    return parse(json.dumps(routes(*models, **changes)))


def slice_(name: str, service: str, *endpoints: dict[str, Any], port: int = 8000) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
        "ports": [{"name": "http", "port": port}],
        "endpoints": list(endpoints),
    }


def pod(address: str, name: str, **conditions: bool) -> dict[str, Any]:
    return {"addresses": [address], "conditions": conditions, "targetRef": {"kind": "Pod", "name": name}}


class TestRoutes:
    def test_the_example_of_the_design_is_read(self) -> None:
        found = table(
            model("small", variant("v", weight=3, engine="LlamaCpp"), served=["chat-small"], default=True),
            holdSeconds=120,
            drain=["p1"],
        )
        assert found.hold_seconds == 120
        assert found.drain == {"p1"}
        assert found.objectives[0].metric is Metric.TIME_TO_FIRST_TOKEN
        assert found.objectives[0].limit_seconds == 60
        assert found.models[0].variants[0].weight == 3

    def test_names_that_a_client_may_use(self) -> None:
        found = table(model("small", served=["chat-small", "fast"]), model("large", default=True))
        assert {name: found.resolve(name) and found.resolve(name).name for name in  # type: ignore[union-attr]
                ("small", "chat-small", "fast", "large", "chat", "other")} == {
            "small": "small", "chat-small": "small", "fast": "small", "large": "large", "chat": "large", "other": None,
        }  # fmt: skip
        assert [one.public_names for one in found.models] == [("chat-small", "fast"), ("large",)]

    def test_what_is_not_known_is_ignored(self) -> None:
        assert parse(json.dumps({**routes(), "later": {"a": 1}})).policy == "chat"

    @pytest.mark.parametrize(
        ("change", "named"),
        [
            ({"models": [{"name": 1}]}, r"routes.models\[0\].name"),
            ({"models": [{"name": "a", "variants": [{"name": "v", "engine": "VLLM"}]}]}, r"variants\[0\].weight"),
            ({"holdSeconds": -1}, "holdSeconds"),
            ({"maxBodyBytes": True}, "maxBodyBytes"),
            ({"objectives": [{"name": "a", "metric": "Latency", "milliseconds": 1}]}, "metric"),
            ({"drain": [1]}, "drain"),
        ],
    )
    def test_a_malformed_table_is_refused_and_the_field_named(self, change: dict[str, Any], named: str) -> None:
        with pytest.raises(MalformedRoutes, match=named):
            parse(json.dumps({**routes(), **change}))

    @pytest.mark.parametrize("document", ["", "{", "[]", "null"])
    def test_what_is_no_table_is_refused(self, document: str) -> None:
        with pytest.raises(MalformedRoutes):
            parse(document)


class TestEndpoints:
    def view(self, *slices: dict[str, Any]) -> tuple[EndpointView, Clock]:
        clock = Clock()
        view = EndpointView(clock)
        view.replace(slices)
        return view, clock

    def addresses(self, view: EndpointView, found: Routes) -> list[str]:
        return [endpoint.address for endpoint in view.usable(found, found.models[0].variants[0])]

    def test_only_ready_pods_that_stay_get_new_requests(self) -> None:
        view, _ = self.view(
            slice_(
                "s", "v",
                pod("10.0.0.1", "ready", ready=True),
                pod("10.0.0.2", "loading", ready=False),
                pod("10.0.0.3", "leaving", ready=True, terminating=True),
                pod("10.0.0.4", "draining", ready=True),
                pod("10.0.0.5", "unknown"),
                pod("fd00::6", "six", ready=True),
            ),
            slice_("other", "w", pod("10.0.1.1", "stranger", ready=True)),
        )  # fmt: skip
        found = table(model("small", variant("v")), drain=["draining"])
        assert self.addresses(view, found) == ["10.0.0.1:8000", "10.0.0.5:8000", "[fd00::6]:8000"]

    def test_the_slice_tells_the_port(self) -> None:
        view, _ = self.view(slice_("s", "v", pod("10.0.0.1", "p", ready=True), port=9001))
        assert self.addresses(view, table(model("small", variant("v")))) == ["10.0.0.1:9001"]

    def test_an_endpoint_in_two_slices_is_one_and_the_careful_word_counts(self) -> None:
        ready, leaving = pod("10.0.0.1", "p", ready=True), pod("10.0.0.1", "p", ready=True, terminating=True)
        found = table(model("small", variant("v")))
        assert self.addresses(self.view(slice_("a", "v", ready), slice_("b", "v", ready))[0], found) == [
            "10.0.0.1:8000"
        ]
        assert self.addresses(self.view(slice_("a", "v", ready), slice_("b", "v", leaving))[0], found) == []
        assert self.addresses(self.view(slice_("a", "v", leaving), slice_("b", "v", ready))[0], found) == []

    def test_events_and_lists(self) -> None:
        found = table(model("small", variant("v")))
        view, _ = self.view()
        view.upsert(slice_("s", "v", pod("10.0.0.1", "p", ready=True)))
        assert self.addresses(view, found) == ["10.0.0.1:8000"]
        view.upsert(slice_("s", "v", pod("10.0.0.2", "q", ready=True)))
        assert self.addresses(view, found) == ["10.0.0.2:8000"]
        view.remove("s")
        assert self.addresses(view, found) == []
        view.upsert(slice_("s", "v", pod("10.0.0.2", "q", ready=True)))
        view.replace([])  # the DELETED event was lost, the list mends it
        assert self.addresses(view, found) == []
        deleted = slice_("s", "v", pod("10.0.0.2", "q", ready=True))
        deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        view.upsert(deleted)
        assert self.addresses(view, found) == []

    def test_an_endpoint_that_fails_is_left_alone_longer_each_time_and_forgiven_when_it_answers(self) -> None:
        view, clock = self.view(slice_("s", "v", pod("10.0.0.1", "p", ready=True)))
        found = table(model("small", variant("v")))
        endpoint = Endpoint("10.0.0.1:8000", "p")
        waits = []
        for _ in range(8):
            view.failed(endpoint)
            assert self.addresses(view, found) == []
            until = view.next_return(found.models[0])
            assert until is not None
            waits.append(until - clock.now)
            clock.now = until
            assert self.addresses(view, found) == ["10.0.0.1:8000"]
        assert waits == [1, 2, 4, 8, 16, 30, 30, LONGEST_EJECTION_SECONDS]
        view.answered(endpoint)
        view.failed(endpoint)
        assert view.next_return(found.models[0]) == clock.now + 1

    def test_requests_in_flight_outlive_their_endpoint(self) -> None:
        view, _ = self.view()
        endpoint = Endpoint("10.0.0.1:8000", "p")
        view.started(endpoint)
        view.started(endpoint)
        view.replace([])
        assert view.load(endpoint) == 2
        view.ended(endpoint)
        view.ended(endpoint)
        assert view.load(endpoint) == 0

    def test_ejections_do_not_grow_without_end(self) -> None:
        view, _ = self.view()
        for number in range(5000):
            view.failed(Endpoint(f"10.0.{number // 256}.{number % 256}:8000", "p"))
        assert len(view._ejections) <= 1024


def spot(number: int) -> Endpoint:
    return Endpoint(f"10.0.0.{number}:8000", f"p{number}")


def weighted(name: str, weight: int) -> Variant:
    return Variant(name, name, 8000, weight, "VLLM")


class TestChoose:
    def draw(
        self, *candidates: tuple[Variant, list[Endpoint]], loads: dict[str, int] | None = None, times: int = 4000
    ) -> Counter[str]:
        random = Random(7)
        found: Counter[str] = Counter()
        for _ in range(times):
            choice = choose(candidates, lambda endpoint: (loads or {}).get(endpoint.pod, 0), random.random)
            found[choice.endpoint.pod if choice else "none"] += 1
        return found

    def test_weights_are_kept(self) -> None:
        found = self.draw((weighted("a", 80), [spot(1)]), (weighted("b", 20), [spot(2)]))
        assert 0.77 < found["p1"] / 4000 < 0.83

    def test_a_variant_without_weight_gets_nothing(self) -> None:
        assert self.draw((weighted("a", 0), [spot(1)]), (weighted("b", 1), [spot(2)])) == {"p2": 4000}
        assert self.draw((weighted("a", 0), [spot(1)])) == {"none": 4000}

    def test_a_share_without_endpoints_falls_to_the_others(self) -> None:
        assert self.draw((weighted("a", 80), []), (weighted("b", 20), [spot(2)])) == {"p2": 4000}

    def test_the_least_loaded_and_among_equals_any(self) -> None:
        found = self.draw((weighted("a", 1), [spot(1), spot(2), spot(3)]), loads={"p1": 4, "p2": 1, "p3": 1})
        assert set(found) == {"p2", "p3"}
        assert 0.45 < found["p2"] / 4000 < 0.55

    @given(
        st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=5),
        st.floats(0, 1, exclude_max=True),
        st.dictionaries(st.sampled_from([f"p{n}" for n in range(20)]), st.integers(0, 9)),
    )
    def test_whatever_the_numbers_a_choice_is_open_and_least_loaded(
        self, shape: list[tuple[int, int]], drawn: float, loads: dict[str, int]
    ) -> None:
        candidates = [
            (weighted(f"v{index}", weight), [spot(index * 4 + number) for number in range(count)])
            for index, (weight, count) in enumerate(shape)
        ]
        choice = choose(candidates, lambda endpoint: loads.get(endpoint.pod, 0), lambda: drawn)
        open_ones = {variant_.name: endpoints for variant_, endpoints in candidates if variant_.weight and endpoints}
        if choice is None:
            assert not open_ones
        else:
            endpoints = open_ones[choice.variant.name]
            assert loads.get(choice.endpoint.pod, 0) == min(loads.get(one.pod, 0) for one in endpoints)
