"""The history page: how targets did over days and months, what changed and when; without a target
all, small.

A note, written by whoever changed something, is all that the dashboard writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec
from markupsafe import Markup
from msgspec.structs import replace
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from skep.errors import UserError
from skep.monitor.cold_start import ColdStart, cold_start_of
from skep.monitor.describe import describe_probing, in_words, span_of_time
from skep.monitor.headline import SpeedHeadline
from skep.monitor.history import SeriesHistory, around_event, history_of, primary_keys, write_note
from skep.monitor.records import DAY_S, Alert, EventKind, Heat, ProbeOutcome, SeriesKey
from skep.monitor.store import SeriesStore, all_targets, known_target
from skep.report import theme
from skep.report.series_chart import Picture, Track, shift_label, trend_svg
from skep.store.database import open_store
from skep.web.context import Site
from skep.web.layout import page, render_macro, streamed
from skep.web.responses import form_of, json_answer, way_back

WINDOWS: dict[str, tuple[float, str]] = {  # by name: its length and its words
    "1d": (DAY_S, "1 day"),
    "7d": (7 * DAY_S, "7 days"),
    "30d": (30 * DAY_S, "30 days"),
    "1y": (365 * DAY_S, "1 year"),
    "all": (3650 * DAY_S, "all"),
}
DEFAULT_WINDOW = "7d"
DEFAULT_SERIES = "hot/short/c1/tok_s"
_MOST_TARGETS = 8


class HistoryQuery(msgspec.Struct, frozen=True):
    """`series`: without its target; None: the one that stands for it."""

    targets: tuple[str, ...]
    series: str | None
    window: str  # one of WINDOWS
    since: float
    until: float

    def query(self) -> str:
        fields = [
            *(("target", name) for name in self.targets),
            ("series", self.series),
            ("window", self.window),
        ]
        return urlencode([(name, value) for name, value in fields if value])

    def of(self, *targets: str, series: str | None = None) -> HistoryQuery:
        return replace(self, targets=targets, series=series)

    def windows(self) -> list[tuple[str, str, bool]]:
        """Return the windows: in words, the query string that asks for it,
        whether it is this one.
        """
        names = ((name, words) for name, (_, words) in WINDOWS.items())
        return [
            (words, replace(self, window=name).query(), name == self.window)
            for name, words in names
        ]


def read_query(query: QueryParams, now: float) -> HistoryQuery:
    """Return what an address asks for; raise UserError, with what could be meant, where it cannot
    be understood.
    """
    targets = tuple(dict.fromkeys(filter(None, query.getlist("target"))))
    if len(targets) > _MOST_TARGETS:
        raise UserError(
            f"{len(targets)} targets are too many for one page", hint=f"at most {_MOST_TARGETS}"
        )
    series = query.get("series") or None
    window = query.get("window") or DEFAULT_WINDOW
    try:
        SeriesKey.parse(f"any/{series or DEFAULT_SERIES}")
    except ValueError:
        hint = f"such as {DEFAULT_SERIES}: heat, shape, streams at once, figure"
        raise UserError(f"`{series}` is not a series", hint=hint) from None
    if window not in WINDOWS:
        raise UserError(f"`window={window}` is not a window", hint=f"one of {', '.join(WINDOWS)}")
    length, _ = WINDOWS[window]
    return HistoryQuery(targets, series, window, now - length, now)


_MOST_AROUND = 8  # newest events that are compared before and after
_MOST_MARKS = 2000  # failed and missed ones
_MOST_ROWS = 300  # of the table behind a picture
_MOST_FLAGS = 60
# of a time axis, before what is first seen on it
_ROOM = 0.02
_LEAST_ROOM_S = 30.0
_NOT_DONE = """
SELECT due_at, ended_at, outcome FROM probes
WHERE target = ?1 AND due_at >= ?2 AND due_at < ?3 AND outcome <> 'done'
UNION ALL
SELECT due_at, ended_at, outcome FROM probes
WHERE target = ?1 AND slots > 1 AND ended_at >= ?2 AND due_at < ?2
ORDER BY due_at DESC LIMIT ?4
"""
_THROTTLED = """
SELECT DISTINCT reason.value FROM probes, json_each(probes.host, '$.throttled') AS reason
WHERE target = ? AND due_at >= ? AND due_at < ?
"""


class TargetHistory(msgspec.Struct, frozen=True):
    """One target over the window. `key` and `history` are None where nothing was measured yet."""

    target: str
    key: SeriesKey | None
    keys: tuple[SeriesKey, ...]
    since: float
    until: float
    history: SeriesHistory | None
    failed: tuple[float, ...]
    missed: tuple[tuple[float, float], ...]
    around: Mapping[int, str]  # by id of an event: before and after it, in words
    throttled: tuple[str, ...]  # reasons that were seen
    alerts: tuple[Alert, ...]
    simulated: bool  # no model answered some of the probes
    cold_start: ColdStart | None  # of the last 7 days

    def document(self) -> dict[str, Any]:
        as_they_are = (
            "target",
            "since",
            "until",
            "failed",
            "missed",
            "throttled",
            "alerts",
            "simulated",
        )
        return {
            **{name: getattr(self, name) for name in as_they_are},
            "series": None if self.key is None else str(self.key),
            "all_series": [str(key) for key in self.keys],
            "cold_start": self.cold_start and self.cold_start.document(),
            "history": self.history and history_document(self.history),
        }


def known_targets(series: SeriesStore, query: HistoryQuery) -> list[str]:
    """Return all targets. Raise UserError where one that is asked for is not among them."""
    targets = all_targets(series)
    for name in query.targets:
        known_target(name, targets)
    return targets


def chosen_key(
    series: SeriesStore, target: str, chosen_series: str | None
) -> tuple[SeriesKey | None, tuple[SeriesKey, ...]]:
    """Return the series to show, and all there are: those that stand for the target first, then
    hot before cold.

    Where the target does not have the chosen one, what stands for the target is shown.
    """
    first = primary_keys(series, target)
    all_of_it = series.keys(target)
    others = sorted(set(all_of_it) - set(first), key=lambda key: (key.heat is Heat.COLD, key))
    keys = (*first, *others)
    return next((key for key in keys if key.kind == chosen_series), next(iter(keys), None)), keys


def how_probed(series: SeriesStore, names: Sequence[str]) -> list[str]:
    return describe_probing([series.target(name, removed=True) for name in names])


def labelled(site: Site, headline: SpeedHeadline) -> SpeedHeadline:
    target, second_model = headline.models
    return replace(
        headline, models=(target and site.label(target), second_model and site.label(second_model))
    )


def view_of(site: Site, series: SeriesStore, query: HistoryQuery, target: str) -> TargetHistory:
    key, keys = chosen_key(series, target, query.series)
    since = query.since
    until = query.until
    if key is None:
        history = None
    else:
        history = history_of(series, key, since, until)
    rows = series.store.read(_NOT_DONE, target, since, until, _MOST_MARKS)[::-1]
    # Notes and versions divide a series: what was before and what came after are compared by
    # themselves.
    events = [
        event
        for event in (history.events if history else ())
        if event.kind in (EventKind.NOTE, EventKind.VERSION)
    ]
    around = {
        event.id: around_event(series, event, key)["sentence"]
        for event in events[-_MOST_AROUND:]
        if key and event.id
    }
    alerts = [
        alert
        for alert in series.alerts(since=since)
        if alert.target in (target, None) and alert.opened_at < until
    ]
    if site.hides_private:  # without their words, which may come from a server's answer
        alerts = [
            replace(alert, message=alert.rule.value, closed_because=None) for alert in alerts
        ]
    return TargetHistory(
        target=target,
        key=key,
        keys=keys,
        since=since,
        until=until,
        history=history,
        failed=tuple(row["due_at"] for row in rows if row["outcome"] == ProbeOutcome.FAILED),
        missed=tuple(
            (row["due_at"], row["ended_at"])
            for row in rows
            if row["outcome"] == ProbeOutcome.MISSED
        ),
        around=around,
        throttled=tuple(row[0] for row in series.store.read(_THROTTLED, target, since, until)),
        alerts=tuple(alerts),
        simulated=series.is_simulated(target, since, until),
        cold_start=cold_start_of(series, target, until - 7 * DAY_S, until),
    )


def axis_begin(since: float, until: float, *moments: float) -> float:
    """Return where a time axis begins: with the window,
    or shortly before the first thing in it.
    """
    first = min(moments, default=since)
    return max(since, first - max(_LEAST_ROOM_S, _ROOM * (until - first)))


def trend_picture(history: SeriesHistory) -> Markup:
    words = history.sentences[0] if history.sentences else ""
    tracks = [Track(history.key.target, (), history.band, steps=history.steps)]
    since = axis_begin(history.since, history.until, *(row[0] for row in history.band[:1]))
    return trend_svg(
        Picture(history.key.target, words, "", since, history.until, tracks, history.changes)
    )


def picture_of(view: TargetHistory, history: SeriesHistory) -> Picture:
    title = in_words(history.key)
    track = track_of(history, theme.SKY)
    events = history.events[-_MOST_FLAGS:]
    visible = [
        *(row[0] for row in track.band[:1]),
        *(point.at for point in track.points[:1]),
        *view.failed[:1],
    ]
    visible += [begin for begin, _ in view.missed[:1]]
    return Picture(
        title=title,
        words=" ".join(history.sentences) or title,
        unit=history.key.metric.unit,
        since=axis_begin(view.since, view.until, *visible),
        until=view.until,
        tracks=[track],
        changes=history.changes,
        events=list(enumerate(events, len(history.events) - len(events) + 1)),
        failed=view.failed,
        missed=view.missed,
        band_words=f"rolling median over {span_of_time(history.band_s)}, p25 to p75 shaded",
    )


def track_of(history: SeriesHistory, colour: str) -> Track:
    """Return points; where the window is long, hours or days instead: their middle, from p10 to
    p90.
    """
    band = history.band or [
        (span.start, span.median, span.p10, span.p90) for span in history.spans
    ]
    return Track(history.key.target, history.points, band, colour, history.steps)


def history_document(history: SeriesHistory) -> dict[str, Any]:
    return {**history.document(), "words": in_words(history.key), **shown_values(history)}


def shown_values(history: SeriesHistory) -> dict[str, Any]:
    points = [[point.at, point.value, point.busy] for point in history.points]
    return {"points": points, "spans": history.spans, "band": history.band}


def routes(site: Site) -> list[Route]:
    def show(request: Request) -> Response:
        query = read_query(request.query_params, site.clock())
        with site.series() as series:
            targets = known_targets(series, query)
            key, keys = (
                chosen_key(series, query.targets[0], query.series) if query.targets else (None, ())
            )
            probing = how_probed(series, query.targets or targets)
        frame = page(
            site, "history.html", asked=query, targets=targets, key=key, keys=keys, probing=probing
        )
        return streamed(
            site, frame, lambda store: _parts(site, SeriesStore(store), query, targets)
        )

    def as_json(request: Request) -> Response:
        query = read_query(request.query_params, site.clock())
        with site.series() as series:
            targets = known_targets(series, query)
            views = [
                view_of(site, series, query, name).document() for name in query.targets or targets
            ]
        return json_answer({"views": views})

    async def add_note(request: Request) -> Response:
        """Store a note of one target, or of all where none is named. Its moment is now."""
        form = await form_of(request)

        def write() -> None:
            with SeriesStore(open_store(site.paths.store)) as series:
                write_note(series, form.get("text", ""), form.get("target") or None, site.clock())

        await asyncio.to_thread(write)
        return RedirectResponse(way_back(form.get("next")), 303)

    page_routes = [Route("/history", show), Route("/api/history.json", as_json)]
    return [*page_routes, Route("/notes", add_note, methods=["POST"])]


def _parts(
    site: Site, series: SeriesStore, query: HistoryQuery, targets: list[str]
) -> Iterator[str]:
    open_now = {alert.target for alert in series.alerts(open_only=True)}
    for place, name in enumerate(query.targets or targets):
        values = {
            "asked": query,
            "view": view_of(site, series, query, name),
            "alarmed": name in open_now,
        }
        macro = "target" if query.targets else "card"
        functions = {
            "picture_of": picture_of,
            "shift_label": shift_label,
            "trend_picture": trend_picture,
        }
        yield render_macro(
            "history_parts.html", macro, MOST_ROWS=_MOST_ROWS, place=place, **values, **functions
        )
