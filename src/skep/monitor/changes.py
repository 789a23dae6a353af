"""What changed in the series of a target, when, and what happened then.

Found anew after each probe over the last 30 days. What was found earlier and lies near the beginning of that window, or
before it, stays as it was: a change does not go away because what was before it is no longer looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from skep.monitor.describe import cause
from skep.monitor.records import (
    DAY_S,
    HOUR_S,
    Heat,
    MonitorEvent,
    ProbeShape,
    SeriesChange,
    SeriesKey,
    SeriesMetric,
    SeriesPoint,
    SlowDrift,
)
from skep.monitor.store import SeriesStore
from skep.stats.changepoints import FEWEST, changes_in_series
from skep.stats.rolling import line_through

WINDOW_S = 30 * DAY_S
SETTLED_S = 5 * DAY_S  # of the window's beginning, where what was found before stays
_MOST = 5000  # points of a window; a target that is probed oftener is looked at over less time
_SHAPES = (ProbeShape.SHORT, ProbeShape.LONG)


def primary_keys(series: SeriesStore, target: str) -> list[SeriesKey]:
    """Return the series that stand for a target: its speed, short runs of one stream first, then TTFT and quality.

    The engine's own figure where it tells one, else the client's; with several streams at once the sum of them all.
    Only hot runs; of a target that nobody probes, what the gateway saw.
    """
    keys = set(series.keys(target))
    kinds = sorted(
        {(key.concurrency, _SHAPES.index(key.shape)) for key in keys if key.heat is Heat.HOT and key.shape in _SHAPES}
    )
    told = _still_told(series, target)
    found = []
    for concurrency, shape in kinds:
        wanted = (SeriesMetric.EFFECTIVE_TOK_S,) if concurrency > 1 else (SeriesMetric.ENGINE_TOK_S, SeriesMetric.TOK_S)
        here = [SeriesKey(target, Heat.HOT, _SHAPES[shape], concurrency, metric) for metric in wanted]
        there = [key for key in here if key in keys]
        found += ([key for key in there if key.metric in told] or there)[:1]
    found += [key for key in sorted(keys) if key.heat is Heat.HOT and key.metric is SeriesMetric.QUALITY]
    found += [SeriesKey(target, Heat.HOT, ProbeShape.SHORT, 1, SeriesMetric.TTFT_MS)]
    seen = (SeriesMetric.TOK_S, SeriesMetric.TTFT_MS, SeriesMetric.REQUESTS)
    found += [SeriesKey(target, Heat.SEEN, ProbeShape.ANY, 0, metric) for metric in seen]
    return [key for key in found if key in keys]


def find_changes(series: SeriesStore, target: str, now: float) -> list[SeriesChange]:
    """Of every series that stands for the target, oldest first; stored in place of those found before."""
    earlier = series.changes(target)
    every_s = interval_of(series, target)
    found = []
    for key in primary_keys(series, target):
        if key.heat is not Heat.HOT:
            continue
        known = [change for change in earlier if change.key == key]
        changes = _renewed(series, key, known, every_s, now)
        if changes != known:
            series.set_changes(key, changes)
        found += changes
    return sorted(found, key=lambda change: (change.at, change.key))


def changes_in(
    key: SeriesKey, points: Sequence[SeriesPoint], events: Sequence[MonitorEvent], every_s: float
) -> tuple[list[SeriesChange], list[SlowDrift]]:
    """Steps and drifts, oldest first. None of a series that is not of hot runs: cold is cold."""
    if key.heat is not Heat.HOT:
        return [], []
    quiet = [point for point in points if not point.busy]
    course = changes_in_series([point.value for point in quiet])
    changes = []
    for split in course.splits:
        at = quiet[split.index].at
        between = (quiet[split.bracket[0] - 1].at, quiet[split.bracket[1]].at)
        ratio, counts = (split.ratio.low, split.ratio.high), (split.count_before, split.count_after)
        because = cause(events, at, between, every_s)
        changes.append(SeriesChange(key, at, between, split.before, split.after, *ratio, *counts, because))
    return changes, [_slow_drift(quiet[drift.first : drift.last + 1]) for drift in course.drifts]


def _slow_drift(points: Sequence[SeriesPoint]) -> SlowDrift:
    first, last = points[0].at, points[-1].at
    logs = min(point.value for point in points) > 0
    line = line_through([(point.at, math.log(point.value) if logs else point.value) for point in points])
    if line is None:
        return SlowDrift(first, last, 1.0, 1.0, 1.0)
    slopes = [slope * (last - first) for slope in (line.slope, line.low, line.high)]
    if logs:
        ratio, low, high = map(math.exp, slopes)
    else:
        ratio, low, high = (1 + slope / line.start if line.start else 1.0 for slope in slopes)
    return SlowDrift(first, last, ratio, low, high)


def interval_of(series: SeriesStore, target: str) -> float:
    """Return the seconds between two probes of a target; an hour for a passive one."""
    return next((one.every_s for one in series.targets(removed=True) if one.name == target), HOUR_S)


def _renewed(
    series: SeriesStore, key: SeriesKey, known: Sequence[SeriesChange], every_s: float, now: float
) -> list[SeriesChange]:
    start = now - WINDOW_S
    older = any(change.at < start for change in known) or bool(series.points(key, 0.0, start, limit=1))
    settled = [change for change in known if change.at < start + SETTLED_S] if older else []
    since = max([start, *(change.at for change in settled)])
    points = series.points(key, since, now + 1, limit=_MOST)
    if len(points) < FEWEST:
        return settled
    events = series.events(since - DAY_S, now + 1, key.target)
    changes, _ = changes_in(key, points, events, every_s)
    edge = start + SETTLED_S if older else start
    return settled + [change for change in changes if change.at >= edge]


def _still_told(series: SeriesStore, target: str) -> set[SeriesMetric]:
    """Return the figures that the newest probe has: another engine may report fewer."""
    latest = series.latest(target)
    samples = latest[1] if latest else []
    return {metric for metric in SeriesMetric for sample in samples if sample.value(metric) is not None}
