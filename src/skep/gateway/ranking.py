"""Who is first among many whose ranks change one at a time: a knockout tree. Knows ranks, not what they stand for.

Looking at the first costs nothing, a change of rank at most one comparison for each doubling of the number. One that
neither was nor becomes first among its neighbours costs two or three, however many there are.
"""

from __future__ import annotations

from math import inf
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_NOBODY: tuple[Any, ...] = (inf, inf)  # ranks begin with two numbers, and behind these comes none
_SMALL = 64


class TournamentTree(Generic[T]):
    """A rank is a tuple that ends with its item. What stands before it differs: items are not compared."""

    __slots__ = ("_leaves", "_nodes", "_size", "_spare")

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._size = 1
        self._nodes: list[tuple[Any, ...]] = [_NOBODY, _NOBODY]  # children of n: 2n and 2n+1; the root is 1
        self._leaves: dict[T, int] = {}
        self._spare: list[int] = []

    def __repr__(self) -> str:
        return f"<TournamentTree {len(self._leaves)}, first {self.first!r}>"

    def __len__(self) -> int:
        return len(self._leaves)

    def __contains__(self, item: T) -> bool:
        return item in self._leaves

    @property
    def first(self) -> T | None:
        rank = self._nodes[1]
        return None if rank is _NOBODY else rank[-1]

    @property
    def first_number(self) -> float:
        """What its rank begins with; infinite where there is none."""
        number: float = self._nodes[1][0]
        return number

    def put(self, rank: tuple[Any, ...]) -> None:
        """New, or with a new rank."""
        leaf = self._leaves.get(rank[-1])
        if leaf is None:
            leaf = self._leaves[rank[-1]] = self._leaf()
        self._set(leaf, rank)

    def drop(self, item: T) -> None:
        """Nothing happens where it is not there."""
        leaf = self._leaves.pop(item, None)
        if leaf is None:
            return
        if not self._leaves and self._size > _SMALL:
            self._start()  # what a long queue took is given back
            return
        self._spare.append(leaf)
        self._set(leaf, _NOBODY)

    def _leaf(self) -> int:
        if self._spare:
            return self._spare.pop()
        place = len(self._leaves)
        if place == self._size:
            self._grow()
        return place

    def _grow(self) -> None:
        """Twice as many places: the old root becomes the left child of the new one, level by level."""
        old, grown, level = self._nodes, [_NOBODY, self._nodes[1]], 1
        while level <= self._size:
            grown += old[level : 2 * level]
            grown += [_NOBODY] * level
            level *= 2
        self._nodes = grown
        self._size *= 2

    def _set(self, leaf: int, rank: tuple[Any, ...]) -> None:
        nodes = self._nodes
        place = leaf + self._size
        nodes[place] = rank
        while place > 1:
            other = nodes[place ^ 1]
            place >>= 1
            rank = min(rank, other)
            if nodes[place] is rank:
                return  # whoever was first here still is, with the same rank
            nodes[place] = rank
