"""A series as it is shown: points or hours or days, where it usually lies, what changed and what happened, in words;
and one against another: two targets over the same time, a target before and after something happened to it.
Short windows show their samples, long ones the summaries, so that a year is read as quickly as a week.
Values of probes that met others at the target are shown, and left out of all that is derived."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from datetime import tzinfo
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
    ProbeTarget,
    SeriesChange,
    SeriesKey,
    SeriesMetric,
    SeriesPoint,
    SeriesSpan,
    SlowDrift,
    SpanKind,
)
from skep.monitor.store import SeriesStore, all_targets, known_key, known_target
from skep.stats.changepoints import FEWEST, MOST, changes_in_series
from skep.stats.percentiles import WindowStats, line_through, rolling_median, window_stats
from skep.stats.versus import Judgement, SeriesComparison, versus
from skep.units import one_line

MOST_POINTS = 2000
MOST_RAW = 20_000  # samples that are read for one picture; beyond it the hours are
WINDOWS = {"1 d": DAY_S, "7 d": 7 * DAY_S, "30 d": 30 * DAY_S}
LATE_S = DAY_S
BEFORE_S = 7 * DAY_S
_FEW = 6  # values of either side below which late and before are not compared
_SURE = 0.99  # this is said every day anew
ANOTHER_MODEL = ("model", "weights_bytes")  # versions whose change begins new series
_MOST_CHANGES = 3  # that are told; all are shown
_UNSURE = 4  # values after a change whose median tells little

Band = tuple[float, float, float, float]  # moment, median, lower and upper quartile


def begins_anew(event: MonitorEvent) -> bool:
    """Whether another model answers from then on. What is derived of a series never mixes the two."""
    return event.kind is EventKind.VERSION and event.detail.get("what") in ANOTHER_MODEL


def model_changes(series: SeriesStore, target: str, until: float) -> list[MonitorEvent]:
    """Return when other models began to answer at a target, oldest first; of one moment the first event."""
    events = series.events(-math.inf, until, target, version_of=ANOTHER_MODEL)
    return [*{event.at: event for event in reversed(events)}.values()][::-1]


def series_began(series: SeriesStore, target: str, until: float) -> float:
    """Return since when the model that answers does so; minus infinity where it always did."""
    return max((event.at for event in model_changes(series, target, until)), default=-math.inf)


class WindowReading(msgspec.Struct, frozen=True):
    """What was read of a window: samples, or the hours or days that stand for them."""

    points: tuple[SeriesPoint, ...] = ()
    spans: tuple[SeriesSpan, ...] = ()
    kind: SpanKind | None = None  # None: samples

    def quiet(self, since: float, until: float) -> list[tuple[float, float]]:
        """Without the busy ones; of an hour or a day its median, in the middle of it."""
        if self.kind is not None:
            half = self.kind.seconds / 2
            return [(span.start + half, span.median) for span in self.spans if since <= span.start < until]
        return [(point.at, point.value) for point in self.points if not point.busy and since <= point.at < until]


class SeriesHistory(msgspec.Struct, frozen=True):
    """Either `points` or `spans` is empty. `band`: moment, median, lower and upper quartile of `band_s` up to it."""

    key: SeriesKey
    since: float
    until: float
    points: tuple[SeriesPoint, ...] = ()
    spans: tuple[SeriesSpan, ...] = ()
    band: Sequence[Band] = ()
    band_s: float = BEFORE_S
    steps: tuple[float, ...] = ()  # moments at which the band begins anew
    stats: Mapping[str, WindowStats | None] = {}  # by "1 d", "7 d", "30 d", up to `until`
    changes: tuple[SeriesChange, ...] = ()
    drifts: tuple[SlowDrift, ...] = ()
    events: tuple[MonitorEvent, ...] = ()
    coverage: Mapping[str, int] = {}
    busy: int = 0  # values that are left out of what is derived
    late: SeriesComparison | None = None  # the last day against the week before it
    sentences: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return what is derived from the values, without these."""
        names = ("since", "until", "stats", "drifts", "events", "coverage", "busy", "late", "sentences")
        told = {name: msgspec.to_builtins(getattr(self, name)) for name in names}
        changes = [change.document() for change in self.changes]
        return {"series": str(self.key), "unit": self.key.metric.unit, **told, "changes": changes}


