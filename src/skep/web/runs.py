"""The page of runs: every stored benchmark with its key figures, each with its report, two of them side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from skep.bench.loaded import JUDGED, load_run
from skep.errors import UserError
from skep.quality.drawing import bare_rows, without_texts
from skep.records import Run
from skep.report.markup import Markup, join, table, tag, text
from skep.store.database import Store
from skep.web.answers import csv_answer, json_answer, problem, wants_json
from skep.web.layout import downloads, page
from skep.web.pictures import MOST_COMPARED, Pictures, report_parts, svg_answer
from skep.web.runs_book import PATIENCE_S, Figures, RunBook
from skep.web.runs_list import (
    COLUMNS,
    SORTS,
    Asked,
    Listed,
    filter_form,
    listed,
    pager,
    read_query,
    run_document,
    table_rows,
)
from skep.web.runs_page import not_drawn, requests_body, run_body, run_json
from skep.web.site import Site

Handler = Callable[[Request], Response]
SCRIPTS, STYLES = ("runs.js",), ("runs.css",)
_HEAD = ("", "When", "Model", "Kind", "Best tok/s", "TTFT p50, C = 1", "Failed", "Requests", "Where")


class NoSuchRun(UserError):
    """Told with 404, in the words of the store."""


class RunsPages:
    """The handlers, with what they keep between two of them."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.book = RunBook(site)
        self.pictures = Pictures(site)

    def __repr__(self) -> str:
        return f"<RunsPages {self.book!r}>"

    def listing(self, request: Request) -> Response:
        asked = read_query(request.query_params)
        with self.site.store() as store:
            if store is None:
                return self._empty()
            found, figures = self._found(store, asked, PATIENCE_S)
        if not found.models:
            return self._empty()
        rows = table_rows(found, figures, self.site)
        wanted = found.total if asked.sort else len(found.runs)
        waiting = f"/runs/rows?{found.asked.query()}" if len(figures) < wanted else None
        parts = [
            filter_form(found, self.site),
            self._table(found, rows, waiting),
            pager(found) or text(""),
            _aside(found),
            downloads("runs", found.asked.query()),
        ]
        return page(self.site, "runs", "Runs", join(parts), scripts=SCRIPTS, styles=STYLES, lead=_counted(found))

    def rows(self, request: Request) -> Response:
        """The same table rows with every figure, for the script."""
        asked = read_query(request.query_params)
        with self.site.store() as store:
            if store is None:
                return HTMLResponse("")
            return HTMLResponse(table_rows(*self._found(store, asked), self.site))

    def as_json(self, request: Request) -> Response:
        found, documents = self._documents(request)
        pages = {"total": found.total, "page": found.asked.page, "pages": found.pages}
        return json_answer({**pages, "runs": documents})

    def as_csv(self, request: Request) -> Response:
        _, documents = self._documents(request)
        return csv_answer("runs", COLUMNS, [[one[name] for name in COLUMNS] for one in documents])

    def one(self, request: Request) -> Response:
        whole = request.query_params.get("whole") == "1"
        with self._stored(request.path_params["id"]) as (store, run):
            report = self._report(store, run) if whole else self.pictures.ready(run)
            figures = None if report else self.book.figures(store, [run], PATIENCE_S).get(run.id)
        shown = without_texts(run) if self.site.public else run
        title = f"{shown.model} (simulated)" if run.simulated else shown.model
        body = run_body(shown, figures, self.site, report)
        return page(self.site, "runs", title, body, scripts=SCRIPTS, styles=STYLES)

    def body(self, request: Request) -> Response:
        """The drawn part of a run's page, for the script."""
        with self._stored(request.path_params["id"]) as (store, run):
            try:
                report = self.pictures.report(store, run)
            except UserError as error:
                return HTMLResponse(not_drawn(error))
        return HTMLResponse(report_parts(report))

    def report(self, request: Request) -> Response:
        """The report as one file: a page of its own, that allows itself no script and no other file."""
        with self._stored(request.path_params["id"]) as (store, run):
            drawn = self.pictures.report(store, run)
        policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
        return HTMLResponse(drawn, headers={"content-security-policy": policy})

    def picture(self, request: Request) -> Response:
        with self._stored(request.path_params["id"]) as (store, run):
            return svg_answer(self.pictures.picture(store, run), final=run.state.is_final)

    def requests(self, request: Request) -> Response:
        with self._stored(request.path_params["id"]) as (store, run):
            rows = store.requests(run.id)
            rows = list(bare_rows(rows)) if self.site.public else rows
            body = requests_body(run, rows, request.query_params, self.site)
        title = f"Requests of {self.site.label(run.model)}"
        return page(self.site, "runs", title, body, scripts=SCRIPTS, styles=STYLES)

    def run_json(self, request: Request) -> Response:
        with self._stored(request.query_params.get("id", "")) as (store, run):
            figures = self.book.figures(store, [run]).get(run.id)
            as_read = bare_rows if self.site.public else None
            summary = None if run.kind in JUDGED else load_run(store, run.id, as_read=as_read)[1]
            levels = [asdict(one) for one in summary.levels] if summary else []
        return json_answer(run_json(without_texts(run) if self.site.public else run, figures, self.site, levels))

    def run_csv(self, request: Request) -> Response:
        """A row a level, its plain figures."""
        with self._stored(request.query_params.get("id", "")) as (store, run):
            as_read = bare_rows if self.site.public else None
            levels = () if run.kind in JUDGED else load_run(store, run.id, as_read=as_read)[1].levels
        rows = [{name: value for name, value in asdict(one).items() if _is_plain(value)} for one in levels]
        columns = list(dict.fromkeys(name for row in rows for name in row)) or ["concurrency"]
        return csv_answer(f"run-{run.id}", columns, [[row.get(name) for name in columns] for row in rows])

    def compare(self, request: Request) -> Response:
        """From the ticked boxes to the page that compares: its address holds the two runs."""
        ids = list(dict.fromkeys(one for one in request.query_params.getlist("run") if one))
        if not 2 <= len(ids) <= MOST_COMPARED:
            hint = f"tick two runs of the list, or up to {MOST_COMPARED}, then press Compare"
            raise UserError(f"{len(ids)} runs cannot be compared", hint=hint)
        return RedirectResponse(f"/compare?runs={quote(','.join(ids), safe=',')}", status_code=303)

    def comparison(self, request: Request) -> Response:
        """One picture of several runs, for a page that shows them side by side."""
        names = [one for one in request.query_params.get("runs", "").split(",") if one]
        with self.site.store() as store:
            if store is None or not 2 <= len(names) <= MOST_COMPARED:
                raise UserError(f"{len(names)} runs cannot be compared", hint="name two or more, as in runs=A,B")
            runs = [store.run(name) for name in names]
            drawn = self.pictures.comparison_picture(store, runs)
            return svg_answer(drawn, final=all(run.state.is_final for run in runs))

    def leaderboard(self, request: Request) -> Response:
        """Was a page of its own: its address leads to the best runs."""
        model = request.query_params.get("model", "")
        return RedirectResponse(Asked(model=model, sort="best").address())

    def _found(self, store: Store, asked: Asked, patience_s: float | None = None) -> tuple[Listed, dict[str, Figures]]:
        """One page of runs with their figures; of all that are asked for, where the figures decide the order."""
        runs, public = self.book.runs(store), self.site.public
        if not asked.sort:
            found = listed(runs, asked, public=public)
            return found, self.book.figures(store, found.runs, patience_s)
        taken = [run for run in runs if asked.takes(run, public=public)]
        figures = self.book.figures(store, taken, patience_s)
        return listed(runs, asked, figures, public=public), figures

    def _documents(self, request: Request) -> tuple[Listed, list[dict[str, Any]]]:
        asked = read_query(request.query_params)
        with self.site.store() as store:
            found, figures = self._found(store, asked) if store is not None else (listed([], asked), {})
        return found, [run_document(run, figures.get(run.id), self.site) for run in found.runs]

    @contextmanager
    def _stored(self, name: str) -> Iterator[tuple[Store, Run]]:
        """The run of that name, while the store is open. One that is not there is told as such."""
        with self.site.store() as store:
            try:
                if store is None:
                    raise UserError("there are no runs yet")
                run = self.book.run(store, name)
            except UserError as error:
                raise NoSuchRun(error.message, hint=error.hint) from None
            yield store, run

    def _report(self, store: Store, run: Run) -> str | None:
        try:
            return self.pictures.report(store, run)
        except UserError:
            return None

    def _table(self, found: Listed, rows: Markup, waiting: str | None) -> Markup:
        if not found.runs:
            return tag("p", text("No run is like that."), class_="empty")
        left = ("", "When", "Model", "Kind", "Where")
        head = tag("tr", *(tag("th", text(name), scope="col", class_="left" if name in left else None)
                           for name in _HEAD))  # fmt: skip
        made = table(f"Stored runs, {SORTS[found.asked.sort]}", [head], [rows])
        button = tag("button", text("Compare"), data_compare="")
        keys = (tag("kbd", text(key)) for key in ("Space", "↑", "↓", "Enter"))
        said = (text(said) for said in ("tick two runs to put them side by side: ", " ticks, ", " ", " move, "))
        mixed = [part for pair in zip(said, keys, strict=True) for part in pair]
        hint = tag("span", *mixed, text(" compares"), class_="hint")
        return tag("form", made, tag("p", button, hint, class_="choice"), method="get", action="/runs/compare",
                   class_="runs stacked", data_rows=waiting)  # fmt: skip

    def _empty(self) -> Response:
        body = tag("p", text("Nothing was measured yet. "), tag("code", text("skep bench sweep")),
                   text(" makes the first run; it appears here by itself."), class_="empty")  # fmt: skip
        return page(self.site, "runs", "Runs", body, styles=STYLES)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)


