"""The plan page: layouts, memory and predicted curves beside what was measured. A plan takes time: it comes later."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any
from urllib.parse import urlencode

import msgspec
from markupsafe import Markup
from msgspec.structs import replace
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from skep.bench.metrics import LevelSummary
from skep.bench.stored_run import JUDGED, OF_A_TUNING, TIMED
from skep.catalog.gpus import device, devices, find_device
from skep.catalog.models import find_geometry, geometries, geometry
from skep.config.rigs import find_rig
from skep.deploy.commands import document
from skep.deploy.plan_request import GOALS, SHAPES, PlanFlags, answer_plan, nothing_fits
from skep.errors import DoesNotFit, SkepError, UserError
from skep.host.facts import host_json, read_host
from skep.planner.candidates import AGENT_INPUT_TOKENS, AGENT_OUTPUT_TOKENS, ENGINES
from skep.planner.setup import QUANTS
from skep.report import theme
from skep.report.charts import ChartCurve
from skep.report.plan import Document, layout_name, level_of, predicted_chart
from skep.report.svg import alive, picture
from skep.store.database import Store
from skep.store.records import RunState, StoredRun
from skep.units import number
from skep.web.context import Site, is_near
from skep.web.layout import page, render
from skep.web.responses import csv_answer, json_answer
from skep.web.run_cache import RunCache, engine_of, layout_of, machine_of

OWN = "this"  # machine
MOST_DRAWN, MOST_TOLD = 3, 12  # measured runs
MOST_CARDS, MOST_AGENTS, MOST_TOKENS = 64, 4096, 1_000_000
LONGEST_RIG = 200
_SHAPES = ("diamond", "square", "triangle-up")  # of runs
_SAME_LOAD = 0.25  # as a share
_COLOURS = (theme.HONEY, theme.SKY, theme.PLUM, theme.MOSS, theme.ROSE, theme.STONE, *theme.SERIES)


class PlanQuery(msgspec.Struct, frozen=True):
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
    input_tokens: int = AGENT_INPUT_TOKENS
    output_tokens: int = AGENT_OUTPUT_TOKENS

    @property
    def own_machine(self) -> bool:
        return not self.rig and self.card == OWN

    @property
    def cards(self) -> str:
        return self.rig or f"{self.count}x {self.card}"

    @property
    def unusual(self) -> bool:
        """Whether a field is used that the form does not show at first."""
        return bool(self._changed("rig", *_TOLD[1:]))

    def _changed(self, *names: str) -> dict[str, str]:
        """Return those of these fields that are not as usual."""
        return {name: str(getattr(self, name)) for name in names if getattr(self, name) != getattr(USUAL, name)}

    def flags(self) -> PlanFlags:
        alike = {name: getattr(self, name) for name in ("agents", "goal", "shape", "input_tokens", "output_tokens")}
        gpu, engine = () if self.own_machine else (self.cards,), (self.engine,) if self.engine else ()
        return PlanFlags(self.model, gpu=gpu, engine=engine, quant=self.quant or None, **alike)

    def query(self) -> str:
        """Only what is not usual."""
        where = {"rig": self.rig} if self.rig else {"card": self.card}
        told = {"model": self.model, **where, **self._changed("count", *_TOLD)}
        return urlencode({name: value for name, value in told.items() if value})

    def command(self) -> str:
        words = ["skep", "plan", self.model, *(() if self.own_machine else ("--gpu", f'"{self.cards}"'))]
        for name, value in self._changed(*_TOLD).items():
            words += [f"--{_OPTIONS.get(name, name).replace('_', '-')}", value]
        return " ".join(words)


_TOLD = ("agents", "engine", "quant", "goal", "shape", "input_tokens", "output_tokens")
_OPTIONS = {"agents": "concurrency", "input_tokens": "prompt_tokens"}  # as `skep plan` calls them
USUAL = PlanQuery()


def read_query(query: QueryParams) -> PlanQuery:
    """Raises UserError with what could be meant."""
    model, card = query.get("model", "").strip(), query.get("card", "").strip()
    legible = any(one.isascii() and one.isalnum() for one in model)
    if model and (len(model) > 120 or model.startswith((".", "/", "~")) or not legible):
        hint = "`skep plan` accepts paths; this page does not"
        raise UserError(f"`{model[:60]}` is not a model of the catalogue", hint=hint)
    asked = PlanQuery(
        geometry(model).id if model else "",
        OWN if card in ("", OWN) else device(card[:120]).id,
        _number(query, "count", MOST_CARDS),
        query.get("rig", "").strip()[:LONGEST_RIG],
        _number(query, "agents", MOST_AGENTS),
        _one_of(query, "engine", (*ENGINES, "all")),
        _one_of(query, "quant", tuple(QUANTS)),
        _one_of(query, "goal", GOALS),
        _one_of(query, "shape", SHAPES),
        _number(query, "input_tokens", MOST_TOKENS),
        _number(query, "output_tokens", MOST_TOKENS),
    )
    return replace(asked, count=1) if asked.own_machine or asked.rig else asked


_FORM: dict[str, Any] = {
    "ENGINES": ENGINES, "GOALS": GOALS, "SHAPES": SHAPES, "MOST_CARDS": MOST_CARDS, "MOST_AGENTS": MOST_AGENTS,
    "MOST_TOKENS": MOST_TOKENS, "LONGEST_RIG": LONGEST_RIG, "quants": QUANTS.values(),
}  # fmt: skip


def _number(query: QueryParams, name: str, most: int) -> int:
    said, usual = query.get(name, "").strip(), int(getattr(USUAL, name))
    if not said:
        return usual
    if not said.isascii() or not said.isdecimal() or len(said) > 9 or not 1 <= int(said) <= most:
        raise UserError(f"`{name}={said[:30]}` is not a number from 1 to {most:,}", hint=f"leave it out for {usual:,}")
    return int(said)


def _one_of(query: QueryParams, name: str, known: tuple[str, ...]) -> str:
    said = query.get(name, "").strip().lower()
    if said and said not in known:
        raise UserError(f"`{name}={said[:60]}` is not known", hint=f"one of {', '.join(known)}")
    return said or str(getattr(USUAL, name))


class MeasuredPoint(msgspec.Struct, frozen=True):
    concurrency: int
    effective_tok_s: float
    low: float | None  # 95 % of the mean, where runs were repeated
    high: float | None
    ttft_ms: float | None
    client_limited: bool


class MeasuredRun(msgspec.Struct, frozen=True):
    """One stored run of the model. `same_rig`: on cards of the kind and number that are planned."""

    run_id: str
    created_at: float
    machine: str
    engine: str
    layout: str
    simulated: bool
    same_rig: bool
    points: tuple[MeasuredPoint, ...]
    input_tokens: int | None = None  # of a request, on the average: a plan is for a load, and the run had its own
    output_tokens: int | None = None

    @property
    def best(self) -> MeasuredPoint:
        return max(self.points, key=lambda point: point.effective_tok_s)

    @property
    def alone_ttft_ms(self) -> float | None:
        return next((point.ttft_ms for point in self.points if point.concurrency == 1), None)

    def has_other_load(self, input_tokens: int, output_tokens: int) -> bool:
        """A curve for other prompts and answers than those of the run says little about it."""
        if self.input_tokens is None or self.output_tokens is None:
            return False
        shares = (self.input_tokens / input_tokens, self.output_tokens / output_tokens)
        return any(abs(share - 1) > _SAME_LOAD for share in shares)


def plan_picture(plans: Sequence[Document], measured: Sequence[MeasuredRun], field: str, label: str) -> Markup:
    """Return predicted curves over C, named by letters, beside measured points, hollow where nothing real ran."""
    unit, curves = "ms" if field == "ttft_ms" else "tok/s", []
    for place, run in enumerate(measured):
        points = [(one.concurrency, value) for one in run.points if (value := getattr(one, field)) is not None]
        ranged = field == "effective_tok_s"
        ranges = {one.concurrency: (one.low, one.high) for one in run.points if ranged and one.low and one.high}
        how = f"{'simulated' if run.simulated else 'measured'}, run {run.run_id}"
        tips = {c: f"{how}: {number(value)} {unit} at C = {c}" for c, value in points}
        hollow = [c for c, _ in points] if run.simulated else []
        look = (theme.ROSE, str(place + 1), (), _SHAPES[place % 3])
        curves.append(ChartCurve(points, *look, hollow, ranges, tips, joined=False))
    spec = predicted_chart(plans, field, unit, curves)
    words = f"{label}, and measured" if measured else label
    with alive():
        return Markup("not predicted") if spec is None else picture({**spec, "width": 500, "height": 290}, words)


def term_colours(plans: Sequence[Document]) -> dict[str, str]:
    """Return one colour a term of memory, the same in every bar; weights and KV cache first."""
    names = dict.fromkeys(["weights", "KV pool", *(term["term"] for plan in plans for term in plan["memory"])])
    return dict(zip(names, cycle(_COLOURS), strict=False))


COLUMNS = ("rig", "layout", "engine", "quant", "kv_dtype", "slots", "context", "concurrency", "effective_tok_s", "low",
           "high", "task_tok_s", "ttft_ms", "tpot_ms", "source", "run")  # fmt: skip


def plan_rows(found: Document, measured: Sequence[MeasuredRun]) -> list[list[Any]]:
    """Return the layouts and their predicted levels for `/api/plan.csv`, and the levels of the runs beside them."""
    rows: list[list[Any]] = [
        [plan["rig"], layout_name(plan), *(plan[name] for name in COLUMNS[2:7]),
         *(point[name] for name in COLUMNS[7:14]), "predicted", None]
        for plan in found["plans"] for point in plan["predicted"]
    ]  # fmt: skip
    return rows + [
        [one.machine, one.layout, one.engine, None, None, None, None, point.concurrency, point.effective_tok_s,
         point.low, point.high, None, point.ttft_ms, None, "simulated" if one.simulated else "measured", one.run_id]
        for one in measured for point in one.points
    ]  # fmt: skip


def measured_of(
    store: Store, book: RunCache, model: str, cards: Sequence[str], host: Document | None = None
) -> list[MeasuredRun]:
    """Of this model; on the same cards, or on this `host`, first, measured before simulated, then newest first."""
    known = [run for run in book.runs(store) if _takes(run, model)]
    told = sorted(known, key=lambda run: (not _same(run, cards, host), run.simulated, -run.created_at))[:MOST_TOLD]
    found = []
    for run in told:
        levels = book.levels(store, run)
        points = []
        for level in levels:
            if (speed := level.effective_tok_s) is not None:
                low, high = (sure.low, sure.high) if (sure := level.effective_interval) else (None, None)
                ttft_ms = level.ttft_ms.p50 if level.ttft_ms else None
                points.append(MeasuredPoint(level.concurrency, speed, low, high, ttft_ms, level.client_limited))
        means = (_mean(levels, name) for name in ("prompt_tokens", "output_tokens_each"))
        where = (machine_of(run), engine_of(run), layout_of(run))
        if points:
            same = _same(run, cards, host)
            found.append(MeasuredRun(run.id, run.created_at, *where, run.simulated, same, tuple(points), *means))
    return found


def _takes(run: StoredRun, model: str) -> bool:
    if run.kind in (*JUDGED, *TIMED, *OF_A_TUNING) or run.state is not RunState.DONE:
        return False
    found = find_geometry(run.model)
    return found is not None and found.id == model


def _same(run: StoredRun, cards: Sequence[str], host: Document | None) -> bool:
    if host is not None:
        return not run.simulated and is_near(run.url) and _likeness(run.host) == _likeness(host)
    return bool(cards) and Counter(cards_of(run)) == Counter(cards)


def cards_of(run: StoredRun) -> tuple[str, ...]:
    """Return the catalogue's names of the cards it ran on; none where they are not known."""
    if run.simulated:
        try:
            return tuple(card.id for card in find_rig(machine_of(run), None).rig.cards)
        except SkepError:
            return ()
    found = [find_device(name) for name in _card_names(run.host)] if is_near(run.url) else []
    return tuple(card.id for card in found if card is not None) if all(found) else ()