def history_of(
    series: SeriesStore, key: SeriesKey, since: float, until: float, *, zone: tzinfo | None = None
) -> SeriesHistory:
    """`zone`: in which the sentences tell the time; None is the machine's own."""
    month = read_window(series, key, until - 30 * DAY_S - BEFORE_S, until)
    band_s = BEFORE_S if until - since > 2 * DAY_S else LATE_S
    shown = month if since >= until - 30 * DAY_S else read_window(series, key, since - band_s, until)
    points = tuple(point for point in shown.points if since <= point.at < until)
    spans = tuple(span for span in shown.spans if since <= span.start < until)
    events = tuple(series.events(since, until, key.target))
    changes, drifts = _changed(series, key, shown, since, until)
    busy = sum(point.busy for point in points) + sum(span.busy for span in spans)
    swaps = [event for event in model_changes(series, key.target, until) if event.at >= since - band_s]
    began = series_began(series, key.target, until)
    quiet = {name: month.quiet(max(began, until - width), until) for name, width in WINDOWS.items()}
    stats = {name: window_stats(value for _, value in pairs) for name, pairs in quiet.items()}
    coverage = series.coverage(key.target, since, until) if key.heat is not Heat.SEEN else {}
    late = None
    if key.heat is Heat.HOT:
        known = [change for change in series.changes(key.target, until - LATE_S - BEFORE_S) if change.key == key]
        edges = [began, *(change.at for change in (*known, *changes))]
        late = compare_recent(month, edges, until, more_is_better=key.metric.more_is_better)
    found_at = {*steps_of(series, key, since - band_s, until), *(change.at for change in changes)}
    steps = sorted(found_at | {swap.at for swap in swaps})
    band = [row for row in stepped(shown.quiet(since - band_s, until), steps, band_s) if row[0] >= since]
    found = SeriesHistory(
        *(key, since, until),
        points=thinned(points),
        spans=spans,
        band=band[:: max(1, -(-len(band) // MOST_POINTS))],
        band_s=band_s,
        steps=tuple(step for step in steps if step > since),
        stats=stats,
        changes=tuple(changes),
        drifts=tuple(drifts),
        events=events,
        coverage=coverage,
        busy=busy,
        late=late[0] if late else None,
    )
    return _with_words(
        found, late, zone, _earlier_models([one for one in swaps if one.at >= since], shown, key.metric, since, zone)
    )


def read_window(
    series: SeriesStore, key: SeriesKey, since: float, until: float, *, most: int = MOST_RAW
) -> WindowReading:
    """Samples where they are there and not too many, else hours, else days."""
    if (until - since) / HOUR_S > MOST_POINTS:
        return WindowReading(spans=tuple(series.spans(key, SpanKind.DAY, since, until)), kind=SpanKind.DAY)
    hours = series.spans(key, SpanKind.HOUR, since, until)
    if key.heat is Heat.SEEN or sum(hour.count + hour.busy for hour in hours) > most:
        return WindowReading(spans=tuple(hours), kind=SpanKind.HOUR)
    points = series.points(key, since, until)
    whole = [hour for hour in hours if since <= hour.start and hour.start + HOUR_S <= until]
    if len(points) < sum(hour.count + hour.busy for hour in whole):  # some were thinned
        return WindowReading(spans=tuple(hours), kind=SpanKind.HOUR)
    return WindowReading(points=tuple(points))


def compare_recent(
    reading: WindowReading, steps: Sequence[float], until: float, *, more_is_better: bool
) -> tuple[SeriesComparison, float] | None:
    """Return the last day against the week before it, or what came after the last step; with that time in seconds."""
    edge = until - LATE_S
    start = max([edge - BEFORE_S, *(step for step in steps if step < until)])
    before, late = reading.quiet(start, edge), reading.quiet(edge, until)
    if min(len(before), len(late)) < _FEW:
        return None
    found = versus([v for _, v in before], [v for _, v in late], more_is_better=more_is_better, confidence=_SURE)
    return found, edge - max(start, before[0][0])


def _changed(
    series: SeriesStore, key: SeriesKey, shown: WindowReading, since: float, until: float
) -> tuple[list[SeriesChange], list[SlowDrift]]:
    """As stored, where they are found after each probe; of other series worked out here. Drifts always are."""
    if key.heat is not Heat.HOT:
        return [], []
    points = shown.points or tuple(SeriesPoint(at, value) for at, value in shown.quiet(since, until))
    begin = max(since, series_began(series, key.target, until))
    points = tuple(point for point in points if begin <= point.at < until)
    every_s = interval_of(series, key.target)
    changes, drifts = changes_in(key, points, series.events(since - DAY_S, until, key.target), every_s)
    if key in primary_keys(series, key.target):
        changes = [change for change in series.changes(key.target, since) if change.key == key and change.at < until]
    steps = [change.at for change in changes]
    return changes, [drift for drift in drifts if not any(drift.first < at <= drift.last for at in steps)]


def _with_words(
    found: SeriesHistory, late: tuple[SeriesComparison, float] | None, zone: tzinfo | None, earlier: Sequence[str]
) -> SeriesHistory:
    told = [*earlier]
    told += [describe.describe_change(change, zone) for change in reversed(found.changes[-_MOST_CHANGES:])]
    told += [describe.describe_drift(drift, zone) for drift in found.drifts]
    if late is not None:
        told.append(describe.describe_recent(late[0], LATE_S, late[1]) or "")
    widest = next((name for name in ("7 d", "30 d") if found.stats.get(name)), None)
    if widest is not None and (stats := found.stats[widest]) is not None:
        span = describe.span_of_time(WINDOWS[widest])
        told.append(f"the last {span}: {describe.describe_level(stats, found.key.metric)}")
    told.append(describe.describe_coverage(found.coverage) or "")
    if found.busy:
        values = "value was" if found.busy == 1 else "values were"
        told.append(f"{found.busy} {values} taken while other clients used the target: shown, not counted")
    return replace(found, sentences=tuple(one for one in told if one))


def _earlier_models(
    swaps: Sequence[MonitorEvent], shown: WindowReading, metric: SeriesMetric, since: float, zone: tzinfo | None
) -> list[str]:
    """Return a sentence for each model that answered before another one did, the newest first."""
    told = []
    for begin, event in zip([since, *(swap.at for swap in swaps)], swaps, strict=False):
        stats = window_stats(value for _, value in shown.quiet(max(begin, since), event.at))
        before = "no value" if stats is None else describe.describe_level(stats, metric)
        why = describe.describe_events([event])
        told.append(f"a new series since {describe.moment(event.at, zone)}, when {why}; before it, {before}")
    return told[::-1][:_MOST_CHANGES]


def thinned(points: Sequence[SeriesPoint], most: int = MOST_POINTS) -> tuple[SeriesPoint, ...]:
    """Of too many, the lowest and the highest of each of so many stretches: what stands out still does."""
    if len(points) <= most:
        return tuple(points)
    size = -(-2 * len(points) // most)
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    ends = [{pick(part, key=lambda point: point.value) for pick in (min, max)} for part in parts]
    return tuple(point for pair in ends for point in sorted(pair, key=lambda point: point.at))


def steps_of(series: SeriesStore, key: SeriesKey, since: float, until: float) -> tuple[float, ...]:
    """When the series changed, oldest first. For cold runs changes are not looked for: those of hot ones stand in."""
    found = [change for change in series.changes(key.target, since) if change.at < until]
    own = [change for change in found if change.key == key]
    if not own and key.heat is not Heat.SEEN:
        hot = [change for change in found if change.key.heat is Heat.HOT]
        own = [change for change in hot if change.key.metric.unit == key.metric.unit]  # one speed stands for another
    return tuple(sorted({change.at for change in own}))


def stepped(values: Sequence[tuple[float, float]], steps: Sequence[float], width_s: float) -> list[Band]:
    """Return a rolling median that forgets what was before the last step. `values` and `steps` are oldest first."""
    moments = [at for at, _ in values]
    cuts = [0, *(bisect_left(moments, step) for step in steps), len(values)]
    found: list[Band] = []
    for place, (begin, end) in enumerate(pairwise(cuts)):
        piece = rolling_median(values[begin:end], width_s)
        unsure = place and len(piece) > 2 * _UNSURE  # after a step the first rows are medians of next to nothing
        found += piece[_UNSURE:] if unsure else piece
    return found


WINDOW_S = 30 * DAY_S
SETTLED_S = 5 * DAY_S  # of the window's beginning, where what was found before stays
_SHAPES = (ProbeShape.SHORT, ProbeShape.LONG)


def primary_keys(series: SeriesStore, target: str) -> list[SeriesKey]:
    """Return the series that stand for a target: its speed, short runs of one stream first, then TTFT and quality.
    The engine's own figure where it tells one, else the client's; with several streams at once the sum of them all.
    Only hot runs; of a target that nobody probes, what the gateway saw."""
    keys = set(series.keys(target))
    hot = [key for key in keys if key.heat is Heat.HOT and key.shape in _SHAPES]
    kinds = sorted({(key.concurrency, _SHAPES.index(key.shape)) for key in hot})
    _, samples = series.latest(target)  # another engine may report fewer figures
    told = {metric for metric in SeriesMetric for one in samples if one.value(metric) is not None}
    found = []
    for concurrency, shape in kinds:
        wanted = (SeriesMetric.EFFECTIVE_TOK_S,) if concurrency > 1 else (SeriesMetric.ENGINE_TOK_S, SeriesMetric.TOK_S)
        here = [SeriesKey(target, Heat.HOT, _SHAPES[shape], concurrency, metric) for metric in wanted]
        there = [key for key in here if key in keys]
        found += ([key for key in there if key.metric in told] or there)[:1]
    found += [key for key in sorted(keys) if key.heat is Heat.HOT and key.metric is SeriesMetric.QUALITY]
    found += [SeriesKey(target, Heat.HOT, ProbeShape.SHORT, 1, SeriesMetric.TTFT_MS)]
    seen = (SeriesMetric.TOK_S, SeriesMetric.TTFT_MS, SeriesMetric.REQUESTS)
    found += [SeriesKey(target, Heat.SEEN, ProbeShape.ANY, 0, metric) for metric in seen]
    return [key for key in found if key in keys]


def find_changes(series: SeriesStore, target: str, now: float) -> list[SeriesChange]:
    """Of every series that stands for the target, oldest first; stored in place of those found before. Looked for over
    the last 30 days; what was found near the beginning of that window, or before it, stays as it was."""
    earlier, every_s, start = series.changes(target), interval_of(series, target), now - WINDOW_S
    began = series_began(series, target, now + 1)
    found = []
    for key in [key for key in primary_keys(series, target) if key.heat is Heat.HOT]:
        known = [change for change in earlier if change.key == key]
        older = any(change.at < start for change in known) or bool(series.points(key, 0.0, start, limit=1))
        edge = start + SETTLED_S if older else start
        changes = [change for change in known if change.at < edge] if older else []
        since = max([start, *(change.at for change in changes)])
        if began > start:
            changes, edge, since = [change for change in known if change.at < began], began, began
        points = series.points(key, since, now + 1, limit=MOST)  # of a target that is probed oftener, less time
        if len(points) >= FEWEST:
            new, _ = changes_in(key, points, series.events(since - DAY_S, now + 1, target), every_s)
            changes += [change for change in new if change.at >= edge]
        series.set_changes(key, changes)
        found += changes
    return sorted(found, key=lambda change: (change.at, change.key))


def changes_in(
    key: SeriesKey, points: Sequence[SeriesPoint], events: Sequence[MonitorEvent], every_s: float
) -> tuple[list[SeriesChange], list[SlowDrift]]:
    """Steps and drifts of a series of hot runs, oldest first. Of others none are looked for: cold is cold."""
    quiet = [point for point in points if not point.busy][-MOST:]
    course = changes_in_series([point.value for point in quiet])
    changes = []
    for split in course.splits:
        at = quiet[split.index].at
        between = (quiet[split.bracket[0] - 1].at, quiet[split.bracket[1]].at)
        ratio, counts = (split.ratio.low, split.ratio.high), (split.count_before, split.count_after)
        because = describe.cause(events, at, between, every_s)
        changes.append(SeriesChange(key, at, between, split.before, split.after, *ratio, *counts, because))
    return changes, [_slow_drift(quiet[first : last + 1]) for first, last in course.drifts]


def _slow_drift(points: Sequence[SeriesPoint]) -> SlowDrift:
    first, last = points[0].at, points[-1].at
    logs = min(point.value for point in points) > 0
    line = line_through([(point.at, math.log(point.value) if logs else point.value) for point in points])
    if line is None:
        return SlowDrift(first, last, 1.0, 1.0, 1.0)
    slopes = [slope * (last - first) for slope in (line.slope, line.low, line.high)]
    if logs:
        ratio, low, high = map(math.exp, slopes)
    else:
        ratio, low, high = (1 + slope / line.start if line.start else 1.0 for slope in slopes)
    return SlowDrift(first, last, ratio, low, high)


def interval_of(series: SeriesStore, target: str) -> float:
    """Return the seconds between two probes of a target; an hour for a passive one."""
    return next((one.every_s for one in series.targets(removed=True) if one.name == target), HOUR_S)


AROUND_S = 7 * DAY_S
_BOUNDARIES = (EventKind.VERSION, EventKind.NOTE)  # a restart by itself is not expected to change a speed
LONGEST_NOTE = 500  # characters
_NOTES_TOLD = 3
ALIKE = 1.25  # lengths that differ by more make another load
_FIRST = {Heat.HOT: 0, Heat.COLD: 1, Heat.SEEN: 2}


class TargetComparisonRow(msgspec.Struct, frozen=True):
    """One figure of one kind of run at both targets. The ratio is B over A."""

    key: SeriesKey  # of A
    versus: SeriesComparison
    sentence: str | None  # None: a side has too few values

    def document(self) -> dict[str, Any]:
        kind = {name: getattr(self.key, name) for name in ("heat", "shape", "concurrency", "metric")}
        return {**kind, "unit": self.key.metric.unit, **msgspec.to_builtins(self.versus), "sentence": self.sentence}


class TargetComparison(msgspec.Struct, frozen=True):
    a: str
    b: str
    since: float
    until: float
    model_a: str | None
    model_b: str | None
    rows: tuple[TargetComparisonRow, ...] = ()
    sentences: tuple[str, ...] = ()

    @property
    def same_model(self) -> bool | None:
        """None: of one of them it is not known which it is."""
        return None if self.model_a is None or self.model_b is None else self.model_a == self.model_b

    def document(self) -> dict[str, Any]:
        names = ("a", "b", "since", "until", "model_a", "model_b", "same_model")
        told = {name: getattr(self, name) for name in names}
        return {**told, "rows": [row.document() for row in self.rows], "sentences": list(self.sentences)}


class AroundEvent(msgspec.Struct, frozen=True):
    """A series before and after an event. The ratio is after over before."""

    event: MonitorEvent
    key: SeriesKey
    before: tuple[float, float]  # windows that were compared
    after: tuple[float, float]
    versus: SeriesComparison
    sentence: str

    def document(self) -> dict[str, Any]:
        windows = {"before": list(self.before), "after": list(self.after)}
        return {"series": str(self.key), **windows, **msgspec.to_builtins(self.versus), "sentence": self.sentence}


def compare_targets(series: SeriesStore, a: str, b: str, since: float, until: float) -> TargetComparison:
    """Hot runs first, single streams first. UserError for a target that was never there."""
    if a == b:
        raise UserError(f"`{a}` cannot be compared with itself", hint="name two targets; `skep monitor list` has them")
    latest = [series.latest(name)[0] for name in (a, b)]
    model_a, model_b = (None if one is None else one.model or one.versions.get("model") for one in latest)
    comparison = TargetComparison(a, b, since, until, model_a, model_b)
    known = {target.name: target for target in series.targets(removed=True)}
    begins, rows = {name: max(since, series_began(series, name, until)) for name in (a, b)}, []
    for kind in _shared(series, a, b):
        values = (_values(series, replace(kind, target=name), begins[name], until) for name in (a, b))
        found = versus(*values, more_is_better=kind.metric.more_is_better)
        sentence = describe.describe_comparison(a, b, found, kind.metric, same_model=comparison.same_model)
        other = other_lengths(kind.shape, known.get(a), known.get(b))
        if other is not None:  # their figures stand side by side, and nothing is said of better or worse
            found = replace(found, judgement=Judgement.UNKNOWN)
            sentence = sentence and f"not the same load, {other}: {sentence}"
        rows.append(TargetComparisonRow(kind, found, sentence))
    told = tuple(f"{_kind_in_words(row.key)}: {row.sentence}" for row in rows if row.sentence is not None)
    return replace(comparison, rows=tuple(rows), sentences=told)


def around_event(
    series: SeriesStore, event: MonitorEvent, key: SeriesKey, *, zone: tzinfo | None = None
) -> AroundEvent:
    """Return the week before it and the week after it, each up to whatever else happened or changed."""
    every_s = interval_of(series, key.target)
    start, end = event.at - AROUND_S, event.at + AROUND_S
    events = [one.at for one in series.events(start, end, key.target) if one.kind in _BOUNDARIES]
    changes = [change for change in series.changes(key.target, start) if change.key == key]
    others = [at for at in events if abs(at - event.at) > every_s]
    spans = [(one.at, one.between[0] - every_s, one.between[1] + every_s) for one in changes]
    others += [at for at, first, last in spans if not first <= event.at <= last]
    before = (max([start, *(at for at in others if at < event.at)]), event.at)
    after = (event.at, min([end, *(at for at in others if at > event.at)]))
    values = (_values(series, key, *window) for window in (before, after))
    found = versus(*values, more_is_better=key.metric.more_is_better)
    if found.ratio is None or found.a is None or found.b is None:
        counts = [0 if side is None else side.count for side in (found.a, found.b)]
        told = f"not comparable, with {counts[0]} values before and {counts[1]} after"
    else:
        ratio, noise = found.ratio, "unknown" if found.noise is None else f"{100 * found.noise:.1f} %"
        same = f", inside run-to-run noise (CV {noise})" if found.judgement is Judgement.SAME else ""
        size = f"{describe.percent(ratio.estimate)} ({describe.percent_interval(ratio.low, ratio.high)})"
        told = f"{size}{same}; {found.b.count} values against {found.a.count} before"
    what = describe.describe_events([event]) or event.text
    sentence = f"since {describe.moment(event.at, zone)}, when {what}: {told}"
    return AroundEvent(event, key, before, after, found, sentence)


def write_note(
    series: SeriesStore, text: str, target: str | None, now: float, at: float | None = None
) -> tuple[MonitorEvent, list[AroundEvent]]:
    """Store a note of one target, or of all; return it with what it has brought, where that can be told already."""
    if not (words := one_line(text, len(text))):
        raise UserError("the note is empty", hint="say what was changed, such as: NVLink bridges removed")
    if len(words) > LONGEST_NOTE:
        raise UserError(f"the note has {len(words)} characters, at most {LONGEST_NOTE} are allowed", hint="shorten it")
    if at is not None and at <= 0:
        raise UserError("the time of the note is before 1970", hint="write it as `--at 2h` or `--at 2026-11-15T14:30`")
    if at is not None and at > now:
        raise UserError("the time of the note is in the future", hint="add the note after the change")
    if target is not None:
        known_target(target, all_targets(series))
    event = MonitorEvent(now if at is None else at, EventKind.NOTE, words, target)
    event = replace(event, id=series.append_event(event))
    return event, around_note(series, event)


def around_note(series: SeriesStore, event: MonitorEvent) -> list[AroundEvent]:
    """Return the first series of each target that has values on both sides of it."""
    names = [target.name for target in series.targets()] if event.target is None else [event.target]
    found = [around_event(series, event, key) for name in names for key in primary_keys(series, name)[:1]]
    return [one for one in found if one.versus.ratio is not None]


def notes_in_words(series: SeriesStore, now: float) -> list[str]:
    """Return what the newest notes of 7 days have brought."""
    notes = [event for event in series.events(now - AROUND_S, now) if event.kind is EventKind.NOTE]
    return [f"{one.key}: {one.sentence}" for event in notes[-_NOTES_TOLD:] for one in around_note(series, event)]


def other_lengths(shape: ProbeShape, a: ProbeTarget | None, b: ProbeTarget | None) -> str | None:
    """Return which other lengths the probes of two targets ask for. None: alike, or not known."""
    if a is None or b is None or shape not in (ProbeShape.SHORT, ProbeShape.LONG):
        return None
    prompts = (a.prompt_tokens, b.prompt_tokens)
    answers = (a.short_tokens, b.short_tokens) if shape is ProbeShape.SHORT else (a.long_tokens, b.long_tokens)
    for what, (first, second) in (("prompts", prompts), ("answers", answers)):
        if max(first, second) > ALIKE * min(first, second):
            return f"{what} of {first} against {second} tokens"
    return None


def _shared(series: SeriesStore, a: str, b: str) -> Iterator[SeriesKey]:
    """Yield what both have, as A's series. The engine's own speed only where both tell it: clocks differ."""
    both = {replace(key, target=a) for key in _keys(series, b)} & set(_keys(series, a))
    kinds = {(key.heat, key.shape, key.concurrency) for key in both}
    for heat, shape, concurrency in sorted(kinds, key=lambda kind: (_FIRST[kind[0]], kind[2], kind[1] != "short")):
        best = SeriesMetric.ENGINE_TOK_S if concurrency <= 1 else SeriesMetric.EFFECTIVE_TOK_S
        metrics = (best, SeriesMetric.TOK_S, SeriesMetric.TTFT_MS, SeriesMetric.QUALITY)
        keys = [SeriesKey(a, heat, shape, concurrency, metric) for metric in metrics]
        yield from (key for key in keys if key in both and (key is not keys[1] or keys[0] not in both))


def _keys(series: SeriesStore, target: str) -> list[SeriesKey]:
    """Return the series of a target. Raise UserError for one that was never there."""
    if not (keys := series.keys(target)):
        series.target(target, removed=True)
    return keys


def _values(series: SeriesStore, key: SeriesKey, since: float, until: float) -> list[float]:
    return [value for _, value in read_window(series, key, since, until).quiet(since, until)]


def _kind_in_words(key: SeriesKey) -> str:
    if key.heat is Heat.SEEN:
        return "what the gateway saw"
    if key.shape is ProbeShape.QUALITY:
        return "small tasks"
    streams = "one stream" if key.concurrency <= 1 else f"{key.concurrency} streams at once"
    heat = "after a pause" if key.heat is Heat.COLD else "hot"
    return f"{key.shape} runs, {streams}, {heat}"


def chosen_keys(series: SeriesStore, wanted: str | None, *, everything: bool) -> list[SeriesKey]:
    """Return the series of that name, or those that stand for a target or for all; with `everything` all of them."""
    if wanted is not None and "/" in wanted and not series.keys(wanted):  # `gateway:org/model` is a target too
        return [known_key(series, wanted)]
    if wanted is not None:
        known_target(wanted, all_targets(series))
    if everything:
        return series.keys(wanted)
    names = [target.name for target in series.targets()] if wanted is None else [wanted]
    return [key for name in names for key in primary_keys(series, name)]
