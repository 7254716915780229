"""Objectives from what several gateway replicas counted."""

from __future__ import annotations

from decimal import Decimal

import pytest

from inference_fleet.api.policy import Objective
from inference_fleet.signals.gateway import GatewayHistory, read_counters
from inference_fleet.signals.readings import Target
from inference_fleet.signals.speculation import read_speculation, together

FIRST = Objective.model_validate({"name": "first", "metric": "TimeToFirstToken", "percentile": 90, "milliseconds": 500})
A, B = Target("a", "uid-a", "10.0.0.1"), Target("b", "uid-b", "10.0.0.2")


def shown(requests: int, within: int, revision: str = "r1") -> str:
    return f"""# TYPE inference_fleet_objective_requests_total counter
inference_fleet_objective_requests_total{{objective="first"}} {requests}
# TYPE inference_fleet_objective_within_total counter
inference_fleet_objective_within_total{{objective="first"}} {within}
inference_fleet_gateway_routes_info{{revision="old"}} 0
inference_fleet_gateway_routes_info{{revision="{revision}"}} 1
# TYPE inference_fleet_time_to_first_token_seconds histogram
inference_fleet_time_to_first_token_seconds_bucket{{model="m",le="0.5"}} {within}
inference_fleet_time_to_first_token_seconds_bucket{{model="m",le="1.0"}} {requests}
inference_fleet_time_to_first_token_seconds_bucket{{model="m",le="+Inf"}} {requests}
inference_fleet_time_to_first_token_seconds_count{{model="m"}} {requests}
inference_fleet_time_to_first_token_seconds_sum{{model="m"}} 1
"""


def add(history: GatewayHistory, target: Target, at: float, requests: int, within: int) -> None:
    history.add(target, read_counters(shown(requests, within)), at, 300)


def test_growth_of_all_replicas_is_added() -> None:
    history = GatewayHistory()
    for at, scale in ((0.0, 0), (100.0, 1)):
        add(history, A, at, 1000 + 60 * scale, 1000 + 30 * scale)
        add(history, B, at, 40 * scale, 40 * scale)
    view = history.traffic((A, B), (FIRST,), 300, 100.0, 15)
    (reading,) = view.objectives
    assert (reading.requests, reading.within) == (100, 70)
    assert reading.observed_milliseconds == Decimal("833.333")
    assert view.missing_sources == ()
    assert view.age_seconds == 0


def test_a_replica_that_cannot_be_read_is_missing_not_idle() -> None:
    history = GatewayHistory()
    add(history, A, 0.0, 10, 10)
    history.unread(B)
    view = history.traffic((A, B), (FIRST,), 300, 10.0, 15)
    assert view.missing_sources == ("b",)
    assert history.revisions == {"a": "r1", "b": None}
    assert history.traffic((A,), (FIRST,), 300, 100.0, 15).missing_sources == ("a",), "too old"


def test_one_lost_scrape_is_no_news() -> None:
    history = GatewayHistory()
    add(history, A, 0.0, 10, 10)
    assert history.traffic((A,), (FIRST,), 300, 30.0, 15).missing_sources == ()


def test_nothing_read_is_no_reading() -> None:
    view = GatewayHistory().traffic((A,), (FIRST,), 300, 10.0, 15)
    assert view.objectives == ()
    assert view.age_seconds is None
    assert view.missing_sources == ("a",)


def test_what_a_replica_counted_before_it_went_stays_in_the_window() -> None:
    history = GatewayHistory()
    add(history, A, 0.0, 0, 0)
    add(history, A, 50.0, 80, 80)
    add(history, B, 60.0, 0, 0)
    history.prune((B,), 60.0, 300)
    assert history.traffic((B,), (FIRST,), 300, 60.0, 15).objectives[0].requests == 80
    history.prune((B,), 400.0, 300)
    assert history.traffic((B,), (FIRST,), 300, 400.0, 15).objectives[0].requests == 0


def test_what_a_young_replica_counted_before_it_was_first_read_counts() -> None:
    history = GatewayHistory()
    young = Target("c", "uid-c", "10.0.0.3", born=90.0)
    add(history, young, 100.0, 25, 20)
    assert history.traffic((young,), (FIRST,), 300, 100.0, 15).objectives[0].requests == 25


def test_addresses_of_both_families() -> None:
    assert A.url(9090, "/ready") == "http://10.0.0.1:9090/ready"
    assert Target("x", "u", "fd00::2").url(8011, "/") == "http://[fd00::2]:8011/"


def test_sidecars_of_one_variant_are_summed_and_one_that_does_not_draft_is_news() -> None:
    good = read_speculation(b'{"drafts": 2, "draftTokens": 10, "acceptedTokens": 7, "depth": 5, "drafting": true}')
    idle = read_speculation(b'{"drafts": 0, "draftTokens": 0, "acceptedTokens": 0, "depth": 5, "drafting": null}')
    silent = read_speculation(b'{"drafting": false}')
    both = together([good, idle])
    assert both is not None
    assert (both.draft_tokens, both.accepted_tokens, both.drafting) == (10, 7, True)
    broken = together([good, silent])
    assert broken is not None
    assert broken.drafting is False
    assert together([]) is None


@pytest.mark.parametrize("text", [b"", b"[]", b"no"])
def test_another_answer_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        read_speculation(text)
