"""What a trial asks in which order. Decides; sends nothing.

A round has every item once in each arm. Arms are interleaved in blocks, so that what the machine does meanwhile befalls
both, and which of them goes first changes from block to block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from skep.errors import UserError

BLOCK = 64  # items, at least
BLOCK_PER_AGENT = 8  # a block begins and ends with fewer than C in flight: that must be a small part of it
BASE, AGAIN, LOAD = "base", "again", "load"
LEAST_DELTA, MOST_DELTA = 0.1, 50.0  # points

LLAMA = frozenset({"embedded", "xllamacpp", "llamacpp", "llama.cpp", "llama-server"})
VLLM = frozenset({"vllm"})


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """`delta` is a share: 0.03 are three points. C=1 is the base of every level, whether it is named or not."""

    concurrency: tuple[int, ...] = (1, 4, 8)
    delta: float = 0.03
    repeats: int = 1  # of every item in every arm
    temperature: float = 0.0
    timeout_s: float = 900.0
    seed: int = 0
    budget_s: float | None = None

    def __post_init__(self) -> None:
        if not self.levels:
            shown = ",".join(map(str, self.concurrency))
            raise UserError(
                f"concurrency `{shown}` has no level to hold against C=1", hint="write it as --concurrency 1,4,8"
            )

    @property
    def levels(self) -> tuple[int, ...]:
        """Walked upward."""
        return tuple(sorted({level for level in self.concurrency if level > 1}))


@dataclass(frozen=True, slots=True)
class ItemPass:
    """All items once in one arm: rows are told apart by its level and repeat."""

    level: int
    repeat: int
    arm: str


class Passes:
    """Numbers the passes of each level in the order they are begun."""

    def __init__(self) -> None:
        self._begun: Counter[int] = Counter()

    def begin(self, level: int, arm: str) -> ItemPass:
        self._begun[level] += 1
        return ItemPass(level, self._begun[level] - 1, arm)

    def round(self, level: int, *, again: bool) -> dict[str, ItemPass]:
        """`again`: with C=1 twice, which shows what changes by itself."""
        found = {BASE: self.begin(1, BASE)}
        if again:
            found[AGAIN] = self.begin(1, AGAIN)
        return {**found, LOAD: self.begin(level, LOAD)}


def blocks_of(count: int, level: int) -> list[tuple[int, int]]:
    """From and to, of `count` items: none smaller than a block unless there is but one."""
    size = max(BLOCK, BLOCK_PER_AGENT * level)
    number = max(1, count // size)
    return [(place * size, (place + 1) * size if place + 1 < number else count) for place in range(number)]


def order_of(arms: Mapping[str, ItemPass], seed: int, level: int, round_: int, block: int) -> list[ItemPass]:
    """One way in this block, the other way in the next; a coin of the seed says which begins."""
    first = Random(f"{seed}/{level}").randrange(2)
    forth = [arms[arm] for arm in (BASE, LOAD, AGAIN) if arm in arms]
    return forth if (first + round_ + block) % 2 == 0 else forth[::-1]


@dataclass(frozen=True, slots=True)
class CacheBypass:
    """What keeps an engine from answering out of its prompt cache, which would flatter the second arm.

    llama.cpp takes `cache_prompt`: false, and gives other greedy answers with a cache than without; vLLM takes a
    `cache_salt`, here one of its own for each request. Of other engines the cached share is reported.
    """

    llama: bool = False
    vllm: bool = False
    salt: str = field(default="", repr=False)

    @classmethod
    def for_engine(cls, told: Mapping[str, Any], salt: str) -> CacheBypass:
        """By what an endpoint told of itself: "vllm 0.19.1", or several where a gateway stands before them."""
        names = {name.strip().partition(" ")[0].lower() for name in str(told.get("engine", "")).split(",")}
        return cls(bool(names & LLAMA) or "build" in told, bool(names & VLLM), salt)

    def fields(self, one: ItemPass, index: int) -> dict[str, Any]:
        found: dict[str, Any] = {"cache_prompt": False} if self.llama else {}
        if self.vllm:
            found["cache_salt"] = f"{self.salt}-{one.level}-{one.repeat}-{index}"
        return found
