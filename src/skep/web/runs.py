"""The page of runs: every stored benchmark with its key figures, each with its report, two of them side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any
from urllib.parse import quote, urlencode

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from skep.bench.stored_run import JUDGED, load_run
from skep.errors import UserError
from skep.report.markup import Markup, banner, card, join, section, table, tag, text
from skep.report.stored import bare_rows, without_texts
from skep.store.database import Store
from skep.store.records import Request as StoredRequest
from skep.store.records import RunState, StoredRun
from skep.units import UNKNOWN, milliseconds, moment, number, shortened
from skep.web.context import Site
from skep.web.layout import downloads, head_row, page
from skep.web.pictures import MOST_COMPARED, Pictures, fetched, report_parts, svg_answer
from skep.web.responses import NotFound, csv_answer, json_answer
from skep.web.run_cache import PATIENCE_S, RunCache, RunFigures, engine_of, layout_of, machine_of
from skep.web.runs_list import (
    COLUMNS,
    SORTS,
    RunListing,
    RunsQuery,
    filter_form,
    listed,
    pager,
    read_query,
    run_document,
    table_rows,
    tuning_of,
)

ROWS = 50
_SPOKEN = 4_000  # letters of a prompt or an answer that are shown
REQUEST_COLUMNS = (
    "level", "repeat", "index", "kind", "started_s", "ttft_ms", "total_ms", "prompt_tokens", "output_tokens", "status",
    "error_kind", "finish_reason", "replica",
)  # fmt: skip


def run_body(run: StoredRun, figures: RunFigures | None, site: Site, report: str | None) -> Markup:
    """With the report where it is there already; else it is fetched once the page is shown."""
    if report is not None:
        drawn = report_parts(report)
    else:
        whole = f"/runs/{run.id}?whole=1"
        drawn = fetched(f"/runs/{run.id}/body", whole, "the report", _cards(run, figures))
    return join([_facts(run, site), *_banners(run), drawn])


def links(run: StoredRun, site: Site) -> Markup:
    """The ways on from a run."""
    entries = [
        ("Every request" if not site.public else "Requests", f"/runs/{run.id}/requests", None),
        ("Report as one file", f"/runs/{run.id}/report.html", f"skep-{run.id}.html"),
        ("JSON", f"/api/run.json?id={run.id}", f"skep-{run.id}.json"),
        ("CSV", f"/api/run.csv?id={run.id}", f"skep-{run.id}.csv"),
    ]
    if run.kind not in ("open", "classes", "replay"):
        entries.insert(2, ("Picture", f"/runs/{run.id}/picture.svg", None))
    if tuning := tuning_of(run):
        entries.insert(0, ("Its tuning", f"/tuning/{quote(tuning)}", None))
    made = [tag("a", text(name), href=address, download=file) for name, address, file in entries]
    return tag("p", *made, class_="ways")


def _facts(run: StoredRun, site: Site) -> Markup:
    where = " · ".join(filter(None, (machine_of(run, public=site.public), engine_of(run), layout_of(run))))
    address = "" if site.public else f"{site.hide(run.url)} · "
    return join(
        [
            tag("p", text(f"{run.kind} · {address}{moment(run.created_at)}"), class_="where"),
            tag("p", text(where), class_="where"),
            links(run, site),
        ]
    )


def _banners(run: StoredRun) -> list[Markup]:
    told = []
    if run.state is RunState.RUNNING:
        told.append(banner("note", "Still running", f"{run.requests} requests are stored so far."))
    elif run.state is not RunState.DONE:
        why = f" {shortened(run.error, 300)}" if run.error else ""
        told.append(banner("incomplete", "Incomplete", f"This run is {run.state.value}.{why}"))
    if run.simulated:
        told.append(banner("simulated", "Simulated", "No model ran: these figures are a prediction, served in time."))
    return told


def _cards(run: StoredRun, figures: RunFigures | None) -> Markup:
    """Shown while the report is drawn."""
    if figures is None or (figures.best_tok_s is None and not figures.conclusion):
        return text("")
    if figures.conclusion:
        return tag("p", text(figures.conclusion), class_="lead")
    at = "over all traffic" if figures.best_at is None else f"at C = {figures.best_at}"
    return tag(
        "dl",
        card(number(figures.best_tok_s), "Best effective tok/s", at),
        card(milliseconds(figures.ttft_ms), "TTFT p50", "alone, C = 1"),
        card(number(run.requests, digits=0), "Requests", f"{figures.failed} failed"),
        class_="cards",
    )


def run_json(run: StoredRun, figures: RunFigures | None, site: Site, levels: Sequence[Any]) -> dict[str, Any]:
    """`/api/run.json`: the run as the list tells it, its configuration and every level's figures."""
    return {**run_document(run, figures, site), "config": run.config, "host": run.host, "engine_facts": run.engine,
            "levels": list(levels)}  # fmt: skip


