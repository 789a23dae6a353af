"""Slots and the engine's own queue: who runs, who waits, who is turned away.

A synchronous table; the server carries out what it says. Knows no time and no HTTP.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Generic, TypeVar

J = TypeVar("J")


class Entry(Enum):
    RUNS = "runs"
    WAITS = "waits"
    TURNED_AWAY = "turned away"


class SlotTable(Generic[J]):
    """A job is in one slot, or in the queue, or unknown here. A slot is free only when nobody waits."""

    def __init__(self, slots: int, max_waiting: int | None = None) -> None:
        self._slots: list[J | None] = [None] * slots
        self._queue: deque[J] = deque()
        self._max_waiting = max_waiting
        self.running = 0
        self.max_running = 0
        self.max_inside = 0

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def slots(self) -> tuple[J | None, ...]:
        return tuple(self._slots)

    def enter(self, job: J) -> Entry:
        if None in self._slots:
            self._slots[self._slots.index(None)] = job
            self.running += 1
            entry = Entry.RUNS
        elif self._max_waiting is not None and self.waiting >= self._max_waiting:
            return Entry.TURNED_AWAY
        else:
            self._queue.append(job)
            entry = Entry.WAITS
        self.max_running = max(self.max_running, self.running)
        self.max_inside = max(self.max_inside, self.running + self.waiting)
        return entry

    def leave(self, job: J) -> J | None:
        """The job that may start now in its place. Leaving twice changes nothing."""
        if job in self._queue:
            self._queue.remove(job)
        elif job in self._slots:
            place = self._slots.index(job)
            self._slots[place] = heir = self._queue.popleft() if self._queue else None
            self.running -= heir is None
            return heir
        return None

    def __repr__(self) -> str:
        return f"<SlotTable {self.running}/{len(self._slots)} running, {self.waiting} waiting>"
