"""The clock of another machine held against ours, and rows brought onto ours. Pure: pings come in, seconds go out.

A ping is our time, theirs, and ours again: theirs was read somewhere between, so the middle of the quickest round trip
is right to within half of it. Durations inside one row are one clock's and need none of this; the wall time of a batch,
which many machines share, does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from skep.records import Request

FASTEST_DRIFT = 500e-6  # of a second a second: as far as a kernel slews a clock
TELLING_S = 1.0  # two readings closer together say nothing of a drift


@dataclass(frozen=True, slots=True)
class Ping:
    sent_s: float
    theirs_s: float
    came_s: float


@dataclass(frozen=True, slots=True)
class Reading:
    """`ahead_s`: their clock minus ours at `at_s` of ours, not further from the truth than `within_s`."""

    at_s: float
    ahead_s: float
    within_s: float

    def within_at(self, now_s: float) -> float:
        """How far off it may be by then."""
        return self.within_s + FASTEST_DRIFT * max(0.0, now_s - self.at_s)


def reading_of(pings: Sequence[Ping]) -> Reading:
    quickest = min(pings, key=lambda ping: ping.came_s - ping.sent_s)
    middle = (quickest.sent_s + quickest.came_s) / 2
    return Reading(middle, quickest.theirs_s - middle, (quickest.came_s - quickest.sent_s) / 2)


@dataclass(slots=True)
class HeldClock:
    """One clock, read again and again. The reading in use is the last that said more than the one before it."""

    readings: list[Reading] = field(default_factory=list)

    @property
    def now(self) -> Reading:
        return self.readings[-1]

    def take(self, new: Reading) -> None:
        """One made while the machine was busy may say less than an older one: then that stays."""
        if not self.readings or new.within_s <= self.now.within_at(new.at_s):
            self.readings.append(new)

    def error_s(self, since_s: float, until_s: float) -> float:
        """The most a row can be off that came between: the worst reading in use, and what two of them differed by."""
        used = [one for one in self.readings if one.at_s >= since_s]
        used = [one for one in self.readings if one.at_s < since_s][-1:] + used
        change = max((abs(b.ahead_s - a.ahead_s) for a, b in pairwise(used)), default=0.0)
        return max(used[-1].within_at(until_s), *(one.within_s for one in used)) + change

    def drift_ppm(self) -> tuple[float, float] | None:
        """Microseconds a second since the first reading, and how far off that may be; None: read once, or just now."""
        first, last = self.readings[0], self.readings[-1]
        span = last.at_s - first.at_s
        if span < TELLING_S:
            return None
        return 1e6 * (last.ahead_s - first.ahead_s) / span, 1e6 * (first.within_s + last.within_s) / span


def moved(row: Request, by_s: float) -> Request:
    """The same row, all its times later by that."""
    if not by_s:
        return row
    return replace(
        row,
        started_s=row.started_s + by_s,
        ended_s=row.ended_s + by_s,
        first_byte_s=_moved(row.first_byte_s, by_s),
        first_token_s=_moved(row.first_token_s, by_s),
        last_token_s=_moved(row.last_token_s, by_s),
        scheduled_s=_moved(row.scheduled_s, by_s),
        arrivals_s=tuple(at + by_s for at in row.arrivals_s),
    )


def _moved(at_s: float | None, by_s: float) -> float | None:
    return None if at_s is None else at_s + by_s
