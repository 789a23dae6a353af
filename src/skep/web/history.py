"""The history page: how targets did over days and months, what changed and when.

Without a target it shows all of them, small. Everything on screen is also JSON and CSV, under the same query string.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from skep.report.markup import Markup, join, section, tag, text
from skep.series import SeriesKey
from skep.store.database import Store
from skep.store.series import SeriesStore
from skep.web.answers import csv_answer, json_answer
from skep.web.history_cards import target_cards
from skep.web.history_data import View, all_targets, begin, chosen_key, complete, gather, known_target
from skep.web.history_documents import CSV_COLUMNS, csv_rows, view_document
from skep.web.history_parts import (
    alerts_table,
    changes_table,
    events_table,
    history_figure,
    host_figures,
    idle_table,
    key_title,
    pick_form,
    simulated_banner,
    stats_table,
)
from skep.web.history_query import Asked, in_words, read_query
from skep.web.history_stream import PLACE, streamed
from skep.web.layout import downloads, page
from skep.web.notes import note_form
from skep.web.site import Site

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

    return [
        Route("/history", show),
        Route("/api/history.json", as_json),
        Route("/api/history.csv", as_csv),
    ]


def _frame(
    site: Site, asked: Asked, targets: Sequence[str], key: SeriesKey | None, keys: Sequence[SeriesKey]
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


def _parts(site: Site, asked: Asked, targets: Sequence[str]) -> Iterator[Markup]:
    with site.store() as store:
        if store is None:
            return
        if not asked.targets:
            yield from target_cards(store, asked, targets)
        for place, name in enumerate(asked.targets):
            view = begin(store, asked, name)
            yield _first(view, place, alone=len(asked.targets) == 1)
            yield _rest(_shown(site, complete(store, view)), place)


def _views(site: Site, store: Store | None, asked: Asked) -> list[View]:
    """Of the targets that were asked for, or of all."""
    if store is None:
        return []
    targets = all_targets(SeriesStore(store))
    for name in asked.targets:
        known_target(name, targets)
    return [_shown(site, gather(store, asked, name)) for name in asked.targets or targets]


def _shown(site: Site, view: View) -> View:
    """In public, alerts without their words, which may come from a server's answer."""
    if not site.public:
        return view
    bare = tuple(replace(alert, message=alert.rule.value, closed_because=None) for alert in view.alerts)
    return replace(view, alerts=bare)


def _first(view: View, place: int, *, alone: bool) -> Markup:
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


def _rest(view: View, place: int) -> Markup:
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


def _cold(view: View, place: int) -> Markup | None:
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


def _machine(view: View) -> Markup | None:
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