def chosen_rows(rows: Sequence[StoredRequest], query: QueryParams) -> tuple[list[StoredRequest], int | None, bool, int]:
    """Those of a level, or those that failed; which page of them."""
    said, page = query.get("level", ""), query.get("page", "1")
    if said and not said.isdecimal():
        raise UserError(f"`level={said}` is no level", hint="levels are numbers, as in level=4")
    if not page.isdecimal() or int(page[:9]) < 1:
        raise UserError(f"`page={page}` is no page", hint="pages count from 1")
    level, failed = int(said[:9]) if said else None, query.get("failed") == "yes"
    found = [row for row in rows if (level is None or row.level == level) and not (failed and row.ok)]
    return found, level, failed, int(page[:9])


def requests_body(run: StoredRun, rows: Sequence[StoredRequest], query: QueryParams, site: Site) -> Markup:
    """What became of each request; what was asked and answered only where the dashboard is not public."""
    found, level, failed, page = chosen_rows(rows, query)
    pages = max(1, -(-len(found) // ROWS))
    page = min(page, pages)
    shown = found[(page - 1) * ROWS : page * ROWS]
    here = f"/runs/{run.id}/requests"
    levels = sorted({row.level for row in rows})
    ways = [tag("a", text("all levels"), href=here, aria_current="true" if level is None and not failed else None)]
    ways += [
        tag("a", text(f"C = {one}" if one else "warm-up"), href=f"{here}?level={one}",
            aria_current="true" if level == one else None)
        for one in levels
    ]  # fmt: skip
    if any(not row.ok for row in rows):
        ways.append(tag("a", text("failed"), href=f"{here}?failed=yes", aria_current="true" if failed else None))
    back = tag("p", tag("a", text(f"← run {run.id}"), href=f"/runs/{run.id}"), class_="where")
    head = head_row(_RUN_HEAD, ("task", "end", "asked and answered"))
    body = [_row(row, site) for row in shown]
    made = table(f"{len(found)} requests", [head], body)
    listed = tag("div", made, class_="stacked") if body else tag("p", text("None."), class_="empty")
    query_of = {"level": "" if level is None else str(level), "failed": "yes" if failed else ""}
    return join([back, tag("p", *ways, class_="ways"), listed, _pages(here, page, pages, query_of)])


_RUN_HEAD = ("level", "task", "first token", "whole", "tokens in", "tokens out", "end", "asked and answered")


def _row(row: StoredRequest, site: Site) -> Markup:
    first = None if row.first_token_s is None else 1000 * (row.first_token_s - row.due_s)
    whole = 1000 * (row.ended_s - row.due_s)
    end = (row.finish_reason or "done") if row.ok else str(row.error_kind)
    task = f"{row.kind} {row.index + 1}" + (f", run {row.repeat + 1}" if row.repeat else "")
    cells = (milliseconds(first), milliseconds(whole), number(row.prompt_tokens, digits=0),
             number(row.output_tokens, digits=0))  # fmt: skip
    return tag(
        "tr",
        tag("th", text(f"{row.level or 'warm-up'}"), scope="row", data_label=_RUN_HEAD[0]),
        tag("td", text(task), class_="left", data_label=_RUN_HEAD[1]),
        *(tag("td", text(cell), data_label=name) for name, cell in zip(_RUN_HEAD[2:6], cells, strict=True)),
        tag("td", text(end), class_="left" if row.ok else "left bad", data_label=_RUN_HEAD[6]),
        tag("td", tag("div", _words(row, site)), class_="left note", data_label=_RUN_HEAD[7]),
    )


def _words(row: StoredRequest, site: Site) -> Markup:
    if site.public:
        return text(UNKNOWN)
    told = (("asked", row.prompt), ("thought", row.reasoning), ("answered", row.answer), ("error", row.error))
    parts = [
        tag("h4", text(name)) + tag("pre", text(shortened(said, _SPOKEN))) for name, said in told if said is not None
    ]
    if not parts:
        return text("not kept")
    first = next(said for _, said in told if said is not None)
    return tag("details", tag("summary", text(shortened(first, 60))), *(Markup(part) for part in parts))


def _pages(here: str, page: int, pages: int, query: dict[str, str]) -> Markup:
    def way(to: int) -> str:
        return f"{here}?{urlencode({**{k: v for k, v in query.items() if v}, 'page': to})}"

    if pages == 1:
        return text("")
    before = tag("a", text("← Before"), href=way(page - 1), rel="prev") if page > 1 else None
    after = tag("a", text("Next →"), href=way(page + 1), rel="next") if page < pages else None
    return tag("nav", before, tag("span", text(f"page {page} of {pages}")), after, class_="pager", aria_label="More")


def not_drawn(error: UserError) -> Markup:
    """In the place of a report that cannot be made."""
    return section("nothing", "Nothing to draw", tag("p", text(error.message)), tag("p", text(error.hint or "")))


SCRIPTS, STYLES = ("runs.js",), ("runs.css",)
_HEAD = ("", "When", "Model", "Kind", "Best tok/s", "TTFT p50, C = 1", "Failed", "Requests", "Where")


class RunsPages:
    """The handlers, with what they keep between two of them."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.book = RunCache(site)
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
        return RedirectResponse(RunsQuery(model=model, sort="best").address())

    def _found(
        self, store: Store, asked: RunsQuery, patience_s: float | None = None
    ) -> tuple[RunListing, dict[str, RunFigures]]:
        """One page of runs with their figures; of all that are asked for, where the figures decide the order."""
        runs, public = self.book.runs(store), self.site.public
        if not asked.sort:
            found = listed(runs, asked, public=public)
            return found, self.book.figures(store, found.runs, patience_s)
        taken = [run for run in runs if asked.takes(run, public=public)]
        figures = self.book.figures(store, taken, patience_s)
        return listed(runs, asked, figures, public=public), figures

    def _documents(self, request: Request) -> tuple[RunListing, list[dict[str, Any]]]:
        asked = read_query(request.query_params)
        with self.site.store() as store:
            found, figures = self._found(store, asked) if store is not None else (listed([], asked), {})
        return found, [run_document(run, figures.get(run.id), self.site) for run in found.runs]

    @contextmanager
    def _stored(self, name: str) -> Iterator[tuple[Store, StoredRun]]:
        """The run of that name, while the store is open. One that is not there is told as such."""
        with self.site.store() as store:
            try:
                if store is None:
                    raise UserError("there are no runs yet")
                run = self.book.run(store, name)
            except UserError as error:
                raise NotFound(error.message, hint=error.hint) from None
            yield store, run

    def _report(self, store: Store, run: StoredRun) -> str | None:
        try:
            return self.pictures.report(store, run)
        except UserError:
            return None

    def _table(self, found: RunListing, rows: Markup, waiting: str | None) -> Markup:
        if not found.runs:
            return tag("p", text("No run is like that."), class_="empty")
        left = ("", "When", "Model", "Kind", "Where")
        head = head_row(_HEAD, left)
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


def _counted(found: RunListing) -> str:
    if not found.stored:
        return "Nothing is stored but runs of tunings."
    if found.total == found.stored:
        return f"{found.stored} benchmark runs are stored." if found.stored > 1 else "One benchmark run is stored."
    return f"{found.total} of {found.stored} benchmark runs."


def _aside(found: RunListing) -> Markup:
    if not found.aside:
        return text("")
    many = f"{found.aside} runs of tunings are" if found.aside > 1 else "One run of a tuning is"
    tunings, runs = tag("a", text("tunings"), href="/tuning"), tag("a", text("runs"), href="/runs?kind=tune")
    said = (text(f"{many} not listed here: see the "), tunings, text(" or the "), runs, text("."))
    return tag("p", *said, class_="below")


def routes(site: Site) -> list[BaseRoute]:
    pages = RunsPages(site)
    return [
        Route("/runs", pages.listing),
        Route("/leaderboard", pages.leaderboard),
        Route("/runs/rows", pages.rows),
        Route("/runs/compare", pages.compare),
        Route("/runs/compare.svg", pages.comparison),
        Route("/runs/{id}", pages.one),
        Route("/runs/{id}/body", pages.body),
        Route("/runs/{id}/report.html", pages.report),
        Route("/runs/{id}/picture.svg", pages.picture),
        Route("/runs/{id}/requests", pages.requests),
        Route("/api/runs.json", pages.as_json),
        Route("/api/runs.csv", pages.as_csv),
        Route("/api/run.json", pages.run_json),
        Route("/api/run.csv", pages.run_csv),
    ]
