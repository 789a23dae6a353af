"""The series in Prometheus' text form. docs/metrics.md has a heading for each metric.

Bounded: so many targets and series and no more, whatever is in the store; how many were left out is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from skep.monitor.records import HOUR_S, Heat, SeriesKey, SeriesMetric
from skep.monitor.status import TargetState, TargetStatus, fresh_s, latest_and_week, target_statuses
from skep.monitor.store import SeriesStore
from skep.stats.percentiles import mad, median
from skep.wire.prometheus import Gauge, metrics_text

MOST_SERIES = 400
MOST_TARGETS = 200
BY_TARGET = ("target",)
OF_SERIES = ("target", "heat", "shape", "concurrency")

_Reading = tuple[SeriesKey, float | None, float | None, float | None]  # latest, median and MAD of 7 days

# Name and what it is.
NAMES = {
    SeriesMetric.TOK_S: (
        "skep_monitor_tokens_per_second",
        "Of one stream after its first token, on the client's clock",
    ),
    SeriesMetric.ENGINE_TOK_S: ("skep_monitor_engine_tokens_per_second", "The same as the engine reports it"),
    SeriesMetric.EFFECTIVE_TOK_S: (
        "skep_monitor_effective_tokens_per_second",
        "All output tokens of a run over its wall time",
    ),
    SeriesMetric.TTFT_MS: ("skep_monitor_ttft_seconds", "Time to the first token"),
    SeriesMetric.QUALITY: ("skep_monitor_quality_ratio", "Share of small tasks that were answered rightly"),
    SeriesMetric.REQUESTS: ("skep_monitor_requests_per_hour", "Requests of others that ended in the last whole hour"),
    SeriesMetric.FAILED: ("skep_monitor_failed_requests_per_hour", "Of these, the ones that failed"),
}


def text(series: SeriesStore, now: float) -> bytes:
    """Return what `GET /metrics` of the dashboard answers."""
    standing = target_statuses(series, now, with_readings=False)[:MOST_TARGETS]
    fresh = {one.target.name: fresh_s(one.target) for one in standing}
    keys = [key for key in series.keys(None) if key.target in fresh or key.heat is Heat.SEEN]
    # Left out first: what others asked, then cold runs.
    chosen = sorted(keys, key=lambda key: (key.heat is Heat.SEEN, key.heat is Heat.COLD, key))[:MOST_SERIES]
    readings: list[_Reading] = []
    for key in sorted(chosen):  # only what is told here: hundreds of them are asked for every few seconds
        latest, week = latest_and_week(series, key, now, fresh.get(key.target, 2 * HOUR_S))
        figures = (median(week), mad(week)) if week else (None, None)
        readings.append((key, None if latest is None else latest.value, *figures))
    families = [*_of_targets(standing), *_of_series(readings), *_of_alerts(series, {"", *fresh})]
    left_out = Gauge("skep_monitor_series_left_out", f"Series beyond the {MOST_SERIES} that are told here.")
    left_out.set((), len(keys) - len(chosen))
    return metrics_text([*families, left_out], known_only=True)


def _of_targets(standing: Iterable[TargetStatus]) -> list[Gauge]:
    state = Gauge(
        "skep_monitor_target_state", "1 for the state that a target is in, 0 for the others.", (*BY_TARGET, "state")
    )
    probed = Gauge("skep_monitor_last_probe_timestamp_seconds", "When the last probe that was made ended.", BY_TARGET)
    due = Gauge("skep_monitor_next_probe_timestamp_seconds", "When the next one is due, if the loop runs.", BY_TARGET)
    occasions = Gauge(
        "skep_monitor_probes_7d", "Occasions of the last 7 days, by how they went.", (*BY_TARGET, "outcome")
    )
    for one in standing:
        name = one.target.name
        for known in TargetState:
            state.set((name, str(known)), known == one.state)
        probed.set((name,), None if one.last is None else one.last.ended_at)
        due.set((name,), one.due_at)
        for outcome, count in one.coverage.items():
            occasions.set((name, str(outcome)), count)
    return [state, probed, due, occasions]


def _of_series(readings: Iterable[_Reading]) -> list[Gauge]:
    families: dict[str, Gauge] = {}
    for key, latest, middle, spread in readings:
        name, what = NAMES[key.metric]
        factor = 0.001 if key.metric is SeriesMetric.TTFT_MS else 1.0  # to the base unit
        labels = (key.target, str(key.heat), str(key.shape), str(key.concurrency))
        values = {
            name: (latest, f"{what}."),
            f"{name}_median_7d": (middle, f"{what}: median of 7 days."),
            f"{name}_mad_7d": (spread, f"{what}: median absolute deviation over 7 days."),
        }
        for full, (value, help_text) in values.items():
            family = families.setdefault(full, Gauge(full, help_text, OF_SERIES))
            family.set(labels, None if value is None else value * factor)
    return [families[name] for name in sorted(families)]


def _of_alerts(series: SeriesStore, told: set[str]) -> list[Gauge]:
    opened = Gauge("skep_monitor_alerts_open", "Alerts that are open, by target and rule.", (*BY_TARGET, "rule"))
    counts = Counter((alert.target or "", str(alert.rule)) for alert in series.alerts(open_only=True))
    for (target, rule), count in sorted(counts.items()):
        if target in told:
            opened.set((target, rule), count)
    return [opened]
