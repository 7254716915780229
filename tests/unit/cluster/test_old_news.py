"""An event that shows nothing new is not read; that it came still counts. News that is said once is no reason to write."""

from __future__ import annotations

from inference_fleet.cluster import kinds
from inference_fleet.cluster.memory import Keeper, Remembered, encode
from inference_fleet.cluster.policy_pass import PolicyState
from inference_fleet.cluster.store import Store
from inference_fleet.plan.outcome import Memory
from tests.unit.cluster.objects import policy_seen


def event(name: str, version: int) -> dict[str, str]:
    return {"namespace": "default", "name": name, "resourceVersion": str(version)}


def test_what_a_list_or_a_write_of_ours_showed_is_old_news() -> None:
    store = Store(kinds.POLICY, lambda *_: None)
    store.replace([policy_seen("a", 5)], "10", owed=False, now=0)
    assert store.old_news(event("a", 5))
    assert store.old_news(event("never-seen", 9)), "from before the list"
    assert not store.old_news(event("a", 11))
    store.wrote(policy_seen("a", 12))
    assert store.old_news(event("a", 12))
    assert not store.old_news(event("a", 13))
    assert not store.old_news(event("b", 13))


def test_old_news_proves_the_stream_alive() -> None:
    store = Store(kinds.POLICY, lambda *_: None)
    store.replace([], "1", owed=False, now=0)
    store.replace([policy_seen("a", 5)], "10", owed=True, now=0)
    assert store.expectations.overdue(100, 60) == ("default/a",)
    assert store.old_news(event("a", 5))
    assert store.expectations.overdue(100, 60) == ()


def test_that_something_changed_is_not_written_down_and_that_something_stands_is() -> None:
    state = PolicyState(Memory(), {}, frozenset(), Keeper(encode(Remembered()), 0.0), 0.0)
    state.said = frozenset({"became-ready"})
    assert state.text() == encode(Remembered())
    state.said = state.standing = frozenset({"refused"})
    text = state.text()
    assert text == encode(Remembered(said=frozenset({"refused"})))
    state.said = state.standing = frozenset()
    assert state.text() == text, "to forget it is no reason to write either"
