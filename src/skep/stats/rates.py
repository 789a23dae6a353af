"""Rates from counters that are read now and then. Times are arguments."""

from __future__ import annotations

from collections import deque

WINDOW_S = 10.0  # rates are means over so long


class Rate:
    """What a counter gains per second over the last WINDOW_S. A value of None: nobody has counted yet.

    A counter that goes down has lost a gateway process: that step counts as no gain.
    """

    def __init__(self) -> None:
        self._last = 0.0
        self._told = False
        self._points: deque[tuple[float, float]] = deque()  # (time, gained since the first)

    def take(self, value: float | None, now: float) -> None:
        self._told = self._told or value is not None
        gain = max(0.0, (value or 0.0) - self._last)
        self._last = value or 0.0
        self._points.append((now, self._points[-1][1] + gain if self._points else 0.0))
        while len(self._points) > 2 and self._points[1][0] <= now - WINDOW_S:
            self._points.popleft()

    def per_s(self) -> float | None:
        if not self._told:
            return None
        (began, before), (ended, after) = self._points[0], self._points[-1]
        return (after - before) / (ended - began) if ended > began else None
