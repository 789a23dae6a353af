"""Moments on the wall's clock: in words, and as numbers whose days begin at midnight. `zone` None is the machine's."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo


def local(at: float, zone: tzinfo | None) -> datetime:
    """Return the wall's clock, without its zone: what days and months are counted on."""
    return datetime.fromtimestamp(at, zone).replace(tzinfo=None)


def wall_s(at: float, zone: tzinfo | None) -> float:
    """Return what the wall's clock showed at `at`, in seconds as if it were in UTC: an axis of whole days."""
    return datetime.fromtimestamp(at, zone).replace(tzinfo=UTC).timestamp()


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
