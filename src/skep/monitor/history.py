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
from skep.stats.changepoints import FEWEST_VALUES, MOST_VALUES, changes_in_series
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
    """Return whether another model answers from then on.

    What is derived of a series never mixes the two.
    """
    if event.kind is not EventKind.VERSION:
        return False
    return event.detail.get("what") in ANOTHER_MODEL


def model_changes(series: SeriesStore, target: str, until: float) -> list[MonitorEvent]:
    """Return when other models began to answer at a target, oldest first.

    Of several events at one moment it is the first.
    """
    events = series.events(-math.inf, until, target, version_of=ANOTHER_MODEL)
    first_by_moment: dict[float, MonitorEvent] = {}
    for event in events:
        first_by_moment.setdefault(event.at, event)
    return list(first_by_moment.values())


def series_began(series: SeriesStore, target: str, until: float) -> float:
    """Return since when the present model answers; minus infinity where it always did."""
    changes = model_changes(series, target, until)
    if not changes:
        return -math.inf
    newest = changes[-1]
    return newest.at


class WindowReading(msgspec.Struct, frozen=True):
    """What was read of a window: samples, or the hours or days that stand for them."""

    points: tuple[SeriesPoint, ...] = ()
    spans: tuple[SeriesSpan, ...] = ()
    span_s: float = 0.0

    @property
    def busy(self) -> int:
        """Return how many values met others at the target."""
        busy_points = sum(point.busy for point in self.points)
        busy_in_spans = sum(span.busy for span in self.spans)
        return busy_points + busy_in_spans

    def between(self, since: float, until: float) -> WindowReading:
        """Return the part that begins in a shorter window."""
        points = [point for point in self.points if since <= point.at < until]
        spans = [span for span in self.spans if since <= span.start < until]
        return replace(self, points=tuple(points), spans=tuple(spans))

    def quiet(self, since: float, until: float) -> list[tuple[float, float]]:
        """Return moments and values without the busy ones: of an hour or a day its middle and its
        median.
        """
        part = self.between(since, until)
        if part.spans:
            half_s = part.span_s / 2
            return [(span.start + half_s, span.median) for span in part.spans]
        quiet_points = [point for point in part.points if not point.busy]
        return [(point.at, point.value) for point in quiet_points]


