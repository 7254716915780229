"""One engine: continuous batching with chunked prefill over KV memory, as vLLM's scheduler does it, in stretches of iterations.

A stretch is one iteration while prompts are being read, else as many decoding iterations as pass before anything can change: the
first sequence ends, memory runs out, or a request arrives that can be admitted (`submit` cuts the stretch at the end of the
iteration under way). Within it the batch is constant and the KV cache grows evenly, so that its duration is a sum in closed
form: with `coarse` False every iteration is a stretch of its own, and without noise both give the same times (tests/simulation).

Memory is counted in tokens: what a sequence has, and half a block for the last, unfilled one (its expectation). A sequence is
admitted when its whole prompt fits; when the next iteration does not fit the youngest sequence is put back and computed again
later.
"""

from __future__ import annotations

import math
from collections import deque
from heapq import heappop, heappush
from random import Random

from inference_fleet.simulator.prefix import PREFIX_BLOCK_TOKENS, PrefixCache
from inference_fleet.simulator.request import Request
from inference_fleet.simulator.truth import EngineTruth, Noise

WATERMARK = 0.01
"""Share of the memory that admission leaves free while others run, as vLLM's scheduler does, lest they be put back at once."""


class Sequence:
    """A request inside the engine."""

    __slots__ = (
        "alive",
        "context",
        "finish",
        "growth",
        "hashes",
        "left",
        "made",
        "private",
        "request",
        "steps",
        "todo",
    )

    def __init__(self, request: Request, steps: int, growth: float) -> None:
        """`steps`: decoding iterations after the first token; `growth`: tokens that each gives."""
        self.request = request
        self.alive = True
        self.steps = steps
        self.left = steps
        """Decoding iterations that are still to come."""
        self.growth = growth
        self.made = 0.0
        """Output tokens that the client has; computed again with the prompt after a preemption."""
        self.todo = 0
        """Tokens of prompt that are still to be read."""
        self.context = 0.0
        """Tokens that it attended to when it last began to decode."""
        self.private = 0.0
        """Tokens of memory that are its own, counted when it was admitted."""
        self.finish = 0
        """The engine's count of decoding iterations at which it ends."""
        self.hashes: tuple[int, ...] = ()


