"""The work queue, without a clock: every test says what time it is."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from inference_fleet.cluster.queue import LARGEST_BACK_OFF_SECONDS, QueueDriver, WorkQueue


def keys(queue: WorkQueue, now: float) -> list[str]:
    found = []
    while (taken := queue.take(now)) is not None:
        found.append(taken.key)
        queue.done(taken.key, now)
    return found


def test_a_key_waits_once_however_often_it_is_added() -> None:
    queue = WorkQueue()
    for _ in range(5):
        queue.add("a", 0.0)
    queue.add("b", 0.0)
    assert keys(queue, 0.0) == ["a", "b"]


def test_a_delayed_key_is_not_due_before_its_time_and_can_be_brought_forward() -> None:
    queue = WorkQueue()
    queue.add("a", 0.0, delay=10)
    assert queue.take(9.9) is None
    queue.add("a", 1.0, delay=20)
    assert queue.next_due() == 10
    queue.add("a", 2.0, delay=1)
    assert queue.next_due() == 3
    assert keys(queue, 3.0) == ["a"]
    assert keys(queue, 100.0) == [], "the entry that was brought forward is not served twice"


def test_a_key_being_worked_on_is_not_handed_out_again_until_it_is_done() -> None:
    queue = WorkQueue()
    queue.add("a", 0.0)
    assert queue.take(0.0)
    queue.add("a", 1.0)
    assert queue.take(5.0) is None
    queue.done("a", 6.0)
    again = queue.take(6.0)
    assert again is not None
    assert again.key == "a"


def test_failures_back_off_exponentially_and_a_success_starts_over() -> None:
    queue, now, delays = WorkQueue(), 0.0, []
    queue.add("a", now)
    for _ in range(12):
        assert queue.take(now) is not None
        delays.append(queue.failed("a", now))
        now += delays[-1]
    assert delays[:4] == [0.5, 1.0, 2.0, 4.0]
    assert delays[-1] == LARGEST_BACK_OFF_SECONDS
    assert queue.take(now)
    queue.done("a", now)
    queue.add("a", now)
    queue.take(now)
    assert queue.failed("a", now) == 0.5


def test_an_object_that_fails_and_keeps_changing_is_no_tight_loop() -> None:
    queue = WorkQueue()
    queue.add("a", 0.0)
    for _ in range(6):
        taken = queue.take(1000.0)
        assert taken is not None
        queue.add("a", 1000.0)
        delay = queue.failed("a", 1000.0)
        queue.add("a", 1000.0, delay)
        if queue.take(1000.0 + delay - 0.01) is not None:
            raise AssertionError("handed out before its back-off was over")
        break


def test_an_event_ends_no_back_off_early_only_because_the_pass_was_under_way() -> None:
    queue = WorkQueue()
    queue.add("a", 0.0)
    queue.take(0.0)
    queue.add("a", 0.0)
    delay = queue.failed("a", 0.0)
    assert queue.take(delay / 2) is None


def test_what_the_server_asks_to_wait_is_waited_whatever_happens_meanwhile() -> None:
    queue = WorkQueue()
    queue.add("a", 0.0)
    assert queue.take(0.0) is not None
    assert queue.failed("a", 0.0, at_least=3.0) == 3.0
    queue.add("a", 1.0)
    assert queue.take(2.9) is None
    assert queue.take(3.0) is not None
    queue.done("a", 3.0)
    queue.add("a", 3.1)
    assert queue.take(3.1) is not None


def test_priority_goes_first_among_what_is_due_then_who_waited_longest() -> None:
    queue = WorkQueue()
    queue.add("late", 1.0, priority=0)
    queue.add("low", 0.0, priority=-1)
    queue.add("early", 0.0, priority=0)
    queue.add("high", 2.0, priority=5)
    assert keys(queue, 3.0) == ["high", "early", "late", "low"]


def test_depth_and_age_speak_of_due_keys() -> None:
    queue = WorkQueue()
    queue.add("a", 0.0)
    queue.add("b", 5.0)
    queue.add("c", 0.0, delay=100)
    assert (queue.depth(8.0), queue.age(8.0)) == (2, 8.0)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["add", "later", "take", "done", "fail"])), max_size=60)
)
def test_no_key_is_ever_with_two_workers_and_none_is_lost(steps: list[tuple[str, str]]) -> None:
    queue, now, working, wanted = WorkQueue(), 0.0, set[str](), set[str]()
    for key, step in steps:
        now += 1.0
        if step == "add":
            queue.add(key, now)
            wanted.add(key)
        elif step == "later":
            queue.add(key, now, delay=3.0)
            wanted.add(key)
        elif step == "take":
            taken = queue.take(now)
            if taken is not None:
                assert taken.key not in working
                working.add(taken.key)
                wanted.discard(taken.key)
        elif key in working:
            working.discard(key)
            if step == "fail":
                queue.failed(key, now)
                wanted.add(key)
            else:
                queue.done(key, now)
    for key in working:
        queue.done(key, now)
    assert wanted <= set(keys(queue, now + 10_000))


async def test_workers_wait_for_what_is_due_and_leave_when_the_queue_closes() -> None:
    now = 0.0
    driver = QueueDriver(WorkQueue(), lambda: now)
    waiting = asyncio.create_task(driver.take())
    await asyncio.sleep(0)
    driver.add("a")
    taken = await asyncio.wait_for(waiting, 1)
    assert taken is not None
    assert taken.key == "a"
    others = [asyncio.create_task(driver.take()) for _ in range(3)]
    await asyncio.sleep(0)
    driver.close()
    assert await asyncio.wait_for(asyncio.gather(*others), 1) == [None, None, None]


async def test_several_workers_share_what_is_due_at_once() -> None:
    driver = QueueDriver(WorkQueue(), lambda: 0.0)
    workers = [asyncio.create_task(driver.take()) for _ in range(3)]
    await asyncio.sleep(0)
    for key in "abc":
        driver.add(key)
    taken = await asyncio.wait_for(asyncio.gather(*workers), 1)
    assert sorted(t.key for t in taken if t is not None) == ["a", "b", "c"]
