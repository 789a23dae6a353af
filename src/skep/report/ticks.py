"""Where the axes of a picture over time have their marks: days, weeks and months of a zone, round numbers upright.

Steps are taken on the clock of the wall, so a day that has 23 or 25 hours still begins at midnight. `zone` None is the
zone of the machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from itertools import pairwise

_MINUTES = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720)
_DAYS = (1, 2, 7, 14)
_MONTHS = (1, 2, 3, 6, 12, 24, 60, 120)
_DAY_MIN = 1440
_MONTH_MIN = 43_800
_MONDAY = datetime(2024, 1, 1)  # noqa: DTZ001 - wall time of any zone; weeks are counted from it
_NEAR_ZERO = 0.35  # a lowest value below this share of the highest: the axis begins at zero
_ROOM = 0.08  # above and below what is drawn


@dataclass(frozen=True, slots=True)
class Tick:
    """`strong` ones begin a day, a month or a year, whichever is the next larger thing."""

    at: float
    label: str
    strong: bool = False


@dataclass(frozen=True, slots=True)
class ValueScale:
    """Of values. `low` is not zero where that would press everything against the upper edge."""

    low: float
    high: float
    ticks: tuple[float, ...]

    @property
    def cut(self) -> bool:
        return self.low > 0

    def share(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)


def local(at: float, zone: tzinfo | None) -> datetime:
    """The wall's clock, without its zone: what days and months are counted on."""
    return datetime.fromtimestamp(at, zone).replace(tzinfo=None)


def stamp(wall: datetime, zone: tzinfo | None) -> float:
    return wall.replace(tzinfo=zone).timestamp()


def when(at: float, zone: tzinfo | None = None, *, now: float | None = None) -> str:
    """ "Tue 3 Nov, 04:00"; with the year where that is not the year of `now`."""
    wall = local(at, zone)
    year = "" if now is None or wall.year == local(now, zone).year else f" {wall.year}"
    return f"{wall:%a} {wall.day} {wall:%b}{year}, {wall:%H:%M}"


def zone_name(at: float, zone: tzinfo | None = None) -> str:
    """ "CET (UTC+01:00)", or only the difference where the zone has no name."""
    moment = datetime.fromtimestamp(at, zone) if zone else datetime.fromtimestamp(at).astimezone()
    name = moment.tzname() or ""
    offset = f"{moment:%z}"
    told = "UTC" if offset == "+0000" else f"UTC{offset[:3]}:{offset[3:5]}"
    return told if name in ("UTC", told) or not name.isalpha() else f"{name} ({told})"


def offsets(since: float, until: float, zone: tzinfo | None = None) -> list[tuple[int, int]]:
    """From which moment on the wall's clock is how many seconds ahead of UTC: the first is `since`."""
    found: list[tuple[int, int]] = []
    at = since
    while at <= until:
        ahead = _offset(at, zone)
        if not found:
            found.append((int(at), ahead))
        elif ahead != found[-1][1]:
            found.append((_turn(at - _DAY_MIN * 60, at, zone), ahead))
        at += _DAY_MIN * 60
    last = _offset(until, zone)
    if found and last != found[-1][1]:
        found.append((_turn(max(since, until - _DAY_MIN * 60), until, zone), last))
    return found


def time_ticks(since: float, until: float, most: int, zone: tzinfo | None = None) -> list[Tick]:
    """At most about `most` ticks from `since` to `until`, at moments that people count in."""
    if not until > since:
        return []
    minutes = (until - since) / 60 / max(most, 1)
    step = next((one for one in _MINUTES if one >= minutes), None)
    if step is not None:
        return _labelled(_every(since, until, timedelta(minutes=step), zone), "minutes", zone)
    days = next((one for one in _DAYS if one * _DAY_MIN >= minutes), None)
    if days is not None:
        return _labelled(_every(since, until, timedelta(days=days), zone), "days", zone)
    months = next((one for one in _MONTHS if one * _MONTH_MIN >= minutes), _MONTHS[-1])
    return _labelled(_monthly(since, until, months, zone), "months" if months < 12 else "years", zone)