class Engine:
    """Times in seconds. `end` is when the stretch under way ends, infinite when idle; the world calls `advance` then."""

    __slots__ = (
        "_admitted",
        "_capacity",
        "_chunks",
        "_coarse",
        "_cost",
        "_decoding",
        "_factor",
        "_growth",
        "_half_block",
        "_kv",
        "_noise",
        "_order",
        "_prefilling",
        "_private",
        "_random",
        "_sequences",
        "_slope",
        "_spec",
        "_steps",
        "_stretch",
        "_times",
        "_waiting",
        "accepted",
        "busy_seconds",
        "cache",
        "computed_prompt_tokens",
        "decoding",
        "done",
        "drafts",
        "end",
        "first",
        "generated_tokens",
        "iterations",
        "preemptions",
        "running",
        "start",
        "truth",
    )

    def __init__(self, truth: EngineTruth, random: Random, coarse: bool = True) -> None:
        """An idle engine. `random` is its own."""
        self.truth = truth
        self._times = truth.times
        self._spec = truth.speculation
        self._capacity = float(truth.kv_capacity_tokens)
        self._half_block = truth.block_tokens / 2
        self._noise = Noise(truth.noise, random)
        self._random = random
        self._coarse = coarse
        self._waiting: deque[Sequence] = deque()
        self._prefilling: deque[Sequence] = deque()
        self._admitted: list[Sequence] = []
        self._decoding: list[tuple[int, int, Sequence]] = []
        self._chunks: list[tuple[Sequence, int]] = []
        self._order = 0
        self._steps = 0
        self._sequences = 0
        self._growth = 0.0
        self._kv = 0.0
        self._private = 0.0
        self._stretch = 0
        self._cost = self._slope = 0.0
        self._factor = 1.0
        self.cache = PrefixCache()
        self.running = 0
        """Sequences that hold memory."""
        self.decoding = 0
        self.start = 0.0
        """When the stretch under way began."""
        self.end = math.inf
        self.first: list[Request] = []
        """Requests whose first token came with the last `advance`; the world empties it."""
        self.done: list[Request] = []
        """Requests that ended with the last `advance`; the world empties it."""
        self.generated_tokens = 0
        """Output tokens made, as vllm:generation_tokens_total: also those of requests that never ended."""
        self.computed_prompt_tokens = 0
        self.preemptions = 0
        self.busy_seconds = 0.0
        self.iterations = 0
        self.accepted = 0
        """Drafted tokens that were kept."""
        self.drafts = 0
        """Drafts verified: one for each sequence and iteration."""

    # --- What can be observed -------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Requests that no memory was given to yet."""
        return len(self._waiting)

    @property
    def kv_used(self) -> float:
        """Tokens of memory that running sequences hold, halves of last blocks included."""
        return self._private + self.running * self._half_block + self.cache.pinned_tokens

    @property
    def kv_usage(self) -> float:
        """Share of the KV memory that running sequences hold, 0 to 1."""
        return self.kv_used / self._capacity

    def fits(self, request: Request) -> bool:
        """Whether the request could ever run here, alone."""
        return request.prompt + request.output + self.truth.block_tokens <= self._capacity * (1 - WATERMARK)

    def passed(self, now: float) -> int:
        """Iterations of the stretch under way that are over at `now`."""
        if self.end == math.inf or self._stretch <= 1:
            return 0
        return max(0, self._cut(now) - 1)

    def generated_by(self, now: float) -> int:
        """`generated_tokens` with those of the stretch under way."""
        return self.generated_tokens + int(self._growth * self.passed(now))

    def busy_by(self, now: float) -> float:
        """`busy_seconds` with those of the stretch under way."""
        return self.busy_seconds + (min(now, self.end) - self.start if self.end != math.inf else 0.0)

    # --- What the world does to it --------------------------------------------------------------------------------------------

    def submit(self, request: Request, now: float) -> bool:
        """Takes a request. True: `end` has changed."""
        self._waiting.append(self._sequence(request))
        if self.end == math.inf:
            self._begin(now)
            return True
        if self._stretch > 1 and len(self._waiting) == 1 and self._admissible(self._waiting[0]):
            steps = self._cut(now)
            if steps < self._stretch:
                self._stretch = steps
                self.end = self.start + self._factor * self._sum(steps)
                return True
        return False

    def advance(self) -> None:
        """Ends the stretch under way at `end` and begins the next. Fills `first` and `done`."""
        now = self.end
        self._finish(now)
        self._begin(now)

    def abandon(self) -> list[Request]:
        """Everything that is in the engine, which is gone now."""
        inside = [s.request for s in self._admitted if s.alive] + [s.request for s in self._waiting]
        self._waiting.clear()
        self._admitted.clear()
        self.end = math.inf
        return inside

    # --- Inside ---------------------------------------------------------------------------------------------------------------

    def _sequence(self, request: Request) -> Sequence:
        rest = request.output - 1
        if self._spec is None or rest <= 0:
            return Sequence(request, rest, 1.0)
        # Sequences accept independently of each other, so each one's number of iterations can be drawn when it arrives.
        mean = self._spec.tokens_per_step
        spread = math.sqrt(mean * (mean - 1.0)) / 2 if mean > 1 else 0.0
        drawn = rest / mean + self._random.gauss(0.0, 1.0) * spread * math.sqrt(rest / mean) / mean
        steps = min(rest, max(math.ceil(rest / (self._spec.depth + 1)), round(drawn)))
        return Sequence(request, steps, rest / steps)

    def _own_tokens(self, sequence: Sequence) -> tuple[float, tuple[int, ...]]:
        request = sequence.request
        blocks = request.hashes[: (request.prompt - 1) // PREFIX_BLOCK_TOKENS]
        return request.prompt + sequence.made - len(blocks) * PREFIX_BLOCK_TOKENS, blocks

    def _admissible(self, sequence: Sequence) -> bool:
        if self.running >= self.truth.max_sequences:
            return False
        own, blocks = self._own_tokens(sequence)
        need = own + self.cache.new_pinned(blocks) * PREFIX_BLOCK_TOKENS + self.truth.block_tokens
        reserve = self._capacity * WATERMARK if self.running else 0.0
        return self.kv_used + need <= self._capacity - reserve

    def _admit(self) -> None:
        waiting = self._waiting
        while waiting and self._admissible(waiting[0]):
            sequence = waiting.popleft()
            own, blocks = self._own_tokens(sequence)
            hit = 0
            if blocks:
                hit = self.cache.known(blocks) * PREFIX_BLOCK_TOKENS
                self.cache.pin(blocks)
                self.cache.queries += sequence.request.prompt
                self.cache.hits += hit
                sequence.request.cached = max(sequence.request.cached, hit)
            sequence.hashes = blocks
            sequence.private = own
            sequence.context = own + len(blocks) * PREFIX_BLOCK_TOKENS
            sequence.todo = max(1, round(sequence.context) - hit)
            sequence.alive = True
            self._private += own
            self.running += 1
            self._prefilling.append(sequence)
            self._admitted.append(sequence)
        if self.cache.idle_tokens:
            self.cache.shrink(self._capacity - self.kv_used)

    def _begin(self, now: float) -> None:
        """Chooses the next stretch from `now`."""
        if self._waiting:
            self._admit()
        self.start = now
        while self.decoding and self.kv_used + self._growth > self._capacity:
            self._put_back()
        if not self.running:
            self._stretch = 0
            self.end = math.inf
            return
        if self._prefilling:
            self._begin_prefill(now)
        else:
            self._begin_decode(now)

    def _begin_prefill(self, now: float) -> None:
        depth = self._spec.depth if self._spec is not None else 0
        budget = max(1, self.truth.max_batched_tokens - self.decoding * (1 + depth))
        tokens = 0
        pairs = 0.0
        chunks = self._chunks
        for sequence in self._prefilling:
            chunk = min(sequence.todo, budget - tokens)
            tokens += chunk
            pairs += chunk * (sequence.context - sequence.todo + chunk / 2)
            chunks.append((sequence, chunk))
            if tokens >= budget:
                break
        seconds = self._times.seconds(tokens, pairs, self.decoding, self._kv)
        if depth and self._spec is not None and self.decoding:
            seconds += self._spec.extra_seconds(self._times, self.decoding)
        self._stretch = 1
        self._factor = self._noise.draw(now, 1)
        self._cost = seconds
        self._slope = 0.0
        self.end = now + self._factor * seconds

    def _begin_decode(self, now: float) -> None:
        steps = self._decoding[0][0] - self._steps
        room = self._capacity - self.kv_used
        if self._growth * steps > room:
            steps = max(1, int(room / self._growth))
        if not self._coarse:
            steps = 1
        cost = self._times.seconds(0, 0.0, self.decoding, self._kv)
        if self._spec is not None:
            cost += self._spec.extra_seconds(self._times, self.decoding)
        self._cost = cost
        self._slope = self._times.delta * self._growth
        self._stretch = steps
        self._factor = self._noise.draw(now, steps)
        self.end = now + self._factor * self._sum(steps)

    def _sum(self, steps: int) -> float:
        """Seconds of the first iterations of this stretch, without noise."""
        return steps * self._cost + self._slope * (steps * (steps - 1) / 2)

    def _cut(self, now: float) -> int:
        """Iterations until the one that is under way at `now` is over."""
        wanted = (now - self.start) / self._factor
        half = self._slope / 2
        linear = self._cost - half
        root = (math.sqrt(linear * linear + 4 * half * wanted) - linear) / (2 * half) if half > 0 else wanted / linear
        steps = max(1, math.ceil(root - 1e-9))
        return min(steps, self._stretch)

    def _finish(self, now: float) -> None:
        steps = self._stretch
        self.busy_seconds += now - self.start
        self.iterations += steps
        if self.decoding:
            grown = self._growth * steps
            self._steps += steps
            self._kv += grown
            self._private += grown
            if self._spec is not None:
                self.drafts += steps * self.decoding
                self.accepted += round(grown) - steps * self.decoding
            self.generated_tokens += round(grown)
            heap = self._decoding
            while heap and (heap[0][0] <= self._steps or not heap[0][2].alive):
                sequence = heappop(heap)[2]
                if sequence.alive:
                    self._stop_decoding(sequence, 0)
                    self._complete(sequence, now)
        if self._chunks:
            for sequence, tokens in self._chunks:
                self.computed_prompt_tokens += tokens
                sequence.todo -= tokens
                if not sequence.todo:
                    self._prefilling.popleft()
                    self._prefilled(sequence, now)
            self._chunks.clear()
        if not self.running:
            # Sums of floats have drifted apart from nothing by now, if at all.
            self._kv = self._private = self._growth = 0.0
            self._admitted.clear()

    def _prefilled(self, sequence: Sequence, now: float) -> None:
        if not sequence.made:
            sequence.made = 1.0
            self.generated_tokens += 1
            sequence.request.first_token_at = now
            self.first.append(sequence.request)
        if not sequence.left:
            self._complete(sequence, now)
            return
        sequence.finish = self._steps + sequence.left
        self._order += 1
        heappush(self._decoding, (sequence.finish, self._order, sequence))
        self.decoding += 1
        self._growth += sequence.growth
        self._kv += sequence.context

    def _stop_decoding(self, sequence: Sequence, left: int) -> None:
        """Takes a sequence out of the batch with `left` iterations still to come."""
        here = sequence.growth * (sequence.left - left)
        sequence.private += here
        sequence.context += here
        sequence.made += here
        sequence.left = left
        self.decoding -= 1
        self._growth -= sequence.growth
        self._kv -= sequence.context
        if not self.decoding:
            self._growth = self._kv = 0.0

    def _release(self, sequence: Sequence) -> None:
        sequence.alive = False
        self.running -= 1
        self._private -= sequence.private
        if sequence.hashes:
            self.cache.unpin(sequence.hashes)
        admitted = self._admitted
        while admitted and not admitted[-1].alive:
            admitted.pop()
        if len(admitted) > 4 * self.running + 64:
            self._admitted = [s for s in admitted if s.alive]

    def _complete(self, sequence: Sequence, now: float) -> None:
        self._release(sequence)
        sequence.request.finished_at = now
        self.done.append(sequence.request)

    def _put_back(self) -> None:
        """The youngest sequence gives its memory back and waits at the head of the line, to be computed again."""
        sequence = next(s for s in reversed(self._admitted) if s.alive)
        if sequence.todo:
            self._prefilling.remove(sequence)
        else:
            self._stop_decoding(sequence, sequence.finish - self._steps)
        self._release(sequence)
        heap = self._decoding
        while heap and not heap[0][2].alive:
            heappop(heap)
        # A fresh object waits: the old one, not alive, marks what is stale in the heap.
        again = Sequence(sequence.request, sequence.steps, sequence.growth)
        again.left = sequence.left
        again.made = sequence.made
        sequence.request.preemptions += 1
        self.preemptions += 1
        self._waiting.appendleft(again)
