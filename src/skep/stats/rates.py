"""Rates from counters that are read now and then. Times are arguments."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

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


class TokenRates:
    """Tokens per second of each replica and of all.

    None: nobody has counted, or slots are busy and no token has passed: prompts are being read, or answers are not
    streamed. That is not known to be a speed of zero.
    """

    def __init__(self) -> None:
        self._all = Rate()
        self._each: dict[str, Rate] = {}
        self._busy: Mapping[str, int] = {}

    def take(self, tokens: Mapping[str, float], busy: Mapping[str, int], now: float) -> None:
        """`tokens` so far and slots that are `busy`, by replica."""
        self._busy = busy
        for name in {*tokens, *busy}:
            self._each.setdefault(name, Rate()).take(tokens.get(name), now)
        self._all.take(sum(tokens.values()) if tokens else None, now)

    def total(self) -> float | None:
        rate = self._all.per_s()
        return rate or (None if any(self._busy.values()) else rate)

    def of(self, name: str) -> float | None:
        rate = self._each[name].per_s() if name in self._each else None
        return rate or (None if self._busy.get(name) else rate)

    def by_replica(self) -> dict[str, float | None]:
        return {name: self.of(name) for name in sorted(self._each)}