def value_scale(low: float, high: float, most: int = 5) -> ValueScale:
    """Round numbers around `low` to `high`; from zero where the lowest is near it."""
    if not (math.isfinite(low) and math.isfinite(high)):
        low, high = 0.0, 1.0
    if low >= 0 and low < _NEAR_ZERO * high:
        low = 0.0
    if high <= low:
        spare = abs(high) * 0.1 or 1.0
        low, high = (low - spare if low else 0.0), high + spare
    room = (high - low) * _ROOM
    bottom = low if low == 0 else max(low - room, 0.0) if low > 0 else low - room
    top = high + room
    step = _round_step((top - bottom) / max(most, 1))
    first = math.ceil(bottom / step - 1e-9)
    last = math.floor(top / step + 1e-9)
    return ValueScale(bottom, top, tuple(round(i * step, 10) for i in range(first, last + 1)))


def tick_number(value: float, ticks: tuple[float, ...]) -> str:
    """With as many digits as tell the ticks apart."""
    step = min((b - a for a, b in pairwise(ticks)), default=abs(value) or 1.0)
    digits = next((many for many in range(9) if abs(round(step, many) - step) < 1e-9 * step), 2)
    return f"{value:,.{digits}f}".replace("-", "−")


def _round_step(least: float) -> float:
    size = 10.0 ** math.floor(math.log10(least)) if least > 0 else 1.0
    return next(size * many for many in (1, 2, 2.5, 5, 10) if size * many >= least * (1 - 1e-9))


def _every(since: float, until: float, step: timedelta, zone: tzinfo | None) -> list[datetime]:
    """Walls of equal steps from a midnight on, those of whole days from a Monday on."""
    wall = local(since, zone)
    if step < timedelta(days=1):
        start = wall.replace(hour=0, minute=0, second=0, microsecond=0)
    else:
        start = _MONDAY + step * ((wall - _MONDAY) // step)
    found: list[datetime] = []
    while (at := stamp(start, zone)) <= until:
        if at >= since and (not found or start != found[-1]):
            found.append(start)
        start += step
    return found


def _monthly(since: float, until: float, months: int, zone: tzinfo | None) -> list[datetime]:
    wall = local(since, zone)
    count = (wall.year * 12 + wall.month - 1) // months * months
    found: list[datetime] = []
    while True:
        start = datetime(count // 12, count % 12 + 1, 1)  # noqa: DTZ001 - wall time
        at = stamp(start, zone)
        if at > until:
            return found
        if at >= since:
            found.append(start)
        count += months


def _labelled(walls: list[datetime], unit: str, zone: tzinfo | None) -> list[Tick]:
    ticks = []
    before: datetime | None = None
    for wall in walls:
        strong = False
        if unit == "minutes":
            strong = wall.hour == 0 and wall.minute == 0
            label = f"{wall:%a} {wall.day} {wall:%b}" if strong else f"{wall:%H:%M}"
        elif unit == "days":
            strong = before is None or wall.month != before.month
            label = f"{wall.day} {wall:%b}"
            if before is not None and wall.year != before.year:
                label += f" {wall.year}"
        elif unit == "months":
            strong = before is None or wall.year != before.year
            label = f"{wall:%b} {wall.year}" if strong else f"{wall:%b}"
        else:
            label = str(wall.year)
        ticks.append(Tick(stamp(wall, zone), label, strong))
        before = wall
    return ticks


def _offset(at: float, zone: tzinfo | None) -> int:
    return round((local(at, zone) - datetime(1970, 1, 1)).total_seconds() - at)  # noqa: DTZ001 - wall time


def _turn(low: float, high: float, zone: tzinfo | None) -> int:
    """The first second with the offset of `high`."""
    after = _offset(high, zone)
    first, last = int(low), int(high)
    while last - first > 1:
        middle = (first + last) // 2
        if _offset(middle, zone) == after:
            last = middle
        else:
            first = middle
    return last
