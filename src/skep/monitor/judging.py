"""From what is stored to findings: which series each rule looks at. Reads only; times are arguments."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo

from skep.monitor import rules
from skep.monitor.alarms import Finding
from skep.monitor.changes import primary_keys
from skep.monitor.config import Monitor
from skep.series import DAY_S, Alert, Heat, Metric, Point, SeriesKey, Shape, Target
from skep.store.series import SeriesStore

SPEEDS = (Metric.TOK_S, Metric.ENGINE_TOK_S, Metric.EFFECTIVE_TOK_S)
LOOK_BACK_S = 2 * rules.BASELINE_S  # the three last ones may lie some days back
MISSED_BETWEEN = 50


def findings_of(
    series: SeriesStore, target: Target, wanted: Monitor, now: float, zone: tzinfo | None = None
) -> list[Finding]:
    """Of one target. Its own limits go before the configured ones."""
    changes = [one for one in series.changes(target.name, now - rules.SHIFT_HOLDS_S) if one.key.heat is Heat.HOT]
    probes = series.probes(target.name, 0.0, now + 1, limit=wanted.down_after + MISSED_BETWEEN)
    found = [
        rules.down(target.name, probes, wanted.down_after),
        _slower(series, target, wanted, now),
        _first_token(series, target, wanted, now),
        _quality(series, target, wanted, now),
        rules.shift(target.name, changes, now, zone),
    ]
    return [finding for finding in found if finding is not None]


def judge(
    series: SeriesStore,
    wanted: Monitor,
    now: float,
    *,
    free_bytes: int | None = None,
    trend: Sequence[tuple[float, int]] = (),
    zone: tzinfo | None = None,
) -> list[Alert]:
    """All that is wrong now, whether or not anybody was told of it."""
    found = [finding for target in series.targets() for finding in findings_of(series, target, wanted, now, zone)]
    if free_bytes is not None and (finding := rules.disk(free_bytes, trend, wanted.disk_free_bytes)):
        found.append(finding)
    return [Alert(one.rule, one.target, now, one.message, one.value, one.limit) for one in found if one.wrong]


def _slower(series: SeriesStore, target: Target, wanted: Monitor, now: float) -> Finding | None:
    pct = wanted.slower_pct if target.slower_pct is None else target.slower_pct
    if pct is None:
        return None
    keys = [key for key in primary_keys(series, target.name) if key.heat is Heat.HOT and key.metric in SPEEDS]
    found = [rules.slower(key, _fresh(series, key, target, now), pct) for key in keys]
    return rules.worst([finding for finding in found if finding is not None])


def _first_token(series: SeriesStore, target: Target, wanted: Monitor, now: float) -> Finding | None:
    limit = wanted.ttft_ms if target.ttft_ms is None else target.ttft_ms
    if limit is None:
        return None
    key = SeriesKey(target.name, Heat.HOT, Shape.SHORT, 1, Metric.TTFT_MS)
    return rules.first_token(key, _fresh(series, key, target, now), limit)


def _quality(series: SeriesStore, target: Target, wanted: Monitor, now: float) -> Finding | None:
    keys = [key for key in series.keys(target.name) if key.metric is Metric.QUALITY and key.heat is not Heat.SEEN]
    if not keys or not target.quality_items:
        return None
    points = _fresh(series, keys[0], target, now)
    return rules.quality(keys[0], points, target.quality_items, target.every_s, wanted.quality_min)


def _fresh(series: SeriesStore, key: SeriesKey, target: Target, now: float) -> list[Point]:
    """Nothing where the series has ended: a run that is made no more keeps no alert open."""
    points = series.points(key, now - LOOK_BACK_S, now + 1)
    return points if points and now - points[-1].at <= max(DAY_S, 3 * target.every_s) else []
