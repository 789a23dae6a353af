"""The history page: how targets did over days and months, what changed and when; without a target all, small.
A note, written by whoever changed something, is all that the dashboard writes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup
from msgspec import to_builtins
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from skep.monitor.describe import span_of_time
from skep.monitor.history import SeriesHistory, write_note
from skep.monitor.store import SeriesStore
from skep.report import theme
from skep.report.series_chart import Picture, Track, series_chart, shift_label, trend_svg
from skep.store.database import open_store
from skep.web import history_data
from skep.web.context import Site
from skep.web.history_data import HistoryQuery, HostLine, TargetHistory, begin, chosen_key, in_words, read_query
from skep.web.layout import page, render_macro, streamed
from skep.web.responses import csv_answer, form_of, json_answer, way_back

_MOST_ROWS = 300  # of the table behind a picture
_MOST_FLAGS = 60
_ROOM, _LEAST_ROOM_S = 0.02, 30.0  # of a time axis, before what is first seen on it


def axis_begin(since: float, until: float, *moments: float) -> float:
    """Return where a time axis begins: with the window, or shortly before the first thing in it."""
    first = min(moments, default=since)
    return max(since, first - max(_LEAST_ROOM_S, _ROOM * (until - first)))


def trend_picture(history: SeriesHistory) -> Markup:
    words = history.sentences[0] if history.sentences else ""
    tracks = [Track(history.key.target, (), history.band, steps=history.steps)]
    since = axis_begin(history.since, history.until, *(row[0] for row in history.band[:1]))
    return trend_svg(Picture(history.key.target, words, "", since, history.until, tracks, history.changes))


def picture_of(view: TargetHistory, history: SeriesHistory, *, flags: bool = True) -> Picture:
    title, track = in_words(history.key), track_of(history, theme.SKY)
    events = history.events[-_MOST_FLAGS:] if flags else ()
    seen = [*(row[0] for row in track.band[:1]), *(point.at for point in track.points[:1]), *view.failed[:1]]
    seen += [begin for begin, _ in view.missed[:1]]
    return Picture(
        title=title,
        words=" ".join(history.sentences) or title,
        unit=history.key.metric.unit,
        since=axis_begin(view.since, view.until, *seen),
        until=view.until,
        tracks=[track],
        changes=history.changes,
        events=list(enumerate(events, len(history.events) - len(events) + 1)),
        failed=view.failed,
        missed=view.missed,
        band_words=f"rolling median over {span_of_time(history.band_s)}, p25 to p75 shaded",
    )


def track_of(history: SeriesHistory, colour: str, name: str | None = None) -> Track:
    """Return points; where the window is long, hours or days instead: their middle, from p10 to p90."""
    band = history.band or [(span.start, span.median, span.p10, span.p90) for span in history.spans]
    return Track(name or history.key.target, history.points, band, colour, history.steps)


def host_picture(view: TargetHistory, line: HostLine, words: str) -> Markup:
    tracks = [Track(line.name, line.points, (), theme.HONEY)]
    since = axis_begin(view.since, view.until, *(point.at for point in line.points[:1]))
    drawn = Picture(f"{line.name} of the machine", words, line.unit, since, view.until, tracks)
    return series_chart(drawn, small=True)


CSV_COLUMNS = (
    "target", "series", "kind", "at_utc", "at", "until", "value", "count", "low", "p10", "p90", "high", "busy", "text",
)  # fmt: skip


def view_document(view: TargetHistory) -> dict[str, Any]:
    as_they_are = ("target", "since", "until", "failed", "missed", "throttled", "alerts")
    return {
        **{name: getattr(view, name) for name in as_they_are},
        "series": None if view.key is None else str(view.key),
        "all_series": [str(key) for key in view.keys],
        "simulated": view.simulated > 0,
        "simulated_share": view.simulated,
        "history": view.history and history_document(view.history),
        "cold": view.cold and history_document(view.cold),
        "cold_by_idle_time": [{"idle": name, **to_builtins(stats)} for name, stats in view.idle],
        "host": [
            {**to_builtins(line), "points": [[point.at, point.value] for point in line.points]} for line in view.host
        ],
    }


def history_document(history: SeriesHistory) -> dict[str, Any]:
    return {**history.document(), "words": in_words(history.key), **shown_values(history)}


def shown_values(history: SeriesHistory) -> dict[str, Any]:
    points = [[point.at, point.value, point.busy] for point in history.points]
    return {"points": points, "spans": history.spans, "band": history.band}


def csv_rows(view: TargetHistory) -> Iterator[tuple[Any, ...]]:
    """Yield one kind of row after the other; what a kind does not have is empty."""

    def row(kind: str, at: float, series: str = "", target: str | None = view.target, **more: Any) -> tuple[Any, ...]:
        at_utc = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
        told = {"target": target or "", "series": series, "kind": kind, "at_utc": at_utc, "at": at, **more}
        return tuple(told.get(column) for column in CSV_COLUMNS)

    for history in filter(None, (view.history, view.cold)):
        series = str(history.key)
        for point in history.points:
            yield row("point", point.at, series, value=point.value, busy=int(point.busy))
        for span in history.spans:
            figures = {name: getattr(span, name) for name in ("count", "low", "p10", "p90", "high", "busy")}
            yield row("span", span.start, series, value=span.median, **figures)
        for change in history.changes:
            bounds: dict[str, Any] = {"low": change.ratio_low, "high": change.ratio_high}
            yield row("change", change.at, series, value=change.ratio, **bounds, text=change.because)
    for at in view.failed:
        yield row("failed", at)
    for start, end in view.missed:
        yield row("missed", start, until=end)
    for line in view.host:
        for point in line.points:
            yield row("host", point.at, f"{line.name} ({line.unit})", value=point.value)
    for event in view.history.events if view.history else ():
        yield row(f"event: {event.kind.value}", event.at, target=event.target, text=event.text)
    for alert in view.alerts:
        more: dict[str, Any] = {"until": alert.closed_at, "value": alert.value, "text": alert.message}
        yield row(f"alert: {alert.rule.value}", alert.opened_at, target=alert.target, **more)


def routes(site: Site) -> list[BaseRoute]:
    def show(request: Request) -> Response:
        asked = read_query(request.query_params, site.clock())
        with site.series() as series:
            targets = history_data.known_targets(series, asked)
            if series is None or not targets:
                return page(site, "history.html", targets=(), asked=asked)
            key, keys = chosen_key(series, asked.targets[0], asked.series) if asked.targets else (None, ())
        # All of the page but its parts can be shown before the store is asked for a figure.
        probed = [name for name in targets if not name.startswith("gateway:")]
        frame = page(site, "history.html", asked=asked, targets=targets, key=key, keys=keys, probed=probed)
        return streamed(site, frame, lambda store: _parts(site, SeriesStore(store), asked, targets))

    def as_json(request: Request) -> Response:
        return json_answer({"views": [view_document(view) for view in _views(site, request)]})

    def as_csv(request: Request) -> Response:
        return csv_answer("history", CSV_COLUMNS, [row for view in _views(site, request) for row in csv_rows(view)])

    async def add_note(request: Request) -> Response:
        """Of one target, or of all where none is named. The moment is now."""
        form = await form_of(request)

        def write() -> None:
            with SeriesStore(open_store(site.paths.store)) as series:
                write_note(series, form.get("text", ""), form.get("target") or None, site.clock())

        await asyncio.to_thread(write)
        return RedirectResponse(way_back(form.get("next")), 303)

    shown = [Route("/history", show), Route("/api/history.json", as_json), Route("/api/history.csv", as_csv)]
    return [*shown] if site.public else [*shown, Route("/notes", add_note, methods=["POST"])]


def _parts(site: Site, series: SeriesStore, asked: HistoryQuery, targets: Sequence[str]) -> Iterator[str]:
    if not asked.targets:
        open_now = {alert.target for alert in series.alerts(open_only=True)}
        yield '<div class="series-cards">'
        for name in targets:
            yield _part("card", asked=asked, view=begin(series, asked, name), alarmed=name in open_now)
        yield "</div>"
    for place, name in enumerate(asked.targets):
        view = begin(series, asked, name)
        yield _part("first", view=view, place=place, anchor=f"t{place}", alone=len(asked.targets) == 1)
        yield _part("rest", view=_completed(site, series, view), place=place)


def _views(site: Site, request: Request) -> list[TargetHistory]:
    asked = read_query(request.query_params, site.clock())
    with site.series() as series:
        if series is None:
            return []
        targets = history_data.known_targets(series, asked)
        return [_completed(site, series, begin(series, asked, name)) for name in asked.targets or targets]


def _completed(site: Site, series: SeriesStore, view: TargetHistory) -> TargetHistory:
    """In public, alerts without their words, which may come from a server's answer."""
    view = history_data.complete(series, view)
    if not site.public:
        return view
    bare = tuple(replace(alert, message=alert.rule.value, closed_because=None) for alert in view.alerts)
    return replace(view, alerts=bare)


def _part(macro: str, **values: Any) -> str:
    return render_macro("history_parts.html", macro, MOST_ROWS=_MOST_ROWS, **values, **_FUNCTIONS)


_FUNCTIONS: dict[str, Any] = {one.__name__: one for one in (host_picture, picture_of, shift_label, trend_picture)}
