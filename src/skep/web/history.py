"""The history page: how targets did over days and months, what changed and when.

Without a target it shows all of them, small. Everything on screen is also JSON and CSV, under the same query string.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from skep.monitor.describe import describe_stats
from skep.monitor.history import SeriesHistory
from skep.monitor.records import DAY_S, SeriesChange, SeriesKey, SeriesSpan, SpanKind
from skep.monitor.store import SeriesStore
from skep.report import theme
from skep.report.markup import Markup, join, section, tag, text, trusted
from skep.report.series_chart import Band, ChangeMark, Frame, Track, band_path, frame_of, line_path, value_range
from skep.report.ticks import tick_number, time_ticks, when
from skep.stats.rolling import window_stats
from skep.store.database import Store
from skep.units import printable
from skep.web.context import Site
from skep.web.history_data import (
    TargetHistory,
    all_targets,
    begin,
    chosen_key,
    complete,
    first_moment,
    gather,
    known_target,
    simulated_share,
    stepped,
    steps_of,
)
from skep.web.history_parts import (
    alerts_table,
    changes_table,
    events_table,
    history_figure,
    host_figures,
    idle_table,
    key_title,
    pick_form,
    shift_of,
    simulated_banner,
    stats_table,
    value_text,
)
from skep.web.history_query import HistoryQuery, in_words, read_query
from skep.web.layout import PLACE, downloads, page, streamed
from skep.web.notes import note_form
from skep.web.responses import csv_answer, json_answer

SIZE = (320, 96)
_MOST_DAYS = 5  # moments told beneath it


def spark(
    track: Track,
    since: float,
    until: float,
    words: str,
    *,
    shifts: Sequence[ChangeMark] = (),
    zone: tzinfo | None = None,
) -> Markup:
    """Lowest and highest tick at the side, first and last day beneath; the last value is a dot."""
    edges = [edge for one in track.band for edge in one[1:]]
    scale = value_range(edges, 2)
    width, height = SIZE
    frame = frame_of((since, until), SIZE, 8, scale, narrow=True)
    parts = [
        f'<svg class="trend" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(printable(words))}">',
        *_ticks(frame, zone),
    ]
    if track.band:
        parts.append(f'<path d="{band_path(track, frame)}" fill="{track.colour}" fill-opacity=".16"/>')
        look = f'stroke="{track.colour}" stroke-width="2" stroke-linejoin="round" stroke-linecap="round"'
        parts.append(f'<path d="{line_path(track, frame)}" fill="none" {look}/>')
        at, middle = track.band[-1][:2]
        parts.append(f'<circle cx="{frame.x(at):.1f}" cy="{frame.y(middle):.1f}" r="3.4" fill="{track.colour}"/>')
    for shift in shifts:
        if since <= shift.at <= until:
            colour = theme.ROSE if shift.worse else theme.MOSS
            line = f'M{frame.x(shift.at):.1f} {frame.top}V{frame.bottom}" stroke="{colour}" stroke-dasharray="3 3'
            parts.append(f'<path d="{line}"><title>{escape(printable(shift.words))}</title></path>')
    parts.append("</svg>")
    return trusted("".join(parts))


def _ticks(frame: Frame, zone: tzinfo | None) -> list[str]:
    parts = []
    for tick in frame.scale.ticks:
        y = frame.y(tick)
        parts.append(
            f'<path d="M{frame.left} {y:.1f}H{frame.right}" stroke="{theme.GRID}"/>'
            f'<text x="{frame.left - 5}" y="{y + 4:.1f}" font-size="11" text-anchor="end" fill="{theme.MUTED}">'
            f"{tick_number(tick, frame.scale.ticks)}</text>"
        )
    parts.append(f'<path d="M{frame.left} {frame.bottom}H{frame.right}" stroke="{theme.STONE}"/>')
    for one in time_ticks(frame.since, frame.until, _MOST_DAYS, zone):
        half = 3.4 * len(one.label)
        x = min(max(frame.x(one.at), half), frame.width - half)
        look = f'font-size="11" text-anchor="middle" fill="{theme.MUTED}"'
        parts.append(f'<text x="{x:.1f}" y="{frame.bottom + 16}" {look}>{escape(one.label)}</text>')
    return parts


_BY_DAYS_S = 45 * DAY_S  # of a longer window the days are drawn
_SMOOTH = 24  # neighbours whose median is drawn


def target_cards(store: Store, asked: HistoryQuery, targets: Sequence[str]) -> Iterator[Markup]:
    series = SeriesStore(store)
    open_now = {alert.target for alert in series.alerts(open_only=True)}
    yield trusted('<div class="series-cards">')
    for name in targets:
        simulated = simulated_share(store, name, asked.since or 0.0, asked.until) > 0
        yield _card(series, asked, name, alarmed=name in open_now, simulated=simulated)
    yield trusted("</div>")


def _card(series: SeriesStore, asked: HistoryQuery, target: str, *, alarmed: bool, simulated: bool) -> Markup:
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


def _band(spans: Sequence[SeriesSpan], steps: Sequence[float], width_s: float, half_s: float) -> list[Band]:
    """The median of a day of hours or a week of days, with its quartiles; a point for every other pixel at most."""
    rows = stepped([(span.start + half_s, span.median) for span in spans], steps, width_s)
    return [*rows[: -1 : 1 + len(rows) // 160], rows[-1]]


def _words(key: SeriesKey, spans: Sequence[SeriesSpan], change: str | None, length_s: float) -> str:
    if change is not None:
        return change
    stats = window_stats(span.median for span in spans)
    return "" if stats is None else describe_stats(stats, key.metric, length_s)


CSV_COLUMNS = (
    "target", "series", "kind", "at_utc", "at", "until", "value", "count", "low", "p10", "p90", "high", "busy", "text",
)  # fmt: skip


def view_document(view: TargetHistory) -> dict[str, Any]:
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


def history_document(history: SeriesHistory) -> dict[str, Any]:
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


def change_document(change: SeriesChange) -> dict[str, Any]:
    names = ("at", "between", "before", "after", "ratio", "ratio_low", "ratio_high", "worse", "because")
    return {"series": str(change.key), **{name: getattr(change, name) for name in names}}


def csv_rows(view: TargetHistory) -> Iterator[tuple[Any, ...]]:
    """One kind of row after the other; what a kind does not have is empty."""
    for history in (view.history, view.cold):
        if history is not None:
            yield from _history_rows(view, history)
    for at in view.failed:
        yield _row(view.target, "", "failed", at)
    for start, end in view.missed:
        yield _row(view.target, "", "missed", start, until=end)
    for line in view.host:
        for point in line.points:
            yield _row(view.target, f"{line.name} ({line.unit})", "host", point.at, value=point.value)
    if view.history is not None:
        for event in view.history.events:
            yield _row(event.target or "", "", f"event: {event.kind.value}", event.at, text=event.text)
    for alert in view.alerts:
        yield _row(alert.target or "", "", f"alert: {alert.rule.value}", alert.opened_at,
                   until=alert.closed_at, value=alert.value, text=alert.message)  # fmt: skip


def _history_rows(view: TargetHistory, history: SeriesHistory) -> Iterator[tuple[Any, ...]]:
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


_LEAD = (
    "Each target over time: its median, and the middle half of its values around it. Pick one for all there is of it."
)
_STYLES, _SCRIPTS = ("history.css",), ("history.js",)


def routes(site: Site) -> list[BaseRoute]:
    def show(request: Request) -> Response:
        asked = read_query(request.query_params, site.clock())
        with site.store() as store:
            targets = all_targets(SeriesStore(store)) if store else []
            for name in asked.targets:
                known_target(name, targets)
            if store is None or not targets:
                return page(site, "history", "History", _nothing_yet(), styles=_STYLES)
            keys = chosen_key(SeriesStore(store), asked.targets[0], asked.series) if asked.targets else (None, ())
        return streamed(site, _frame(site, asked, targets, *keys), _parts(site, asked, targets))

    def as_json(request: Request) -> Response:
        asked = read_query(request.query_params, site.clock())
        with site.store() as store:
            return json_answer({"views": [view_document(view) for view in _views(site, store, asked)]})

    def as_csv(request: Request) -> Response:
        asked = read_query(request.query_params, site.clock())
        with site.store() as store:
            rows = [row for view in _views(site, store, asked) for row in csv_rows(view)]
        return csv_answer("history", CSV_COLUMNS, rows)

    return [Route("/history", show), Route("/api/history.json", as_json), Route("/api/history.csv", as_csv)]


def _frame(
    site: Site, asked: HistoryQuery, targets: Sequence[str], key: SeriesKey | None, keys: Sequence[SeriesKey]
) -> HTMLResponse:
    """All of the page but its parts: what can be shown before the store was asked for a figure."""
    parts = [pick_form(asked, targets, key, keys), PLACE]
    if len(asked.targets) > 1:
        link = tag("a", text("These targets on one axis"), href=f"/compare?{asked.query()}")
        parts.append(tag("p", link, class_="below"))
    probed = [name for name in targets if not name.startswith("gateway:")]
    note = note_form(site, probed, f"/history?{asked.query()}", asked.targets[0] if len(asked.targets) == 1 else "")
    whole = join([*parts, *([note] if note else []), downloads("history", asked.query())])
    title = "History" if len(asked.targets) != 1 else f"History of {asked.targets[0]}"
    lead = "" if asked.targets else _LEAD
    return page(site, "history", title, whole, scripts=_SCRIPTS, styles=_STYLES, lead=lead)


def _parts(site: Site, asked: HistoryQuery, targets: Sequence[str]) -> Iterator[Markup]:
    with site.store() as store:
        if store is None:
            return
        if not asked.targets:
            yield from target_cards(store, asked, targets)
        for place, name in enumerate(asked.targets):
            view = begin(store, asked, name)
            yield _first(view, place, alone=len(asked.targets) == 1)
            yield _rest(_shown(site, complete(store, view)), place)


def _views(site: Site, store: Store | None, asked: HistoryQuery) -> list[TargetHistory]:
    """Of the targets that were asked for, or of all."""
    if store is None:
        return []
    targets = all_targets(SeriesStore(store))
    for name in asked.targets:
        known_target(name, targets)
    return [_shown(site, gather(store, asked, name)) for name in asked.targets or targets]


def _shown(site: Site, view: TargetHistory) -> TargetHistory:
    """In public, alerts without their words, which may come from a server's answer."""
    if not site.public:
        return view
    bare = tuple(replace(alert, message=alert.rule.value, closed_because=None) for alert in view.alerts)
    return replace(view, alerts=bare)


