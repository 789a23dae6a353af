"""The loop between the climb, which decides, and the bench, which measures; each answer is stored as it comes.

Knows neither how it is decided nor what is measured, and no clock but the one that ends an errand which never would.
How much time a climb may take is the climb's own business: it sees what each answer took.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from skep.errors import EngineError
from skep.tuner.journal import TuningJournal
from skep.tuner.ports import Bench, BenchProgress, BenchRequest, BenchResult, CurveRequest, JudgeRequest, OnProgress
from skep.tuner.records import CurveResult, KnobConfig, TuneStage, Tuning
from skep.tuner.search import KnobSearch
from skep.units import format_seconds

SHORTEST_LIMIT_S = 1800.0  # an errand may take that long, however short the budget is


@dataclass(frozen=True, slots=True)
class RequestStarted:
    """An errand begins."""

    errand: BenchRequest


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """An errand has ended, and its answer is stored."""

    errand: BenchRequest
    answer: BenchResult


@dataclass(frozen=True, slots=True)
class StageDecided:
    """A stage is decided, and stored."""

    stage: TuneStage


TuneEvent = RequestStarted | BenchProgress | RequestFinished | StageDecided
OnEvent = Callable[[TuneEvent], None]


@dataclass(frozen=True, slots=True)
class TuneOutcome:
    """Of a climb that came to its end."""

    tuning: Tuning
    stages: tuple[TuneStage, ...]
    best: KnobConfig
    curve: CurveResult | None


def replay_answers(journal: TuningJournal, climb: KnobSearch) -> float:
    """Give the climb its stored answers again; how many seconds they took. UserError where it asks for other things."""
    spent_s = 0.0
    for number, (stored, answer) in enumerate(journal.past, start=1):
        asked = climb.following()
        if asked != stored:
            raise journal.differs(f"request {number} was {_words(stored)}, and would be {_words(asked)}")
        climb.took(answer)
        spent_s += answer.seconds
    journal.decided(climb.stages)
    return spent_s


async def run_search(
    climb: KnobSearch,
    bench: Bench,
    journal: TuningJournal,
    *,
    on_event: OnEvent = lambda _: None,
    longest_s: float | None = None,
) -> TuneOutcome:
    """Until the climb asks for nothing more. `longest_s`: for one errand; by default no less than the whole budget.

    Cancelled: the errand under way is broken off and leaves nothing, what was decided stands; `climb.incumbent` and
    `journal.stages` have it, and `resumed` goes on from there.
    """
    limit_s = longest_s or max(SHORTEST_LIMIT_S, journal.tuning.budget_s)
    curve = journal.curve
    with journal:
        while (errand := climb.following()) is not None:
            _tell(journal.decided(climb.stages), on_event)
            on_event(RequestStarted(errand))
            await asyncio.sleep(0)  # a bench in virtual time never waits: Ctrl-C is heard here
            answer = await _carried_out(errand, bench, on_event, limit_s)
            climb.took(answer)
            fresh = journal.took(errand, answer, climb.stages)
            on_event(RequestFinished(errand, answer))
            _tell(fresh, on_event)
            curve = answer if isinstance(answer, CurveResult) else curve
        _tell(journal.decided(climb.stages), on_event)
        journal.end("done", climb.ended)
    return TuneOutcome(journal.tuning, journal.stages, climb.incumbent, curve)


async def _carried_out(errand: BenchRequest, bench: Bench, on_progress: OnProgress, limit_s: float) -> BenchResult:
    try:
        async with asyncio.timeout(limit_s) as deadline:
            if isinstance(errand, JudgeRequest):
                return await bench.judge(errand, on_progress)
            if isinstance(errand, CurveRequest):
                return await bench.curve(errand, on_progress)
            return await bench.measure(errand, on_progress)
    except TimeoutError as error:
        if not deadline.expired():
            raise
        hint = "what was decided before is kept; `skep tune resume` tries it again"
        raise EngineError(f"{_words(errand)} was broken off after {format_seconds(limit_s)}", hint=hint) from error


def _tell(stages: Sequence[TuneStage], on_event: OnEvent) -> None:
    for stage in stages:
        on_event(StageDecided(stage))


def _words(errand: BenchRequest | None) -> str:
    if errand is None:
        return "none"
    if isinstance(errand, CurveRequest):
        return "a curve over concurrency"
    if isinstance(errand, JudgeRequest):
        return f"a look at the answers of {errand.challenger.key} beside {errand.incumbent.key}"
    return f"`{errand.words}` ({errand.readings} readings of {', '.join(one.key for one in errand.configs)})"
