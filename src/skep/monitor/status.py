"""How each target stands now: its last value against its own median, when it is due, what is wrong.

Reads the store and nothing else; times are arguments. `skep monitor status`, the exposition and the pages say the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from skep.monitor.compare import notes_in_words
from skep.monitor.history import primary_keys
from skep.monitor.records import (
    BUSY,
    DAY_S,
    HOUR_S,
    Alert,
    Probe,
    ProbeOutcome,
    ProbeTarget,
    SeriesKey,
    SeriesPoint,
    SpanKind,
)
from skep.monitor.schedule import due_at
from skep.monitor.store import SeriesStore
from skep.stats.rolling import WindowStats, window_stats

WINDOW_S = 7 * DAY_S
MOST_POINTS_AN_HOUR = 4  # beyond it, hours stand for their samples


class TargetState(StrEnum):
    NEW = "new"  # never probed
    OK = "ok"
    ALERT = "alert"  # it answers, and something about it is wrong
    BUSY = "busy"  # others were there: its figures are no regression, and having no room for a probe is no fault
    FAILING = "failing"  # the last probe brought no figures
    SILENT = "silent"  # nobody probes it: the loop is away


@dataclass(frozen=True, slots=True)
class SeriesStatus:
    """One series now. `latest` is None where the newest value is too old to speak of the present."""

    key: SeriesKey
    latest: SeriesPoint | None
    week: WindowStats | None  # of 7 days, busy samples left out

    @property
    def ratio(self) -> float | None:
        """The latest value over the median of 7 days."""
        if self.latest is None or self.week is None or not self.week.median:
            return None
        return self.latest.value / self.week.median

    def document(self) -> dict[str, Any]:
        return {
            "series": str(self.key),
            "unit": self.key.metric.unit,
            **{name: getattr(self.latest, name, None) for name in ("at", "value", "busy")},
            **{f"{name}_7d": getattr(self.week, name, None) for name in ("median", "mad", "cv")},
            "count_7d": 0 if self.week is None else self.week.count,
            "ratio": self.ratio,
        }


@dataclass(frozen=True, slots=True)
class TargetStatus:
    target: ProbeTarget
    state: TargetState
    last: Probe | None  # that was really made
    due_at: float  # of the next probe, if the loop runs
    coverage: Mapping[str, int]  # of 7 days: done, failed, missed
    readings: tuple[SeriesStatus, ...]  # of the series that stand for it, the first one first
    alerts: tuple[Alert, ...]  # that are open

    @property
    def covered(self) -> float | None:
        """Share of the occasions of 7 days that were probed; None before the first one."""
        total = sum(self.coverage.values())
        return None if total == 0 else 1 - self.coverage.get("missed", 0) / total

    def document(self) -> dict[str, Any]:
        return {
            "target": self.target.name,
            **{name: getattr(self.target, name) for name in ("kind", "url", "model")},
            "state": str(self.state),
            "every_s": self.target.every_s,
            "probed_at": getattr(self.last, "ended_at", None),
            **{name: getattr(self.last, name, None) for name in ("outcome", "error_kind", "error")},
            "due_at": self.due_at,
            "coverage": dict(self.coverage),
            "covered": self.covered,
            "readings": [reading.document() for reading in self.readings],
            "alerts": [alert_document(alert) for alert in self.alerts],
        }

    @property
    def why(self) -> str | None:
        """What is wrong with the last probe, or that there is none of late; None: nothing is."""
        last, name = self.last, self.target.name
        if last is None:
            return None
        if self.state is TargetState.SILENT:
            return f"{name}: not probed since {day_and_time(last.ended_at)}"
        if last.outcome is ProbeOutcome.FAILED:
            return f"{name}: {last.error or last.error_kind or 'the last probe failed'}"
        busy = f"{name}: others were there during the last probe; its figures are no regression"
        return busy if self.state is TargetState.BUSY else None

    def overdue_s(self, now: float) -> float | None:
        """Return how long a probe is overdue; None: the next one may still come in time."""
        added_at = self.target.added_at
        waited_s = now - (added_at if self.last is None else max(self.last.ended_at, added_at))
        late_s = max(0.0, waited_s - self.target.every_s - self.target.jitter)
        return late_s if waited_s > fresh_s(self.target) else None

    def first(self, unit: str) -> SeriesStatus | None:
        """Return the first of its series that is told in this unit."""
        return next((one for one in self.readings if one.key.metric.unit == unit), None)


def day_and_time(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M")


def alert_document(alert: Alert) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(alert)
    return {name: value for name, value in document.items() if name != "id"}


@dataclass(frozen=True, slots=True)
class MonitorStatus:
    """How all targets stand at one moment, the open alerts, and what the newest notes have brought."""

    at: float
    targets: Sequence[TargetStatus] = ()
    alerts: Sequence[Alert] = ()
    notes: Sequence[str] = ()

    def sentences(self) -> list[str]:
        alerts = [f"alert: {one.message} (since {day_and_time(one.opened_at)})" for one in self.alerts]
        return [*(one.why for one in self.targets if one.why), *alerts, *self.notes]

    def document(self) -> dict[str, Any]:
        told = {"targets": [one.document() for one in self.targets], "notes": list(self.notes)}
        return {"at": self.at, **told, "alerts": [alert_document(alert) for alert in self.alerts]}


def monitor_status(series: SeriesStore, now: float) -> MonitorStatus:
    return MonitorStatus(now, target_statuses(series, now), series.alerts(open_only=True), notes_in_words(series, now))


def target_statuses(series: SeriesStore, now: float, *, with_readings: bool = True) -> list[TargetStatus]:
    """Of every target that is watched, by name."""
    alerts, slots = series.alerts(open_only=True), series.last_slots()
    found = []
    for target in series.targets():
        own = tuple(alert for alert in alerts if alert.target == target.name)
        latest = series.latest(target.name)
        last = None if latest is None else latest[0]
        era, slot = slots.get(target.name, (-1, 0))
        following = max(slot + 1, int(now // target.every_s))
        readings = []
        for key in primary_keys(series, target.name) if with_readings else ():
            newest, quiet = latest_and_week(series, key, now, fresh_s(target))
            readings.append(SeriesStatus(key, newest, window_stats(quiet)))
        status = TargetStatus(
            target=target,
            state=_state(target, last, now, alerts=bool(own)),
            last=last,
            due_at=now if era < 0 else due_at(target, following),  # below 0: never probed, or only asked for by hand
            coverage=series.coverage(target.name, now - WINDOW_S, now),
            readings=tuple(readings),
            alerts=own,
        )
        found.append(status)
    return found


def latest_and_week(
    series: SeriesStore, key: SeriesKey, now: float, fresh_s: float
) -> tuple[SeriesPoint | None, list[float]]:
    """Return the latest value, None where it is older than `fresh_s`, and those of 7 days without the busy ones.

    Where a target is probed so often that a week is many samples, hours stand for them.
    """
    since, most = now - WINDOW_S, int(WINDOW_S / HOUR_S) * MOST_POINTS_AN_HOUR
    points = series.points(key, since, now, limit=most + 1)
    if len(points) > most:
        hours = series.spans(key, SpanKind.HOUR, since, now)
        points = [*(SeriesPoint(hour.start, hour.median) for hour in hours), points[-1]]
    newest = points[-1] if points and now - points[-1].at <= fresh_s else None
    return newest, [point.value for point in points if not point.busy]


def fresh_s(target: ProbeTarget) -> float:
    """For how long a value speaks of the present: two intervals, and the time that a probe may take."""
    return 2 * target.every_s + target.jitter + target.timeout_s


def _state(target: ProbeTarget, last: Probe | None, now: float, *, alerts: bool) -> TargetState:
    if last is None:
        return TargetState.NEW
    if now - last.ended_at > fresh_s(target):
        return TargetState.SILENT
    if last.error_kind == BUSY:
        return TargetState.BUSY
    if last.outcome is ProbeOutcome.FAILED:
        return TargetState.FAILING
    if alerts:
        return TargetState.ALERT
    return TargetState.BUSY if last.busy else TargetState.OK
