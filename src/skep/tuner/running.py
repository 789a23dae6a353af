"""One session's work on one tuning: the loop between the search, which decides, and the bench, which measures.

Each answer is stored as it comes, with the stages that it decided, so that a process that is killed leaves what came
before; `TuningJournal.resume` gives it back. How much time a search may take is the search's own business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from skep import __version__
from skep.errors import EngineError, StoreError, UserError, first_of
from skep.tuner.records import (
    Bench,
    BenchProgress,
    BenchRequest,
    BenchResult,
    CurveRequest,
    JudgeRequest,
    TuneStage,
    Tuning,
)
from skep.tuner.search import KnobSearch
from skep.tuner.store import SavedAnswer, TuningOutcome, TuningStore
from skep.units import format_seconds

Clock = Callable[[], float]  # unix seconds


class TuningJournal:
    """Open from `begin` or `resume` until `end`. `stages` are those stored; they only grow."""

    def __init__(self, tunings: TuningStore, tuning: Tuning, session: int, clock: Clock) -> None:
        self._tunings, self.tuning, self._session, self._clock = tunings, tuning, session, clock
        self._ended = False
        self.stages = tuple(tunings.stages(tuning.id))
        self.past = [one.values() for one in tunings.answers(tuning.id)]  # what earlier sessions asked for, and got
        self._answers = len(self.past)

    @classmethod
    def begin(cls, tunings: TuningStore, tuning: Tuning, clock: Clock) -> Self:
        """Store a new tuning, which gets its id here."""
        tuning_id = tunings.begin(tuning)
        return cls(tunings, replace(tuning, id=tuning_id), tunings.begin_session(tuning_id, clock()), clock)

    @classmethod
    def resume(cls, tunings: TuningStore, name: str, clock: Clock) -> Self:
        """UserError where it has ended, or another process is at work on it."""
        kept = tunings.find(name)
        return cls(tunings, kept.tuning, tunings.begin_session(kept.id, clock()), clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A session that was left without a word is not done. Ctrl-C and cancellation are no fault."""
        if self._ended:
            return
        first = first_of(error) if isinstance(error, BaseExceptionGroup) else error
        fault = str(first) or type(first).__name__ if isinstance(first, Exception) else None
        try:
            self.end("stopped" if fault is None else "failed", fault)
        except StoreError:
            if error is None:  # else it is the reason that is told, not that it could not be written down
                raise

    def took(self, request: BenchRequest, answer: BenchResult, stages: Sequence[TuneStage]) -> tuple[TuneStage, ...]:
        """Store an answer that came and all stages after it. Return those that are new."""
        fresh = self._fresh(stages)
        kept = SavedAnswer.of(self._answers + 1, self._clock(), request, answer)
        self._tunings.append_answer(self.tuning.id, self._session, kept, fresh)
        self._answers += 1
        self.stages += fresh
        return fresh

    def decided(self, stages: Sequence[TuneStage]) -> tuple[TuneStage, ...]:
        """Store the stages that were decided without a new answer. Return those that are new."""
        if fresh := self._fresh(stages):
            self._tunings.append_stages(self.tuning.id, fresh, self._clock())
            self.stages += fresh
        return fresh

    def end(self, outcome: TuningOutcome, reason: str | None = None) -> None:
        """`reason`: what went wrong, or why nothing more was tried."""
        self._tunings.end_session(self.tuning.id, self._session, at=self._clock(), outcome=outcome, reason=reason)
        self._ended = True

    def differs(self, what: str) -> UserError:
        """That this search is not the one that was begun. Nothing has been written then."""
        tuning, hint = self.tuning, "start a new one; `skep tune show` and `skep tune export` still know this one"
        why = "cannot go on: it was started with other settings"
        if tuning.skep_version != __version__:
            why = f"was started by skep {tuning.skep_version}, which searches differently"
        return UserError(f"tuning `{tuning.id}` {why} ({what})", hint=hint)

    def _fresh(self, stages: Sequence[TuneStage]) -> tuple[TuneStage, ...]:
        """Return the stages to store: a search that is replayed may not have reached the last stored one yet."""
        for stored, made in zip(self.stages, stages, strict=False):
            if stored != made:
                raise self.differs(f"step {stored.number} was `{stored.title}`: {stored.decision}")
        return tuple(stages[len(self.stages) :])


SHORTEST_LIMIT_S = 1800.0  # a request may take that long, however short the budget is


# A request that begins, how it goes on, its answer and the stages that it decided; those two are stored by then.
TuneEvent = BenchRequest | BenchProgress | BenchResult | TuneStage
OnEvent = Callable[[TuneEvent], None]


def replay_answers(journal: TuningJournal, search: KnobSearch) -> float:
    """Give the search its stored answers again. Return how many seconds they took. UserError if its requests differ."""
    spent_s = 0.0
    for number, (stored, answer) in enumerate(journal.past, start=1):
        if (asked := search.following()) != stored:
            now = "none" if asked is None else f"`{asked.words}`"
            raise journal.differs(f"request {number} was `{stored.words}`, and would be {now}")
        search.took(answer)
        spent_s += answer.seconds
    journal.decided(search.stages)
    return spent_s


async def run_search(
    search: KnobSearch, bench: Bench, journal: TuningJournal, *, on_event: OnEvent = lambda _: None
) -> None:
    """Until the search asks for nothing more.

    Cancelled: the request under way leaves nothing, what was decided stands; `TuningJournal.resume` goes on from there.
    """
    limit_s = max(SHORTEST_LIMIT_S, journal.tuning.budget_s)
    with journal:
        while (request := search.following()) is not None:
            for stage in journal.decided(search.stages):
                on_event(stage)
            on_event(request)
            await asyncio.sleep(0)  # a bench in virtual time never waits: Ctrl-C is heard here
            answer = await _carried_out(request, bench, on_event, limit_s)
            search.took(answer)
            for event in (answer, *journal.took(request, answer, search.stages)):
                on_event(event)
        for stage in journal.decided(search.stages):
            on_event(stage)
        journal.end("done", search.ended)


async def _carried_out(request: BenchRequest, bench: Bench, on_event: OnEvent, limit_s: float) -> BenchResult:
    try:
        async with asyncio.timeout(limit_s) as deadline:
            if isinstance(request, JudgeRequest):
                return await bench.judge(request, on_event)
            if isinstance(request, CurveRequest):
                return await bench.curve(request, on_event)
            return await bench.measure(request, on_event)
    except TimeoutError as error:
        if not deadline.expired():
            raise
        hint = "earlier decisions are kept; `skep tune resume` tries it again"
        raise EngineError(f"`{request.words}` was stopped after {format_seconds(limit_s)}", hint=hint) from error
