"""`skep monitor series`, `compare` and `note`: what the series say."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from skep.cli.monitor_data import known_key, known_target
from skep.cli.monitor_words import day_and_time, moment_of, series_to_read, series_to_write
from skep.cli.output import note, number, print_json, print_table
from skep.errors import UserError
from skep.monitor.history import History, history_of, primary_keys
from skep.monitor.versus import AroundEvent, TargetComparison, around_event, compare_targets
from skep.series import DAY_S, Change, Event, EventKind, SeriesKey
from skep.stats.rolling import WindowStats
from skep.store.series import SeriesStore

if TYPE_CHECKING:
    from skep.stats.versus import Versus

LONGEST_NOTE = 500
NOTES_SHOWN = 3


def show_series(wanted: str | None, since: str, *, everything: bool, as_json: bool) -> None:
    now = time.time()
    start = moment_of(since, now, option="--since")
    with series_to_read() as series:
        found = [history_of(series, key, start, now) for key in _keys(series, wanted, everything=everything)]
    if as_json:
        print_json([history_document(history) for history in found])
        return
    if not found:
        note("there is no series yet: a target's first probe makes one")
        return
    columns = ("SERIES", "OVER", "VALUES", "MEDIAN", "UNIT", "MAD", "CV", "P05", "P95", "LOW", "HIGH")
    rows = [_row(history.key, name, stats) for history in found for name, stats in history.stats.items()]
    print_table(columns, rows, right=(*columns[2:4], *columns[5:]))
    for history in found:
        for sentence in history.sentences:
            print(f"{history.key}: {sentence}")  # noqa: T201


def _keys(series: SeriesStore, wanted: str | None, *, everything: bool) -> list[SeriesKey]:
    if wanted is not None and "/" in wanted and not series.keys(wanted):  # `gateway:org/model` is a target too
        return [known_key(series, wanted)]
    names = [target.name for target in series.targets()] if wanted is None else [known_target(series, wanted)]
    if everything:
        return series.keys() if wanted is None else series.keys(names[0])
    return [key for name in names for key in primary_keys(series, name)]


def _row(key: SeriesKey, name: str, stats: WindowStats | None) -> list[str]:
    if stats is None:
        return [str(key), name, "0", "–", key.metric.unit, *["–"] * 6]
    digits = 2 if key.metric.unit == "" else 1
    spread = [number(value, digits) for value in (stats.p05, stats.p95, stats.low, stats.high)]
    cv = "–" if stats.cv is None else f"{100 * stats.cv:.1f} %"
    middle = [number(stats.median, digits), key.metric.unit, number(stats.mad, digits), cv]
    return [str(key), name, str(stats.count), *middle, *spread]


def compare_two(a: str, b: str, since: str, *, as_json: bool) -> None:
    now = time.time()
    start = moment_of(since, now, option="--since")
    if a == b:
        raise UserError(f"`{a}` is compared with itself", hint="name two targets; `skep monitor list` shows them")
    with series_to_read() as series:
        found = compare_targets(series, known_target(series, a), known_target(series, b), start, now)
    if as_json:
        print_json(comparison_document(found))
        return
    if not found.rows:
        note(f"`{a}` and `{b}` have no kind of run in common since {day_and_time(start)}")
        return
    columns = ("RUN", "UNIT", a.upper(), "RANGE", "CV", b.upper(), "RANGE ", "CV ", "RATIO", "95 %", "JUDGEMENT")
    rows = [
        [
            f"{row.heat} {row.shape} c{row.concurrency} {row.metric}", row.metric.unit, *_side(row.versus.a),
            *_side(row.versus.b), *_ratio(row.versus), row.versus.judgement.value,
        ]
        for row in found.rows
    ]  # fmt: skip
    print_table(columns, rows, right=columns[2:-1])
    for sentence in found.sentences:
        print(sentence)  # noqa: T201


def _side(stats: WindowStats | None) -> list[str]:
    if stats is None:
        return ["–", "–", "–"]
    cv = "–" if stats.cv is None else f"{100 * stats.cv:.1f} %"
    return [number(stats.median), f"{number(stats.low)} .. {number(stats.high)}", cv]


def _ratio(found: Versus) -> list[str]:
    """B over A."""
    if found.ratio is None:
        return ["–", "–"]
    return [number(found.ratio.estimate, 3), f"{found.ratio.low:.3f} .. {found.ratio.high:.3f}"]


def write_note(text: str, target: str | None, at: str | None, *, as_json: bool) -> None:
    now = time.time()
    moment = now if at is None else moment_of(at, now, option="--at")
    words = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    if not words or len(words) > LONGEST_NOTE:
        raise UserError(f"a note has 1 to {LONGEST_NOTE} characters", hint='skep monitor note "driver 580 installed"')
    if moment == 0:
        raise UserError(f"--at {at} is before 1970", hint="write it as `--at 2h` or `--at 2026-11-15T14:30`")
    if moment > now:
        raise UserError(f"--at {at} is in the future", hint="write it down when it has happened")
    with series_to_write() as series:
        name = None if target is None else known_target(series, target)
        event = Event(moment, EventKind.NOTE, words, name)
        event = replace(event, id=series.append_event(event))
        found = around_note(series, event)
    if as_json:
        print_json({"event": event_document(event), "around": [around_document(one) for one in found]})
        return
    note(f"written down for {name or 'all targets'} at {day_and_time(moment)}")
    for one in found:
        print(f"{one.key}: {one.sentence}")  # noqa: T201
    if not found:
        note("before and after are compared once probes have followed: `skep monitor status` shows it")


def around_note(series: SeriesStore, event: Event) -> list[AroundEvent]:
    """The first series of each target that has values on both sides of it."""
    names = [target.name for target in series.targets()] if event.target is None else [event.target]
    found = [around_event(series, event, key) for name in names for key in primary_keys(series, name)[:1]]
    return [one for one in found if one.versus.ratio is not None]


def notes_in_words(series: SeriesStore, now: float) -> list[str]:
    """What the newest notes of 7 days have brought, for `skep monitor status`."""
    notes = [event for event in series.events(now - 7 * DAY_S, now) if event.kind is EventKind.NOTE]
    return [f"{one.key}: {one.sentence}" for event in notes[-NOTES_SHOWN:] for one in around_note(series, event)]


def history_document(history: History) -> dict[str, Any]:
    return {
        "series": str(history.key),
        "unit": history.key.metric.unit,
        "since": history.since,
        "until": history.until,
        "stats": {name: None if stats is None else asdict(stats) for name, stats in history.stats.items()},
        "changes": [change_document(change) for change in history.changes],
        "drifts": [asdict(drift) for drift in history.drifts],
        "events": [event_document(event) for event in history.events],
        "coverage": dict(history.coverage),
        "busy": history.busy,
        "late": None if history.late is None else versus_document(history.late),
        "sentences": list(history.sentences),
    }


def change_document(change: Change) -> dict[str, Any]:
    document = asdict(change)
    return {**document, "key": str(change.key), "between": list(change.between), "ratio": change.ratio}


def event_document(event: Event) -> dict[str, Any]:
    return {**asdict(event), "kind": str(event.kind), "detail": dict(event.detail)}


def versus_document(found: Versus) -> dict[str, Any]:
    sides: Sequence[WindowStats | None] = (found.a, found.b)
    a, b = (None if side is None else asdict(side) for side in sides)
    return {
        "a": a,
        "b": b,
        "ratio": None if found.ratio is None else asdict(found.ratio),
        "judgement": found.judgement.value,
    }


def comparison_document(found: TargetComparison) -> dict[str, Any]:
    rows = [
        {
            "heat": str(row.heat),
            "shape": str(row.shape),
            "concurrency": row.concurrency,
            "metric": str(row.metric),
            "unit": row.metric.unit,
            **versus_document(row.versus),
            "sentence": row.sentence,
        }
        for row in found.rows
    ]
    models = {"model_a": found.model_a, "model_b": found.model_b, "same_model": found.same_model}
    window = {"since": found.since, "until": found.until}
    return {"a": found.a, "b": found.b, **window, **models, "rows": rows, "sentences": list(found.sentences)}


def around_document(found: AroundEvent) -> dict[str, Any]:
    windows = {"before": list(found.before), "after": list(found.after)}
    return {"series": str(found.key), **windows, **versus_document(found.versus), "sentence": found.sentence}
