"""All targets small: one card each, with the series that stands for it, where it is and where it was.

Drawn from hours and days alone, so that many targets are as quick as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from skep.monitor.sentences import of_stats
from skep.report.markup import Markup, tag, text, trusted
from skep.report.series_chart import Band, Track
from skep.report.spark import spark
from skep.report.ticks import when
from skep.series import DAY_S, SeriesKey, Span, SpanKind
from skep.stats.rolling import window_stats
from skep.store.database import Store
from skep.store.series import SeriesStore
from skep.web.history_band import stepped, steps_of
from skep.web.history_data import chosen_key, first_moment, simulated_share
from skep.web.history_parts import shift_of, value_text
from skep.web.history_query import Asked, in_words

_BY_DAYS_S = 45 * DAY_S  # of a longer window the days are drawn
_SMOOTH = 24  # neighbours whose median is drawn


def target_cards(store: Store, asked: Asked, targets: Sequence[str]) -> Iterator[Markup]:
    series = SeriesStore(store)
    open_now = {alert.target for alert in series.alerts(open_only=True)}
    yield trusted('<div class="series-cards">')
    for name in targets:
        simulated = simulated_share(store, name, asked.since or 0.0, asked.until) > 0
        yield _card(series, asked, name, alarmed=name in open_now, simulated=simulated)
    yield trusted("</div>")


def _card(series: SeriesStore, asked: Asked, target: str, *, alarmed: bool, simulated: bool) -> Markup:
    key, _ = chosen_key(series, target, asked.series)
    link = tag("a", text(target), href=f"/history?{asked.of(target).query()}")
    flags = [tag("span", text("alert"), class_="flag rose")] if alarmed else []
    if simulated:
        flags.append(tag("span", text("simulated"), class_="flag sky"))
    heading = tag("h2", link, *flags)
    if key is None:
        return tag("article", heading, tag("p", text("no figure yet"), class_="nothing"), class_="series-card")
    since = first_moment(series, key, asked.until) if asked.since is None else asked.since
    kind = SpanKind.DAY if asked.until - since > _BY_DAYS_S else SpanKind.HOUR
    width_s = (_SMOOTH if kind is SpanKind.HOUR else 7) * kind.seconds
    known = [span for span in series.spans(key, kind, since - width_s, asked.until) if span.count]
    spans = [span for span in known if span.start >= since]
    if not spans:
        return tag("article", heading, tag("p", text("nothing in this window"), class_="nothing"), class_="series-card")
    steps = steps_of(series, key, since - width_s, asked.until)
    band = [row for row in _band(known, steps, width_s, kind.seconds / 2) if row[0] >= since]
    shifts = [shift_of(one) for one in series.changes(target, since) if one.key == key and one.at < asked.until]
    says = _words(key, spans, shifts[-1].words if shifts else None, asked.until - since)
    at, middle = spans[-1].start, band[-1][1]
    now = tag(
        "p",
        tag("b", text(value_text(key.metric, middle))),
        text(f"{key.metric.unit} · " if value_text(key.metric, middle)[-1:].isdigit() else " · "),
        tag("span", text(f"{in_words(key)}, {when(at)}")),
        class_="stands",
    )
    picture = spark(Track(target, (), band, steps=steps), since, asked.until, says, shifts=shifts)
    return tag("article", heading, now, picture, tag("p", text(says), class_="says"), class_="series-card")


def _band(spans: Sequence[Span], steps: Sequence[float], width_s: float, half_s: float) -> list[Band]:
    """The median of a day of hours or a week of days, with its quartiles; a point for every other pixel at most."""
    rows = stepped([(span.start + half_s, span.median) for span in spans], steps, width_s)
    return [*rows[: -1 : 1 + len(rows) // 160], rows[-1]]


def _words(key: SeriesKey, spans: Sequence[Span], change: str | None, length_s: float) -> str:
    if change is not None:
        return change
    stats = window_stats(span.median for span in spans)
    return "" if stats is None else of_stats(stats, key.metric, length_s)
