"""The plan page: a model and cards in, layouts, memory and the predicted curve out, beside what was measured.

A plan takes some hundred milliseconds, so the page is shown first and the plan follows; plans are kept for a while.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import urlencode

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from skep.catalog.gpus import device, devices
from skep.catalog.models import geometries, geometry
from skep.deploy.plan_request import GOALS, SHAPES, PlanFlags, answer_plan, document, nothing_fits
from skep.errors import DoesNotFit, SkepError, UserError
from skep.host.facts import host_json, read_host
from skep.planner.candidates import ENGINES
from skep.planner.quants import QUANTS
from skep.report.markup import Markup, join, tag, text
from skep.web.context import Site
from skep.web.layout import downloads, page, void
from skep.web.pictures import fetched
from skep.web.plan_measured import MeasuredRun, measured_of
from skep.web.plan_parts import COLUMNS, plan_parts, plan_rows
from skep.web.responses import csv_answer, json_answer, marked
from skep.web.run_cache import RunCache

OWN = "this"  # machine
MOST_CARDS, MOST_AGENTS, MOST_TOKENS = 64, 4096, 1_000_000
_LONGEST_RIG = 200
_MAKERS = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel", "apple": "Apple"}


@dataclass(frozen=True, slots=True)
class PlanQuery:
    """All of it is in the address. Without a model nothing was asked yet."""

    model: str = ""
    card: str = OWN
    count: int = 1
    rig: str = ""  # in words, instead of count and card: "2x rtx-3090: nvlink"
    agents: int = 4
    engine: str = ""
    quant: str = ""
    goal: str = "throughput"
    shape: str = "steady"
    input_tokens: int = 1024
    output_tokens: int = 512

    @property
    def own_machine(self) -> bool:
        return not self.rig and self.card == OWN

    def flags(self) -> PlanFlags:
        """As `skep plan` would get them."""
        rigs = () if self.own_machine else (self.rig or f"{self.count}x {self.card}",)
        return PlanFlags(
            self.model,
            gpu=rigs,
            agents=self.agents,
            goal=self.goal,
            shape=self.shape,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            engine=(self.engine,) if self.engine else (),
            quant=self.quant or None,
        )

    def query(self) -> str:
        """Only what is not usual."""
        told = {"model": self.model, "rig": self.rig}
        if not self.rig:
            told["card"] = self.card
        for name in ("count", "agents", "engine", "quant", "goal", "shape", "input_tokens", "output_tokens"):
            value = getattr(self, name)
            if value != getattr(USUAL, name):
                told[name] = str(value)
        return urlencode({name: value for name, value in told.items() if value})

    def command(self) -> str:
        """The same question at the command line."""
        words = ["skep", "plan", self.model]
        if not self.own_machine:
            words += ["--gpu", f'"{self.rig or f"{self.count}x {self.card}"}"']
        for name in ("agents", "engine", "quant", "goal", "shape", "input_tokens", "output_tokens"):
            value = getattr(self, name)
            if value != getattr(USUAL, name):
                words += [f"--{name.replace('_', '-')}", str(value)]
        return " ".join(words)


USUAL = PlanQuery()


def read_query(query: QueryParams) -> PlanQuery:
    """Raises UserError with what could be meant."""
    asked = PlanQuery(
        _model(query.get("model", "").strip()),
        _card(query.get("card", "").strip()),
        _number(query, "count", 1, MOST_CARDS),
        query.get("rig", "").strip()[:_LONGEST_RIG],
        _number(query, "agents", USUAL.agents, MOST_AGENTS),
        _one_of(query, "engine", (*ENGINES, "all"), ""),
        _one_of(query, "quant", tuple(QUANTS), ""),
        _one_of(query, "goal", GOALS, USUAL.goal),
        _one_of(query, "shape", SHAPES, USUAL.shape),
        _number(query, "input_tokens", USUAL.input_tokens, MOST_TOKENS),
        _number(query, "output_tokens", USUAL.output_tokens, MOST_TOKENS),
    )
    return replace(asked, count=1) if asked.own_machine or asked.rig else asked


def plan_form(asked: PlanQuery) -> Markup:
    models = [("", "choose a model"), *((one.id, one.title) for one in geometries().values())]
    engines = [("", "as the model wants"), *((name, name) for name in ENGINES), ("all", "all, side by side")]
    quants = [("", "the best that fits"), *((one.id, one.title) for one in QUANTS.values())]
    main = [
        _select("model", "Model", models, asked.model),
        _input("count", "Cards", asked.count, MOST_CARDS),
        _cards(asked.card),
        _input("agents", "Agents at once", asked.agents, MOST_AGENTS),
        tag("button", text("Plan")),
    ]
    rig = void("input", name="rig", value=asked.rig, maxlength=str(_LONGEST_RIG),
               placeholder="2x rtx-3090: nvlink(0-1)")  # fmt: skip
    more = [
        _select("engine", "Engine", engines, asked.engine),
        _select("quant", "Format of the weights", quants, asked.quant),
        _select("goal", "Goal", [(name, name) for name in GOALS], asked.goal),
        _select("shape", "Shape of the load", [(name, name) for name in SHAPES], asked.shape),
        _input("input_tokens", "Tokens of a prompt", asked.input_tokens, MOST_TOKENS),
        _input("output_tokens", "Tokens of an answer", asked.output_tokens, MOST_TOKENS),
        tag("label", text("Or the cards in words"), rig),
    ]
    unusual = asked.rig or any(
        getattr(asked, name) != getattr(USUAL, name)
        for name in ("engine", "quant", "goal", "shape", "input_tokens", "output_tokens")
    )
    details = tag("details", tag("summary", text("More")), tag("div", *more, class_="filters"),
                  open="" if unusual else None)  # fmt: skip
    return tag("form", tag("div", *main, class_="filters"), details, method="get", action="/plan", class_="plan panel")


def _model(name: str) -> str:
    if not name:
        return ""
    if len(name) > 120 or name.startswith((".", "/", "~")) or not any(one.isascii() and one.isalnum() for one in name):
        raise UserError(
            f"`{name[:60]}` is no model of the catalogue", hint="`skep plan` takes paths; this page does not"
        )
    return geometry(name).id


def _card(name: str) -> str:
    return OWN if name in ("", OWN) else device(name[:120]).id


def _cards(chosen: str) -> Markup:
    by_maker: dict[str, list[tuple[str, str]]] = {}
    for one in devices().values():
        title = f"{one.title}, {one.memory_gib:g} GiB"
        by_maker.setdefault(_MAKERS.get(one.vendor, one.vendor.title()), []).append((one.id, title))
    groups = [tag("optgroup", _options(cards, chosen), label=maker) for maker, cards in by_maker.items()]
    own = _options([(OWN, "this machine's own")], chosen)
    return tag("label", text("Card"), tag("select", own, *groups, name="card"))


def _select(name: str, label: str, options: list[tuple[str, str]], chosen: str) -> Markup:
    return tag("label", text(label), tag("select", _options(options, chosen), name=name))


def _options(options: list[tuple[str, str]], chosen: str) -> Markup:
    return join(
        tag("option", text(shown), value=value or "", selected="" if value == chosen else None)
        for value, shown in options
    )


def _input(name: str, label: str, value: int, most: int) -> Markup:
    field = void("input", type="number", name=name, value=str(value), min="1", max=str(most), inputmode="numeric")
    return tag("label", text(label), field)


def _number(query: QueryParams, name: str, usual: int, most: int) -> int:
    said = query.get(name, "").strip()
    if not said:
        return usual
    if not said.isascii() or not said.isdecimal() or len(said) > 9 or not 1 <= int(said) <= most:
        raise UserError(f"`{name}={said[:30]}` is no number from 1 to {most:,}", hint=f"leave it out for {usual:,}")
    return int(said)


def _one_of(query: QueryParams, name: str, known: tuple[str, ...], usual: str) -> str:
    said = query.get(name, "").strip().lower()
    if said and said not in known:
        raise UserError(f"`{name}={said[:60]}` is not known", hint=f"one of {', '.join(known)}")
    return said or usual


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
        self.book = RunCache(site)
        self._plans: OrderedDict[PlanQuery, dict[str, Any]] = OrderedDict()
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

    def _wanted(self, request: Request) -> PlanQuery:
        asked = read_query(request.query_params)
        if not asked.model:
            raise UserError("no model was named", hint="as in ?model=qwen3-8b&card=rtx-3090&count=2")
        return asked

    def _shown(self, asked: PlanQuery) -> Markup:
        """The plan, or why there is none."""
        try:
            return self._drawn(asked, self._plan(asked))
        except SkepError as error:
            if not isinstance(error, UserError | DoesNotFit):
                raise
            said = tag("p", marked(error.message), class_="banner incomplete", role="alert")
            return join([said, tag("p", marked(error.hint), class_="below") if error.hint else text("")])

    def _drawn(self, asked: PlanQuery, found: dict[str, Any]) -> Markup:
        def again(input_tokens: int, output_tokens: int) -> str:
            return f"/plan?{replace(asked, input_tokens=input_tokens, output_tokens=output_tokens).query()}"

        return tag("div", plan_parts(found, self._measured(asked, found), asked.command(), again), class_="planned")

    def _plan(self, asked: PlanQuery) -> dict[str, Any]:
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

    def _made(self, asked: PlanQuery) -> dict[str, Any]:
        found = answer_plan(asked.flags(), self.site.paths.store)
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

    def _kept(self, asked: PlanQuery) -> dict[str, Any] | None:
        with self._lock:
            return self._plans.get(asked)

    def _measured(self, asked: PlanQuery, found: dict[str, Any]) -> list[MeasuredRun]:
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
