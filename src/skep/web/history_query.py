"""What an address of the history and compare pages asks for, and the addresses that ask for something near it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, tzinfo
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from skep.errors import UserError
from skep.monitor.records import DAY_S, Heat, ProbeShape, SeriesKey, SeriesMetric
from skep.report.wall_clock import local, stamp

WINDOWS = (
    ("1d", DAY_S, "1 day"),
    ("7d", 7 * DAY_S, "7 days"),
    ("30d", 30 * DAY_S, "30 days"),
    ("1y", 365 * DAY_S, "1 year"),
)
ALL = "all"
DEFAULT_WINDOW = "7d"
_MOST_TARGETS = 8
_FIRST_YEAR, _LAST_YEAR = 1971, 2999  # whatever the zone, a clock can tell them
_HEATS = {Heat.HOT: "hot", Heat.COLD: "cold", Heat.SEEN: "as the gateway saw it"}
_SHAPES = {
    ProbeShape.SHORT: "short answer",
    ProbeShape.LONG: "long answer",
    ProbeShape.QUALITY: "small tasks",
    ProbeShape.ANY: "any request",
}
_METRICS = {
    SeriesMetric.TOK_S: "tok/s",
    SeriesMetric.ENGINE_TOK_S: "tok/s by the engine",
    SeriesMetric.EFFECTIVE_TOK_S: "effective tok/s",
    SeriesMetric.TTFT_MS: "time to first token",
    SeriesMetric.QUALITY: "share answered rightly",
    SeriesMetric.REQUESTS: "requests an hour",
    SeriesMetric.FAILED: "failed requests an hour",
}


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """`series` is the name of a series without its target; None: the one that stands for the target.

    `since` is None where all there is was asked for: only the store knows when it began.
    """

    targets: tuple[str, ...]
    series: str | None
    window: str  # one of WINDOWS, ALL, or "" where `begin` and `end` were given
    since: float | None
    until: float
    begin: str = ""
    end: str = ""

    def query(self) -> str:
        """The query string that asks for this."""
        parts = [("target", name) for name in self.targets]
        if self.series:
            parts.append(("series", self.series))
        if self.window:
            parts.append(("window", self.window))
        parts += [
            (name, value) for name, value in (("from", self.begin), ("to", self.end)) if value and not self.window
        ]
        return urlencode(parts)

    def over(self, window: str) -> HistoryQuery:
        return replace(self, window=window, begin="", end="")

    def of(self, *targets: str, series: str | None = None) -> HistoryQuery:
        return replace(self, targets=targets, series=series)

    @property
    def length_s(self) -> float | None:
        return None if self.since is None else self.until - self.since


def read_query(query: QueryParams, now: float, zone: tzinfo | None = None) -> HistoryQuery:
    """Raises UserError for what cannot be understood, with what could be."""
    targets = tuple(dict.fromkeys(name for word in ("target", "a", "b") for name in query.getlist(word) if name))
    if len(targets) > _MOST_TARGETS:
        raise UserError(f"{len(targets)} targets are too many for one page", hint=f"at most {_MOST_TARGETS}")
    series = query.get("series") or None
    if series is not None:
        check_series(series)
    begin, end = query.get("from", "").strip(), query.get("to", "").strip()
    window = query.get("window", "").strip()
    if (begin or end) and window in ("", "custom"):
        since = _moment(begin, zone) if begin else None
        until = _moment(end, zone, end=True) if end else now
        if since is not None and since >= until:
            raise UserError(f"`from={begin}` is not before `to={end or 'now'}`", hint="swap the two")
        return HistoryQuery(targets, series, "", since, until, begin, end)
    window = window or DEFAULT_WINDOW
    if window == ALL:
        return HistoryQuery(targets, series, ALL, None, now)
    length = next((length for name, length, _ in WINDOWS if name == window), None)
    if length is None:
        known = ", ".join([*(name for name, _, _ in WINDOWS), ALL])
        raise UserError(
            f"`window={window}` is not a window", hint=f"one of {known}, or from=YYYY-MM-DD and to=YYYY-MM-DD"
        )
    return HistoryQuery(targets, series, window, now - length, now)


def check_series(series: str) -> None:
    try:
        SeriesKey.parse(f"any/{series}")
    except ValueError:
        hint = "such as hot/short/c1/tok_s: heat, shape, streams at once, figure"
        raise UserError(f"`{series}` names no series", hint=hint) from None


def key_of(target: str, series: str) -> SeriesKey:
    return SeriesKey.parse(f"{target}/{series}")


def series_of(key: SeriesKey) -> str:
    """The name of the series without its target."""
    return str(key)[len(key.target) + 1 :]


def in_words(key: SeriesKey) -> str:
    """ "hot, short answer, 4 streams: tok/s"; nothing is said of one stream."""
    if key.heat is Heat.SEEN:
        return f"{_HEATS[key.heat]}: {_METRICS[key.metric]}"
    streams = f", {key.concurrency} streams" if key.concurrency > 1 else ""
    return f"{_HEATS[key.heat]}, {_SHAPES[key.shape]}{streams}: {_METRICS[key.metric]}"


def in_order(keys: Sequence[SeriesKey], first: Sequence[SeriesKey]) -> list[SeriesKey]:
    """Those that stand for a target first, then hot before cold, short before long, one stream before several."""
    places = {key: place for place, key in enumerate(first)}
    heats, shapes, metrics = list(Heat), list(ProbeShape), list(SeriesMetric)

    def order(key: SeriesKey) -> tuple[int, ...]:
        hot = 0 if key.heat is Heat.HOT else 1 + heats.index(key.heat)
        return places.get(key, len(places)), hot, shapes.index(key.shape), key.concurrency, metrics.index(key.metric)

    return sorted(keys, key=order)


def _moment(text: str, zone: tzinfo | None, *, end: bool = False) -> float:
    """A day or a minute on the clock of `zone`. The day of an end is in the window."""
    try:
        wall = datetime.fromisoformat(text)
    except ValueError:
        hint = "a day as 2026-11-03, or a minute as 2026-11-03T04:00"
        raise UserError(f"`{text}` is not a time", hint=hint) from None
    if not _FIRST_YEAR <= wall.year <= _LAST_YEAR:
        raise UserError(f"`{text}` is too far away", hint=f"a day from {_FIRST_YEAR} to {_LAST_YEAR}")
    if wall.tzinfo is not None:
        return wall.timestamp()
    if end and len(text) <= 10:
        wall += timedelta(days=1)
    return stamp(wall, zone)


def day_text(at: float, zone: tzinfo | None = None) -> str:
    return f"{local(at, zone):%Y-%m-%d}"
