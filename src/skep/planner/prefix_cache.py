"""The KV blocks of a replica: which prefixes it holds, and which of them give way.

As vLLM keeps them: a block is known by the tokens up to its end; blocks that no sequence uses stay
until their room is wanted, and the one that was used longest ago goes first, of one sequence the
last block. With KV in RAM a copy of every block that was computed is kept there by the same rule.
Knows nothing of time.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

Block = Hashable  # what tells a block from all others: a digest of the tokens up to its end
Blocks = tuple[Block, ...]


class PrefixCache:
    """The blocks of one replica.

    Blocks in use and idle ones together are never more than the capacity. `unnamed` blocks hold
    tokens that nobody can look up: answers under way, and prompts without names.
    """

    def __init__(self, capacity_blocks: int, ram_blocks: int = 0) -> None:
        self.capacity_blocks = capacity_blocks
        self.ram_blocks = ram_blocks
        self.unnamed_blocks = 0
        self.evicted_blocks = 0  # so far
        self._uses: dict[Block, int] = {}
        # Dictionaries keep their order: the first is the one that was used longest ago.
        self._idle: dict[Block, None] = {}
        self._in_ram: dict[Block, None] = {}

    def __repr__(self) -> str:
        return (
            f"<PrefixCache {self.used_blocks}/{self.capacity_blocks} blocks in use, "
            f"{len(self._idle)} idle, {len(self._in_ram)} in RAM>"
        )

    @property
    def used_blocks(self) -> int:
        return len(self._uses) + self.unnamed_blocks

    @property
    def free_blocks(self) -> int:
        """Blocks that a sequence could take: nobody uses them."""
        return self.capacity_blocks - self.used_blocks

    def held(self, blocks: Sequence[Block]) -> int:
        """Return how many of a prompt's first blocks are here."""
        for count, block in enumerate(blocks):
            if block not in self._uses and block not in self._idle:
                return count
        return len(blocks)

    def held_in_ram(self, blocks: Sequence[Block], begin: int) -> int:
        """Return how many of a prompt's blocks from `begin` on are in RAM."""
        for count, block in enumerate(blocks[begin:]):
            if block not in self._in_ram:
                return count
        return len(blocks) - begin

    def needs(self, blocks: Sequence[Block]) -> int:
        """Return how many free blocks a prompt would take away."""
        return sum(block not in self._uses for block in blocks)

    def use(self, blocks: Sequence[Block]) -> None:
        """Take blocks for a sequence: those that are here, and room for those that are not."""
        for block in blocks:
            uses = self._uses.get(block, 0)
            self._uses[block] = uses + 1
            if uses == 0:
                self._idle.pop(block, None)
        self._make_room()

    def release(self, blocks: Sequence[Block]) -> None:
        """Give back what `use` took, or what `name` named: idle from now on, the last block first
        in the order of those that give way.
        """
        for block in reversed(blocks):
            uses = self._uses[block] - 1
            if uses:
                self._uses[block] = uses
            else:
                del self._uses[block]
                self._idle[block] = None

    def forget(self, blocks: Sequence[Block]) -> None:
        """Drop idle blocks whose tokens were never computed."""
        for block in blocks:
            self._idle.pop(block, None)

    def keep_in_ram(self, blocks: Sequence[Block]) -> None:
        """Copy blocks that have been computed."""
        if not self.ram_blocks:
            return
        for block in blocks:
            self._in_ram.pop(block, None)
            self._in_ram[block] = None
        while len(self._in_ram) > self.ram_blocks:
            del self._in_ram[next(iter(self._in_ram))]

    def set_unnamed(self, blocks: int) -> None:
        """Note how many blocks hold tokens without a name; idle ones give way to them."""
        self.unnamed_blocks = blocks
        self._make_room()

    def _make_room(self) -> None:
        too_many = self.used_blocks + len(self._idle) - self.capacity_blocks
        while too_many > 0 and self._idle:
            del self._idle[next(iter(self._idle))]
            self.evicted_blocks += 1
            too_many -= 1
