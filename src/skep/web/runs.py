"""The page of runs: every stored benchmark with its key figures, each with its report, two of them side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from msgspec.structs import replace
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from skep.bench.stored_run import OF_A_TUNING
from skep.errors import UserError
from skep.report.columns import Column, at, documents, plain_columns
from skep.report.stored import drawn
from skep.store.database import Store
from skep.store.records import RunState, StoredRun
from skep.web import run_cache
from skep.web.context import Site
from skep.web.layout import page, render
from skep.web.responses import json_answer, or_not_found, report_answer
from skep.web.run_cache import MOST_COMPARED, PATIENCE_S, Pictures, RunCache, RunFigures, where_of

PAGE = 50
SORTS = {"": "newest first", "best": "best tok/s first"}
Listed = dict[str, Any]  # the `run`, and what is `told` of it


class RunsQuery(msgspec.Struct, frozen=True):
    """All of it is in the address. `text`: words that each stand somewhere in what is told of a run."""

    kind: str = ""
    model: str = ""
    text: str = ""
    page: int = 1
    sort: str = ""  # "best": by effective tok/s

    def query(self, **changed: Any) -> str:
        told = {**msgspec.structs.asdict(self), **changed}
        told = {**told, "q": told.pop("text"), "page": "" if told["page"] == 1 else told["page"]}
        return urlencode({name: value for name, value in told.items() if value != ""})

    def address(self, **changed: Any) -> str:
        query = self.query(**changed)
        return f"/runs?{query}" if query else "/runs"

    def takes(self, run: StoredRun) -> bool:
        """Runs of tunings are many and small: they are listed where their kind, or words of them, are asked for."""
        if run.kind in OF_A_TUNING and not (self.kind or self.text):
            return False
        if self.kind not in ("", run.kind) or self.model not in ("", run.model):
            return False
        how = "simulated" if run.simulated else "measured"
        told = (run.id, run.model, run.kind, run.state.value, how, run.fingerprint, where_of(run), run.url)
        return all(word in " ".join([*told, run.error or ""]).lower() for word in self.text.lower().split())


class RunListing(msgspec.Struct, frozen=True):
    asked: RunsQuery
    runs: tuple[StoredRun, ...]
    total: int  # of those asked for
    stored: int  # in all
    models: tuple[str, ...]
    kinds: tuple[str, ...]
    aside: int = 0  # runs of tunings that are not listed
    figures: Mapping[str, RunFigures] = {}

    @property
    def pages(self) -> int:
        return page_count(self.total)

    @property
    def rows(self) -> list[Listed]:
        return [{"run": run, "told": self.figures.get(run.id)} for run in self.runs]


def page_count(total: int) -> int:
    return max(1, -(-total // PAGE))


def read_query(query: QueryParams) -> RunsQuery:
    kind, model, words, sort, said = (query.get(name, "") for name in ("kind", "model", "q", "sort", "page"))
    if sort not in SORTS:
        raise UserError(f"`sort={sort}` is unknown", hint="sort=best, or leave it out for the newest first")
    if said and (not said.isdecimal() or not 1 <= int(said[:9]) <= 10**8):
        raise UserError(f"`page={said}` is not a page", hint="pages count from 1")
    return RunsQuery(kind, model, words.strip()[:200], int(said[:9] or 1), sort)


def listed(runs: Sequence[StoredRun], asked: RunsQuery, figures: Mapping[str, RunFigures] | None = None) -> RunListing:
    """`runs` are newest first. `figures` decide the order where the best are asked for."""
    found = [run for run in runs if asked.takes(run)]
    if asked.sort:

        def rank(run: StoredRun) -> tuple[bool, bool, float]:
            """Simulated runs come after measured ones, and last what has not ended well or has no figure."""
            told = (figures or {}).get(run.id) if run.state is RunState.DONE else None
            best = None if told is None else told.best_tok_s
            return best is None, run.simulated, -(best or 0.0)

        found.sort(key=rank)
    asked = replace(asked, page=min(asked.page, page_count(len(found))))
    shown = found[(asked.page - 1) * PAGE : asked.page * PAGE]
    models = tuple(sorted({run.model for run in runs}))
    kinds = tuple(sorted({run.kind for run in runs}))
    aside = 0 if asked.kind or asked.text else sum(run.kind in OF_A_TUNING for run in runs)
    return RunListing(asked, tuple(shown), len(found), len(runs) - aside, models, kinds, aside, figures or {})


def tuning_of(run: StoredRun) -> str | None:
    told = run.config.get("tuning")
    return told if run.kind in OF_A_TUNING and isinstance(told, str) and told else None


def run_columns(site: Site) -> list[Column[Listed]]:
    def of_run(key: str, value: Callable[[StoredRun], Any]) -> Column[Listed]:
        return Column(key, key, lambda row: value(row["run"]))

    return [
        *plain_columns("id=run.id created_at=run.created_at ended_at=run.ended_at kind=run.kind state=run.state.value"),
        of_run("model", lambda run: site.label(run.model)),
        of_run("machine", run_cache.machine_of),
        of_run("engine", run_cache.engine_of),
        of_run("layout", run_cache.layout_of),
        *plain_columns("simulated=run.simulated requests=run.requests failed=told.failed best_tok_s=told.best_tok_s"),
        *plain_columns("best_at=told.best_at ttft_ms=told.ttft_ms client_limited=told.client_limited"),
        Column("conclusion", "conclusion", lambda row: at("told.conclusion")(row) or None),
        of_run("url", lambda run: None if site.public else site.hide(run.url)),
        *plain_columns("fingerprint=run.fingerprint skep_version=run.skep_version error=run.error"),
    ]


class RunsPages:
    """The handlers, with what they keep between two of them."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.book = RunCache()
        self.pictures = Pictures()
        self.columns = run_columns(site)

    def listing(self, request: Request) -> Response:
        found = self._found(request, PATIENCE_S)
        if not found.models:
            return page(self.site, "runs.html", found=None)
        wanted = found.total if found.asked.sort else len(found.runs)
        return page(
            self.site,
            "runs.html",
            found=found,
            asked=found.asked,
            SORTS=SORTS,
            rows=self._rows(found),
            waiting=f"/runs/rows?{found.asked.query()}" if len(found.figures) < wanted else None,
        )

    def rows(self, request: Request) -> Response:
        """Return the same table rows with every figure, for the script."""
        return HTMLResponse(self._rows(self._found(request)))

    def as_json(self, request: Request) -> Response:
        found = self._found(request)
        pages = {"total": found.total, "page": found.asked.page, "pages": found.pages}
        return json_answer({**pages, "runs": documents(self.columns, found.rows)})

    def one(self, request: Request) -> Response:
        with self._stored(request.path_params["id"]) as (store, run):
            report = self.pictures.ready(run)
            if request.query_params.get("whole") == "1":
                with suppress(UserError):
                    report = self.pictures.body(store, [run])
            figures = None if report else self.book.figures(store, [run], PATIENCE_S).get(run.id)
        where: dict[str, Any] = {"where": where_of(run), "tuning": tuning_of(run)}
        return page(self.site, "run.html", run=run, **where, figures=figures, report=report)

    def body(self, request: Request) -> Response:
        """Return the drawn part of a run's page, for the script."""
        with self._stored(request.path_params["id"]) as (store, run):
            try:
                return HTMLResponse(self.pictures.body(store, [run]))
            except UserError as error:
                return HTMLResponse(render("run_nothing.html", error=error))

    def report(self, request: Request) -> Response:
        with self._stored(request.path_params["id"]) as (store, run):
            return report_answer(drawn(store, [run]))

    def run_json(self, request: Request) -> Response:
        """Return the run as the list tells it, its configuration and every level's figures."""
        with self._stored(request.query_params.get("id", "")) as (store, run):
            figures = self.book.figures(store, [run]).get(run.id)
            levels = self.book.levels(store, run)
        (told,) = documents(self.columns, [{"run": run, "told": figures}])
        facts = {"config": run.config, "host": run.host, "engine_facts": run.engine}
        return json_answer({**told, **facts, "levels": levels})

    def compare(self, request: Request) -> Response:
        """From the ticked boxes to the page that compares: its address holds the two runs."""
        ids = list(dict.fromkeys(one for one in request.query_params.getlist("run") if one))
        if not 2 <= len(ids) <= MOST_COMPARED:
            hint = f"tick two runs of the list, or up to {MOST_COMPARED}, then press Compare"
            raise UserError(f"{len(ids)} runs cannot be compared", hint=hint)
        return RedirectResponse(f"/compare?runs={quote(','.join(ids), safe=',')}", status_code=303)

    def _found(self, request: Request, patience_s: float | None = None) -> RunListing:
        """Return one page of runs with their figures; of all that are asked for, where the figures decide the order."""
        asked = read_query(request.query_params)
        with self.site.store() as store:
            runs = self.book.runs(store)
            if asked.sort:
                figures = self.book.figures(store, [run for run in runs if asked.takes(run)], patience_s)
                return listed(runs, asked, figures)
            found = listed(runs, asked)
            return replace(found, figures=self.book.figures(store, found.runs, patience_s))

    @contextmanager
    def _stored(self, name: str) -> Iterator[tuple[Store, StoredRun]]:
        """The run of that name, while the store is open. One that is not there is told as such."""
        with self.site.store() as store:
            with or_not_found():
                run = store.run(name)
            yield store, run

    def _rows(self, found: RunListing) -> str:
        values = {"runs": found.runs, "figures": found.figures, "tuning_of": tuning_of, "where": where_of}
        return render("runs_rows.html", site=self.site, **values)


def routes(site: Site) -> list[BaseRoute]:
    pages = RunsPages(site)
    shown = {
        "/runs": pages.listing, "/runs/rows": pages.rows, "/runs/compare": pages.compare, "/runs/{id}": pages.one,
        "/runs/{id}/body": pages.body, "/runs/{id}/report.html": pages.report,
        "/api/runs.json": pages.as_json, "/api/run.json": pages.run_json,
    }  # fmt: skip
    return [Route(path, answer) for path, answer in shown.items()]
