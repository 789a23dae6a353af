"""The leaderboard: the best configuration of each model on each machine, with the step that won it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from skep.report.figures import milliseconds, number, shortened
from skep.report.markup import Markup, banner, join, section, table, tag, text
from skep.store.tunings import TuningStore
from skep.web.answers import csv_answer, json_answer
from skep.web.layout import downloads, page
from skep.web.runs_best import Leader, candidates, leaders, step_words
from skep.web.runs_book import PATIENCE_S, RunBook
from skep.web.runs_list import labelled, minute
from skep.web.site import Site
from skep.web.tuning_list import climbed
from skep.web.tuning_step import TunedStep, tuned_step

SCRIPTS, STYLES = ("runs.js",), ("runs.css",)
COLUMNS = (
    "model", "machine", "simulated", "engine", "layout", "best_tok_s", "best_at", "ttft_ms", "client_limited", "step",
    "gain", "beaten", "tuning", "runs", "setups", "run", "created_at",
)  # fmt: skip
A_PART_S, WITHOUT_SCRIPT_S = 0.8, 10.0  # how long one answer reads runs that were not looked at yet
_HEAD = ("Model", "Machine", "Setup", "Best tok/s", "at C", "TTFT p50, C = 1", "The step that won", "When")
_LEFT = ("Model", "Machine", "Setup", "The step that won", "When")


@dataclass(frozen=True, slots=True)
class Board:
    leaders: list[Leader]
    tuned: dict[str, TunedStep]  # by run, where a tuning tells the step that won
    read: int  # runs that were looked at
    runs: int  # that there are

    @property
    def missing(self) -> bool:
        return self.read < self.runs


class BoardPages:
    def __init__(self, site: Site) -> None:
        self.site = site
        self.book = RunBook(site)

    def __repr__(self) -> str:
        return f"<BoardPages {self.book!r}>"

    def show(self, request: Request) -> Response:
        whole = request.query_params.get("whole") == "1"
        model = request.query_params.get("model", "")
        query = urlencode({"model": model}) if model else ""
        found = self._leaders(model, WITHOUT_SCRIPT_S if whole else PATIENCE_S)
        otherwise = f"/leaderboard?{query}&whole=1" if query else "/leaderboard?whole=1"
        body = self._filling(found, otherwise)
        if found.missing and not whole:
            body = tag("div", body, data_fetch=f"/leaderboard/body?{query}", class_="fetched")
        body = join([body, downloads("leaderboard", query)])
        lead = "The best configuration of each model on each machine, by effective tok/s."
        return page(self.site, "leaderboard", "Leaderboard", body, scripts=SCRIPTS, styles=STYLES, lead=lead)

    def body(self, request: Request) -> Response:
        """The board for the script, which asks again as long as there are runs that nobody has looked at."""
        model = request.query_params.get("model", "")
        query = urlencode({"model": model}) if model else ""
        return HTMLResponse(self._filling(self._leaders(model, A_PART_S), f"/leaderboard?{query}"))

    def as_json(self, request: Request) -> Response:
        found = self._leaders(request.query_params.get("model", ""), None)
        return json_answer({"leaders": [self._document(one, found.tuned.get(one.run.id)) for one in found.leaders]})

    def as_csv(self, request: Request) -> Response:
        found = self._leaders(request.query_params.get("model", ""), None)
        documents = [self._document(one, found.tuned.get(one.run.id)) for one in found.leaders]
        return csv_answer("leaderboard", COLUMNS, [[one[name] for name in COLUMNS] for one in documents])

    def _leaders(self, model: str, patience_s: float | None) -> Board:
        """Of the runs whose figures are known, or worked out within the patience."""
        with self.site.store() as store:
            if store is None:
                return Board([], {}, 0, 0)
            runs = candidates([run for run in self.book.runs(store) if not model or run.model == model])
            if patience_s is None:
                figures = self.book.figures(store, runs)
            else:
                figures = self.book.most_figures(store, runs, patience_s)
            tunings = climbed(TuningStore(store))
        found = leaders(runs, figures, public=self.site.public)
        steps = {one.run.id: tuned_step(one.run, one.figures.best_at, tunings) for one in found}
        tuned = {run: step for run, step in steps.items() if step is not None}
        shown = [replace(one, run=replace(one.run, model=self.site.label(one.run.model))) for one in found]
        return Board(shown, tuned, len(figures), len(runs))

    def _filling(self, found: Board, again: str) -> Markup:
        """The board, and while runs are missing how many of them were looked at."""
        if not found.missing:
            return self._board(found)
        bar = tag("progress", value=str(found.read), max=str(found.runs), aria_label="Runs that were looked at")
        said = f" {found.read:,} of {found.runs:,} runs were looked at; the others may change the board."
        retry = tag("noscript", tag("a", text("Go on"), href=again))
        line = tag("p", bar, text(said), retry, class_="filling", role="status", data_more="")
        return join([line, self._board(found) if found.leaders else text("")])

    def _document(self, one: Leader, tuned: TunedStep | None) -> dict[str, Any]:
        told = one.figures
        step, gain = step_words(one.step), one.step.gain
        if tuned is not None:
            step, gain = str(tuned), tuned.ratio.estimate - 1 if tuned.ratio else None
        return {
            "model": one.run.model, "machine": one.machine, "simulated": one.run.simulated, "engine": one.engine,
            "layout": one.layout, "best_tok_s": told.best_tok_s, "best_at": told.best_at, "ttft_ms": told.ttft_ms,
            "client_limited": told.client_limited, "step": step, "gain": gain,
            "beaten": None if tuned else one.step.beaten, "tuning": tuned.tuning if tuned else None,
            "runs": one.tried, "setups": one.setups, "run": one.run.id, "created_at": one.run.created_at,
        }  # fmt: skip

    def _board(self, board: Board) -> Markup:
        if not board.leaders:
            said = (text("Nothing was measured yet. "), tag("code", text("skep bench sweep")), text(" makes a run."))
            return tag("p", *said, class_="empty")
        measured = [one for one in board.leaders if not one.run.simulated]
        simulated = [one for one in board.leaders if one.run.simulated]
        parts = []
        if measured:
            parts.append(section("measured", "Measured", _table("Measured", measured, board.tuned)))
        if simulated:
            warned = "No model ran: these are predictions, and never ranked among what was measured."
            story = banner("simulated", "Simulated", warned)
            parts.append(section("simulated", "Simulated", story, _table("Simulated", simulated, board.tuned)))
        return join(parts)


def _table(caption: str, found: Sequence[Leader], tuned: Mapping[str, TunedStep]) -> Markup:
    head = tag("tr", *(tag("th", text(name), scope="col", class_="left" if name in _LEFT else None) for name in _HEAD))
    models = [one.run.model for one in found]  # each with its quickest machine first
    rows = [
        _row(one, tuned.get(one.run.id), first=models.count(one.run.model) > 1 and models.index(one.run.model) == place)
        for place, one in enumerate(found)
    ]
    made = table(f"{caption}: best run of each model on each machine", [head], rows)
    return tag("div", made, class_="stacked")


def _row(one: Leader, tuned: TunedStep | None, *, first: bool) -> Markup:
    told = one.figures
    limited = tag("span", text("client-limited"), class_="flag") if told.client_limited else None
    return tag(
        "tr",
        tag("th", text(shortened(one.run.model, 60)), scope="row", data_label="Model"),
        labelled("Machine", text(one.machine), "left"),
        labelled("Setup", join([text(one.engine), tag("small", text(f" {one.layout}"))]), "left wrap"),
        labelled("Best tok/s", join([tag("b", text(number(told.best_tok_s))), limited or text("")]), None),
        labelled("at C", text(number(told.best_at, digits=0)), None),
        labelled("TTFT p50, C = 1", text(milliseconds(told.ttft_ms)), None),
        labelled("The step that won", _step(one, tuned), "left wrap soft"),
        labelled("When", tag("a", text(minute(one.run.created_at)), href=f"/runs/{one.run.id}"), "left"),
        class_="best" if first else None,
    )  # fmt: skip


def _step(one: Leader, tuned: TunedStep | None) -> Markup:
    """What won it, and the way to where that was measured: a tuning, or the run that it beat."""
    tried = f"{one.tried} runs, {one.setups} setups" if one.tried > 1 else "one run"
    said, ways = step_words(one.step), []
    if tuned is not None:
        said, ways = str(tuned), [tag("a", text("the tuning"), href=f"/tuning/{tuned.tuning}")]
    elif one.step.beaten:
        ways = [
            tag("a", text("the run it beat"), href=f"/runs/{one.step.beaten}"),
            tag("a", text("compare"), href=f"/compare?runs={one.step.beaten},{one.run.id}"),
        ]
    links = [part for way in ways for part in (text(" · "), way)]
    return join([text(said), tag("small", text(f" · {tried}"), *links)])


def routes(site: Site) -> list[BaseRoute]:
    pages = BoardPages(site)
    return [
        Route("/leaderboard", pages.show),
        Route("/leaderboard/body", pages.body),
        Route("/api/leaderboard.json", pages.as_json),
        Route("/api/leaderboard.csv", pages.as_csv),
    ]
