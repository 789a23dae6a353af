"""The plan page: a model and cards in, layouts, memory and the predicted curve out, beside what was measured.

A plan takes some hundred milliseconds, so the page is shown first and the plan follows; plans are kept for a while.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import asdict, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from skep.bench.plan_document import document
from skep.bench.planning import answer, nothing_fits
from skep.errors import DoesNotFit, SkepError, UserError
from skep.host.facts import host_json, read_host
from skep.report.markup import Markup, join, tag, text
from skep.web.answers import csv_answer, json_answer, marked
from skep.web.layout import downloads, page
from skep.web.pictures import fetched
from skep.web.plan_form import Asked, plan_form, read_query
from skep.web.plan_measured import Measured, measured_of
from skep.web.plan_parts import COLUMNS, plan_parts, plan_rows
from skep.web.runs_book import RunBook
from skep.web.site import Site

SCRIPTS, STYLES = ("runs.js", "plan.js"), ("runs.css",)
_KEPT = 64
MOST_WAITING = 8  # plans at a time; one takes up to some seconds
_EXAMPLES = (
    ("qwen3.6-27b on two RTX 3090, 4 agents", "model=qwen3.6-27b&card=rtx-3090&count=2"),
    ("qwen3-30b-a3b on one RTX 5090, 16 agents", "model=qwen3-30b-a3b&card=rtx-5090&agents=16"),
    ("gpt-oss-120b on one DGX Spark", "model=gpt-oss-120b&card=dgx-spark"),
)


class PlanPages:
    def __init__(self, site: Site) -> None:
        self.site = site
        self.book = RunBook(site)
        self._plans: OrderedDict[Asked, dict[str, Any]] = OrderedDict()
        self._lock = threading.Lock()  # the plans that are kept
        self._one_at_a_time = threading.Lock()  # planning is all CPU: two at once would only be slower
        self._queue = threading.BoundedSemaphore(MOST_WAITING)  # so that other pages are still answered

    def __repr__(self) -> str:
        return f"<PlanPages {len(self._plans)} kept>"

    def show(self, request: Request) -> Response:
        asked = read_query(request.query_params)
        parts = [plan_form(asked)]
        if not asked.model:
            parts.append(_examples())
        elif request.query_params.get("whole") == "1":
            parts.append(self._shown(asked))
        elif (kept := self._kept(asked)) is not None:
            parts.append(self._drawn(asked, kept))
        else:
            query = asked.query()
            parts.append(fetched(f"/plan/fragment?{query}", f"/plan?{query}&whole=1", "the plan"))
        if asked.model:
            parts.append(downloads("plan", asked.query()))
        lead = "Which layout, does it fit, how fast with so many agents, and why."
        return page(self.site, "plan", "Plan", join(parts), scripts=SCRIPTS, styles=STYLES, lead=lead)

    def fragment(self, request: Request) -> Response:
        """What the script puts into the page."""
        asked = read_query(request.query_params)
        return HTMLResponse(self._shown(asked) if asked.model else text(""))

    def as_json(self, request: Request) -> Response:
        asked = self._wanted(request)
        found = self._plan(asked)
        return json_answer({**found, "measured": [asdict(one) for one in self._measured(asked, found)]})

    def as_csv(self, request: Request) -> Response:
        asked = self._wanted(request)
        found = self._plan(asked)
        return csv_answer("plan", COLUMNS, plan_rows(found, self._measured(asked, found)))

    def _wanted(self, request: Request) -> Asked:
        asked = read_query(request.query_params)
        if not asked.model:
            raise UserError("no model was named", hint="as in ?model=qwen3-8b&card=rtx-3090&count=2")
        return asked

    def _shown(self, asked: Asked) -> Markup:
        """The plan, or why there is none."""
        try:
            return self._drawn(asked, self._plan(asked))
        except SkepError as error:
            if not isinstance(error, UserError | DoesNotFit):
                raise
            said = tag("p", marked(error.message), class_="banner incomplete", role="alert")
            return join([said, tag("p", marked(error.hint), class_="below") if error.hint else text("")])

    def _drawn(self, asked: Asked, found: dict[str, Any]) -> Markup:
        def again(input_tokens: int, output_tokens: int) -> str:
            return f"/plan?{replace(asked, input_tokens=input_tokens, output_tokens=output_tokens).query()}"

        return tag("div", plan_parts(found, self._measured(asked, found), asked.command(), again), class_="planned")

    def _plan(self, asked: Asked) -> dict[str, Any]:
        """The document of `skep plan --json`. Raises DoesNotFit where no layout does."""
        kept = self._kept(asked)
        if kept is not None:
            return kept
        if not self._queue.acquire(blocking=False):
            raise UserError("many plans are being made at this moment", hint="try again in a few seconds")
        try:
            with self._one_at_a_time:
                return self._kept(asked) or self._made(asked)
        finally:
            self._queue.release()

    def _made(self, asked: Asked) -> dict[str, Any]:
        found = answer(asked.flags(), self.site.paths.store)
        error = nothing_fits(found)
        if error is not None:
            raise error
        made = document(found)
        if not asked.own_machine:  # this machine may be calibrated at any moment
            with self._lock:
                self._plans[asked] = made
                while len(self._plans) > _KEPT:
                    self._plans.popitem(last=False)
        return made

    def _kept(self, asked: Asked) -> dict[str, Any] | None:
        with self._lock:
            return self._plans.get(asked)

    def _measured(self, asked: Asked, found: dict[str, Any]) -> list[Measured]:
        with self.site.store() as store:
            if store is None:
                return []
            cards = found["rigs"][0]["cards"]
            host = host_json(read_host()) if asked.own_machine else None
            return measured_of(store, self.book, found["model"], cards, host, public=self.site.public)


def _examples() -> Markup:
    links = [tag("li", tag("a", text(name), href=f"/plan?{query}")) for name, query in _EXAMPLES]
    return tag("div", tag("p", text("For example:"), class_="below"), tag("ul", *links, class_="checks"))


def routes(site: Site) -> list[BaseRoute]:
    pages = PlanPages(site)
    return [
        Route("/plan", pages.show),
        Route("/plan/fragment", pages.fragment),
        Route("/api/plan.json", pages.as_json),
        Route("/api/plan.csv", pages.as_csv),
    ]
