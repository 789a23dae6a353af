"""Targets, probes, samples, events, alerts and changes as rows, and back. Knows columns; runs no statement."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from sqlite3 import Row
from typing import Any

from skep.series import (
    Alert,
    Change,
    Event,
    EventKind,
    Heat,
    Metric,
    Probe,
    ProbeOutcome,
    Rule,
    Sample,
    SeriesKey,
    Shape,
    Target,
    TargetKind,
)
from skep.store.rows import insert, json_text, storable

RAW_METRICS = (Metric.TOK_S, Metric.ENGINE_TOK_S, Metric.EFFECTIVE_TOK_S, Metric.TTFT_MS, Metric.QUALITY)

_TARGET_FIELDS = tuple(field.name for field in fields(Target))
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


def target_row(target: Target) -> tuple[Any, ...]:
    document = asdict(target)
    del document["removed_at"]
    return target.name, json_text(document), target.added_at, target.removed_at


def target_of(row: Row) -> Target:
    """What a later skep added to the document is left out, what an earlier one did not know is as usual."""
    known = {name: value for name, value in json.loads(row["document"]).items() if name in _TARGET_FIELDS}
    return Target(**known | {"kind": TargetKind(known["kind"]), "removed_at": row["removed_at"]})


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


def sample_row(probe_id: int, probe: Probe, sample: Sample) -> tuple[Any, ...]:
    """Values in the order of `SAMPLE_COLUMNS`."""
    figures = (_number(sample.value(metric)) for metric in RAW_METRICS)
    counts = (getattr(sample, name) for name in _SAMPLE_COUNTS)
    texts = (storable(getattr(sample, name)) for name in _SAMPLE_TEXTS)
    return (
        probe_id, storable(probe.target), probe.busy, sample.at, sample.heat.value, sample.shape.value,
        sample.concurrency, *figures, *counts, *texts,
    )  # fmt: skip


def sample_of(row: Row) -> Sample:
    values = _named(row)
    del values["target"], values["busy"]  # the probe has them
    return Sample(**values | {"heat": Heat(values["heat"]), "shape": Shape(values["shape"])})


def key_of(row: Row) -> SeriesKey:
    return SeriesKey(row["target"], Heat(row["heat"]), Shape(row["shape"]), row["concurrency"], Metric(row["metric"]))


def event_row(event: Event) -> tuple[Any, ...]:
    return event.at, event.kind.value, storable(event.target), storable(event.text), json_text(event.detail)


def event_of(row: Row) -> Event:
    kind, detail = EventKind(row["kind"]), json.loads(row["detail"])
    return Event(row["at"], kind, row["text"], target=row["target"], detail=detail, id=row["id"])


def alert_row(alert: Alert) -> tuple[Any, ...]:
    return (
        alert.rule.value, storable(alert.target), alert.opened_at, storable(alert.message), _number(alert.value),
        _number(alert.limit),
    )  # fmt: skip


def alert_of(row: Row) -> Alert:
    return Alert(
        rule=Rule(row["rule"]),
        target=row["target"],
        opened_at=row["opened_at"],
        message=row["message"],
        value=row["value"],
        limit=row["limit_value"],
        closed_at=row["closed_at"],
        closed_because=row["because"],
        id=row["id"],
    )


def change_row(series_id: int, change: Change) -> tuple[Any, ...]:
    """Values in the order of `CHANGE_COLUMNS`."""
    return (
        series_id, change.at, *change.between, change.before, change.after, change.ratio_low, change.ratio_high,
        change.count_before, change.count_after, storable(change.because),
    )  # fmt: skip


def change_of(row: Row) -> Change:
    return Change(
        key=key_of(row),
        at=row["at"],
        between=(row["earliest_at"], row["latest_at"]),
        before=row["median_before"],
        after=row["median_after"],
        ratio_low=row["ratio_low"],
        ratio_high=row["ratio_high"],
        count_before=row["count_before"],
        count_after=row["count_after"],
        because=row["because"],
    )


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