def _likeness(host: Document) -> tuple[object, ...]:
    return host.get("cpu_model"), host.get("cpu_cores"), *sorted(_card_names(host))


def _card_names(host: Document) -> list[str]:
    return [str(card.get("name", "")) for card in host.get("gpus") or () if isinstance(card, Mapping)]


def _mean(levels: Sequence[LevelSummary], name: str) -> int | None:
    told = [value for level in levels if (value := getattr(level, name)) is not None]
    return max(1, round(sum(told) / len(told))) if told else None


_KEPT, _DRAWN = 64, 3
MOST_WAITING = 8  # plans at a time; one takes up to some seconds


class PlanPages:
    def __init__(self, site: Site) -> None:
        self.site = site
        self.book = RunCache(site)
        self._plans: OrderedDict[PlanQuery, dict[str, Any]] = OrderedDict()
        self._one_at_a_time = threading.Lock()  # planning is all CPU: two at once would only be slower
        self._queue = threading.BoundedSemaphore(MOST_WAITING)  # so that other pages are still answered

    def show(self, request: Request) -> Response:
        asked = read_query(request.query_params)
        plan = None
        if asked.model and request.query_params.get("whole") == "1":
            plan = self._shown(asked)
        elif (kept := self._plans.get(asked)) is not None:
            plan = self._drawn(asked, kept)
        known: dict[str, Any] = {"devices": list(devices().values()), "models": geometries().values()}
        return page(self.site, "plan.html", asked=asked, plan=plan, **_FORM, **known)

    def fragment(self, request: Request) -> Response:
        asked = read_query(request.query_params)
        return HTMLResponse(self._shown(asked) if asked.model else "")

    def as_json(self, request: Request) -> Response:
        found, measured = self._beside(request)
        return json_answer({**found, "measured": [msgspec.to_builtins(one) for one in measured]})

    def as_csv(self, request: Request) -> Response:
        return csv_answer("plan", COLUMNS, plan_rows(*self._beside(request)))

    def _beside(self, request: Request) -> tuple[dict[str, Any], list[MeasuredRun]]:
        """Return a plan, and what was measured of its model."""
        asked = read_query(request.query_params)
        if not asked.model:
            raise UserError("no model is named", hint="as in ?model=qwen3-8b&card=rtx-3090&count=2")
        found = self._plan(asked)
        return found, self._measured(asked, found)

    def _shown(self, asked: PlanQuery) -> str:
        try:
            return self._drawn(asked, self._plan(asked))
        except (UserError, DoesNotFit) as error:
            return render("plan_found.html", error=error)

    def _drawn(self, asked: PlanQuery, found: dict[str, Any]) -> str:
        plans = found["plans"]
        measured = self._measured(asked, found)

        def again(run: MeasuredRun) -> str:
            prompt, answer = run.input_tokens or asked.input_tokens, run.output_tokens or asked.output_tokens
            return f"/plan?{replace(asked, input_tokens=prompt, output_tokens=answer).query()}"

        return render(
            "plan_found.html",
            **{name: found[name] for name in ("model", "goal", "plans", "rejected", "notes")},
            error=None,
            best=plans[0],
            agents=found["goal"]["agents"],
            drawn=[plan for plan in plans if len(plan["predicted"]) > 1][:_DRAWN] or plans[:1],
            measured=measured,
            beside=[one for one in measured if one.same_rig][:MOST_DRAWN],
            colours=term_colours(plans[:2]),
            command=asked.command(),
            again=again,
            layout_name=layout_name,
            level_of=level_of,
            plan_picture=plan_picture,
        )

    def _plan(self, asked: PlanQuery) -> dict[str, Any]:
        """Return the document of `skep plan --json`. Raises DoesNotFit where no layout does."""
        if (kept := self._plans.get(asked)) is not None:
            return kept
        if not self._queue.acquire(blocking=False):
            raise UserError("too many plans are being computed", hint="try again in a few seconds")
        try:
            with self._one_at_a_time:
                if (kept := self._plans.get(asked)) is not None:
                    return kept
                found = answer_plan(asked.flags(), self.site.paths.store)
                if (error := nothing_fits(found)) is not None:
                    raise error
                made = document(found)
                if not asked.own_machine:  # this machine may be calibrated at any moment
                    self._plans[asked] = made
                    while len(self._plans) > _KEPT:
                        self._plans.popitem(last=False)
                return made
        finally:
            self._queue.release()

    def _measured(self, asked: PlanQuery, found: dict[str, Any]) -> list[MeasuredRun]:
        with self.site.store() as store:
            cards = found["rigs"][0]["cards"]
            host = host_json(read_host()) if asked.own_machine else None
            return measured_of(store, self.book, found["model"], cards, host)


def routes(site: Site) -> list[BaseRoute]:
    pages = PlanPages(site)
    shown = {"/plan": pages.show, "/plan/fragment": pages.fragment, "/api/plan.json": pages.as_json,
             "/api/plan.csv": pages.as_csv}  # fmt: skip
    return [Route(path, answer) for path, answer in shown.items()]
