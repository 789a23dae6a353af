"""The states of linear layers in a prefix cache: where they are kept, and what they make of a hit.

Linear layers have a state of fixed size instead of KV. vLLM keeps it ("align") only where a pass
over a prompt ends and where an answer ends, in blocks of the same pool. A prompt goes on from the
last such place, however many blocks of KV lie behind it. Knows nothing of time.
"""

from __future__ import annotations

from skep.planner.prefix_cache import Blocks, PrefixCache


class KeptStates:
    """The states in one cache. A state is named after the last block of the tokens before it."""

    def __init__(self, cache: PrefixCache, blocks_each: int) -> None:
        """`blocks_each`: that a state takes; 0: the model has none."""
        self.blocks_each = blocks_each
        self._cache = cache

    def after(self, blocks: Blocks, count: int) -> Blocks:
        """Return the blocks of the state after the first `count` blocks of a prompt."""
        if count == 0:
            return ()
        last_block = blocks[count - 1]
        parts = range(self.blocks_each)
        return tuple((last_block, part) for part in parts)

    def hits_of(self, blocks: Blocks) -> tuple[int, int]:
        """Return how many of a prompt's first blocks are on the card, and how many behind them in
        RAM. With linear layers both end where a state is kept.
        """
        held_blocks = self._cache.held(blocks)
        ram_blocks = self._cache.held_in_ram(blocks, held_blocks)
        if not self.blocks_each:
            return held_blocks, ram_blocks
        found_blocks = held_blocks + ram_blocks
        while found_blocks and not self._is_kept(blocks, found_blocks):
            found_blocks -= 1
        held_blocks = min(held_blocks, found_blocks)
        return held_blocks, found_blocks - held_blocks

    def _is_kept(self, blocks: Blocks, count: int) -> bool:
        state = self.after(blocks, count)
        held_parts = self._cache.held(state)
        ram_parts = self._cache.held_in_ram(state, held_parts)
        kept_parts = held_parts + ram_parts
        return kept_parts == self.blocks_each

    def touch(self, blocks: Blocks, count: int) -> None:
        """Use a state: of those that give way it is the last from now on."""
        state = self.after(blocks, count)
        held_parts = self._cache.held(state)
        if held_parts == len(state):
            self._keep(state)

    def keep_every(self, interval: int, blocks: Blocks, begin: int) -> None:
        """Keep a state after every `interval` blocks from `begin` on: others whose prompt begins
        alike go on from there.
        """
        if not self.blocks_each:
            return
        first_end = begin + interval
        for end in range(first_end, len(blocks), interval):
            state = self.after(blocks, end)
            self._keep(state)

    def _keep(self, state: Blocks) -> None:
        """Put a state into the cache, idle and the last to give way."""
        self._cache.use(state)
        self._cache.release(state)
