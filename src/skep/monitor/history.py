"""Series over time, made of stored samples: rolling medians, changes, comparisons of targets and
of before and after an event. Short windows show their samples, long ones the summaries, so that a
year is read as quickly as a week. Values of probes that met others at the target are shown, and
left out of all that is derived."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.errors import UserError
from skep.monitor import describe
from skep.monitor.records import (
    DAY_S,
    HOUR_S,
    EventKind,
    Heat,
    MonitorEvent,
    ProbeShape,
    SeriesChange,
    SeriesKey,
    SeriesMetric,
    SeriesPoint,
    SeriesSpan,
    SpanKind,
)
from skep.monitor.store import SeriesStore, all_targets, known_target
from skep.stats.changepoints import FEWEST, MOST, changes_in_series
from skep.stats.percentiles import WindowStats, rolling_median, window_stats
from skep.stats.versus import Judgement, SeriesComparison, versus
from skep.units import one_line

MOST_POINTS = 2000  # of samples, else of hours, else the days are read
BAND_S = 7 * DAY_S
ANOTHER_MODEL = ("model", "weights_bytes")  # versions whose change begins new series
_MOST_TOLD = 3  # changes and models; all are shown
_UNSURE = 4  # values after a change whose median tells little

Band = tuple[float, float, float, float]  # moment, median, lower and upper quartile


def begins_anew(event: MonitorEvent) -> bool:
    """Whether another model answers from then on.

    What is derived of a series never mixes the two.
    """
    return event.kind is EventKind.VERSION and event.detail.get("what") in ANOTHER_MODEL


def model_changes(series: SeriesStore, target: str, until: float) -> list[MonitorEvent]:
    """Return when other models began to answer at a target, oldest first; of one moment the first
    event.
    """
    events = series.events(-math.inf, until, target, version_of=ANOTHER_MODEL)
    return [*{event.at: event for event in reversed(events)}.values()][::-1]


def series_began(series: SeriesStore, target: str, until: float) -> float:
    """Return since when the model that answers does so; minus infinity where it always did."""
    return max((event.at for event in model_changes(series, target, until)), default=-math.inf)


class WindowReading(msgspec.Struct, frozen=True):
    """What was read of a window: samples, or the hours or days that stand for them."""

    points: tuple[SeriesPoint, ...] = ()
    spans: tuple[SeriesSpan, ...] = ()
    span_s: float = 0.0

    def quiet(self, since: float, until: float) -> list[tuple[float, float]]:
        """Without the busy ones; of an hour or a day its median, in the middle of it."""
        spans = [
            (span.start + self.span_s / 2, span.median)
            for span in self.spans
            if since <= span.start < until
        ]
        points = [
            (point.at, point.value)
            for point in self.points
            if not point.busy and since <= point.at < until
        ]
        return spans or points


class SeriesHistory(msgspec.Struct, frozen=True):
    """Either `points` or `spans` is empty.

    `band`: moment, median, lower and upper quartile of `band_s` up to it.
    """

    key: SeriesKey
    since: float
    until: float
    points: tuple[SeriesPoint, ...]
    spans: tuple[SeriesSpan, ...]
    band: Sequence[Band]
    band_s: float
    steps: tuple[float, ...]  # moments at which the band begins anew
    stats: WindowStats | None  # of the window, since the model that answers does so
    changes: tuple[SeriesChange, ...]
    events: tuple[MonitorEvent, ...]
    coverage: Mapping[str, int]
    busy: int  # values that are left out of what is derived
    sentences: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return what is derived from the values, without these."""
        names = ("since", "until", "stats", "events", "coverage", "busy", "sentences")
        told = {name: msgspec.to_builtins(getattr(self, name)) for name in names}
        changes = [change.document() for change in self.changes]
        return {"series": str(self.key), "unit": self.key.metric.unit, **told, "changes": changes}


