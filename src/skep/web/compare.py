"""The compare page: targets on one axis with the ratio of their medians, or stored runs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from skep.report.markup import Markup, join, tag, text
from skep.store.database import Store
from skep.store.series import SeriesStore
from skep.web import compare_runs, compare_targets
from skep.web.answers import csv_answer, json_answer
from skep.web.history_data import all_targets, known_target
from skep.web.history_query import Asked, read_query
from skep.web.history_stream import PLACE, streamed
from skep.web.layout import downloads, page
from skep.web.site import Site

_STYLES, _SCRIPTS = ("history.css",), ("history.js",)
_LEAD = "Targets on one axis, warm and after a pause, and how many times as fast the one is as the other."
_AT_FIRST = 3  # targets shown where none were picked


def routes(site: Site) -> list[BaseRoute]:
    def show(request: Request) -> Response:
        with site.store() as store:
            if names := request.query_params.get("runs"):
                return _runs_page(site, store, names)
            return _targets_page(site, store, read_query(request.query_params, site.clock()))

    def as_json(request: Request) -> Response:
        with site.store() as store:
            if names := request.query_params.get("runs"):
                runs = compare_runs.found_runs(store, compare_runs.runs_named(names))
                assert store is not None
                return json_answer(compare_runs.runs_document(site, store, runs))
            asked = _asked(store, read_query(request.query_params, site.clock()))
            return json_answer(compare_targets.document(site, store, asked) if store else {"targets": [], "pairs": []})

    def as_csv(request: Request) -> Response:
        with site.store() as store:
            if names := request.query_params.get("runs"):
                runs = compare_runs.found_runs(store, compare_runs.runs_named(names))
                assert store is not None
                return csv_answer("compare", compare_runs.CSV_COLUMNS, compare_runs.runs_rows(store, runs))
            asked = _asked(store, read_query(request.query_params, site.clock()))
            rows = list(compare_targets.rows(site, store, asked)) if store else []
        return csv_answer("compare", compare_targets.CSV_COLUMNS, rows)

    return [
        Route("/compare", show),
        Route("/api/compare.json", as_json),
        Route("/api/compare.csv", as_csv),
    ]


def _asked(store: Store | None, asked: Asked) -> Asked:
    """With targets: those that were named, else the first few that are probed."""
    series = SeriesStore(store) if store else None
    known = all_targets(series) if series else []
    for name in asked.targets:
        known_target(name, known)
    if asked.targets or series is None:
        return asked
    measured = {key.target for key in series.keys(None)}
    live = [target.name for target in series.targets() if target.name in measured] or known
    return asked.of(*live[:_AT_FIRST], series=asked.series)


def _targets_page(site: Site, store: Store | None, asked: Asked) -> Response:
    full = _asked(store, asked)
    if store is None or not full.targets:
        return page(site, "compare", "Compare", _nothing_yet(), styles=_STYLES)
    known = all_targets(SeriesStore(store))
    form = compare_targets.pick(full, known, compare_targets.kinds(store, full))
    body = join([form, PLACE, _about_runs(), downloads("compare", full.query())])
    *others, last = asked.targets or ("",)
    title = f"Compare {', '.join(others)} and {last}" if others else "Compare"
    frame = page(site, "compare", title, body, scripts=_SCRIPTS, styles=_STYLES, lead=_LEAD)
    return streamed(site, frame, _parts(site, full))


def _parts(site: Site, asked: Asked) -> Iterator[Markup]:
    with site.store() as store:
        if store is not None:
            yield from compare_targets.parts(site, store, asked)


def _runs_page(site: Site, store: Store | None, names: str) -> Response:
    ids = compare_runs.runs_named(names)
    runs = compare_runs.found_runs(store, ids)
    body = join([PLACE, downloads("compare", f"runs={','.join(ids)}")])
    return streamed(
        site, page(site, "compare", f"Compare {len(runs)} runs", body, styles=_STYLES), _run_parts(site, ids)
    )


def _run_parts(site: Site, ids: Sequence[str]) -> Iterator[Markup]:
    with site.store() as store:
        if store is not None:
            yield from compare_runs.runs_parts(site, store, compare_runs.found_runs(store, ids))


def _about_runs() -> Markup:
    link = tag("a", text("runs"), href="/runs")
    return tag(
        "p", text("Stored "), link, text(" are compared from their list: tick two, press Compare."), class_="below"
    )


def _nothing_yet() -> Markup:
    return tag(
        "div",
        tag(
            "p", text("No target is watched yet. Two of them can be compared here, such as one's own box and a cloud:")
        ),
        tag("pre", tag("code", text("skep monitor add box --url http://127.0.0.1:8400/v1\nskep monitor run"))),
        _about_runs(),
        class_="panel",
    )
