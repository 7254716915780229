"""The prefix cache of one engine: blocks of 512 prompt tokens by their hash, shared while in use, kept in free memory afterwards.

A block's hash stands for the block and all before it (Mooncake's `hash_ids`), so the longest run of known blocks from the start
is what a prompt need not compute again.
"""

from __future__ import annotations

from collections.abc import Sequence

PREFIX_BLOCK_TOKENS = 512


class PrefixCache:
    """Counts whole blocks. `pinned` ones belong to running sequences, `idle` ones may be evicted, the longest unused first."""

    __slots__ = ("_idle", "_pinned", "hits", "queries")

    def __init__(self) -> None:
        """An empty cache."""
        self._pinned: dict[int, int] = {}
        self._idle: dict[int, None] = {}
        self.queries = 0
        """Prompt tokens looked up, as vllm:prefix_cache_queries_total."""
        self.hits = 0
        """Prompt tokens found, as vllm:prefix_cache_hits_total."""

    @property
    def pinned_tokens(self) -> int:
        """Memory that running sequences hold in shared blocks."""
        return len(self._pinned) * PREFIX_BLOCK_TOKENS

    @property
    def idle_tokens(self) -> int:
        """Memory that can be had by forgetting."""
        return len(self._idle) * PREFIX_BLOCK_TOKENS

    def known(self, hashes: Sequence[int]) -> int:
        """How many leading blocks are here."""
        count = 0
        for block in hashes:
            if block not in self._pinned and block not in self._idle:
                break
            count += 1
        return count

    def new_pinned(self, hashes: Sequence[int]) -> int:
        """How many blocks of memory `pin` would newly hold, those that were idle included."""
        return sum(1 for block in set(hashes) if block not in self._pinned)

    def pin(self, hashes: Sequence[int]) -> None:
        """Holds these blocks for one sequence."""
        for block in hashes:
            count = self._pinned.get(block)
            if count is None:
                self._idle.pop(block, None)
                self._pinned[block] = 1
            else:
                self._pinned[block] = count + 1

    def unpin(self, hashes: Sequence[int]) -> None:
        """Lets one sequence's blocks go; what nobody holds stays until memory is needed. A prompt's end is forgotten first."""
        for block in reversed(hashes):
            count = self._pinned[block] - 1
            if count:
                self._pinned[block] = count
            else:
                del self._pinned[block]
                self._idle[block] = None

    def shrink(self, tokens: float) -> None:
        """Forgets until the idle blocks take at most `tokens`."""
        while self._idle and self.idle_tokens > tokens:
            del self._idle[next(iter(self._idle))]