def history_of(series: SeriesStore, key: SeriesKey, since: float, until: float) -> SeriesHistory:
    band_s = BAND_S if until - since > 2 * DAY_S else DAY_S
    begin = since - band_s
    read = read_window(series, key, begin, until)
    points = tuple(point for point in read.points if since <= point.at < until)
    spans = tuple(span for span in read.spans if since <= span.start < until)
    swaps = [event for event in model_changes(series, key.target, until) if event.at >= begin]
    changes = [change for change in series.changes(key.target, begin) if change.at < until]
    steps = sorted({*steps_of(key, changes), *(swap.at for swap in swaps)})
    band = [row for row in stepped(read.quiet(begin, until), steps, band_s) if row[0] >= since]
    series_history = SeriesHistory(
        *(key, since, until),
        points=points,
        spans=spans,
        band=band[:: max(1, -(-len(band) // MOST_POINTS))],
        band_s=band_s,
        steps=tuple(step for step in steps if step > since),
        stats=window_stats(
            value for _, value in read.quiet(max([since, *(swap.at for swap in swaps)]), until)
        ),
        changes=tuple(change for change in changes if change.key == key and change.at >= since),
        events=tuple(series.events(since, until, key.target)),
        coverage=series.coverage(key.target, since, until),
        busy=sum(point.busy for point in points) + sum(span.busy for span in spans),
    )
    return replace(
        series_history,
        sentences=tuple(_sentences(series_history, [swap for swap in swaps if swap.at >= since])),
    )


def read_window(series: SeriesStore, key: SeriesKey, since: float, until: float) -> WindowReading:
    """Samples where they are there and not too many, else hours, else days."""
    if (until - since) / HOUR_S > MOST_POINTS:
        return WindowReading(
            spans=tuple(series.spans(key, SpanKind.DAY, since, until)), span_s=DAY_S
        )
    hours = series.spans(key, SpanKind.HOUR, since, until)
    whole = [hour for hour in hours if since <= hour.start and hour.start + HOUR_S <= until]
    if sum(hour.count + hour.busy for hour in hours) <= MOST_POINTS:
        points = series.points(key, since, until)
        if len(points) >= sum(hour.count + hour.busy for hour in whole):  # else some were deleted
            return WindowReading(points=tuple(points))
    return WindowReading(spans=tuple(hours), span_s=HOUR_S)


def _sentences(found: SeriesHistory, swaps: Sequence[MonitorEvent]) -> list[str]:
    """Return what is to be said of a series, the newest first."""
    told = [
        f"a new series since {describe.moment(swap.at)}, when {describe.describe_events([swap])}"
        for swap in swaps[: -_MOST_TOLD - 1 : -1]
    ]
    told += [describe.describe_change(change) for change in found.changes[: -_MOST_TOLD - 1 : -1]]
    if found.stats is not None:
        told.append(describe.describe_level(found.stats, found.key.metric))
    if coverage := describe.describe_coverage(found.coverage):
        told.append(coverage)
    if found.busy:
        told.append(
            f"values while other clients used the target: {found.busy}, shown and not counted"
        )
    return told


def steps_of(key: SeriesKey, changes: Sequence[SeriesChange]) -> set[float]:
    """Return when the series changed. For others than those that stand for the target, changes are
    not looked for: those of the same unit stand in."""
    own = {change.at for change in changes if change.key == key}
    return own or {change.at for change in changes if change.key.metric.unit == key.metric.unit}


def stepped(
    values: Sequence[tuple[float, float]], steps: Sequence[float], width_s: float
) -> list[Band]:
    """Return a rolling median that forgets what was before the last step.

    `values` and `steps` are oldest first.
    """
    moments = [at for at, _ in values]
    cuts = [0, *(bisect_left(moments, step) for step in steps), len(values)]
    found: list[Band] = []
    for place, (begin, end) in enumerate(pairwise(cuts)):
        piece = rolling_median(values[begin:end], width_s)
        # After a step the first rows are medians of next to nothing.
        unsure = place and len(piece) > 2 * _UNSURE
        found += piece[_UNSURE:] if unsure else piece
    return found


WINDOW_S = 30 * DAY_S
SETTLED_S = 5 * DAY_S  # of the window's beginning, where what was found before stays
_SHAPES = (ProbeShape.SHORT, ProbeShape.LONG)


def primary_keys(series: SeriesStore, target: str) -> list[SeriesKey]:
    """Return the series that stand for a target: its speed, short runs of one stream first, then
    TTFT. The engine's own figure where it tells one, else the client's; with several streams at
    once the sum of them all. Only hot runs."""
    keys = set(series.keys(target))
    hot = [key for key in keys if key.heat is Heat.HOT and key.shape in _SHAPES]
    kinds = sorted({(key.concurrency, _SHAPES.index(key.shape)) for key in hot})
    _, samples = series.latest(target)  # another engine may report fewer figures
    told = {
        metric for metric in SeriesMetric for sample in samples if sample.value(metric) is not None
    }
    found = []
    for concurrency, shape in kinds:
        if concurrency > 1:
            wanted: tuple[SeriesMetric, ...] = (SeriesMetric.EFFECTIVE_TOK_S,)
        else:
            wanted = (SeriesMetric.ENGINE_TOK_S, SeriesMetric.TOK_S)
        here = [
            SeriesKey(target, Heat.HOT, _SHAPES[shape], concurrency, metric) for metric in wanted
        ]
        there = [key for key in here if key in keys]
        found += ([key for key in there if key.metric in told] or there)[:1]
    found += [SeriesKey(target, Heat.HOT, ProbeShape.SHORT, 1, SeriesMetric.TTFT_MS)]
    return [key for key in found if key in keys]


def find_changes(series: SeriesStore, target: str, now: float) -> list[SeriesChange]:
    """Of every series that stands for the target, oldest first; stored in place of those found
    before. Looked for over the last 30 days; what was found near the beginning of that window, or
    before it, stays as it was."""
    earlier = series.changes(target)
    every_s = interval_of(series, target)
    start = now - WINDOW_S
    began = series_began(series, target, now + 1)
    found = []
    for key in primary_keys(series, target):
        known = [change for change in earlier if change.key == key]
        older = any(change.at < start for change in known) or bool(
            series.points(key, 0.0, start, limit=1)
        )
        edge = start + SETTLED_S if older else start
        if older:
            changes = [change for change in known if change.at < edge]
        else:
            changes = []
        since = max([start, *(change.at for change in changes)])
        if began > start:
            changes = [change for change in known if change.at < began]
            edge = began
            since = began
        # Of a target that is probed oftener, less time.
        points = series.points(key, since, now + 1, limit=MOST)
        if len(points) >= FEWEST:
            new = changes_in(key, points, series.events(since - DAY_S, now + 1, target), every_s)
            changes += [change for change in new if change.at >= edge]
        series.set_changes(key, changes)
        found += changes
    return sorted(found, key=lambda change: (change.at, change.key))


def changes_in(
    key: SeriesKey, points: Sequence[SeriesPoint], events: Sequence[MonitorEvent], every_s: float
) -> list[SeriesChange]:
    """Return the steps of a series of hot runs, oldest first."""
    quiet = [point for point in points if not point.busy][-MOST:]
    changes = []
    for split in changes_in_series([point.value for point in quiet]):
        at = quiet[split.index].at
        between = (quiet[split.bracket[0] - 1].at, quiet[split.bracket[1]].at)
        ratio = (split.ratio.low, split.ratio.high)
        counts = (split.count_before, split.count_after)
        because = describe.cause(events, at, between, every_s)
        changes.append(
            SeriesChange(key, at, between, split.before, split.after, *ratio, *counts, because)
        )
    return changes


def interval_of(series: SeriesStore, target: str) -> float:
    """Return the seconds between two probes of a target."""
    return next(
        (one.every_s for one in series.targets(removed=True) if one.name == target), HOUR_S
    )


AROUND_S = 7 * DAY_S
_BOUNDARIES = (
    EventKind.VERSION,
    EventKind.NOTE,
)  # a restart by itself is not expected to change a speed
LONGEST_NOTE = 500  # characters
_NOTES_TOLD = 3
ALIKE = 1.25  # lengths that differ by more make another load


class TargetComparisonRow(msgspec.Struct, frozen=True):
    """One figure of one kind of run at both targets. The ratio is B over A."""

    key: SeriesKey  # of A
    versus: SeriesComparison

    def document(self) -> dict[str, Any]:
        kind = {
            name: getattr(self.key, name) for name in ("heat", "shape", "concurrency", "metric")
        }
        return {**kind, "unit": self.key.metric.unit, **msgspec.to_builtins(self.versus)}


class TargetComparison(msgspec.Struct, frozen=True):
    a: str
    b: str
    since: float
    until: float
    model_a: str | None
    model_b: str | None
    rows: tuple[TargetComparisonRow, ...] = ()

    @property
    def same_model(self) -> bool | None:
        """None: of one of them it is not known which it is."""
        if self.model_a is None or self.model_b is None:
            return None
        return self.model_a == self.model_b

    def document(self) -> dict[str, Any]:
        rows = [row.document() for row in self.rows]
        return {**msgspec.structs.asdict(self), "same_model": self.same_model, "rows": rows}


def compare_targets(
    series: SeriesStore, a: str, b: str, since: float, until: float
) -> TargetComparison:
    """Every kind of run that both have, hot before cold.

    UserError for a target that was never there.
    """
    for name in (a, b):
        series.target(name, removed=True)
    shared = {replace(key, target=a) for key in series.keys(b)} & set(series.keys(a))
    ordered = sorted(shared, key=lambda key: (key.heat is Heat.COLD, key.concurrency, key))
    rows = tuple(
        TargetComparisonRow(key, compare_series(series, key, a, b, since, until))
        for key in ordered
    )
    return TargetComparison(
        a, b, since, until, served_model(series, a), served_model(series, b), rows
    )


def compare_series(
    series: SeriesStore, key: SeriesKey, a: str, b: str, since: float, until: float
) -> SeriesComparison:
    """Of one kind of run at two targets, whosever `key` is."""
    found = compare_keys(series, replace(key, target=a), replace(key, target=b), since, until)
    if not _same_lengths(
        series, key.shape, a, b
    ):  # figures stand side by side, and none is better or worse
        found = replace(found, judgement=Judgement.UNKNOWN)
    return found


def compare_keys(
    series: SeriesStore, a: SeriesKey, b: SeriesKey, since: float, until: float
) -> SeriesComparison:
    """Of each target since the model that answers does so."""
    begins = [max(since, series_began(series, key.target, until)) for key in (a, b)]
    values = (
        _values(series, key, begin, until) for key, begin in zip((a, b), begins, strict=True)
    )
    return versus(*values, more_is_better=a.metric.more_is_better)


def served_model(series: SeriesStore, target: str) -> str | None:
    """Return the model that answered the last probe; None: it is not known."""
    last, _ = series.latest(target)
    if last is None:
        return None
    return last.model or last.versions.get("model")


def _same_lengths(series: SeriesStore, shape: ProbeShape, a: str, b: str) -> bool:
    """Return whether probes of two targets ask for about as many tokens."""
    one, other = (series.target(name, removed=True) for name in (a, b))
    if shape is ProbeShape.SHORT:
        name = "short_tokens"
    else:
        name = "long_tokens"
    pairs = [(one.prompt_tokens, other.prompt_tokens), (getattr(one, name), getattr(other, name))]
    return all(max(pair) <= ALIKE * min(pair) for pair in pairs)


def around_event(series: SeriesStore, event: MonitorEvent, key: SeriesKey) -> dict[str, Any]:
    """Compare the week before it and the week after it, each up to the next note or version. The
    ratio is after over before."""
    start = event.at - AROUND_S
    end = event.at + AROUND_S
    every_s = interval_of(series, key.target)
    others = [
        event.at for event in series.events(start, end, key.target) if event.kind in _BOUNDARIES
    ]
    others = [at for at in others if abs(at - event.at) > every_s]
    before = (max([start, *(at for at in others if at < event.at)]), event.at)
    after = (event.at, min([end, *(at for at in others if at > event.at)]))
    values = (_values(series, key, *window) for window in (before, after))
    found = versus(*values, more_is_better=key.metric.more_is_better)
    counts = [0 if side is None else side.count for side in (found.a, found.b)]
    told = f"not comparable, with {counts[0]} values before and {counts[1]} after"
    if (ratio := found.ratio) is not None:
        size = (
            f"{describe.percent(ratio.estimate)} "
            f"({describe.percent_interval(ratio.low, ratio.high)})"
        )
        if found.judgement is Judgement.SAME:
            same = ", inside run-to-run noise"
        else:
            same = ""
        told = f"{size}{same}; {counts[1]} values against {counts[0]} before"
    what = describe.describe_events([event]) or event.text
    sentence = f"since {describe.moment(event.at)}, when {what}: {told}"
    windows = {"series": str(key), "before": list(before), "after": list(after)}
    return {**windows, **msgspec.to_builtins(found), "sentence": sentence}


def write_note(
    series: SeriesStore, text: str, target: str | None, now: float, at: float | None = None
) -> tuple[MonitorEvent, list[dict[str, Any]]]:
    """Store a note of one target, or of all; return it with what it has brought, where that can be
    told already.
    """
    if not (words := one_line(text, len(text))):
        raise UserError(
            "the note is empty", hint="say what was changed, such as: NVLink bridges removed"
        )
    if len(words) > LONGEST_NOTE:
        raise UserError(
            f"the note has {len(words)} characters, at most {LONGEST_NOTE} are allowed",
            hint="shorten it",
        )
    if at is not None and at <= 0:
        raise UserError(
            "the time of the note is before 1970",
            hint="write it as `--at 2h` or `--at 2026-11-15T14:30`",
        )
    if at is not None and at > now:
        raise UserError(
            "the time of the note is in the future", hint="add the note after the change"
        )
    if target is not None:
        known_target(target, all_targets(series))
    event = MonitorEvent(now if at is None else at, EventKind.NOTE, words, target)
    event = replace(event, id=series.append_event(event))
    return event, around_note(series, event)


def around_note(series: SeriesStore, event: MonitorEvent) -> list[dict[str, Any]]:
    """Return the first series of each target that has values on both sides of it."""
    if event.target is None:
        names = [target.name for target in series.targets()]
    else:
        names = [event.target]
    found = [
        around_event(series, event, key)
        for name in names
        for key in primary_keys(series, name)[:1]
    ]
    return [one for one in found if one["ratio"] is not None]


def notes_in_words(series: SeriesStore, now: float) -> list[str]:
    """Return what the newest notes of 7 days have brought."""
    notes = [event for event in series.events(now - AROUND_S, now) if event.kind is EventKind.NOTE]
    return [
        f"{one['series']}: {one['sentence']}"
        for event in notes[-_NOTES_TOLD:]
        for one in around_note(series, event)
    ]


def _values(series: SeriesStore, key: SeriesKey, since: float, until: float) -> list[float]:
    return [value for _, value in read_window(series, key, since, until).quiet(since, until)]
