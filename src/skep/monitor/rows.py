"""Targets, probes, samples, events, alerts and changes as rows, and back. Knows columns; runs no statement."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, fields
from sqlite3 import Connection, Row
from statistics import fmean
from typing import Any

from skep.monitor.records import (
    DAY_S,
    Alert,
    AlertRule,
    EventKind,
    Heat,
    MonitorEvent,
    Probe,
    ProbeOutcome,
    ProbeSample,
    ProbeShape,
    ProbeTarget,
    SeriesChange,
    SeriesKey,
    SeriesMetric,
    SeriesSpan,
    SpanKind,
    TargetKind,
)
from skep.stats.percentiles import mad, percentile
from skep.store.rows import insert, json_text, storable

RAW_METRICS = (
    SeriesMetric.TOK_S,
    SeriesMetric.ENGINE_TOK_S,
    SeriesMetric.EFFECTIVE_TOK_S,
    SeriesMetric.TTFT_MS,
    SeriesMetric.QUALITY,
)

_TARGET_FIELDS = tuple(field.name for field in fields(ProbeTarget))
_PROBE_PLAIN = ("era", "slot", "slots", "due_at", "started_at", "ended_at", "running", "waiting", "idle_s")
_PROBE_TEXTS = ("target", "error_kind", "error", "model")
PROBE_COLUMNS = (*_PROBE_PLAIN, *_PROBE_TEXTS, "outcome", "versions", "host", "simulated")
_SAMPLE_COUNTS = ("prompt_tokens", "output_tokens")
_SAMPLE_TEXTS = ("error_kind", "error")
SAMPLE_COLUMNS = (
    "probe_id", "target", "busy", "at", "heat", "shape", "concurrency", *RAW_METRICS, *_SAMPLE_COUNTS, *_SAMPLE_TEXTS
)  # fmt: skip
CHANGE_COLUMNS = (
    "series", "at", "earliest_at", "latest_at", "median_before", "median_after", "ratio_low", "ratio_high",
    "count_before", "count_after", "because",
)  # fmt: skip


INSERT_PROBE = insert("probes", PROBE_COLUMNS)
INSERT_SAMPLE = insert("samples", SAMPLE_COLUMNS)
INSERT_CHANGE = insert("changes", CHANGE_COLUMNS)


def target_row(target: ProbeTarget) -> tuple[Any, ...]:
    document = asdict(target)
    del document["removed_at"]
    return target.name, json_text(document), target.added_at, target.removed_at


def target_of(row: Row) -> ProbeTarget:
    """What a later skep added to the document is left out, what an earlier one did not know is as usual."""
    known = {name: value for name, value in json.loads(row["document"]).items() if name in _TARGET_FIELDS}
    return ProbeTarget(**known | {"kind": TargetKind(known["kind"]), "removed_at": row["removed_at"]})


def probe_row(probe: Probe) -> tuple[Any, ...]:
    """Values in the order of `PROBE_COLUMNS`."""
    plain = (getattr(probe, name) for name in _PROBE_PLAIN)
    texts = (storable(getattr(probe, name)) for name in _PROBE_TEXTS)
    return (
        *plain, *texts, probe.outcome.value, json_text(probe.versions), json_text(_finite(probe.host)), probe.simulated
    )  # fmt: skip


def probe_of(row: Row) -> Probe:
    values = _named(row)
    changed = {
        "outcome": ProbeOutcome(values["outcome"]),
        "versions": json.loads(values["versions"]),
        "host": json.loads(values["host"]),
        "simulated": bool(values["simulated"]),
    }
    return Probe(**values | changed)


def sample_row(probe_id: int, probe: Probe, sample: ProbeSample) -> tuple[Any, ...]:
    """Values in the order of `SAMPLE_COLUMNS`."""
    figures = (_number(sample.value(metric)) for metric in RAW_METRICS)
    counts = (getattr(sample, name) for name in _SAMPLE_COUNTS)
    texts = (storable(getattr(sample, name)) for name in _SAMPLE_TEXTS)
    return (
        probe_id, storable(probe.target), probe.busy, sample.at, sample.heat.value, sample.shape.value,
        sample.concurrency, *figures, *counts, *texts,
    )  # fmt: skip


def sample_of(row: Row) -> ProbeSample:
    values = _named(row)
    del values["target"], values["busy"]  # the probe has them
    return ProbeSample(**values | {"heat": Heat(values["heat"]), "shape": ProbeShape(values["shape"])})


def key_of(row: Row) -> SeriesKey:
    return SeriesKey(
        row["target"], Heat(row["heat"]), ProbeShape(row["shape"]), row["concurrency"], SeriesMetric(row["metric"])
    )


def event_row(event: MonitorEvent) -> tuple[Any, ...]:
    return event.at, event.kind.value, storable(event.target), storable(event.text), json_text(event.detail)


def event_of(row: Row) -> MonitorEvent:
    kind, detail = EventKind(row["kind"]), json.loads(row["detail"])
    return MonitorEvent(row["at"], kind, row["text"], target=row["target"], detail=detail, id=row["id"])


def alert_row(alert: Alert) -> tuple[Any, ...]:
    return (
        alert.rule.value, storable(alert.target), alert.opened_at, storable(alert.message), _number(alert.value),
        _number(alert.limit),
    )  # fmt: skip


def alert_of(row: Row) -> Alert:
    names = ("target", "opened_at", "message", "value", "limit_value", "closed_at", "because", "id")
    return Alert(AlertRule(row["rule"]), *(row[name] for name in names))


def change_row(series_id: int, change: SeriesChange) -> tuple[Any, ...]:
    """Values in the order of `CHANGE_COLUMNS`."""
    return (
        series_id, change.at, *change.between, change.before, change.after, change.ratio_low, change.ratio_high,
        change.count_before, change.count_after, storable(change.because),
    )  # fmt: skip


def change_of(row: Row) -> SeriesChange:
    between = (row["earliest_at"], row["latest_at"])
    return SeriesChange(key_of(row), row["at"], between, *(row[name] for name in CHANGE_COLUMNS[4:]))


def _named(row: Row) -> dict[str, Any]:
    """All at once: a row looks each name up from the beginning."""
    return dict(zip(row.keys(), row, strict=True))


def _number(value: float | None) -> float | None:
    """What is no number is not known."""
    return value if value is not None and math.isfinite(value) else None


def _finite(value: Any) -> Any:
    """JSON has no word for infinity; a card's counter that reads so is not known."""
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


