"""The series in Prometheus' text form. docs/metrics.md has a heading for each metric.

Bounded: so many targets and series and no more, whatever is in the store; how many were left out is told.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from skep.monitor.records import HOUR_S, Heat, SeriesKey, SeriesMetric
from skep.monitor.status import TargetState, TargetStatus, fresh_s, latest_and_week, target_statuses
from skep.monitor.store import SeriesStore
from skep.stats.percentiles import mad, median

MOST_SERIES = 400
MOST_TARGETS = 200
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_Reading = tuple[SeriesKey, float | None, float | None, float | None]  # latest, median and MAD of 7 days

# Name, factor to the base unit, what it is.
NAMES = {
    SeriesMetric.TOK_S: (
        "skep_monitor_tokens_per_second",
        1.0,
        "Of one stream after its first token, on the client's clock",
    ),
    SeriesMetric.ENGINE_TOK_S: ("skep_monitor_engine_tokens_per_second", 1.0, "The same as the engine reports it"),
    SeriesMetric.EFFECTIVE_TOK_S: (
        "skep_monitor_effective_tokens_per_second",
        1.0,
        "All output tokens of a run over its wall time",
    ),
    SeriesMetric.TTFT_MS: ("skep_monitor_ttft_seconds", 0.001, "Time to the first token"),
    SeriesMetric.QUALITY: ("skep_monitor_quality_ratio", 1.0, "Share of small tasks that were answered rightly"),
    SeriesMetric.REQUESTS: (
        "skep_monitor_requests_per_hour",
        1.0,
        "Requests of others that ended in the last whole hour",
    ),
    SeriesMetric.FAILED: ("skep_monitor_failed_requests_per_hour", 1.0, "Of these, the ones that failed"),
}


@dataclass(slots=True)
class _MetricFamily:
    name: str
    text: str
    kind: str = "gauge"
    lines: list[str] = field(default_factory=list)

    def add(self, value: float | None, **labels: object) -> None:
        """Unknown is no line, never a zero."""
        if value is None:
            return
        inner = ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())
        self.lines.append(f"{self.name}{{{inner}}} {_number(value)}" if inner else f"{self.name} {_number(value)}")


def text(series: SeriesStore, now: float) -> bytes:
    """Return what `GET /metrics` of the dashboard answers."""
    standing = target_statuses(series, now, with_readings=False)[:MOST_TARGETS]
    fresh = {one.target.name: fresh_s(one.target) for one in standing}
    keys = [key for key in series.keys(None) if key.target in fresh or key.heat is Heat.SEEN]
    chosen = sorted(keys, key=_importance)[:MOST_SERIES]
    readings = [_reading(series, key, now, fresh.get(key.target, 2 * HOUR_S)) for key in sorted(chosen)]
    families = [*_of_targets(standing), *_of_series(readings), *_of_alerts(series, {"", *fresh})]
    left_out = _MetricFamily("skep_monitor_series_left_out", f"Series beyond the {MOST_SERIES} that are told here.")
    left_out.add(float(len(keys) - len(chosen)))
    return "".join(_block(family) for family in [*families, left_out]).encode()


def _importance(key: SeriesKey) -> tuple[bool, bool, SeriesKey]:
    """Return what is left out first: what others asked, then cold runs."""
    return key.heat is Heat.SEEN, key.heat is Heat.COLD, key


def _of_targets(standing: Iterable[TargetStatus]) -> list[_MetricFamily]:
    state = _MetricFamily("skep_monitor_target_state", "1 for the state that a target is in, 0 for the others.")
    probed = _MetricFamily("skep_monitor_last_probe_timestamp_seconds", "When the last probe that was made ended.")
    due = _MetricFamily("skep_monitor_next_probe_timestamp_seconds", "When the next one is due, if the loop runs.")
    occasions = _MetricFamily("skep_monitor_probes_7d", "Occasions of the last 7 days, by how they went.")
    for one in standing:
        name = one.target.name
        for known in TargetState:
            state.add(float(known == one.state), target=name, state=known)
        probed.add(None if one.last is None else one.last.ended_at, target=name)
        due.add(one.due_at, target=name)
        for outcome, count in one.coverage.items():
            occasions.add(float(count), target=name, outcome=outcome)
    return [state, probed, due, occasions]


def _reading(series: SeriesStore, key: SeriesKey, now: float, fresh: float) -> _Reading:
    """Only what is told here: hundreds of them are asked for every few seconds."""
    latest, week = latest_and_week(series, key, now, fresh)
    found = (median(week), mad(week)) if week else (None, None)
    return key, None if latest is None else latest.value, *found


def _of_series(readings: Iterable[_Reading]) -> list[_MetricFamily]:
    families: dict[str, _MetricFamily] = {}
    for key, latest, middle, spread in readings:
        name, factor, what = NAMES[key.metric]
        labels = {"target": key.target, "heat": key.heat, "shape": key.shape, "concurrency": key.concurrency}
        values = {
            (name, f"{what}."): latest,
            (f"{name}_median_7d", f"{what}: median of 7 days."): middle,
            (f"{name}_mad_7d", f"{what}: median absolute deviation over 7 days."): spread,
        }
        for (full, help_text), value in values.items():
            family = families.setdefault(full, _MetricFamily(full, help_text))
            family.add(None if value is None else value * factor, **labels)
    return [families[name] for name in sorted(families)]


def _of_alerts(series: SeriesStore, told: set[str]) -> list[_MetricFamily]:
    opened = _MetricFamily("skep_monitor_alerts_open", "Alerts that are open, by target and rule.")
    counts: dict[tuple[str, str], int] = {}
    for alert in series.alerts(open_only=True):
        pair = (alert.target or "", str(alert.rule))
        counts[pair] = counts.get(pair, 0) + 1
    for (target, rule), count in sorted(counts.items()):
        if target in told:
            opened.add(float(count), target=target, rule=rule)
    return [opened]


def _block(family: _MetricFamily) -> str:
    """A metric of which nothing is known is not there."""
    if not family.lines:
        return ""
    head = f"# HELP {family.name} {family.text}\n# TYPE {family.name} {family.kind}\n"
    return head + "".join(f"{line}\n" for line in family.lines)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
