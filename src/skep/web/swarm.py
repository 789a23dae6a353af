"""The pages of swarm runs: all of them, and one with its picture and failures. A running one goes
on.

An admin may cancel a run and resume it. Whose key a run was started with is not stored, so that
other keys see counts alone: names of tasks and answers are somebody's text. None of it is for the
public."""

from __future__ import annotations

import asyncio
from collections import Counter

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from skep.report.columns import documents
from skep.report.svg import alive
from skep.report.swarm import RUNS, run_title, swarm_main, swarm_page
from skep.swarm.records import SwarmRun, SwarmRunState
from skep.swarm.store import SwarmStore, cancel, resume_in_background
from skep.swarm.summary import SwarmStory, account_json, story_of
from skep.web.context import Site
from skep.web.layout import page, render
from skep.web.responses import json_answer, or_not_found, report_answer

RUNS_LISTED = 200  # that the page lists; JSON has all
BEGINS_S = 10.0  # within which the process of a run is at work


class SwarmPages:
    def __init__(self, site: Site) -> None:
        self.site = site

    def listing(self, _request: Request) -> Response:
        if self.site.client:
            counts = self._counts()
            return page(self.site, "swarms.html", counts=counts, total=sum(counts.values()))
        runs = self._runs(RUNS_LISTED)
        return page(
            self.site, "swarms.html", runs=runs, full=len(runs) >= RUNS_LISTED, most=RUNS_LISTED
        )

    def as_json(self, _request: Request) -> Response:
        if self.site.client:
            return json_answer({"counts": self._counts()})
        return json_answer({"runs": documents(RUNS, self._runs())})

    def run_page(self, request: Request) -> Response:
        story = self._story(request)
        running = story.run.state is SwarmRunState.RUNNING
        title = run_title(story.account)
        body = _body(story)
        return page(
            self.site, "swarm.html", title=title, run=story.run, running=running, body=body
        )

    def body(self, request: Request) -> Response:
        """Return what changes while it runs, for the script."""
        return HTMLResponse(_body(self._story(request)), headers={"cache-control": "no-store"})

    def report(self, request: Request) -> Response:
        return report_answer(swarm_page(self._story(request)))

    def run_json(self, request: Request) -> Response:
        return json_answer(account_json(self._story(request).account))

    async def cancel(self, request: Request) -> Response:
        run = self._story(request).run
        if run.state is SwarmRunState.RUNNING:
            await asyncio.to_thread(cancel, self.site.paths, run.id)
        return RedirectResponse(f"/swarm/{run.id}", 303)

    async def resume(self, request: Request) -> Response:
        run = self._story(request).run
        if run.state not in (SwarmRunState.RUNNING, SwarmRunState.DONE):
            await asyncio.to_thread(resume_in_background, self.site.paths, run, BEGINS_S)
        return RedirectResponse(f"/swarm/{run.id}", 303)

    def _counts(self) -> dict[str, int]:
        """Return how many runs are in each state."""
        return dict(Counter(run.state.value for run in self._runs()))

    def _runs(self, limit: int | None = None) -> list[SwarmRun]:
        with self.site.store() as store:
            return SwarmStore(store).runs(limit)

    def _story(self, request: Request) -> SwarmStory:
        """Return the run that the address names. One that is not there is told as such."""
        with self.site.store() as store, or_not_found():
            swarm = SwarmStore(store)
            return story_of(swarm, swarm.run(request.path_params["id"]), now=self.site.clock())


def _body(story: SwarmStory) -> str:
    with alive():
        main = swarm_main(story)
    return render("swarm_body.html", running=story.run.state is SwarmRunState.RUNNING, main=main)


def routes(site: Site) -> list[Route]:
    pages = SwarmPages(site)
    page_routes = {
        "/swarm": pages.listing, "/swarm/{id}": pages.run_page, "/swarm/{id}/body": pages.body,
        "/swarm/{id}/report.html": pages.report, "/api/swarm.json": pages.as_json,
        "/api/swarm/{id}.json": pages.run_json,
    }  # fmt: skip
    done = {"/swarm/{id}/cancel": pages.cancel, "/swarm/{id}/resume": pages.resume}
    return [
        *(Route(path, answer) for path, answer in page_routes.items()),
        *(Route(path, answer, methods=["POST"]) for path, answer in done.items()),
    ]
