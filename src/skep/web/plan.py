"""The plan page: layouts, memory and predicted curves. A plan takes time: the page
is sent without it and asks for it then.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import cycle
from typing import Any
from urllib.parse import urlencode

import msgspec
from markupsafe import Markup
from msgspec.structs import replace
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from skep.catalog.gpus import device, devices
from skep.catalog.models import geometries, geometry
from skep.deploy.commands import document
from skep.deploy.plan_request import TASK, PlanFlags, answer_plan, nothing_fits
from skep.errors import DoesNotFit, UserError
from skep.planner.candidates import AGENT_INPUT_TOKENS, AGENT_OUTPUT_TOKENS
from skep.quality.kv_evidence import with_kv_evidence
from skep.report import theme
from skep.report.plan_page import Document, layout_name, level_of, predicted_chart, rejected_name
from skep.report.svg import alive, picture
from skep.web.context import Site
from skep.web.layout import page, render
from skep.web.responses import json_answer

OWN_CARDS = "this"  # in place of a card: this machine's
MOST_CARDS = 64
MOST_AGENTS = 4096
MOST_TOKENS = 1_000_000
LONGEST_RIG = 200
CODING = "coding"
LOADS = {
    CODING: "sessions of a coding agent",
    "small": "sessions of an agent with a short prompt",
    TASK: "single tasks, nothing cached",
}
_COLOURS = (theme.HONEY, theme.SKY, theme.PLUM, theme.MOSS, theme.ROSE, theme.STONE, *theme.SERIES)


class PlanQuery(msgspec.Struct, frozen=True):
    """What the page is asked for, all of it in the address. Without a model nothing was asked."""

    model: str = ""
    card: str = OWN_CARDS
    count: int = 1
    rig: str = ""  # in words, instead of count and card: "2x rtx-3090: nvlink"
    agents: int = 4
    load: str = CODING  # a shape of sessions, or tasks of these lengths
    input_tokens: int = AGENT_INPUT_TOKENS
    output_tokens: int = AGENT_OUTPUT_TOKENS

    @property
    def own_machine(self) -> bool:
        return not self.rig and self.card == OWN_CARDS

    @property
    def cards(self) -> str:
        return self.rig or f"{self.count}x {self.card}"

    @property
    def changed(self) -> dict[str, int | str]:
        """Return the values that are not the usual ones, by their options of `skep plan`."""
        options = {"concurrency": "agents", "load": "load"}
        if self.load == TASK:
            options |= {"prompt-tokens": "input_tokens", "output-tokens": "output_tokens"}
        values = {option: getattr(self, name) for option, name in options.items()}
        return {
            option: values[option]
            for option, name in options.items()
            if values[option] != getattr(USUAL_QUERY, name)
        }

    def flags(self) -> PlanFlags:
        # The usual load is the first that the model's context has room for.
        flags = PlanFlags(
            self.model,
            gpu=() if self.own_machine else (self.cards,),
            agents=self.agents,
            load=None if self.load == USUAL_QUERY.load else self.load,
        )
        if self.load != TASK:
            return flags
        return replace(flags, input_tokens=self.input_tokens, output_tokens=self.output_tokens)

    def query(self) -> str:
        """Return the query string, without fields that have their usual value."""
        fields = {"model": self.model, **({"rig": self.rig} if self.rig else {"card": self.card})}
        for name in ("count", "agents", "load", "input_tokens", "output_tokens"):
            if getattr(self, name) != getattr(USUAL_QUERY, name):
                fields[name] = getattr(self, name)
        return urlencode({name: value for name, value in fields.items() if value})

    def command(self) -> str:
        words = [
            "skep",
            "plan",
            self.model,
            *(() if self.own_machine else ("--gpu", f'"{self.cards}"')),
        ]
        return " ".join(
            [*words, *(f"--{option} {value}" for option, value in self.changed.items())]
        )


USUAL_QUERY = PlanQuery()


def read_query(query: QueryParams) -> PlanQuery:
    """Return what an address asks for; raise UserError with what could be meant."""
    model = query.get("model", "").strip()
    card = query.get("card", "").strip()
    legible = any(letter.isascii() and letter.isalnum() for letter in model)
    if model and (len(model) > 120 or model.startswith((".", "/", "~")) or not legible):
        hint = "`skep plan` accepts paths; this page does not"
        raise UserError(f"`{model[:60]}` is not a model of the catalogue", hint=hint)
    plan_query = PlanQuery(
        geometry(model).id if model else "",
        OWN_CARDS if card in ("", OWN_CARDS) else device(card[:120]).id,
        _number(query, "count", MOST_CARDS),
        query.get("rig", "").strip()[:LONGEST_RIG],
        _number(query, "agents", MOST_AGENTS),
        _load(query),
        _number(query, "input_tokens", MOST_TOKENS),
        _number(query, "output_tokens", MOST_TOKENS),
    )
    if plan_query.own_machine or plan_query.rig:
        return replace(plan_query, count=1)
    return plan_query


_FORM: dict[str, Any] = {
    "MOST_CARDS": MOST_CARDS, "MOST_AGENTS": MOST_AGENTS, "MOST_TOKENS": MOST_TOKENS,
    "LONGEST_RIG": LONGEST_RIG, "LOADS": LOADS,
}  # fmt: skip


def _load(query: QueryParams) -> str:
    """Return the load by name; lengths alone mean tasks."""
    lengths = query.get("input_tokens", "").strip() or query.get("output_tokens", "").strip()
    text = query.get("load", "").strip()
    if not text:
        return TASK if lengths else USUAL_QUERY.load
    if text not in LOADS:
        raise UserError(f"no load is called `{text[:30]}`", hint=f"there are {', '.join(LOADS)}")
    return text


def _number(query: QueryParams, name: str, maximum: int) -> int:
    text = query.get(name, "").strip()
    usual = int(getattr(USUAL_QUERY, name))
    if not text:
        return usual
    if (
        not text.isascii()
        or not text.isdecimal()
        or len(text) > 9
        or not 1 <= int(text) <= maximum
    ):
        raise UserError(
            f"`{name}={text[:30]}` is not a number from 1 to {maximum:,}",
            hint=f"leave it out for {usual:,}",
        )
    return int(text)


def plan_picture(plans: Sequence[Document], field: str, label: str) -> Markup:
    """Draw predicted curves over the number of agents, named by letters."""
    spec = predicted_chart(plans, field, "ms" if field == "ttft_ms" else "tok/s")
    with alive():
        if spec is None:
            return Markup("not predicted")
        return picture({**spec, "width": 500, "height": 290}, label)


def term_colours(plans: Sequence[Document]) -> dict[str, str]:
    """Return one colour a term of memory, the same in every bar; weights and KV cache first."""
    names = dict.fromkeys(
        ["weights", "KV pool", *(term["term"] for plan in plans for term in plan["memory"])]
    )
    return dict(zip(names, cycle(_COLOURS), strict=False))


_DRAWN = 3  # plans whose curves are drawn
MOST_WAITING = 8  # plans at a time; one takes up to some seconds


class PlanPages:
    def __init__(self, site: Site) -> None:
        self.site = site
        # Planning is all CPU: two at once would only be slower.
        self._one_at_a_time = threading.Lock()
        # Bounds the threads that wait, so that other pages are still answered.
        self._queue = threading.BoundedSemaphore(MOST_WAITING)

    def show(self, request: Request) -> Response:
        query = read_query(request.query_params)
        whole = query.model and request.query_params.get("whole") == "1"
        plan = self._plan_html(query) if whole else None
        choices: dict[str, Any] = {
            "devices": list(devices().values()),
            "models": geometries().values(),
        }
        return page(self.site, "plan.html", asked=query, plan=plan, **_FORM, **choices)

    def fragment(self, request: Request) -> Response:
        query = read_query(request.query_params)
        return HTMLResponse(self._plan_html(query) if query.model else "")

    def as_json(self, request: Request) -> Response:
        query = read_query(request.query_params)
        if not query.model:
            raise UserError(
                "no model is named", hint="as in ?model=qwen3-8b&card=rtx-3090&count=2"
            )
        return json_answer(self._plan(query))

    def _plan_html(self, query: PlanQuery) -> str:
        try:
            return drawn(query, self._plan(query))
        except (UserError, DoesNotFit) as error:
            return render("plan_found.html", error=error)

    def _plan(self, query: PlanQuery) -> dict[str, Any]:
        """Return the document of `skep plan --json`. Raises DoesNotFit where no layout does."""
        if not self._queue.acquire(blocking=False):
            raise UserError("too many plans are being computed", hint="try again in a few seconds")
        try:
            with self._one_at_a_time:
                store_path = self.site.paths.store
                answer = with_kv_evidence(answer_plan(query.flags(), store_path), store_path)
        finally:
            self._queue.release()
        if (error := nothing_fits(answer)) is not None:
            raise error
        return document(answer)


def drawn(query: PlanQuery, plan_document: dict[str, Any]) -> str:
    """Return the plan as a part of the page."""
    plans = plan_document["plans"]
    return render(
        "plan_found.html",
        **{
            name: plan_document[name]
            for name in ("model", "goal", "rigs", "plans", "rejected", "notes")
        },
        error=None,
        best=plans[0],
        agents=plan_document["goal"]["agents"],
        drawn=[plan for plan in plans if len(plan["predicted"]) > 1][:_DRAWN] or plans[:1],
        colours=term_colours(plans[:2]),
        command=query.command(),
        layout_name=layout_name,
        level_of=level_of,
        rejected_name=rejected_name,
        plan_picture=plan_picture,
    )


def routes(site: Site) -> list[Route]:
    pages = PlanPages(site)
    page_routes = {
        "/plan": pages.show,
        "/plan/fragment": pages.fragment,
        "/api/plan.json": pages.as_json,
    }
    return [Route(path, answer) for path, answer in page_routes.items()]