class SeriesHistory(msgspec.Struct, frozen=True):
    """A series over a window, with all that is derived of it. Either `points` or `spans` is empty.

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
        fields = {name: msgspec.to_builtins(getattr(self, name)) for name in names}
        changes = [change.document() for change in self.changes]
        return {
            "series": str(self.key),
            "unit": self.key.metric.unit,
            **fields,
            "changes": changes,
        }


def history_of(series: SeriesStore, key: SeriesKey, since: float, until: float) -> SeriesHistory:
    """Return a series over a window, with what is to be said of it.

    The band's first values need what came before the window: that is read too.
    """
    band_s = BAND_S if until - since > 2 * DAY_S else DAY_S
    begin = since - band_s
    reading = read_window(series, key, begin, until)
    swaps = [event for event in model_changes(series, key.target, until) if event.at >= begin]
    swaps_at = [swap.at for swap in swaps]
    changes = [change for change in series.changes(key.target, begin) if change.at < until]
    steps = sorted({*steps_of(key, changes), *swaps_at})
    own_changes = [change for change in changes if change.key == key and change.at >= since]
    window = reading.between(since, until)
    model_since = max([since, *swaps_at])
    of_this_model = reading.quiet(model_since, until)
    values = reading.quiet(begin, until)
    series_history = SeriesHistory(
        key=key,
        since=since,
        until=until,
        points=window.points,
        spans=window.spans,
        band=_band(values, steps, since, band_s),
        band_s=band_s,
        steps=tuple(step for step in steps if step > since),
        stats=window_stats(value for _, value in of_this_model),
        changes=tuple(own_changes),
        events=tuple(series.events(since, until, key.target)),
        coverage=series.coverage(key.target, since, until),
        busy=window.busy,
    )
    new_swaps = [swap for swap in swaps if swap.at >= since]
    sentences = _sentences(series_history, new_swaps)
    return replace(series_history, sentences=tuple(sentences))


def _band(
    values: Sequence[tuple[float, float]], steps: Sequence[float], since: float, band_s: float
) -> list[Band]:
    """Return the rolling median from `since` on, thinned out where it has too many rows."""
    rows = stepped(values, steps, band_s)
    shown_rows = [row for row in rows if row[0] >= since]
    surplus = len(shown_rows) / MOST_POINTS
    every_nth = max(1, math.ceil(surplus))
    return shown_rows[::every_nth]


def read_window(series: SeriesStore, key: SeriesKey, since: float, until: float) -> WindowReading:
    """Read the samples where they are stored and not too many, else the hours, else the days."""
    hours_in_window = (until - since) / HOUR_S
    if hours_in_window > MOST_POINTS:
        days = series.spans(key, SpanKind.DAY, since, until)
        return WindowReading(spans=tuple(days), span_s=DAY_S)
    hours = series.spans(key, SpanKind.HOUR, since, until)
    last_start = until - HOUR_S
    whole_hours = [hour for hour in hours if since <= hour.start <= last_start]
    if _sample_count(hours) <= MOST_POINTS:
        points = series.points(key, since, until)
        count_at_least = _sample_count(whole_hours)
        if len(points) >= count_at_least:  # else some were deleted
            return WindowReading(points=tuple(points))
    return WindowReading(spans=tuple(hours), span_s=HOUR_S)


def _sample_count(spans: Sequence[SeriesSpan]) -> int:
    return sum(span.count + span.busy for span in spans)


def _sentences(series_history: SeriesHistory, swaps: Sequence[MonitorEvent]) -> list[str]:
    """Return what is to be said of a series, the newest first."""
    newest_swaps = reversed(swaps[-_MOST_TOLD:])
    sentences = [
        f"a new series since {describe.moment(swap.at)}, when {describe.describe_events([swap])}"
        for swap in newest_swaps
    ]
    newest_changes = reversed(series_history.changes[-_MOST_TOLD:])
    sentences += [describe.describe_change(change) for change in newest_changes]
    if series_history.stats is not None:
        sentences.append(describe.describe_level(series_history.stats, series_history.key.metric))
    coverage = describe.describe_coverage(series_history.coverage)
    if coverage:
        sentences.append(coverage)
    if series_history.busy:
        count = f"{series_history.busy}, shown and not counted"
        sentences.append(f"values while other clients used the target: {count}")
    return sentences


def steps_of(key: SeriesKey, changes: Sequence[SeriesChange]) -> set[float]:
    """Return when the series changed.

    Changes are looked for only in the series that stand for the target: for any other one, the
    changes of the same unit stand in.
    """
    own_moments = {change.at for change in changes if change.key == key}
    if own_moments:
        return own_moments
    unit = key.metric.unit
    return {change.at for change in changes if change.key.metric.unit == unit}


def stepped(
    values: Sequence[tuple[float, float]], steps: Sequence[float], width_s: float
) -> list[Band]:
    """Return a rolling median that forgets what was before the last step.

    `values` and `steps` are oldest first.
    """
    moments = [at for at, _ in values]
    places = [bisect_left(moments, step) for step in steps]
    cuts = [0, *places, len(values)]
    band: list[Band] = []
    for place, (begin, end) in enumerate(pairwise(cuts)):
        piece = rolling_median(values[begin:end], width_s)
        is_after_step = place > 0
        if is_after_step and len(piece) > 2 * _UNSURE:
            # After a step the first rows are medians of next to nothing.
            piece = piece[_UNSURE:]
        band += piece
    return band


WINDOW_S = 30 * DAY_S
SETTLED_S = 5 * DAY_S  # of the window's beginning, where what was found before stays
_SHAPES = (ProbeShape.SHORT, ProbeShape.LONG)


def primary_keys(series: SeriesStore, target: str) -> list[SeriesKey]:
    """Return the series that stand for a target: its speed, short runs of one stream first, then
    TTFT.

    The speed is the engine's own figure where it reports one, else the client's; with several
    streams at once it is the sum of them all. Only hot runs count.
    """
    keys = set(series.keys(target))
    hot = [key for key in keys if key.heat is Heat.HOT and key.shape in _SHAPES]
    kinds = sorted({(key.concurrency, _SHAPES.index(key.shape)) for key in hot})
    _, samples = series.latest(target)  # another engine may report fewer figures
    reported_metrics = {
        metric
        for metric in SeriesMetric
        if any(sample.value(metric) is not None for sample in samples)
    }
    chosen = []
    for concurrency, shape in kinds:
        if concurrency > 1:
            metrics: tuple[SeriesMetric, ...] = (SeriesMetric.EFFECTIVE_TOK_S,)
        else:
            metrics = (SeriesMetric.ENGINE_TOK_S, SeriesMetric.TOK_S)
        figures = [
            SeriesKey(target, Heat.HOT, _SHAPES[shape], concurrency, metric) for metric in metrics
        ]
        stored = [key for key in figures if key in keys]
        reported = [key for key in stored if key.metric in reported_metrics]
        chosen += (reported or stored)[:1]
    ttft = SeriesKey(target, Heat.HOT, ProbeShape.SHORT, 1, SeriesMetric.TTFT_MS)
    if ttft in keys:
        chosen.append(ttft)
    return chosen


def find_changes(series: SeriesStore, target: str, now: float) -> list[SeriesChange]:
    """Look for changes in every series that stands for the target, store them, and return them,
    oldest first.

    They replace those stored before. The last 30 days are searched; what was found near the
    beginning of that window, or before it, stays as it was.
    """
    until = now + 1
    earlier = series.changes(target)
    every_s = interval_of(series, target)
    began = series_began(series, target, until)
    all_changes: list[SeriesChange] = []
    for key in primary_keys(series, target):
        stored = [change for change in earlier if change.key == key]
        edge, since = _search_window(series, key, stored, began=began, start=now - WINDOW_S)
        changes = [change for change in stored if change.at < edge]
        # The limit counts points: the oftener a target is probed, the shorter the time.
        points = series.points(key, since, until, limit=MOST_VALUES)
        if len(points) >= FEWEST_VALUES:
            events = series.events(since - DAY_S, until, target)
            new_changes = changes_in(key, points, events, every_s)
            changes += [change for change in new_changes if change.at >= edge]
        series.set_changes(key, changes)
        all_changes += changes
    all_changes.sort(key=lambda change: (change.at, change.key))
    return all_changes


def _search_window(
    series: SeriesStore,
    key: SeriesKey,
    stored: Sequence[SeriesChange],
    *,
    began: float,
    start: float,
) -> tuple[float, float]:
    """Return from when on changes are looked for, and from when on points are read for that.

    Stored changes before the first moment stay as they are.
    """
    if began > start:  # another model answers since then
        return began, began
    has_older_changes = any(change.at < start for change in stored)
    if not has_older_changes and not series.points(key, 0.0, start, limit=1):
        return start, start
    edge = start + SETTLED_S
    settled = [change.at for change in stored if change.at < edge]
    return edge, max([start, *settled])


def changes_in(
    key: SeriesKey, points: Sequence[SeriesPoint], events: Sequence[MonitorEvent], every_s: float
) -> list[SeriesChange]:
    """Return the steps of a series of hot runs, oldest first."""
    quiet = [point for point in points if not point.busy][-MOST_VALUES:]
    changes = []
    values = [point.value for point in quiet]
    for split in changes_in_series(values):
        at = quiet[split.index].at
        earliest, latest = split.bracket
        between = (quiet[earliest - 1].at, quiet[latest].at)
        changes.append(
            SeriesChange(
                key=key,
                at=at,
                between=between,
                before=split.before,
                after=split.after,
                ratio_low=split.ratio.low,
                ratio_high=split.ratio.high,
                count_before=split.count_before,
                count_after=split.count_after,
                because=describe.cause(events, at, between, every_s),
            )
        )
    return changes


def interval_of(series: SeriesStore, target: str) -> float:
    """Return the seconds between two probes of a target."""
    for stored in series.targets(removed=True):
        if stored.name == target:
            return stored.every_s
    return HOUR_S


AROUND_S = 7 * DAY_S
# A restart by itself is not expected to change a speed.
_BOUNDARIES = (EventKind.VERSION, EventKind.NOTE)
LONGEST_NOTE = 500  # characters
_NOTES_TOLD = 3
SAME_LOAD_RATIO = 1.25  # lengths that differ by more make another load


class TargetComparisonRow(msgspec.Struct, frozen=True):
    """One figure of one kind of run at both targets. The ratio is B over A."""

    key: SeriesKey  # of A
    versus: SeriesComparison

    def document(self) -> dict[str, Any]:
        return {
            "heat": self.key.heat,
            "shape": self.key.shape,
            "concurrency": self.key.concurrency,
            "metric": self.key.metric,
            "unit": self.key.metric.unit,
            **msgspec.to_builtins(self.versus),
        }


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
        """Return whether both serve the same model; None: one of the models is not known."""
        if self.model_a is None or self.model_b is None:
            return None
        return self.model_a == self.model_b

    def document(self) -> dict[str, Any]:
        fields = msgspec.structs.asdict(self)
        rows = [row.document() for row in self.rows]
        return {**fields, "same_model": self.same_model, "rows": rows}


def compare_targets(
    series: SeriesStore, a: str, b: str, since: float, until: float
) -> TargetComparison:
    """Compare every kind of run that both targets have, hot before cold.

    Raise UserError for a target that never existed.
    """
    for name in (a, b):
        series.target(name, removed=True)
    keys_of_a = set(series.keys(a))
    keys_of_b = {replace(key, target=a) for key in series.keys(b)}
    shared = keys_of_a & keys_of_b
    rows = []
    ordered = sorted(shared, key=lambda key: (key.heat is Heat.COLD, key.concurrency, key))
    for key in ordered:
        comparison = compare_series(series, key, a, b, since, until)
        rows.append(TargetComparisonRow(key, comparison))
    return TargetComparison(
        a=a,
        b=b,
        since=since,
        until=until,
        model_a=served_model(series, a),
        model_b=served_model(series, b),
        rows=tuple(rows),
    )


def compare_series(
    series: SeriesStore, key: SeriesKey, a: str, b: str, since: float, until: float
) -> SeriesComparison:
    """Compare one kind of run at two targets; the target of `key` does not matter.

    Where the probes ask for other lengths, the figures stand side by side without a judgement.
    """
    key_of_a = replace(key, target=a)
    key_of_b = replace(key, target=b)
    comparison = compare_keys(series, key_of_a, key_of_b, since, until)
    if not _same_lengths(series, key.shape, a, b):
        comparison = replace(comparison, judgement=Judgement.UNKNOWN)
    return comparison


def compare_keys(
    series: SeriesStore, a: SeriesKey, b: SeriesKey, since: float, until: float
) -> SeriesComparison:
    """Compare two series, each since the present model of its target answers."""
    begin_a = max(since, series_began(series, a.target, until))
    begin_b = max(since, series_began(series, b.target, until))
    values_a = _values(series, a, begin_a, until)
    values_b = _values(series, b, begin_b, until)
    return versus(values_a, values_b, more_is_better=a.metric.more_is_better)


def served_model(series: SeriesStore, target: str) -> str | None:
    """Return the model that answered the last probe; None: it is not known."""
    last, _ = series.latest(target)
    if last is None:
        return None
    if last.model:
        return last.model
    return last.versions.get("model")


def _same_lengths(series: SeriesStore, shape: ProbeShape, a: str, b: str) -> bool:
    """Return whether probes of two targets ask for about as many tokens."""
    target_a = series.target(a, removed=True)
    target_b = series.target(b, removed=True)
    if shape is ProbeShape.SHORT:
        name = "short_tokens"
    else:
        name = "long_tokens"
    pairs = [
        (target_a.prompt_tokens, target_b.prompt_tokens),
        (getattr(target_a, name), getattr(target_b, name)),
    ]
    return all(max(pair) <= SAME_LOAD_RATIO * min(pair) for pair in pairs)


def around_event(series: SeriesStore, event: MonitorEvent, key: SeriesKey) -> dict[str, Any]:
    """Compare the week before an event with the week after it, up to the next note or version.

    The ratio is after over before.
    """
    start, end = _bounds_around(series, event, key.target)
    before = _values(series, key, start, event.at)
    after = _values(series, key, event.at, end)
    comparison = versus(before, after, more_is_better=key.metric.more_is_better)
    event_text = describe.describe_events([event]) or event.text
    sentence = f"since {describe.moment(event.at)}, when {event_text}: {_outcome(comparison)}"
    return {
        "series": str(key),
        "before": [start, event.at],
        "after": [event.at, end],
        **msgspec.to_builtins(comparison),
        "sentence": sentence,
    }


def _bounds_around(series: SeriesStore, event: MonitorEvent, target: str) -> tuple[float, float]:
    """Return the notes or versions of a target before and after an event, a week away at most.

    What lies within one interval of it belongs to the same occasion.
    """
    start = event.at - AROUND_S
    end = event.at + AROUND_S
    every_s = interval_of(series, target)
    for near in series.events(start, end, target):
        is_same_occasion = abs(near.at - event.at) <= every_s
        if is_same_occasion or near.kind not in _BOUNDARIES:
            continue
        if near.at < event.at:
            start = max(start, near.at)
        else:
            end = min(end, near.at)
    return start, end


def _outcome(comparison: SeriesComparison) -> str:
    """Return in words what changed from before an event (A) to after it (B)."""
    before = 0 if comparison.a is None else comparison.a.count
    after = 0 if comparison.b is None else comparison.b.count
    ratio = comparison.ratio
    if ratio is None:
        return f"not comparable, with {before} values before and {after} after"
    interval = describe.percent_interval(ratio.low, ratio.high)
    if comparison.judgement is Judgement.SAME:
        noise = ", inside run-to-run noise"
    else:
        noise = ""
    size = f"{describe.percent(ratio.estimate)} ({interval}){noise}"
    return f"{size}; {after} values against {before} before"


def write_note(
    series: SeriesStore, text: str, target: str | None, now: float, at: float | None = None
) -> tuple[MonitorEvent, list[dict[str, Any]]]:
    """Store a note of one target, or of all. Return it, and what it has brought so far."""
    words = one_line(text, len(text))
    if not words:
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
    moment = now if at is None else at
    event = MonitorEvent(moment, EventKind.NOTE, words, target)
    event_id = series.append_event(event)
    event = replace(event, id=event_id)
    return event, around_note(series, event)


def around_note(series: SeriesStore, event: MonitorEvent) -> list[dict[str, Any]]:
    """Compare before and after an event, by the first series of each target.

    A target is left out where that series has no values on one side.
    """
    if event.target is None:
        names = [target.name for target in series.targets()]
    else:
        names = [event.target]
    comparisons = []
    for name in names:
        keys = primary_keys(series, name)
        if keys:
            comparison = around_event(series, event, keys[0])
            comparisons.append(comparison)
    return [comparison for comparison in comparisons if comparison["ratio"] is not None]


def notes_in_words(series: SeriesStore, now: float) -> list[str]:
    """Return, in sentences, what the newest notes of 7 days have brought."""
    events = series.events(now - AROUND_S, now)
    notes = [event for event in events if event.kind is EventKind.NOTE]
    newest_notes = notes[-_NOTES_TOLD:]
    return [
        f"{comparison['series']}: {comparison['sentence']}"
        for note in newest_notes
        for comparison in around_note(series, note)
    ]


def _values(series: SeriesStore, key: SeriesKey, since: float, until: float) -> list[float]:
    reading = read_window(series, key, since, until)
    quiet = reading.quiet(since, until)
    return [value for _, value in quiet]
