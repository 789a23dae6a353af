"""A series as it is shown: points or hours or days, where it usually lies, what changed and what happened, in words.

Short windows show their samples, long ones the summaries that are kept up to date as samples come, so that a year of
a busy target is read as quickly as a week. Values of probes that met others at the target are shown, and left out of
all that is derived.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from itertools import pairwise
from typing import Any

import msgspec

from skep.monitor import describe
from skep.monitor.changes import changes_in, interval_of, primary_keys
from skep.monitor.records import (
    DAY_S,
    HOUR_S,
    Heat,
    MonitorEvent,
    SeriesChange,
    SeriesKey,
    SeriesMetric,
    SeriesPoint,
    SeriesSpan,
    SlowDrift,
    SpanKind,
)
from skep.monitor.store import SeriesStore
from skep.stats.rolling import WindowStats, rolling_median, window_stats
from skep.stats.versus import SeriesComparison, versus

MOST_POINTS = 2000
MOST_RAW = 20_000  # samples that are read for one picture; beyond it the hours are
WINDOWS = {"1 d": DAY_S, "7 d": 7 * DAY_S, "30 d": 30 * DAY_S}
LATE_S = DAY_S
BEFORE_S = 7 * DAY_S
_FEW = 6  # values of either side below which late and before are not compared
_SURE = 0.99  # this is said every day anew
_MOST_CHANGES = 3  # that are told; all are shown

_UNSURE = 4  # values after a change whose median tells little

Band = tuple[float, float, float, float]  # moment, median, lower and upper quartile


@dataclass(frozen=True, slots=True)
class WindowReading:
    """What was read of a window: samples, or the hours or days that stand for them."""

    points: tuple[SeriesPoint, ...] = ()
    spans: tuple[SeriesSpan, ...] = ()
    kind: SpanKind | None = None  # None: samples

    def quiet(self, since: float, until: float) -> list[tuple[float, float]]:
        """Without the busy ones; of an hour or a day its median, in the middle of it."""
        if self.kind is not None:
            half = self.kind.seconds / 2
            return [(span.start + half, span.median) for span in self.spans if since <= span.start < until]
        return [(point.at, point.value) for point in self.points if not point.busy and since <= point.at < until]


@dataclass(frozen=True, slots=True)
class SeriesHistory:
    """Either `points` or `spans` is empty. `band`: moment, median, lower and upper quartile of `band_s` up to it."""

    key: SeriesKey
    since: float
    until: float
    points: tuple[SeriesPoint, ...] = ()
    spans: tuple[SeriesSpan, ...] = ()
    band: Sequence[Band] = ()
    band_s: float = BEFORE_S
    steps: tuple[float, ...] = ()  # moments at which the band begins anew
    stats: Mapping[str, WindowStats | None] = field(default_factory=dict)  # by "1 d", "7 d", "30 d", up to `until`
    changes: tuple[SeriesChange, ...] = ()
    drifts: tuple[SlowDrift, ...] = ()
    events: tuple[MonitorEvent, ...] = ()
    coverage: Mapping[str, int] = field(default_factory=dict)
    busy: int = 0  # values that are left out of what is derived
    late: SeriesComparison | None = None  # the last day against the week before it
    sentences: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return what is derived from the values, without these."""
        names = ("since", "until", "stats", "drifts", "events", "coverage", "busy", "late", "sentences")
        told = {name: msgspec.to_builtins(getattr(self, name)) for name in names}
        changes = [change.document() for change in self.changes]
        return {"series": str(self.key), "unit": self.key.metric.unit, **told, "changes": changes}


