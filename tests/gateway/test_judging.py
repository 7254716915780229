"""What counts as within an objective, who is asking, and what a body must be: pure."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path

import pytest

from inference_fleet.gateway import body, keys
from inference_fleet.gateway.errors import Refusal
from inference_fleet.gateway.exchange import CLIENT_LEFT, Ledger, end_of
from inference_fleet.gateway.metrics import OTHER_TENANTS, TENANT_LIMIT, Metrics
from inference_fleet.gateway.metrics_page import page
from inference_fleet.gateway.objectives import End, Outcome, judge
from inference_fleet.gateway.routes import Metric, Objective
from inference_fleet.gateway.usage import Tokens
from inference_fleet.gateway.web import request_id_of

OBJECTIVES = (
    Objective("first", Metric.TIME_TO_FIRST_TOKEN, 1.0),
    Objective("per", Metric.TIME_PER_OUTPUT_TOKEN, 0.1),
    Objective("whole", Metric.END_TO_END_LATENCY, 10.0),
)


def outcome(end: End = End.COMPLETE, *, visible: bool = True, first: float | None = 0.5, last: float | None = 1.4,
            whole: float = 1.5, tokens: int | None = 10) -> Outcome:  # fmt: skip
    return Outcome(end, visible, first, last, whole, tokens)


@pytest.mark.parametrize(
    ("ended", "verdicts"),
    [
        (outcome(), {"first": True, "per": True, "whole": True}),
        (outcome(first=1.0, last=1.9), {"first": True, "per": True, "whole": True}),
        (outcome(first=1.01, last=2.0, whole=11), {"first": False, "per": False, "whole": False}),
        # One token has no time between tokens; no count, none either.
        (outcome(tokens=1), {"first": True, "whole": True}),
        (outcome(tokens=None), {"first": True, "whole": True}),
        (outcome(first=None, last=None, tokens=0), {"whole": True}),
        # An answer whose tokens the gateway does not see is judged as a whole.
        (outcome(visible=False, first=None), {"whole": True}),
        (outcome(End.FAILED, visible=False, first=None), {"whole": False}),
        # Failed, shed, or left before the first token: within nothing.
        (outcome(End.FAILED, first=None), {"first": False, "per": False, "whole": False}),
        (outcome(End.FAILED), {"first": False, "per": False, "whole": False}),
        (outcome(End.ABORTED, first=None), {"first": False, "per": False, "whole": False}),
        # Left after the first token: judged by that alone.
        (outcome(End.ABORTED), {"first": True}),
        (outcome(End.ABORTED, first=2.0), {"first": False}),
        (outcome(End.REFUSED, first=None), {}),
    ],
)
def test_verdicts(ended: Outcome, verdicts: dict[str, bool]) -> None:
    assert dict(judge(ended, OBJECTIVES)) == verdicts


def test_what_a_status_means() -> None:
    assert [end_of(code) for code in (200, 400, 401, 404, 413, 429, 499, 500, 503, 504)] == [
        End.COMPLETE, End.REFUSED, End.REFUSED, End.REFUSED, End.REFUSED,
        End.FAILED, End.ABORTED, End.FAILED, End.FAILED, End.FAILED,
    ]  # fmt: skip


class Books:
    def __init__(self) -> None:
        self.now = 0.0
        self.metrics = Metrics()
        self.ledger = Ledger(self.metrics, lambda: self.now, lambda: 1e9 + self.now)
        self.ledger.set_objectives(OBJECTIVES)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


def test_an_objective_begins_at_zero_rather_than_absent() -> None:
    assert Books().value("inference_fleet_objective_requests_total", objective="first") == 0


def test_a_request_is_entered_once_with_the_times_of_its_tokens() -> None:
    books = Books()
    exchange = books.ledger.begin("id", "/v1/chat/completions")
    exchange.tenant, exchange.tokens_visible = "acme", True
    exchange.accepted("small", "Named")
    assert books.value("inference_fleet_requests_in_flight", model="small") == 1
    for books.now in (0.4, 0.5, 0.8):
        exchange.token()
    exchange.tokens = Tokens(prompt=9, cached=4, completion=5)
    books.now = 1.0
    exchange.end(200)
    exchange.end(CLIENT_LEFT)
    assert books.ledger.open == 0
    assert books.value("inference_fleet_requests_in_flight", model="small") == 0
    assert books.value("inference_fleet_requests_total", model="small", tenant="acme", code="200") == 1
    assert books.value("inference_fleet_requests_total", model="small", tenant="acme", code="499") is None
    assert books.value("inference_fleet_time_to_first_token_seconds_sum", model="small") == pytest.approx(0.4)
    assert books.value("inference_fleet_time_per_output_token_seconds_sum", model="small") == pytest.approx(0.1)
    assert books.value("inference_fleet_end_to_end_latency_seconds_sum", model="small") == pytest.approx(1.0)
    for kind, count in (("prompt", 9), ("cached", 4), ("completion", 5)):
        assert books.value("inference_fleet_tokens_total", model="small", tenant="acme", kind=kind) == count
    assert books.value("inference_fleet_objective_within_total", objective="first") == 1


def test_a_stream_that_was_cut_is_charged_for_what_was_passed_on() -> None:
    books = Books()
    exchange = books.ledger.begin("id", "/v1/chat/completions")
    exchange.accepted("small", "Named")
    exchange.chunks = 6
    exchange.end(CLIENT_LEFT)
    assert books.value("inference_fleet_tokens_total", model="small", tenant="", kind="completion") == 6


def test_decisions_and_tenants_are_bounded() -> None:
    books = Books()
    for number in range(TENANT_LIMIT + 100):
        exchange = books.ledger.begin(f"id-{number}", "/v1/chat/completions")
        exchange.tenant = f"tenant-{number}"
        exchange.end(200)
    decisions = books.ledger.decisions()
    assert len(decisions) == 256
    assert decisions[0]["requestId"] == f"id-{TENANT_LIMIT + 99}"
    assert books.value("inference_fleet_requests_total", model="", tenant=OTHER_TENANTS, code="200") == 100


def test_the_reference_page_is_the_one_that_is_committed() -> None:
    committed = Path(__file__).parents[2] / "docs" / "reference" / "metrics-gateway.md"
    assert committed.read_text() == page()


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


class TestKeys:
    def test_who_a_key_belongs_to(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING):
            found = keys.parse(
                [
                    ("acme", f"# comment\n{digest('a')}\n\nsha256:{digest('b').upper()}\nsk-in-the-clear\n"),
                    ("beta", f"{digest('c')}\n{digest('a')}\n"),
                ]
            )
        assert [found.tenant(key) for key in ("a", "b", "c", "sk-in-the-clear", "")] == [
            "acme",
            "acme",
            "beta",
            None,
            None,
        ]
        assert "line 5 of tenant acme" in caplog.text
        assert "sk-in-the-clear" not in caplog.text

    @pytest.mark.parametrize(
        ("headers", "key"),
        [
            ({"Authorization": "Bearer k"}, "k"),
            ({"Authorization": "bearer  k "}, "k"),
            ({"Authorization": "Basic k"}, None),
            ({"Authorization": "Bearer "}, None),
            ({"x-api-key": "k"}, "k"),
            ({}, None),
        ],
    )
    def test_where_a_key_is_looked_for(self, headers: dict[str, str], key: str | None) -> None:
        assert keys.presented_key(headers) == key

    def test_a_directory_is_read_again_when_it_changed_and_kept_when_it_cannot_be_read(self, tmp_path: Path) -> None:
        directory = keys.KeyDirectory(tmp_path / "keys")
        assert not directory.refresh()
        assert directory.keys.tenant("a") is None  # nobody gets in without keys
        # As the kubelet lays a Secret out.
        first = tmp_path / "keys" / "..first"
        first.mkdir(parents=True)
        (first / "acme").write_text(digest("a"))
        (tmp_path / "keys" / "..data").symlink_to("..first")
        (tmp_path / "keys" / "acme").symlink_to("..data/acme")
        assert directory.refresh()
        assert not directory.refresh()
        assert directory.keys.tenant("a") == "acme"
        second = tmp_path / "keys" / "..second"
        second.mkdir()
        (second / "acme").write_text(digest("b"))
        (tmp_path / "keys" / "..new").symlink_to("..second")
        (tmp_path / "keys" / "..new").rename(tmp_path / "keys" / "..data")
        assert directory.refresh()
        assert (directory.keys.tenant("a"), directory.keys.tenant("b")) == (None, "acme")
        (tmp_path / "keys").rename(tmp_path / "gone")
        assert not directory.refresh()
        assert directory.keys.tenant("b") == "acme"


class TestBody:
    @pytest.mark.parametrize(
        ("data", "said"),
        [
            (b"", "not valid JSON"),
            (b"{", "not valid JSON"),
            (b'{"model":"a\xff"}', "not valid JSON"),
            (b'{"model":"\xed\xa0\x80"}', "not valid JSON"),
            (b"[1]", "JSON object"),
            (b"{}", "`model`"),
            (b'{"model":1}', "`model`"),
            (b'{"model":""}', "`model`"),
            (b'{"model":"a","stream":"yes"}', "`stream`"),
            (b'{"model":"a","stream_options":1}', "`stream_options`"),
            (b"[" * 5000 + b"]" * 5000, "not valid JSON"),
        ],
    )
    def test_what_is_refused(self, data: bytes, said: str) -> None:
        with pytest.raises(Refusal, match=said) as caught:
            body.parse(body.CHAT, data)
        assert caught.value.status == 400

    def test_an_error_does_not_quote_the_body(self) -> None:
        with pytest.raises(Refusal) as caught:
            body.parse(body.CHAT, b'{"model":"a","messages":"my secret" oops')
        assert "secret" not in caught.value.message

    def test_every_other_field_reaches_the_engine_as_it_was(self) -> None:
        data = (
            b'{"model":"chat-small","temperature":0.1,"seed":9223372036854775807,"top_p":1e-7,"x":1.0,"y":-0.0,'
            b'"stream_options":{"continuous_usage_stats":true},"own":{"deep":[null,true,"\\u00e9\\n"]},"stream":true}'
        )
        sent = json.loads(body.for_engine(body.parse(body.CHAT, data), "small", stream=True))
        want = json.loads(data)
        want["model"] = "small"
        want["stream_options"]["include_usage"] = True
        assert sent == want
        assert [type(value) for value in sent.values()] == [type(value) for value in want.values()]

    def test_a_repeated_key_has_one_meaning(self) -> None:
        parsed = body.parse(body.CHAT, b'{"model":"cheap","model":"dear"}')
        assert parsed.model == "dear"
        assert body.for_engine(parsed, "dear", stream=False).count(b"model") == 1

    def test_a_stream_is_asked_for_where_the_client_wants_none(self) -> None:
        parsed = body.parse(body.CHAT, b'{"model":"a","n":2}')
        assert json.loads(body.for_engine(parsed, "a", stream=True)) == {
            "model": "a", "n": 2, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        assert (parsed.stream, parsed.wants_usage, parsed.choices) == (False, False, 2)

    def test_other_paths_get_nothing_added(self) -> None:
        parsed = body.parse("/v1/responses", b'{"model":"a","stream":true}')
        assert json.loads(body.for_engine(parsed, "b", stream=True)) == {"model": "b", "stream": True}


def test_request_ids_that_could_break_a_log_are_replaced() -> None:
    assert request_id_of("req_1-2.3") == "req_1-2.3"
    for bad in (None, "", "a b", "a\nb", "x" * 129, "ü"):
        made = request_id_of(bad)
        assert made != bad
        assert len(made) == 32
