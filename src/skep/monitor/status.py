"""The state of each target now: its last value against its own median, when it is due, what is
wrong.

Reads the store and nothing else; times are arguments. `skep monitor status`, the metrics page and
the dashboard's pages show the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from skep.monitor.history import primary_keys, read_window, series_began
from skep.monitor.records import (
    BUSY,
    DAY_S,
    Alert,
    Probe,
    ProbeOutcome,
    ProbeTarget,
    SeriesKey,
    SeriesMetric,
    SeriesPoint,
)
from skep.monitor.schedule import due_at
from skep.monitor.store import SeriesStore
from skep.stats.percentiles import WindowStats, mad, median, window_stats
from skep.wire.prometheus import Gauge, metrics_text

WINDOW_S = 7 * DAY_S


class TargetState(StrEnum):
    NEW = "new"  # never probed
    OK = "ok"
    ALERT = "alert"  # it answers, and something about it is wrong
    # other requests ran: slow figures are no regression, and to refuse a probe is no fault
    BUSY = "busy"
    FAILING = "failing"  # the last probe brought no figures
    SILENT = "silent"  # it is not probed: the loop does not run


class SeriesStatus(msgspec.Struct, frozen=True):
    """One series now. `latest` is None where the newest value is too old to count as present."""

    key: SeriesKey
    latest: SeriesPoint | None
    week: WindowStats | None  # of 7 days, busy samples left out

    @property
    def ratio(self) -> float | None:
        """Return the latest value over the median of 7 days."""
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


class TargetStatus(msgspec.Struct, frozen=True):
    target: ProbeTarget
    state: TargetState
    last: Probe | None  # the last one that was really made
    due_at: float  # of the next probe, if the loop runs
    coverage: Mapping[str, int]  # of 7 days: done, failed, missed
    readings: tuple[SeriesStatus, ...]  # of the series that stand for it, the first one first
    alerts: tuple[Alert, ...]  # that are open

    @property
    def covered(self) -> float | None:
        """Return the share of the occasions of 7 days that were probed; None before the first."""
        total = sum(self.coverage.values())
        if total == 0:
            return None
        return 1 - self.coverage.get("missed", 0) / total

    def document(self) -> dict[str, Any]:
        return {
            "target": self.target.name,
            **{name: getattr(self.target, name) for name in ("kind", "url", "model")},
            "state": str(self.state),
            "every_s": self.target.every_s,
            "probed_at": getattr(self.last, "ended_at", None),
            **{
                name: getattr(self.last, name, None) for name in ("outcome", "error_kind", "error")
            },
            "due_at": self.due_at,
            "coverage": dict(self.coverage),
            "covered": self.covered,
            "readings": [reading.document() for reading in self.readings],
            "alerts": [alert_document(alert) for alert in self.alerts],
        }

    @property
    def why(self) -> str | None:
        """Return what is wrong with the last probe, or that it is too old; None: nothing is."""
        last = self.last
        name = self.target.name
        if last is None:
            return None
        if self.state is TargetState.SILENT:
            return f"{name}: not probed since {day_and_time(last.ended_at)}"
        if last.outcome is ProbeOutcome.FAILED:
            return f"{name}: {last.error or last.error_kind or 'the last probe failed'}"
        if self.state is TargetState.BUSY:
            return (
                f"{name}: other requests ran during the last probe; "
                "its figures are not a regression"
            )
        return None

    def overdue_s(self, now: float) -> float | None:
        """Return how long a probe is overdue; None: the next one may still come in time."""
        added_at = self.target.added_at
        begin = added_at if self.last is None else max(self.last.ended_at, added_at)
        waited_s = now - begin
        if waited_s > fresh_s(self.target):
            return max(0.0, waited_s - self.target.every_s - self.target.jitter_s)
        return None

    def first(self, unit: str) -> SeriesStatus | None:
        """Return the first of its series that is measured in this unit."""
        return next(
            (reading for reading in self.readings if reading.key.metric.unit == unit), None
        )


def day_and_time(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M")


def alert_document(alert: Alert) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(alert)
    return {name: value for name, value in document.items() if name != "id"}


def target_statuses(
    series: SeriesStore, now: float, *, with_readings: bool = True
) -> list[TargetStatus]:
    """Return the state of every target that is watched, by name."""
    alerts = series.alerts(open_only=True)
    slots = series.last_slots()
    statuses = []
    for target in series.targets():
        target_alerts = tuple(alert for alert in alerts if alert.target == target.name)
        last, _ = series.latest(target.name)
        done = slots.get(target.name)
        readings = []
        for key in primary_keys(series, target.name) if with_readings else ():
            newest, quiet = latest_and_week(series, key, now, fresh_s(target))
            readings.append(SeriesStatus(key, newest, window_stats(quiet)))
        if done and done.era >= 0:
            next_slot = max(done.slot + 1, int(now // target.every_s))
            due = due_at(target, next_slot)
        else:  # never probed, or by hand alone
            due = now
        state = _state(target, last, now, alerts=bool(target_alerts))
        coverage = series.coverage(target.name, now - WINDOW_S, now)
        statuses.append(
            TargetStatus(target, state, last, due, coverage, tuple(readings), target_alerts)
        )
    return statuses


def latest_and_week(
    series: SeriesStore, key: SeriesKey, now: float, fresh_s: float
) -> tuple[SeriesPoint | None, list[float]]:
    """Return the latest value, None if older than `fresh_s`, and the values of 7 days, or the
    medians of their hours, without busy ones.
    """
    since = max(now - WINDOW_S, series_began(series, key.target, now))
    newest = series.points(key, max(since, now - fresh_s), now, limit=1)
    week = [value for _, value in read_window(series, key, since, now).quiet(since, now)]
    return newest[0] if newest else None, week


def fresh_s(target: ProbeTarget) -> float:
    """Return for how long a value counts as present: two intervals, and the time that a probe may
    take.
    """
    return 2 * target.every_s + target.jitter_s + target.timeout_s


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
    if last.busy:
        return TargetState.BUSY
    return TargetState.OK


BY_TARGET = ("target",)
OF_SERIES = ("target", "heat", "shape", "concurrency")
METRIC_NAMES = {  # of Prometheus, with a description
    SeriesMetric.TOK_S: (
        "skep_monitor_tokens_per_second",
        "Speed of one stream after its first token, by the client's clock",
    ),
    SeriesMetric.ENGINE_TOK_S: (
        "skep_monitor_engine_tokens_per_second",
        "Speed of one stream, by the engine's clock",
    ),
    SeriesMetric.EFFECTIVE_TOK_S: (
        "skep_monitor_effective_tokens_per_second",
        "All output tokens of a run over its wall time",
    ),
    SeriesMetric.TTFT_MS: ("skep_monitor_ttft_seconds", "Time to the first token"),
}


def metrics_page(series: SeriesStore, now: float) -> bytes:
    """Return what `GET /metrics` of the dashboard answers; docs/metrics.md has each."""
    statuses = target_statuses(series, now, with_readings=False)
    targets = [status.target for status in statuses]
    gauges = [
        *_target_gauges(statuses),
        *_series_gauges(series, targets, now),
        _alert_gauge(series, targets),
    ]
    return metrics_text(gauges, known_only=True)


def _series_gauges(series: SeriesStore, targets: Iterable[ProbeTarget], now: float) -> list[Gauge]:
    """Return the gauges of all series by name: the latest value, median and deviation of each."""
    fresh = {target.name: fresh_s(target) for target in targets}
    gauges: dict[str, Gauge] = {}
    for key in (key for key in series.keys() if key.target in fresh):  # noqa: SIM118
        latest, week = latest_and_week(series, key, now, fresh[key.target])
        name, description = METRIC_NAMES[key.metric]
        factor = 0.001 if key.metric is SeriesMetric.TTFT_MS else 1.0  # to the base unit
        labels = (key.target, str(key.heat), str(key.shape), str(key.concurrency))
        figures = (
            (name, latest.value if latest else None, f"{description}."),
            (
                f"{name}_median_7d",
                median(week) if week else None,
                f"{description}: median of 7 days.",
            ),
            (
                f"{name}_mad_7d",
                mad(week) if week else None,
                f"{description}: median absolute deviation over 7 days.",
            ),
        )
        for gauge_name, value, help_text in figures:
            gauge = gauges.setdefault(gauge_name, Gauge(gauge_name, help_text, OF_SERIES))
            gauge.set(labels, None if value is None else value * factor)
    return [gauges[name] for name in sorted(gauges)]


def _alert_gauge(series: SeriesStore, targets: Iterable[ProbeTarget]) -> Gauge:
    """Return the open alerts of these targets and of the machine itself."""
    names = {"", *(target.name for target in targets)}
    gauge = Gauge(
        "skep_monitor_alerts_open",
        "Alerts that are open, by target and rule.",
        (*BY_TARGET, "rule"),
    )
    counts = Counter(
        (alert.target or "", str(alert.rule)) for alert in series.alerts(open_only=True)
    )
    for (name, rule), count in sorted(counts.items()):
        if name in names:
            gauge.set((name, rule), count)
    return gauge


def _target_gauges(statuses: Iterable[TargetStatus]) -> list[Gauge]:
    state = Gauge(
        "skep_monitor_target_state",
        "1 for the state that a target is in, 0 for the others.",
        (*BY_TARGET, "state"),
    )
    probed = Gauge(
        "skep_monitor_last_probe_timestamp_seconds", "When the last probe ended.", BY_TARGET
    )
    due = Gauge(
        "skep_monitor_next_probe_timestamp_seconds",
        "When the next probe is due, if the loop runs.",
        BY_TARGET,
    )
    occasions = Gauge(
        "skep_monitor_probes_7d", "Probes of the last 7 days, by outcome.", (*BY_TARGET, "outcome")
    )
    for status in statuses:
        name = status.target.name
        for possible_state in TargetState:
            state.set((name, str(possible_state)), possible_state == status.state)
        probed.set((name,), None if status.last is None else status.last.ended_at)
        due.set((name,), status.due_at)
        for outcome, count in status.coverage.items():
            occasions.set((name, str(outcome)), count)
    return [state, probed, due, occasions]
