"""Whether an attempt takes so much longer than the others that a second one pays. Pure."""

from __future__ import annotations

from collections import deque
from statistics import median

FEWEST = 5  # answers, before anything can be said
REMEMBERED = 200
TIMES = 2.5  # the time that nine of ten stay below
FLOOR_S = 1.0
SLOW = 0.5  # of the usual tokens a second: one that is faster is not stuck, only long


class Stragglers:
    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=REMEMBERED)
        self._rates: deque[float] = deque(maxlen=REMEMBERED)

    def took(self, seconds: float, tokens: int | None) -> None:
        """A whole answer came."""
        self._seconds.append(seconds)
        if tokens and seconds > 0:
            self._rates.append(tokens / seconds)

    def is_one(self, seconds: float, tokens: int) -> bool:
        if seconds <= FLOOR_S or len(self._seconds) < FEWEST:
            return False
        slowest = sorted(self._seconds)[int(0.9 * (len(self._seconds) - 1))]
        if seconds <= TIMES * slowest:
            return False
        return not self._rates or tokens / seconds < SLOW * median(self._rates)
