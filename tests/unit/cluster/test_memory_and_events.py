"""What outlives the process, and what is news."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_fleet.cluster import events, kinds
from inference_fleet.cluster.memory import LARGEST_BYTES, Keeper, Remembered, decode, encode, manifest, read_all
from inference_fleet.plan.outcome import Event, Memory
from tests.unit.cluster.objects import policy_seen

NOW = datetime(2026, 12, 1, 13, 0, tzinfo=UTC)
names = st.text("abc-0", min_size=1, max_size=20)


@given(
    st.dictionaries(names, st.datetimes(timezones=st.just(UTC)), max_size=5),
    st.dictionaries(names, st.integers(1, 99).map(str), max_size=5),
    st.frozensets(names, max_size=5),
)
def test_what_is_remembered_is_read_back(
    drains: dict[str, datetime], applied: dict[str, str], said: frozenset[str]
) -> None:
    remembered = Remembered(Memory(drains=drains), applied, said)
    assert decode(encode(remembered)) == remembered


def test_it_is_bounded() -> None:
    applied = {f"uid-{'x' * 250}-{n}": "1" for n in range(5000)}
    drains = {f"pod-{'x' * 60}-{n}": NOW for n in range(5000)}
    text = encode(Remembered(Memory(drains=drains), applied, frozenset(map(str, range(500)))))
    assert len(text.encode()) <= LARGEST_BYTES


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{", '{"drains": {"p": "yesterday"}}', '{"drains": {"p": "2026-12-01T00:00:00"}}']
)
def test_what_cannot_be_read_is_forgotten(text: str) -> None:
    assert decode(text).plan == Memory()


def test_it_is_found_again_by_its_owner() -> None:
    remembered = Remembered(Memory(drains={"p": NOW}), {"u": "3"}, frozenset())
    body = manifest("default", "chat", "uid-chat", encode(remembered))
    assert read_all([body]) == {"uid-chat": remembered}
    assert body["metadata"]["ownerReferences"][0]["controller"] is True


def test_it_is_written_at_once_after_a_deed_and_else_every_ten_minutes() -> None:
    keeper = Keeper(written="a", written_at=0.0)
    assert not keeper.due("a", 1e9, acted=True)
    assert keeper.due("b", 1.0, acted=True)
    assert not keeper.due("b", 599.0, acted=False)
    assert keeper.due("b", 600.0, acted=False)
    keeper.wrote("b", 600.0, "7")
    assert not keeper.due("b", 1e9, acted=False)


def test_what_was_said_last_time_is_no_news_until_it_was_left_out_once() -> None:
    refuse, create = Event("Warning", "ModelMissing", "x"), Event("Normal", "FirstChoice", "y")
    news, said = events.news([refuse, create], frozenset())
    assert news == (refuse, create)
    news, said = events.news([refuse], said)
    assert news == ()
    news, said = events.news([], said)
    news, said = events.news([refuse], said)
    assert news == (refuse,)


def test_an_event_is_about_its_object_and_fits_the_api() -> None:
    meta = policy_seen("chat").meta
    body = events.manifest(Event("Warning", "X", "m" * 5000), kinds.POLICY, meta, "host_1", NOW)
    assert body["regarding"]["uid"] == meta.uid
    assert body["metadata"]["namespace"] == "default"
    assert len(body["note"]) <= 1024
    assert body["eventTime"] == "2026-12-01T13:00:00.000000Z"
