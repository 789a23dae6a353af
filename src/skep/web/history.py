"""The history page: how targets did over days and months, what changed and when; without a target all, small.

First what its address asks for, then what the store has of it, in a few quick queries, then how it is shown. A note,
written by whoever changed something, is all that the dashboard writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import msgspec
from markupsafe import Markup
from msgspec import to_builtins
from msgspec.structs import replace
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from skep.errors import UserError
from skep.monitor import records
from skep.monitor.describe import span_of_time
from skep.monitor.history import SeriesHistory, around_event, history_of, primary_keys, write_note
from skep.monitor.records import DAY_S, Heat, Probe, ProbeShape, SeriesKey, SeriesMetric, SeriesPoint
from skep.monitor.store import SeriesStore, all_targets, known_target
from skep.report import theme
from skep.report.series_chart import Picture, Track, local, series_chart, shift_label, trend_svg
from skep.store.database import open_store
from skep.web.context import Site
from skep.web.layout import in_words, page, render_macro, streamed
from skep.web.responses import form_of, json_answer, way_back

WINDOWS: dict[str, tuple[float | None, str]] = {  # by name: its length, None for all there is, and its words
    "1d": (DAY_S, "1 day"),
    "7d": (7 * DAY_S, "7 days"),
    "30d": (30 * DAY_S, "30 days"),
    "1y": (365 * DAY_S, "1 year"),
    "all": (None, "all"),
}
DEFAULT_WINDOW, DEFAULT_SERIES = "7d", "hot/short/c1/tok_s"
_MOST_TARGETS = 8
_FIRST_YEAR, _LAST_YEAR = 1971, 2999  # whatever the zone, a clock can tell them


class HistoryQuery(msgspec.Struct, frozen=True):
    """`series`: without its target; None: the one that stands for it. `since` None: from the first figure on."""

    targets: tuple[str, ...]
    series: str | None
    window: str  # one of WINDOWS, or "" where `begin` and `end` were given
    since: float | None
    until: float
    begin: str = ""
    end: str = ""

    def query(self) -> str:
        window = [("window", self.window)] if self.window else [("from", self.begin), ("to", self.end)]
        told = [*(("target", name) for name in self.targets), ("series", self.series or ""), *window]
        return urlencode([(name, value) for name, value in told if value])

    def of(self, *targets: str, series: str | None = None) -> HistoryQuery:
        return replace(self, targets=targets, series=series)

    def windows(self) -> list[tuple[str, str, bool]]:
        """Return the usual windows: in words, the query string that asks for it, whether it is this one."""
        names = ((name, words) for name, (_, words) in WINDOWS.items())
        return [(words, replace(self, window=name).query(), name == self.window) for name, words in names]

    @property
    def first_day(self) -> str:
        return self.begin[:10] or ("" if self.since is None else _day(self.since))

    @property
    def last_day(self) -> str:
        return self.end[:10] or _day(self.until)


def read_query(query: QueryParams, now: float) -> HistoryQuery:
    """Raises UserError for what cannot be understood, with what could be."""
    targets = tuple(dict.fromkeys(name for word in ("target", "a", "b") for name in query.getlist(word) if name))
    if len(targets) > _MOST_TARGETS:
        raise UserError(f"{len(targets)} targets are too many for one page", hint=f"at most {_MOST_TARGETS}")
    series = query.get("series") or None
    try:
        SeriesKey.parse(f"any/{series or DEFAULT_SERIES}")
    except ValueError:
        hint = f"such as {DEFAULT_SERIES}: heat, shape, streams at once, figure"
        raise UserError(f"`{series}` is not a series", hint=hint) from None
    begin, end, window = (query.get(name, "").strip() for name in ("from", "to", "window"))
    if (begin or end) and window in ("", "custom"):
        since = _moment(begin) if begin else None
        until = _moment(end, end=True) if end else now
        if since is not None and since >= until:
            raise UserError(f"`from={begin}` is not before `to={end or 'now'}`", hint="swap the two")
        return HistoryQuery(targets, series, "", since, until, begin, end)
    window = window or DEFAULT_WINDOW
    if window not in WINDOWS:
        hint = f"one of {', '.join(WINDOWS)}, or from=YYYY-MM-DD and to=YYYY-MM-DD"
        raise UserError(f"`window={window}` is not a window", hint=hint)
    length, _ = WINDOWS[window]
    return HistoryQuery(targets, series, window, None if length is None else now - length, now)


def in_order(keys: Sequence[SeriesKey], first: Sequence[SeriesKey]) -> list[SeriesKey]:
    """Those that stand for a target first, then hot before cold, short before long, one stream before several."""
    places = {key: place for place, key in enumerate(first)}
    heats, shapes, metrics = (Heat.HOT, Heat.COLD, Heat.SEEN), list(ProbeShape), list(SeriesMetric)

    def order(key: SeriesKey) -> tuple[int, ...]:
        run = heats.index(key.heat), shapes.index(key.shape), key.concurrency, metrics.index(key.metric)
        return places.get(key, len(places)), *run

    return sorted(keys, key=order)


def _moment(text: str, *, end: bool = False) -> float:
    """Return a day or a minute on the clock of this machine. The day of an end is in the window."""
    try:
        wall = datetime.fromisoformat(text)
    except ValueError:
        hint = "a day as 2026-11-03, or a minute as 2026-11-03T04:00"
        raise UserError(f"`{text}` is not a time", hint=hint) from None
    if not _FIRST_YEAR <= wall.year <= _LAST_YEAR:
        raise UserError(f"`{text}` is too far away", hint=f"a day from {_FIRST_YEAR} to {_LAST_YEAR}")
    return (wall + timedelta(days=end and len(text) <= 10)).timestamp()


def _day(at: float) -> str:
    return f"{local(at):%Y-%m-%d}"


_MOST_PROBES = 1500  # of which power and clocks are read
_MOST_AROUND = 8  # newest events that are compared before and after
_MOST_MARKS = 2000  # failed and missed ones
_IN_DETAIL_S = 31 * DAY_S  # longer windows show no single probes
_NOT_DONE = """
SELECT due_at, ended_at, outcome FROM probes
WHERE target = ?1 AND due_at >= ?2 AND due_at < ?3 AND outcome <> 'done'
UNION ALL
SELECT due_at, ended_at, outcome FROM probes WHERE target = ?1 AND slots > 1 AND ended_at >= ?2 AND due_at < ?2
ORDER BY due_at DESC LIMIT ?4
"""
_SIMULATED = """
SELECT count(*) AS made, coalesce(sum(simulated), 0) AS simulated FROM (
    SELECT simulated FROM probes WHERE target = ?1 AND due_at >= ?2 AND due_at < ?3 AND outcome <> 'missed'
    ORDER BY due_at DESC LIMIT ?4
)
"""
_HOST_FIGURES = (("mean power", "W", "mean_w"), ("lowest clock", "MHz", "sm_clock_min_mhz"),
                 ("highest temperature", "°C", "temperature_max_c"))  # fmt: skip


class HostLine(msgspec.Struct, frozen=True):
    name: str
    unit: str
    points: tuple[SeriesPoint, ...]


class TargetHistory(msgspec.Struct, frozen=True):
    """One target over the window. `history` is None where nothing was measured yet."""

    target: str
    key: SeriesKey | None
    keys: tuple[SeriesKey, ...]
    since: float
    until: float
    history: SeriesHistory | None = None
    cold: SeriesHistory | None = None
    failed: tuple[float, ...] = ()
    missed: tuple[tuple[float, float], ...] = ()
    around: Mapping[int, str] = {}  # by id of an event: before and after it, in words
    host: tuple[HostLine, ...] = ()
    throttled: tuple[str, ...] = ()  # reasons that were seen
    alerts: tuple[records.Alert, ...] = ()
    simulated: float = 0.0  # share of the probes in the window that no model answered


def known_targets(series: SeriesStore, asked: HistoryQuery) -> list[str]:
    """Return all targets. Raise UserError where one that is asked for is not among them."""
    known = all_targets(series)
    for name in asked.targets:
        known_target(name, known)
    return known


def chosen_key(series: SeriesStore, target: str, asked: str | None) -> tuple[SeriesKey | None, tuple[SeriesKey, ...]]:
    """The series to show, and all there are. One that the target does not have falls back to what stands for it."""
    first = primary_keys(series, target)
    keys = tuple(in_order(series.keys(target), first))
    if asked is not None and (wanted := SeriesKey.parse(f"{target}/{asked}")) in keys:
        return wanted, keys
    return (first[0] if first else keys[0] if keys else None), keys


def first_moment(series: SeriesStore, key: SeriesKey | None, until: float) -> float:
    """When a series began, by its days."""
    days = series.spans(key, records.SpanKind.DAY, 0.0, until) if key else []
    return days[0].start if days else until - DAY_S


def begin(series: SeriesStore, asked: HistoryQuery, target: str) -> TargetHistory:
    key, keys = chosen_key(series, target, asked.series)
    since = first_moment(series, key, asked.until) if asked.since is None else asked.since
    rows = series.store.read(_NOT_DONE, target, since, asked.until, _MOST_MARKS)[::-1]
    return TargetHistory(
        target=target,
        key=key,
        keys=keys,
        since=since,
        until=asked.until,
        history=None if key is None else history_of(series, key, since, asked.until),
        failed=tuple(row["due_at"] for row in rows if row["outcome"] == records.ProbeOutcome.FAILED),
        missed=tuple((row["due_at"], row["ended_at"]) for row in rows if row["outcome"] == records.ProbeOutcome.MISSED),
        simulated=simulated_share(series, target, since, asked.until),
    )


def complete(series: SeriesStore, view: TargetHistory) -> TargetHistory:
    """With the rest: cold runs, the machine, what happened before and after an event, alerts."""
    key, history = view.key, view.history
    if key is None or history is None:
        return view
    brief = view.until - view.since <= _IN_DETAIL_S
    probes = series.probes(view.target, view.since, view.until, _MOST_PROBES) if brief else []
    cold_key = cold_beside(key, view.keys)
    cold = history_of(series, cold_key, view.since, view.until) if cold_key else None
    # Notes and versions divide a series: what was before and what came after are compared by themselves.
    divided = () if key.heat is Heat.SEEN else (records.EventKind.NOTE, records.EventKind.VERSION)
    events = [event for event in history.events if event.kind in divided][-_MOST_AROUND:]
    alerts = series.alerts(since=view.since)
    return replace(
        view,
        cold=cold,
        around={event.id: around_event(series, event, key).sentence for event in events if event.id is not None},
        host=_host_lines(probes),
        throttled=tuple(dict.fromkeys(str(one) for probe in probes for one in probe.host.get("throttled") or ())),
        alerts=tuple(alert for alert in alerts if alert.target in (view.target, None) and alert.opened_at < view.until),
    )


def _host_lines(probes: Sequence[Probe]) -> tuple[HostLine, ...]:
    """Power, clock and heat of the cards at the time of each probe, where the machine tells."""
    found = []
    for name, unit, key in _HOST_FIGURES:
        told = [(probe, value) for probe in reversed(probes) if (value := probe.host_number(key)) is not None]
        points = (SeriesPoint(one.started_at or one.due_at, value, one.busy, one.id) for one, value in told)
        if told:
            found.append(HostLine(name, unit, tuple(points)))
    return tuple(found)


def simulated_share(series: SeriesStore, target: str, since: float, until: float) -> float:
    """Of the probes in the window that were made. A long window is judged by its newest ones."""
    row = series.store.read(_SIMULATED, target, since, until, _MOST_MARKS)[0]
    return row["simulated"] / row["made"] if row["made"] else 0.0


def cold_beside(key: SeriesKey, keys: Sequence[SeriesKey]) -> SeriesKey | None:
    """Return the cold series that tells the same figure."""
    if key.heat is not Heat.HOT:
        return None
    cold = [one for one in keys if one.heat is Heat.COLD]
    same = [one for one in cold if one.metric is key.metric]
    if not same and key.metric is SeriesMetric.ENGINE_TOK_S:
        same = [one for one in cold if one.metric is SeriesMetric.TOK_S]
    short = [one for one in same if one.shape in (key.shape, ProbeShape.SHORT)]
    return next(iter(short or same), None)


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
        "host": [
            {**to_builtins(line), "points": [[point.at, point.value] for point in line.points]} for line in view.host
        ],
    }


def history_document(history: SeriesHistory) -> dict[str, Any]:
    return {**history.document(), "words": in_words(history.key), **shown_values(history)}


def shown_values(history: SeriesHistory) -> dict[str, Any]:
    points = [[point.at, point.value, point.busy] for point in history.points]
    return {"points": points, "spans": history.spans, "band": history.band}


def routes(site: Site) -> list[BaseRoute]:
    def show(request: Request) -> Response:
        asked = read_query(request.query_params, site.clock())
        with site.series() as series:
            targets = known_targets(series, asked)
            if not targets:
                return page(site, "history.html", targets=(), asked=asked)
            key, keys = chosen_key(series, asked.targets[0], asked.series) if asked.targets else (None, ())
        # All of the page but its parts can be shown before the store is asked for a figure.
        probed = [name for name in targets if not name.startswith("gateway:")]
        frame = page(site, "history.html", asked=asked, targets=targets, key=key, keys=keys, probed=probed)
        return streamed(site, frame, lambda store: _parts(site, SeriesStore(store), asked, targets))

    def as_json(request: Request) -> Response:
        return json_answer({"views": [view_document(view) for view in _views(site, request)]})

    async def add_note(request: Request) -> Response:
        """Of one target, or of all where none is named. The moment is now."""
        form = await form_of(request)

        def write() -> None:
            with SeriesStore(open_store(site.paths.store)) as series:
                write_note(series, form.get("text", ""), form.get("target") or None, site.clock())

        await asyncio.to_thread(write)
        return RedirectResponse(way_back(form.get("next")), 303)

    shown = [Route("/history", show), Route("/api/history.json", as_json)]
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
        targets = known_targets(series, asked)
        return [_completed(site, series, begin(series, asked, name)) for name in asked.targets or targets]


def _completed(site: Site, series: SeriesStore, view: TargetHistory) -> TargetHistory:
    """In public, alerts without their words, which may come from a server's answer."""
    view = complete(series, view)
    if not site.public:
        return view
    bare = tuple(replace(alert, message=alert.rule.value, closed_because=None) for alert in view.alerts)
    return replace(view, alerts=bare)


def _part(macro: str, **values: Any) -> str:
    return render_macro("history_parts.html", macro, MOST_ROWS=_MOST_ROWS, **values, **_FUNCTIONS)


_FUNCTIONS: dict[str, Any] = {one.__name__: one for one in (host_picture, picture_of, shift_label, trend_picture)}
