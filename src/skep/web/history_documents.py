"""What the history page shows as plain values: objects for JSON, rows for CSV."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from skep.monitor.history import History
from skep.series import Change
from skep.web.history_data import View
from skep.web.history_query import in_words

CSV_COLUMNS = (
    "target", "series", "kind", "at_utc", "at", "until", "value", "count", "low", "p10", "p90", "high", "busy", "text",
)  # fmt: skip


def view_document(view: View) -> dict[str, Any]:
    history = view.history
    return {
        "target": view.target,
        "series": None if view.key is None else str(view.key),
        "all_series": [str(key) for key in view.keys],
        "since": view.since,
        "until": view.until,
        "simulated": view.simulated > 0,
        "simulated_share": view.simulated,
        "history": None if history is None else history_document(history),
        "cold": None if view.cold is None else history_document(view.cold),
        "cold_by_idle_time": view.idle,
        "failed": view.failed,
        "missed": view.missed,
        "host": [
            {"name": line.name, "unit": line.unit, "points": [[point.at, point.value] for point in line.points]}
            for line in view.host
        ],
        "throttled": view.throttled,
        "alerts": view.alerts,
    }


def history_document(history: History) -> dict[str, Any]:
    return {
        "series": str(history.key),
        "words": in_words(history.key),
        "unit": history.key.metric.unit,
        "sentences": history.sentences,
        "points": [[point.at, point.value, point.busy] for point in history.points],
        "spans": history.spans,
        "band": history.band,
        "stats": history.stats,
        "coverage": history.coverage,
        "changes": [change_document(change) for change in history.changes],
        "events": history.events,
    }


def change_document(change: Change) -> dict[str, Any]:
    return {
        "series": str(change.key),
        "at": change.at,
        "between": change.between,
        "before": change.before,
        "after": change.after,
        "ratio": change.ratio,
        "ratio_low": change.ratio_low,
        "ratio_high": change.ratio_high,
        "worse": change.worse,
        "because": change.because,
    }


def csv_rows(view: View) -> Iterator[tuple[Any, ...]]:
    """One kind of row after the other; what a kind does not have is empty."""
    for history in (view.history, view.cold):
        if history is not None:
            yield from _history_rows(view, history)
    for at in view.failed:
        yield _row(view.target, "", "failed", at)
    for begin, end in view.missed:
        yield _row(view.target, "", "missed", begin, until=end)
    for line in view.host:
        for point in line.points:
            yield _row(view.target, f"{line.name} ({line.unit})", "host", point.at, value=point.value)
    if view.history is not None:
        for event in view.history.events:
            yield _row(event.target or "", "", f"event: {event.kind.value}", event.at, text=event.text)
    for alert in view.alerts:
        yield _row(alert.target or "", "", f"alert: {alert.rule.value}", alert.opened_at,
                   until=alert.closed_at, value=alert.value, text=alert.message)  # fmt: skip


def _history_rows(view: View, history: History) -> Iterator[tuple[Any, ...]]:
    series = str(history.key)
    for point in history.points:
        yield _row(view.target, series, "point", point.at, value=point.value, busy=int(point.busy))
    for span in history.spans:
        yield _row(view.target, series, "span", span.start, value=span.median, count=span.count, low=span.low,
                   p10=span.p10, p90=span.p90, high=span.high, busy=span.busy)  # fmt: skip
    for change in history.changes:
        yield _row(view.target, series, "change", change.at, value=change.ratio, low=change.ratio_low,
                   high=change.ratio_high, text=change.because)  # fmt: skip


def _row(target: str, series: str, kind: str, at: float, **more: Any) -> tuple[Any, ...]:
    told = {
        "target": target,
        "series": series,
        "kind": kind,
        "at_utc": datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S"),
        "at": at,
        **more,
    }
    return tuple(told.get(column) for column in CSV_COLUMNS)