SPAN_COLUMNS = tuple(field.name for field in fields(SeriesSpan))
KEY_MATCHES = "target = ? AND heat = ? AND shape = ? AND concurrency = ?"
SERIES_OF = f"SELECT id FROM series WHERE {KEY_MATCHES} AND metric = ?"  # noqa: S608
_INSERT_KEY = "INSERT INTO series (target, heat, shape, concurrency, metric) VALUES (?, ?, ?, ?, ?)"
PUT_SPAN = "INSERT OR REPLACE INTO spans VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_SAMPLES_OF_A_DAY = f"""
SELECT at, busy, {", ".join(RAW_METRICS)} FROM samples
WHERE {KEY_MATCHES} AND at >= ? AND at < ? AND error_kind IS NULL
"""  # noqa: S608


def start_of(at: float, width_s: float) -> float:
    """Hours and days begin with those of UTC."""
    return at // width_s * width_s


def key_values(key: SeriesKey) -> tuple[str, str, str, int]:
    return key.target, key.heat.value, key.shape.value, key.concurrency


def find_series(connection: Connection, key: SeriesKey) -> int | None:
    row = connection.execute(SERIES_OF, (*key_values(key), key.metric.value)).fetchone()
    return None if row is None else int(row[0])


def series_id(connection: Connection, key: SeriesKey) -> int:
    """Of a key that is not known yet, too."""
    found = find_series(connection, key)
    if found is not None:
        return found
    made = connection.execute(_INSERT_KEY, (*key_values(key), key.metric.value)).lastrowid
    assert made is not None
    return made


def put_span(
    connection: Connection, series: int, kind: SpanKind, start: float, values: Iterable[float], busy: int = 0
) -> None:
    """In place of what stood there. Without a value only the busy ones are counted, without either there is no row."""
    row = span_row(series, kind, start, values, busy)
    if row is not None:
        connection.execute(PUT_SPAN, row)


def span_row(
    series: int, kind: SpanKind, start: float, values: Iterable[float], busy: int = 0
) -> tuple[object, ...] | None:
    """Values for `PUT_SPAN`."""
    ordered = sorted(values)
    if not ordered and not busy:
        return None
    return series, kind.value, start, len(ordered), *_figures(ordered), busy


def update_spans(connection: Connection, target: str, samples: Iterable[ProbeSample], thinned_before: float) -> None:
    """Write the hours and days that these samples, stored already, belong to.

    A day whose samples were thinned stays as it is: what is left of it would tell of a part only.
    """
    for one, news in _by_day(samples):
        day = start_of(one.at, DAY_S)
        values = (target, one.heat.value, one.shape.value, one.concurrency, day, day + DAY_S)
        rows = connection.execute(_SAMPLES_OF_A_DAY, values).fetchall() if day >= thinned_before else []
        for metric in RAW_METRICS:
            told = [sample.at for sample in news if sample.value(metric) is not None]
            if told:
                key = SeriesKey(target, one.heat, one.shape, one.concurrency, metric)
                _update_series(connection, series_id(connection, key), metric, rows, told)


def _by_day(samples: Iterable[ProbeSample]) -> Iterator[tuple[ProbeSample, list[ProbeSample]]]:
    """One of a kind of run and day, with all of them. What failed has no figures that count."""
    days: dict[tuple[object, ...], list[ProbeSample]] = {}
    for sample in samples:
        if sample.error_kind is None:
            kind = (sample.heat, sample.shape, sample.concurrency, start_of(sample.at, DAY_S))
            days.setdefault(kind, []).append(sample)
    for news in days.values():
        yield news[0], news


def _update_series(
    connection: Connection, series: int, metric: SeriesMetric, rows: Sequence[Row], told: Iterable[float]
) -> None:
    known = [(row["at"], row["busy"], row[metric]) for row in rows if row[metric] is not None]
    touched = {(kind, start_of(at, kind.seconds)) for kind in SpanKind for at in told}
    for kind, start in touched if known else ():
        inside = [one for one in known if start <= one[0] < start + kind.seconds]
        figures = [value for _, busy, value in inside if not busy]
        put_span(connection, series, kind, start, figures, len(inside) - len(figures))


def _figures(ordered: list[float]) -> tuple[float | None, ...]:
    if not ordered:
        return (None,) * 7
    if len(ordered) == 1:  # an hour of an hourly probe: most of all there are
        return (*(ordered * 6), 0.0)
    p10, median, p90 = (percentile(ordered, q) for q in (10, 50, 90))
    return ordered[0], p10, median, p90, ordered[-1], fmean(ordered), mad(ordered)