def _first(view: TargetHistory, place: int, *, alone: bool) -> Markup:
    """What the series did, in words and as a picture."""
    anchor = f"t{place}"
    if view.key is None or view.history is None:
        told = "was probed without a figure so far" if view.failed else "was not probed yet"
        return section(anchor, view.target, tag("p", text(f"{view.target} {told}."), class_="below"))
    history = view.history
    lead, rest = history.sentences[:1], history.sentences[1:]
    return section(
        anchor,
        in_words(view.key) if alone else key_title(view.key),
        simulated_banner(view),
        tag("p", text(lead[0]), class_="told-first") if lead else None,
        history_figure(view, history, f"c{place}", title=in_words(view.key), steps=view.steps, headed=True),
        tag("ul", *(tag("li", text(one)) for one in rest), class_="told") if rest else None,
        stats_table(history),
    )


def _rest(view: TargetHistory, place: int) -> Markup:
    if view.history is None:
        return join([])
    parts = [
        _titled("What changed", changes_table(view.history.changes)),
        _titled("What happened", events_table(view.history.events, view.around)),
        _titled("Alerts", alerts_table(view.alerts)),
        _cold(view, place),
        _machine(view),
    ]
    return tag("section", *parts, aria_label=f"More of {view.target}")


def _cold(view: TargetHistory, place: int) -> Markup | None:
    """The first request after a pause, beside the hot ones that hide it."""
    if view.cold is None:
        return None
    figure = history_figure(
        view, view.cold, f"c{place}-cold", title=in_words(view.cold.key), flags=False, steps=view.cold_steps
    )
    told = tag("ul", *(tag("li", text(one)) for one in view.cold.sentences), class_="told")
    return join(
        [
            tag("h3", text("Cold: the first request after a pause")),
            *([told] if view.cold.sentences else []),
            figure,
            idle_table(view.idle, view.cold.key.metric) or join([]),
        ]
    )


def _machine(view: TargetHistory) -> Markup | None:
    figures = host_figures(view)
    if figures is None:
        return None
    said = f"Throttled by: {', '.join(view.throttled)}." if view.throttled else "No throttling was seen."
    return join(
        [tag("h3", text("The machine at the time of the probes")), figures, tag("p", text(said), class_="below")]
    )


def _titled(title: str, body: Markup | None) -> Markup | None:
    return None if body is None else join([tag("h3", text(title)), body])


def _nothing_yet() -> Markup:
    return tag(
        "div",
        tag("p", text("Nothing is watched yet. A target is probed every hour once it was added:")),
        tag("pre", tag("code", text("skep monitor add NAME --url http://127.0.0.1:8400/v1\nskep monitor run"))),
        class_="panel",
    )