def history_of(
    series: SeriesStore, key: SeriesKey, since: float, until: float, *, zone: tzinfo | None = None
) -> SeriesHistory:
    """`zone`: in which the sentences tell the time; None is the machine's own."""
    month = read_window(series, key, until - 30 * DAY_S - BEFORE_S, until)
    band_s = BEFORE_S if until - since > 2 * DAY_S else LATE_S
    near = since >= until - 30 * DAY_S
    shown = month if near else read_window(series, key, since - band_s, until)
    points = tuple(point for point in shown.points if since <= point.at < until)
    spans = tuple(span for span in shown.spans if since <= span.start < until)
    events = tuple(series.events(since, until, key.target))
    changes, drifts = _changed(series, key, shown, since, until)
    busy = sum(point.busy for point in points) + sum(span.busy for span in spans)
    stats = {
        name: window_stats(value for _, value in month.quiet(until - width, until)) for name, width in WINDOWS.items()
    }
    coverage = series.coverage(key.target, since, until) if key.heat is not Heat.SEEN else {}
    late = None
    if key.heat is Heat.HOT:
        known = [change for change in series.changes(key.target, until - LATE_S - BEFORE_S) if change.key == key]
        late = compare_recent(month, [*known, *changes], until, more_is_better=key.metric.more_is_better)
    steps = sorted({*steps_of(series, key, since - band_s, until), *(change.at for change in changes)})
    band = [row for row in stepped(shown.quiet(since - band_s, until), steps, band_s) if row[0] >= since]
    found = SeriesHistory(
        key=key,
        since=since,
        until=until,
        points=thinned(points),
        spans=spans,
        band=band[:: max(1, -(-len(band) // MOST_POINTS))],
        band_s=band_s,
        steps=tuple(step for step in steps if step > since),
        stats=stats,
        changes=tuple(changes),
        drifts=tuple(drifts),
        events=events,
        coverage=coverage,
        busy=busy,
        late=late[0] if late else None,
    )
    return _with_words(found, late, zone)


def read_window(
    series: SeriesStore, key: SeriesKey, since: float, until: float, *, most: int = MOST_RAW
) -> WindowReading:
    """Samples where they are there and not too many, else hours, else days."""
    if (until - since) / HOUR_S > MOST_POINTS:
        return WindowReading(spans=tuple(series.spans(key, SpanKind.DAY, since, until)), kind=SpanKind.DAY)
    hours = series.spans(key, SpanKind.HOUR, since, until)
    known = sum(hour.count + hour.busy for hour in hours)
    if known > most or key.heat is Heat.SEEN:
        return WindowReading(spans=tuple(hours), kind=SpanKind.HOUR)
    points = series.points(key, since, until)
    whole = [hour for hour in hours if since <= hour.start and hour.start + HOUR_S <= until]
    if len(points) < sum(hour.count + hour.busy for hour in whole):  # some were thinned
        return WindowReading(spans=tuple(hours), kind=SpanKind.HOUR)
    return WindowReading(points=tuple(points))


def compare_recent(
    reading: WindowReading, changes: Sequence[SeriesChange], until: float, *, more_is_better: bool
) -> tuple[SeriesComparison, float] | None:
    """Return the last day against the week before, or what of it came after the last change; with that time in seconds.

    None where either has too few values to be compared.
    """
    edge = until - LATE_S
    start = max([edge - BEFORE_S, *(change.at for change in changes if change.at < until)])
    before, late = reading.quiet(start, edge), reading.quiet(edge, until)
    if min(len(before), len(late)) < _FEW:
        return None
    found = versus([v for _, v in before], [v for _, v in late], more_is_better=more_is_better, confidence=_SURE)
    return found, edge - max(start, before[0][0])


def _changed(
    series: SeriesStore, key: SeriesKey, shown: WindowReading, since: float, until: float
) -> tuple[list[SeriesChange], list[SlowDrift]]:
    """As stored, where they are found after each probe; of other series worked out here. Drifts always are."""
    if key.heat is not Heat.HOT:
        return [], []
    points = shown.points or tuple(SeriesPoint(at, value) for at, value in shown.quiet(since, until))
    points = tuple(point for point in points if since <= point.at < until)
    every_s = interval_of(series, key.target)
    changes, drifts = changes_in(key, points, series.events(since - DAY_S, until, key.target), every_s)
    if key in primary_keys(series, key.target):
        changes = [change for change in series.changes(key.target, since) if change.key == key and change.at < until]
    steps = [change.at for change in changes]
    return changes, [drift for drift in drifts if not any(drift.first < at <= drift.last for at in steps)]


def _with_words(
    found: SeriesHistory, late: tuple[SeriesComparison, float] | None, zone: tzinfo | None
) -> SeriesHistory:
    metric = found.key.metric
    told = [describe.describe_change(change, zone) for change in reversed(found.changes[-_MOST_CHANGES:])]
    told += [describe.describe_drift(drift, zone) for drift in found.drifts]
    if late is not None:
        told.append(describe.describe_recent(late[0], LATE_S, late[1]) or "")
    widest = next((name for name in ("7 d", "30 d") if found.stats.get(name)), None)
    if widest is not None and (stats := found.stats[widest]) is not None:
        told.append(describe.describe_stats(stats, metric, WINDOWS[widest]))
    told.append(describe.describe_coverage(found.coverage) or "")
    if found.busy:
        values = "value was" if found.busy == 1 else "values were"
        told.append(f"{found.busy} {values} taken while others used the target: shown, and left out of the rest")
    return replace(found, sentences=tuple(one for one in told if one))


def thinned(points: Sequence[SeriesPoint], most: int = MOST_POINTS) -> tuple[SeriesPoint, ...]:
    """Of too many, the lowest and the highest of each of so many stretches: what stands out still does."""
    if len(points) <= most:
        return tuple(points)
    size = -(-2 * len(points) // most)
    kept: list[SeriesPoint] = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        ends = {id(one): one for one in (min(part, key=_value), max(part, key=_value))}
        kept += sorted(ends.values(), key=lambda point: point.at)
    return tuple(kept)


def _value(point: SeriesPoint) -> float:
    return point.value


def steps_of(series: SeriesStore, key: SeriesKey, since: float, until: float) -> tuple[float, ...]:
    """When the series changed, oldest first. For cold runs changes are not looked for: those of hot ones stand in."""
    found = [change for change in series.changes(key.target, since) if change.at < until]
    own = [change for change in found if change.key == key]
    if not own and key.heat is not Heat.SEEN:
        speed = key.metric is not SeriesMetric.TTFT_MS
        own = [one for one in found if (one.key.metric is not SeriesMetric.TTFT_MS) is speed and _alike(one.key, key)]
    return tuple(sorted({change.at for change in own}))


def _alike(one: SeriesKey, other: SeriesKey) -> bool:
    """Return whether a change of the one may stand for a change of the other."""
    quality = SeriesMetric.QUALITY
    return one.heat is Heat.HOT and (one.metric is quality) is (other.metric is quality)


def stepped(values: Sequence[tuple[float, float]], steps: Sequence[float], width_s: float) -> list[Band]:
    """Return a rolling median that forgets what was before the last step. `values` and `steps` are oldest first."""
    moments = [at for at, _ in values]
    cuts = [0, *(bisect_left(moments, step) for step in steps), len(values)]
    pieces = [rolling_median(values[begin:end], width_s) for begin, end in pairwise(cuts)]
    return [row for place, piece in enumerate(pieces) for row in (_settled(piece) if place else piece)]


def _settled(piece: Sequence[Band]) -> Sequence[Band]:
    """Without its first rows, which are medians of next to nothing."""
    return piece[_UNSURE:] if len(piece) > 2 * _UNSURE else piece
