"""The search for an engine that answers, in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from inference_fleet.gateway.attempts import Attempts, Table, Taken
from inference_fleet.gateway.endpoints import EndpointView
from inference_fleet.gateway.errors import Refusal
from inference_fleet.gateway.exchange import Exchange, Ledger
from inference_fleet.gateway.hold import Changes, Waiting
from inference_fleet.gateway.metrics import Metrics
from inference_fleet.gateway.ports import Disconnected, TimedOut, Unreachable, UpstreamFailed
from inference_fleet.gateway.routes import Routes, parse
from tests.gateway.harness import model, routes, variant


class FakeAnswer:
    headers: Mapping[str, str] = {}

    def __init__(self, status: int) -> None:
        self.status = status
        self.closed = False

    async def chunk(self) -> bytes:
        return b""

    async def read(self) -> bytes:
        return b""

    def close(self) -> None:
        self.closed = True


class World:
    """A fleet whose engines do what `plan` says, by address: a status or a failure, the last one for ever."""

    def __init__(self, hold_seconds: int = 10, held_limit: int = 10, **plan: list[int | UpstreamFailed]) -> None:
        self.now = 0.0
        self.plan = {f"{name}:1": steps for name, steps in plan.items()}
        self.asked: list[tuple[float, str]] = []
        self.metrics = Metrics()
        self.ledger = Ledger(self.metrics, lambda: self.now, lambda: self.now)
        self.changes = Changes()
        self.endpoints = EndpointView(lambda: self.now, self.changes.notify)
        self.hold_seconds = hold_seconds
        self.held: list[tuple[str, int]] = []
        self.waiting = Waiting(held_limit, held_limit * 100, lambda name, count: self.held.append((name, count)))
        self.routes = self.with_endpoints(*self.plan)

    def with_endpoints(self, *addresses: str) -> Routes:
        document = routes(model("small", variant("v", *addresses)), holdSeconds=self.hold_seconds)
        return parse(json.dumps(document))

    def use(self, found: Routes) -> None:
        self.routes = found
        self.endpoints.routes_changed()

    async def post(self, address: str, target: str, headers: Mapping[str, str], body: bytes) -> FakeAnswer:
        self.asked.append((round(self.now, 3), address.removesuffix(":1")))
        steps = self.plan[address]
        step = steps.pop(0) if len(steps) > 1 else steps[0]
        if isinstance(step, UpstreamFailed):
            raise step
        return FakeAnswer(step)

    async def search(self, body_bytes: int = 10) -> tuple[Taken, Exchange]:
        exchange = self.ledger.begin("id", "/v1/chat/completions")
        exchange.body_bytes = body_bytes
        table = Table(lambda: self.routes, self.endpoints, self.changes, self.waiting)
        attempts = Attempts(table, self, exchange, "small", lambda: 0.0, lambda: self.now)
        return await attempts.next("/", {}, lambda _: b""), exchange

    async def run(self, *events: tuple[float, Any]) -> tuple[Taken, Exchange]:
        """Searches while the clock jumps to whatever comes next: one of `events`, or the end of a wait."""
        task = asyncio.create_task(self.search())
        todo = sorted(events, key=lambda event: event[0])
        while not task.done():
            for _ in range(5):
                await asyncio.sleep(0)
            if task.done():
                break
            self.now = round(self.now + 0.25, 3)
            while todo and todo[0][0] <= self.now:
                todo.pop(0)[1]()
            self.changes.notify()
            assert self.now < 1000, "the search does not end"
        return await task


async def test_the_first_engine_that_answers_is_taken() -> None:
    world = World(a=[200])
    taken, exchange = await world.run()
    assert taken.choice.endpoint.address == "a:1"
    assert world.endpoints.load(taken.choice.endpoint) == 1
    taken.release("answered")
    taken.release("broken")
    assert world.endpoints.load(taken.choice.endpoint) == 0
    assert [attempt.outcome for attempt in exchange.attempts] == ["answered"]


async def test_an_engine_that_cannot_be_reached_is_passed_over_at_once() -> None:
    world = World(a=[Unreachable()], b=[200])
    taken, exchange = await world.run()
    assert world.asked == [(0, "a"), (0, "b")]
    assert taken.choice.endpoint.pod == "b:1"
    assert [attempt.outcome for attempt in exchange.attempts] == ["unreachable"]
    assert exchange.held_seconds == 0


async def test_an_engine_that_is_loading_is_passed_over_at_once() -> None:
    world = World(a=[503], b=[200])
    await world.run()
    assert world.asked == [(0, "a"), (0, "b")]


async def test_other_errors_of_an_engine_are_answers() -> None:
    for status in (400, 429, 500):
        world = World(a=[status], b=[200])
        taken, _ = await world.run()
        assert taken.answer.status == status


async def test_an_engine_alone_is_tried_again_until_it_is_back() -> None:
    world = World(a=[Unreachable(), Unreachable(), 200])
    taken, exchange = await world.run()
    assert taken.answer.status == 200
    assert [when for when, _ in world.asked] == [0, 1, 3]  # 1 s, then 2 s later
    assert exchange.held_seconds == 3


async def test_an_ejection_that_ends_just_while_it_is_looked_at_is_not_missed() -> None:
    world = World(a=[Unreachable(), 200])
    usable = world.endpoints.usable

    def slow(*arguments: Any) -> Any:
        found = usable(*arguments)
        world.now += 0 if found else 0.6
        return found

    world.endpoints.usable = slow  # type: ignore[method-assign,assignment]
    async with asyncio.timeout(5):
        taken, _ = await world.search()
    assert taken.answer.status == 200


async def test_a_request_is_held_until_an_endpoint_appears() -> None:
    world = World(a=[200])
    world.use(world.with_endpoints())
    taken, exchange = await world.run((4, lambda: world.use(world.with_endpoints("a:1"))))
    assert taken.answer.status == 200
    assert exchange.held_seconds == 4
    assert world.held == [("small", 1), ("small", 0)]


async def test_a_held_request_is_refused_when_its_time_is_over() -> None:
    world = World(hold_seconds=10)
    with pytest.raises(Refusal) as caught:
        await world.run()
    assert world.now == 10
    assert caught.value.status == 503
    assert caught.value.headers["Retry-After"] == "10"
    assert world.held == [("small", 1), ("small", 0)]


async def test_engines_that_all_stay_away_end_in_a_refusal_when_the_time_is_over() -> None:
    world = World(hold_seconds=10, a=[Unreachable()], b=[503])
    with pytest.raises(Refusal) as caught:
        await world.run()
    assert caught.value.status == 503
    assert world.now == 10
    assert len(world.asked) <= 10  # backed off


async def test_without_holding_every_engine_is_still_tried_once() -> None:
    world = World(hold_seconds=0, a=[Unreachable()], b=[Unreachable()], c=[200])
    taken, _ = await world.run()
    assert taken.choice.endpoint.pod == "c:1"


async def test_a_request_that_an_engine_took_is_sent_again_once_and_no_more() -> None:
    world = World(a=[Disconnected()], b=[200])
    await world.run()
    assert len(world.asked) == 2
    world = World(a=[Disconnected()], b=[Disconnected()], c=[200])
    with pytest.raises(Refusal) as caught:
        await world.run()
    assert caught.value.status == 502
    assert len(world.asked) == 2


async def test_silence_is_not_tried_again() -> None:
    world = World(a=[TimedOut()], b=[200])
    with pytest.raises(Refusal) as caught:
        await world.run()
    assert caught.value.status == 504
    assert len(world.asked) == 1


async def test_a_model_that_disappears_while_a_request_is_held() -> None:
    world = World()
    gone = parse(json.dumps(routes(model("other", variant("v")))))
    with pytest.raises(Refusal) as caught:
        await world.run((2, lambda: world.use(gone)))
    assert caught.value.status == 404


@pytest.mark.parametrize(("held_limit", "body_bytes"), [(1, 10), (2, 150)], ids=["number", "bytes"])
async def test_what_is_held_is_bounded(held_limit: int, body_bytes: int) -> None:
    world = World(held_limit=held_limit)
    first = asyncio.create_task(world.search(body_bytes))
    await asyncio.sleep(0)
    with pytest.raises(Refusal) as caught:
        await world.search(body_bytes)
    assert caught.value.status == 503
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert world.held == [("small", 1), ("small", 0)]
