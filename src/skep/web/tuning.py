"""The pages of tunings: all of them, and one with its ladder. A running one goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from skep.report.columns import documents
from skep.report.svg import alive
from skep.report.tuning import TUNING_COLUMNS, document, tuning_main, tuning_page
from skep.tuner import summary
from skep.tuner.store import TuningRecord, TuningState, TuningStore
from skep.web.context import Site
from skep.web.layout import page, render
from skep.web.responses import json_answer, or_not_found, report_answer

TUNINGS_LISTED = 200  # that the page lists; JSON has all


def grouped(records: Sequence[TuningRecord]) -> list[list[TuningRecord]]:
    """Return the tunings that may stand beside each other, group by group: measured ones before
    simulated ones, then by model, machine and shape.
    """
    groups: dict[tuple[object, ...], list[TuningRecord]] = {}
    for record in records:
        tuning = record.tuning
        groups.setdefault(
            (tuning.simulated, tuning.model, tuning.rig, tuning.aim.shape), []
        ).append(record)
    return [groups[key] for key in sorted(groups, key=lambda key: tuple(map(str, key)))]


def body_of(record: TuningRecord) -> str:
    with alive():
        main = tuning_main(record.tuning, record.stages)
    running = record.state is TuningState.RUNNING
    return render("tuning_body.html", kept=record, running=running, summary=summary, main=main)


class TuningPages:
    def __init__(self, site: Site) -> None:
        self.site = site

    def listing(self, request: Request) -> Response:
        records = self._found(request, TUNINGS_LISTED)
        query = str(request.url.query)
        values: dict[str, Any] = {
            "groups": grouped(records),
            "query": query,
            "full": len(records) >= TUNINGS_LISTED,
            "most": TUNINGS_LISTED,
        }
        return page(self.site, "tunings.html", **values, summary=summary)

    def as_json(self, request: Request) -> Response:
        return json_answer({"tunings": documents(TUNING_COLUMNS, self._found(request))})

    def tuning_page(self, request: Request) -> Response:
        record = self._stored(request)
        running = record.state is TuningState.RUNNING
        return page(
            self.site, "tuning.html", tuning=record.tuning, running=running, body=body_of(record)
        )

    def body(self, request: Request) -> Response:
        """Return what changes while it runs, for the script."""
        return HTMLResponse(body_of(self._stored(request)), headers={"cache-control": "no-store"})

    def report(self, request: Request) -> Response:
        record = self._stored(request)
        return report_answer(tuning_page(record.tuning, record.stages, state=record.unfinished))

    def tuning_json(self, request: Request) -> Response:
        return json_answer(document(self._stored(request)))

    def _found(self, request: Request, limit: int | None = None) -> list[TuningRecord]:
        with self.site.store() as store:
            model = request.query_params.get("model", "")
            return [self._labelled(record) for record in TuningStore(store).records(limit, model)]

    def _stored(self, request: Request) -> TuningRecord:
        """Return the tuning that the address names. One that is not there is told as such."""
        with self.site.store() as store, or_not_found():
            return self._labelled(TuningStore(store).record(request.path_params["id"]))

    def _labelled(self, record: TuningRecord) -> TuningRecord:
        return replace(
            record, tuning=replace(record.tuning, model=self.site.label(record.tuning.model))
        )


def routes(site: Site) -> list[Route]:
    pages = TuningPages(site)
    page_routes = {
        "/tuning": pages.listing, "/tuning/{id}": pages.tuning_page,
        "/tuning/{id}/body": pages.body, "/tuning/{id}/report.html": pages.report,
        "/api/tuning.json": pages.as_json,
        "/api/tuning/{id}.json": pages.tuning_json,
    }  # fmt: skip
    return [Route(path, answer) for path, answer in page_routes.items()]
