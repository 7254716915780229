"""An engine's stream passed on to the client: whole events, at once, their bytes untouched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from inference_fleet.gateway import sse
from inference_fleet.gateway.errors import Refusal, bad_gateway, timed_out
from inference_fleet.gateway.exchange import CLIENT_LEFT, Exchange
from inference_fleet.gateway.objectives import End
from inference_fleet.gateway.ports import Client, Disconnected, TimedOut, UpstreamAnswer, UpstreamFailed
from inference_fleet.gateway.usage import UsageReports, tokens_of


class Passage:
    """What the gateway sees in the events it passes on, and the one event it takes out. Pure but for the exchange.

    `generates` says that these are OpenAI's chunks, which `[DONE]` must close; `keep_usage` that the client asked for
    the counts, which otherwise stay here.
    """

    def __init__(self, exchange: Exchange, *, generates: bool, keep_usage: bool, choices: int) -> None:
        self._exchange = exchange
        self._generates = generates
        self._keep_usage = keep_usage
        self._reports = UsageReports(choices)
        self.done = not generates
        self.failed = False

    def pass_on(self, block: bytes) -> bytes:
        """What of a piece of whole events goes to the client."""
        if self._exchange.first_token is None or sse.may_hold_facts(block):
            return b"".join(event for event in sse.split_events(block) if self._look(event))
        chunks = block.count(b'"choices"')
        if chunks or not self._generates:
            self._exchange.chunks += chunks
            self._exchange.token()
        return block

    def _look(self, event: bytes) -> bool:
        """Notes what an event says; whether it goes to the client."""
        if sse.is_done(event):
            self.done = True
            # After a failure the closing event would tell the client that the answer is whole.
            return not self.failed
        if sse.is_error(event):
            self.failed = True
            return True
        if sse.data_of(event) == b"null":
            # llama.cpp begins the stream of several prompts with it; clients fall over it.
            return False
        usage = sse.usage_of(event)
        if usage is not None:
            counts, alone = usage
            if alone or not self._generates:
                self._reports.closing(counts)
            else:
                self._reports.of_choice(sse.choice_index(event), counts)
            if alone:
                return self._keep_usage
        if sse.has_token(event):
            self._exchange.token()
            self._exchange.chunks += 1
        return True

    def close(self) -> None:
        """Notes the counts of the whole answer."""
        merged = self._reports.merged()
        if merged is not None:
            self._exchange.tokens = tokens_of(merged)


class RelayedStream:
    """One stream on its way. `release` is called once, when the engine is free of it; `eject` when the engine failed
    rather than said that it did."""

    def __init__(
        self,
        upstream: UpstreamAnswer,
        exchange: Exchange,
        passage: Passage,
        release: Callable[[str], None],
        eject: Callable[[], None],
    ) -> None:
        self._upstream = upstream
        self._exchange = exchange
        self._passage = passage
        self._release = release
        self._eject = eject
        self._splitter = sse.EventSplitter()
        self._first: bytes | None = None
        self._closed = False

    async def first(self, seconds: float) -> None:
        """Waits for the first events, at most so long: until then the request may still go to another engine.

        Raises UpstreamFailed when the stream fails before anything came of it.
        """
        try:
            async with asyncio.timeout(seconds):
                self._first = await self._block()
        except TimeoutError:
            return
        if not self._first:
            raise Disconnected("the engine ended its stream before the first event")

    async def _block(self) -> bytes:
        """The next whole events; b"" at the end of the stream. Raises UpstreamFailed."""
        while chunk := await self._upstream.chunk():
            try:
                block = self._splitter.feed(chunk)
            except sse.NotAnEventStream as error:
                raise UpstreamFailed(str(error)) from None
            if block:
                return block
        return b""

    async def run(self, client: Client) -> None:
        """Passes everything on, each piece in the same turn of the event loop in which it came."""
        passage, feed, write = self._passage, self._splitter.feed, client.write

        def take(data: bytes) -> bool:
            block = feed(data)
            if block and (out := passage.pass_on(block)):
                return write(out)
            return True

        try:
            first, self._first = self._first, None
            if first and (out := passage.pass_on(first)) and not write(out):
                await client.drained()
            await self._upstream.pipe(take, client.drained)
            if passage.done and not passage.failed and not self._splitter.rest:
                self._end("answered", 200, End.COMPLETE)
                return
            if passage.failed:
                self._end("broken", 502, End.FAILED)
                return
            raise Disconnected("the engine ended its stream in the middle")
        except (UpstreamFailed, sse.NotAnEventStream) as error:
            self._eject()
            # What was sent cannot be taken back. The missing `[DONE]` is the sign for clients that know no error event.
            self._end("broken", 502, End.FAILED)
            write(failure_of(error, "after the answer had begun").event())

    def _end(self, outcome: str, code: int, end: End) -> None:
        if self._closed:
            return
        self._closed = True
        self._passage.close()
        self._upstream.close()
        self._release(outcome)
        self._exchange.end(code, end)

    def close(self) -> None:
        self._end("abandoned", CLIENT_LEFT, End.ABORTED)


def failure_of(error: Exception, when: str) -> Refusal:
    """What the client is told; the address and the text of the error stay in the log."""
    if isinstance(error, TimedOut):
        return timed_out(f"The engine sent nothing for too long {when}.")
    return bad_gateway(f"The engine failed {when}.")
