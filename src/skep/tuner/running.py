"""The loop between the search, which decides, and the bench, which measures; each answer is stored as it comes.

Knows neither how it is decided nor what is measured, and no clock but the one that ends a request which never would.
How much time a search may take is the search's own business: it sees what each answer took.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from skep.errors import EngineError
from skep.tuner.journal import TuningJournal
from skep.tuner.ports import Bench, BenchProgress, BenchRequest, BenchResult, CurveRequest, JudgeRequest, OnProgress
from skep.tuner.records import TuneStage
from skep.tuner.search import KnobSearch
from skep.units import format_seconds

SHORTEST_LIMIT_S = 1800.0  # a request may take that long, however short the budget is


@dataclass(frozen=True, slots=True)
class RequestStarted:
    """A request begins."""

    request: BenchRequest


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """A request has ended, and its answer is stored."""

    request: BenchRequest
    answer: BenchResult


@dataclass(frozen=True, slots=True)
class StageDecided:
    """A stage is decided, and stored."""

    stage: TuneStage


TuneEvent = RequestStarted | BenchProgress | RequestFinished | StageDecided
OnEvent = Callable[[TuneEvent], None]


def replay_answers(journal: TuningJournal, search: KnobSearch) -> float:
    """Give the search its stored answers again. Return how many seconds they took. UserError if its requests differ."""
    spent_s = 0.0
    for number, (stored, answer) in enumerate(journal.past, start=1):
        asked = search.following()
        if asked != stored:
            now = "none" if asked is None else f"`{asked.words}`"
            raise journal.differs(f"request {number} was `{stored.words}`, and would be {now}")
        search.took(answer)
        spent_s += answer.seconds
    journal.decided(search.stages)
    return spent_s


async def run_search(
    search: KnobSearch,
    bench: Bench,
    journal: TuningJournal,
    *,
    on_event: OnEvent = lambda _: None,
    longest_s: float | None = None,
) -> None:
    """Until the search asks for nothing more. `longest_s`: for one request; by default no less than the whole budget.

    Cancelled: the request under way is broken off and leaves nothing, what was decided stands; `search.incumbent` and
    `journal.stages` have it, and `TuningJournal.resume` goes on from there.
    """
    limit_s = longest_s or max(SHORTEST_LIMIT_S, journal.tuning.budget_s)
    with journal:
        while (request := search.following()) is not None:
            _tell(journal.decided(search.stages), on_event)
            on_event(RequestStarted(request))
            await asyncio.sleep(0)  # a bench in virtual time never waits: Ctrl-C is heard here
            answer = await _carried_out(request, bench, on_event, limit_s)
            search.took(answer)
            fresh = journal.took(request, answer, search.stages)
            on_event(RequestFinished(request, answer))
            _tell(fresh, on_event)
        _tell(journal.decided(search.stages), on_event)
        journal.end("done", search.ended)


async def _carried_out(request: BenchRequest, bench: Bench, on_progress: OnProgress, limit_s: float) -> BenchResult:
    try:
        async with asyncio.timeout(limit_s) as deadline:
            if isinstance(request, JudgeRequest):
                return await bench.judge(request, on_progress)
            if isinstance(request, CurveRequest):
                return await bench.curve(request, on_progress)
            return await bench.measure(request, on_progress)
    except TimeoutError as error:
        if not deadline.expired():
            raise
        hint = "what was decided before is kept; `skep tune resume` tries it again"
        raise EngineError(f"`{request.words}` was broken off after {format_seconds(limit_s)}", hint=hint) from error


def _tell(stages: Sequence[TuneStage], on_event: OnEvent) -> None:
    for stage in stages:
        on_event(StageDecided(stage))