def _counted(found: Listed) -> str:
    if not found.stored:
        return "Nothing is stored but runs of tunings."
    if found.total == found.stored:
        return f"{found.stored} benchmark runs are stored." if found.stored > 1 else "One benchmark run is stored."
    return f"{found.total} of {found.stored} benchmark runs."


def _aside(found: Listed) -> Markup:
    if not found.aside:
        return text("")
    many = f"{found.aside} runs of tunings are" if found.aside > 1 else "One run of a tuning is"
    tunings, runs = tag("a", text("tunings"), href="/tuning"), tag("a", text("runs"), href="/runs?kind=tune")
    said = (text(f"{many} not listed here: see the "), tunings, text(" or the "), runs, text("."))
    return tag("p", *said, class_="below")


def _told(site: Site, handler: Handler) -> Handler:
    def handle(request: Request) -> Response:
        try:
            return handler(request)
        except NoSuchRun as error:
            return problem(site, error, status=404, as_json=wants_json(request))

    return handle


def routes(site: Site) -> list[BaseRoute]:
    pages = RunsPages(site)
    return [
        Route("/runs", pages.listing),
        Route("/leaderboard", pages.leaderboard),
        Route("/runs/rows", pages.rows),
        Route("/runs/compare", pages.compare),
        Route("/runs/compare.svg", pages.comparison),
        Route("/runs/{id}", _told(site, pages.one)),
        Route("/runs/{id}/body", _told(site, pages.body)),
        Route("/runs/{id}/report.html", _told(site, pages.report)),
        Route("/runs/{id}/picture.svg", _told(site, pages.picture)),
        Route("/runs/{id}/requests", _told(site, pages.requests)),
        Route("/api/runs.json", pages.as_json),
        Route("/api/runs.csv", pages.as_csv),
        Route("/api/run.json", _told(site, pages.run_json)),
        Route("/api/run.csv", _told(site, pages.run_csv)),
    ]
