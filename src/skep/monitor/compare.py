"""One against another: two targets over the same time, and a target before and after something happened to it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import tzinfo
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.errors import UserError
from skep.monitor import describe
from skep.monitor.history import interval_of, primary_keys, read_window, series_began
from skep.monitor.records import DAY_S, EventKind, Heat, MonitorEvent, ProbeShape, ProbeTarget, SeriesKey, SeriesMetric
from skep.monitor.store import SeriesStore
from skep.monitor.targets import all_targets, known_target
from skep.stats.versus import Judgement, SeriesComparison, versus

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
    if not (words := describe.one_line(text)):
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
