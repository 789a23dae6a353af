"""Tokens a second at this moment, for the eye: reads of the last seconds, not what is stored."""

from __future__ import annotations

from collections import deque

WINDOW_S = 3.0


class Pace:
    def __init__(self) -> None:
        self._ended = 0
        self._seen: deque[tuple[float, int]] = deque()

    def reset(self) -> None:
        self._ended = 0
        self._seen.clear()

    def ended(self, reads: int) -> None:
        self._ended += reads

    def seen(self, under_way: int, at: float) -> None:
        self._seen.append((at, self._ended + under_way))
        while self._seen and at - self._seen[0][0] > WINDOW_S:
            self._seen.popleft()

    @property
    def per_s(self) -> float | None:
        if len(self._seen) < 2:
            return None
        (first_at, first), (last_at, last) = self._seen[0], self._seen[-1]
        return max(0.0, (last - first) / (last_at - first_at)) if last_at > first_at else None
