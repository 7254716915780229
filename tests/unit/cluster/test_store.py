"""A store stays like the API server's whatever the order in which lists, events and our own answers arrive."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference_fleet.cluster import kinds
from inference_fleet.cluster.kinds import Kind
from inference_fleet.cluster.seen import Seen
from inference_fleet.cluster.store import Store
from tests.unit.cluster.objects import deployment_seen, policy_seen


class Told:
    def __init__(self) -> None:
        self.changes: list[tuple[str | None, str | None]] = []

    def __call__(self, _: Kind, before: Seen | None, after: Seen | None) -> None:
        self.changes.append(tuple(s.meta.resource_version if s else None for s in (before, after)))  # type: ignore[arg-type]


def store() -> tuple[Store, Told]:
    told = Told()
    return Store(kinds.POLICY, told), told


def test_a_list_replaces_everything_and_tells_what_differs() -> None:
    it, told = store()
    it.replace([policy_seen("a", 5), policy_seen("b", 6)], "10", owed=False, now=0)
    it.replace([policy_seen("b", 6), policy_seen("c", 12)], "20", owed=False, now=0)
    assert {s.meta.name for s in it.values()} == {"b", "c"}
    assert sorted(told.changes, key=str) == sorted([(None, "5"), (None, "6"), ("5", None), (None, "12")], key=str)


def test_an_event_from_before_the_list_does_not_undo_the_list() -> None:
    it, _ = store()
    it.replace([], "20", owed=False, now=0)
    it.event(policy_seen("a", 15), deleted=False)
    assert it.get("default/a") is None
    it.event(policy_seen("a", 21), deleted=False)
    assert it.get("default/a") is not None


def test_what_was_written_is_not_undone_by_an_older_event_or_list() -> None:
    it, _ = store()
    it.replace([policy_seen("a", 5)], "10", owed=False, now=0)
    it.wrote(policy_seen("a", 30, generation=2))
    it.event(policy_seen("a", 12), deleted=False)
    it.replace([policy_seen("a", 12)], "25", owed=False, now=0)
    found = it.get("default/a")
    assert found is not None
    assert found.meta.resource_version == "30"


def test_an_answer_that_comes_after_the_deletion_does_not_bring_the_object_back() -> None:
    it, _ = store()
    it.replace([policy_seen("a", 5)], "10", owed=False, now=0)
    it.event(policy_seen("a", 40), deleted=True)
    it.wrote(policy_seen("a", 30))
    assert it.get("default/a") is None
    it.event(policy_seen("a", 50), deleted=False)
    assert it.get("default/a") is not None


def test_an_object_we_removed_stays_removed_until_it_is_made_anew() -> None:
    it, _ = store()
    it.replace([policy_seen("a", 5)], "10", owed=False, now=0)
    it.removed("default/a", "another-uid")
    assert it.get("default/a") is not None
    it.removed("default/a", "uid-a")
    it.replace([policy_seen("a", 4)], "9", owed=False, now=0)
    assert it.get("default/a") is None


def test_a_status_of_our_own_writing_wakes_nobody() -> None:
    it, told = store()
    it.replace([policy_seen("a", 5)], "10", owed=False, now=0)
    told.changes.clear()
    it.event(policy_seen("a", 11), deleted=False)
    assert told.changes == []
    it.event(policy_seen("a", 12, generation=2), deleted=False)
    assert told.changes == [("11", "12")]


def test_an_edit_that_our_own_answer_shows_first_still_wakes() -> None:
    it, told = store()
    it.replace([policy_seen("a", 5)], "10", owed=False, now=0)
    told.changes.clear()
    it.wrote(policy_seen("a", 12, generation=2))
    it.event(policy_seen("a", 11, generation=2), deleted=False)
    assert told.changes == [("5", "12")]


def test_a_list_that_shows_what_no_event_delivered_is_owed_until_the_event_comes() -> None:
    it, _ = store()
    it.replace([policy_seen("a", 5), policy_seen("gone", 6)], "10", owed=False, now=0)
    it.replace([policy_seen("a", 15)], "20", owed=True, now=100)
    assert it.expectations.overdue(150, 60) == ()
    assert it.expectations.overdue(161, 60) == ("default/a", "default/gone")
    it.event(policy_seen("a", 15), deleted=False)
    it.event(policy_seen("gone", 12), deleted=True)
    assert it.expectations.overdue(1000, 60) == ()


def test_nothing_is_owed_while_the_api_could_not_be_reached() -> None:
    it, _ = store()
    it.replace([policy_seen("a", 5)], "10", owed=False, now=0)
    it.replace([policy_seen("a", 15)], "20", owed=True, now=100)
    assert it.expectations.overdue(500, 60, not_before=460) == ()
    assert it.expectations.overdue(521, 60, not_before=460) == ("default/a",)


def test_objects_are_found_by_their_policy() -> None:
    told = Told()
    it = Store(kinds.DEPLOYMENT, told)
    it.replace([deployment_seen("x"), deployment_seen("y", 2)], "10", owed=False, now=0)
    assert {s.meta.name for s in it.of_policy("default/chat")} == {"x", "y"}
    it.event(deployment_seen("x", 12), deleted=True)
    assert {s.meta.name for s in it.of_policy("default/chat")} == {"y"}
    it.replace([], "20", owed=False, now=0)
    assert it.of_policy("default/chat") == ()


@given(st.permutations(range(6)), st.integers(0, 5))
def test_whatever_the_order_the_newest_state_wins(order: list[int], listed: int) -> None:
    """Six versions of one object arrive as events in any order, a list in between: the last one stands."""
    it, _ = store()
    it.replace([policy_seen("a", 100)], "100", owed=False, now=0)
    for position, number in enumerate(order):
        if position == listed:
            newest = max(order[:position], default=0)
            it.replace([policy_seen("a", 101 + newest)], str(101 + newest), owed=True, now=0)
        it.event(policy_seen("a", 101 + number, generation=number), deleted=False)
    found = it.get("default/a")
    assert found is not None
    assert found.meta.resource_version == "106"
