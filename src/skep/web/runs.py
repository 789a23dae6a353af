"""The page of runs: every stored benchmark with its key figures, each with its report, two of them
side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from msgspec.structs import replace
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from skep.bench.agent_figures import AgentsSummary
from skep.bench.metrics import SweepSummary
from skep.bench.stored_run import (
    AGENTS,
    JUDGED_KINDS,
    OF_A_TUNING,
    kept_words,
    load_agents,
    load_run,
)
from skep.errors import UserError
from skep.report.agents import best_words, first_token_words
from skep.report.columns import Column, at, documents, plain_columns
from skep.report.stored import drawn
from skep.store.database import Store
from skep.store.records import RunState, StoredRun
from skep.web import run_cache
from skep.web.context import Site
from skep.web.layout import page, render, streamed
from skep.web.responses import json_answer, or_not_found, report_answer
from skep.web.run_cache import MOST_COMPARED, RunCache, RunFigures, report_body, where_of

PAGE = 50
SORTS = {"": "newest first", "best": "best tok/s first"}
Listed = dict[str, Any]  # the `run`, and what is `told` of it


class RunsQuery(msgspec.Struct, frozen=True):
    """All of it is in the address.

    `text`: words that each stand somewhere in what is told of a run.
    """

    text: str = ""
    page: int = 1
    sort: str = ""  # "best": by effective tok/s

    def query(self, **changed: Any) -> str:
        fields = {**msgspec.structs.asdict(self), **changed}
        fields = {
            "q": fields["text"],
            "page": "" if fields["page"] == 1 else fields["page"],
            "sort": fields["sort"],
        }
        return urlencode({name: value for name, value in fields.items() if value != ""})

    def address(self, **changed: Any) -> str:
        query = self.query(**changed)
        return f"/runs?{query}" if query else "/runs"

    def takes(self, run: StoredRun) -> bool:
        """Return whether a run is among those asked for.

        Runs of tunings are many and small: they are listed only where words of them are asked for.
        """
        if run.kind in OF_A_TUNING and not self.text:
            return False
        how = "simulated" if run.simulated else "measured"
        searched = (
            run.id,
            run.model,
            run.kind,
            run.state.value,
            how,
            run.fingerprint,
            where_of(run),
            run.url,
        )
        return all(
            word in " ".join([*searched, run.error or ""]).lower()
            for word in self.text.lower().split()
        )


class RunListing(msgspec.Struct, frozen=True):
    """One page of the runs that are asked for."""

    query: RunsQuery
    runs: tuple[StoredRun, ...]
    total: int  # of those asked for
    stored: int  # in all, without runs of tunings

    @property
    def pages(self) -> int:
        return max(1, -(-self.total // PAGE))


def read_query(query: QueryParams) -> RunsQuery:
    words, sort, page_text = (query.get(name, "") for name in ("q", "sort", "page"))
    if sort not in SORTS:
        raise UserError(
            f"`sort={sort}` is unknown", hint="sort=best, or leave it out for the newest first"
        )
    if page_text and (not page_text.isdecimal() or not 1 <= int(page_text[:9]) <= 10**8):
        raise UserError(f"`page={page_text}` is not a page", hint="pages count from 1")
    return RunsQuery(words.strip()[:200], int(page_text[:9] or 1), sort)


def listed(
    runs: Sequence[StoredRun], query: RunsQuery, figures: Callable[[StoredRun], RunFigures]
) -> RunListing:
    """Return one page of the runs, of which `runs` are all, newest first.

    `figures` decide the order where the best are asked for: simulated runs come after measured
    ones, and last what has not ended well or has no figure.
    """
    matching = [run for run in runs if query.takes(run)]
    if query.sort:
        best = {
            run.id: figures(run).best_tok_s if run.state is RunState.DONE else None
            for run in matching
        }
        matching.sort(
            key=lambda run: (best[run.id] is None, run.simulated, -(best[run.id] or 0.0))
        )
    listing = RunListing(
        query, (), len(matching), sum(run.kind not in OF_A_TUNING for run in runs)
    )
    number = min(query.page, listing.pages)
    runs_on_page = tuple(matching[(number - 1) * PAGE : number * PAGE])
    return replace(listing, query=replace(query, page=number), runs=runs_on_page)


def tuning_of(run: StoredRun) -> str | None:
    tuning_facts = run.config.get("tuning")
    if run.kind in OF_A_TUNING and isinstance(tuning_facts, str) and tuning_facts:
        return tuning_facts
    return None


def run_columns(site: Site) -> list[Column[Listed]]:
    def of_run(key: str, value: Callable[[StoredRun], Any]) -> Column[Listed]:
        return Column(key, key, lambda row: value(row["run"]))

    return [
        *plain_columns(
            "id=run.id created_at=run.created_at ended_at=run.ended_at kind=run.kind "
            "state=run.state.value"
        ),
        of_run("model", lambda run: site.label(run.model)),
        of_run("machine", run_cache.machine_of),
        of_run("engine", run_cache.engine_of),
        of_run("layout", run_cache.layout_of),
        *plain_columns(
            "simulated=run.simulated requests=run.requests failed=told.failed "
            "best_tok_s=told.best_tok_s"
        ),
        *plain_columns(
            "best_at=told.best_at ttft_ms=told.ttft_ms client_limited=told.client_limited"
        ),
        Column("conclusion", "conclusion", lambda row: at("told.conclusion")(row) or None),
        *plain_columns("sessions=told.sessions"),
        of_run("url", lambda run: None if site.hides_private else site.hide(run.url)),
        *plain_columns(
            "fingerprint=run.fingerprint skep_version=run.skep_version error=run.error"
        ),
    ]


def _summary_of(store: Store, run: StoredRun) -> SweepSummary | AgentsSummary:
    if run.kind == AGENTS:
        return load_agents(store, run.id)[1]
    return load_run(store, run.id)[1]


class RunsPages:
    """The handlers, with what they keep between two of them."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.book = RunCache()
        self.columns = run_columns(site)

    def listing(self, request: Request) -> Response:
        """Send the list row by row: the figures of a run take a moment the first time."""
        listing = self._found(request)
        frame = page(self.site, "runs.html", found=listing, asked=listing.query, SORTS=SORTS)
        if listing.runs:
            return streamed(self.site, frame, lambda store: self._rows(store, listing.runs))
        return frame

    def as_json(self, request: Request) -> Response:
        listing = self._found(request)
        with self.site.store() as store:
            rows = [{"run": run, "told": self.book.figures(store, run)} for run in listing.runs]
        pages = {"total": listing.total, "page": listing.query.page, "pages": listing.pages}
        return json_answer({**pages, "runs": documents(self.columns, rows)})

    def run_page(self, request: Request) -> Response:
        """Send the page of a run, its report last: drawing it takes up to a second."""
        with self._stored(request.path_params["id"]) as (store, run):
            where: dict[str, Any] = {"where": where_of(run), "tuning": tuning_of(run)}
            has_levels = run.kind not in JUDGED_KINDS and run.state not in (
                RunState.DONE,
                RunState.RUNNING,
            )
            if has_levels:
                kept_counts = kept_words(_summary_of(store, run))
            else:
                kept_counts = ""
        frame = page(self.site, "run.html", run=run, kept=kept_counts, **where)
        return streamed(self.site, frame, lambda store: self._report(store, run))

    def report(self, request: Request) -> Response:
        with self._stored(request.path_params["id"]) as (store, run):
            return report_answer(drawn(store, [run]))

    def run_json(self, request: Request) -> Response:
        """Return the run as the list tells it, its configuration and every level's figures."""
        with self._stored(request.query_params.get("id", "")) as (store, run):
            figures = self.book.figures(store, run)
            levels = self.book.levels(store, run)
        (document,) = documents(self.columns, [{"run": run, "told": figures}])
        facts = {"config": run.config, "host": run.host, "engine_facts": run.engine}
        return json_answer({**document, **facts, "levels": levels})

    def compare(self, request: Request) -> Response:
        """Lead from the ticked boxes to the page that compares: its address holds the runs."""
        ids = list(
            dict.fromkeys(run_id for run_id in request.query_params.getlist("run") if run_id)
        )
        if not 2 <= len(ids) <= MOST_COMPARED:
            hint = f"tick two runs of the list, or up to {MOST_COMPARED}, then press Compare"
            raise UserError(f"{len(ids)} runs cannot be compared", hint=hint)
        return RedirectResponse(f"/compare?runs={quote(','.join(ids), safe=',')}", status_code=303)

    def _found(self, request: Request) -> RunListing:
        query = read_query(request.query_params)
        with self.site.store() as store:
            return listed(store.runs(), query, partial(self.book.figures, store))

    @contextmanager
    def _stored(self, name: str) -> Iterator[tuple[Store, StoredRun]]:
        """Give the run of that name while the store is open; raise NotFound if there is none."""
        with self.site.store() as store:
            with or_not_found():
                run = store.run(name)
            yield store, run

    def _rows(self, store: Store, runs: Sequence[StoredRun]) -> Iterator[str]:
        for run in runs:
            values = {
                "run": run,
                "one": self.book.figures(store, run),
                "tuning": tuning_of(run),
                "where": where_of(run),
                "first_token_words": first_token_words,
                "best_words": best_words,
            }
            yield render("runs_row.html", site=self.site, **values)

    def _report(self, store: Store, run: StoredRun) -> Iterator[str]:
        try:
            yield report_body(store, [run])
        except UserError as error:
            yield render("run_nothing.html", error=error)


def routes(site: Site) -> list[Route]:
    pages = RunsPages(site)
    page_routes = {
        "/runs": pages.listing, "/runs/compare": pages.compare, "/runs/{id}": pages.run_page,
        "/runs/{id}/report.html": pages.report,
        "/api/runs.json": pages.as_json, "/api/run.json": pages.run_json,
    }  # fmt: skip
    return [Route(path, answer) for path, answer in page_routes.items()]
