"""One session's work on one tuning: what was answered before it, and what is written as it goes on.

Knows the order of things and the clock; knows nothing of how a search decides or a bench measures. A process that is
killed leaves the answers that came, each with the stages it decided; `resume` gives them back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from skep import __version__
from skep.errors import StoreError, UserError, first_of
from skep.tuner.ports import BenchRequest, BenchResult
from skep.tuner.records import TuneStage, Tuning
from skep.tuner.store import SavedAnswer, TuningOutcome, TuningStore

Clock = Callable[[], float]  # unix seconds


class TuningJournal:
    """Open from `begin` or `resume` until `end`. `stages` are those stored; they only grow."""

    def __init__(self, tunings: TuningStore, tuning: Tuning, session: int, clock: Clock) -> None:
        self._tunings = tunings
        self._session = session
        self._clock = clock
        self._ended = False
        self._stages = tunings.stages(tuning.id)
        self._past = [one.values() for one in tunings.answers(tuning.id)]
        self._answers = len(self._past)
        self.tuning = tuning

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

    def __repr__(self) -> str:
        done = f"{self._answers} answers, {len(self._stages)} stages"
        return f"<TuningJournal of {self.tuning.id}, session {self._session}, {done}>"

    @property
    def stages(self) -> tuple[TuneStage, ...]:
        return tuple(self._stages)

    @property
    def past(self) -> Sequence[tuple[BenchRequest, BenchResult]]:
        """What earlier sessions asked for and what came of it."""
        return tuple(self._past)

    def took(self, request: BenchRequest, answer: BenchResult, stages: Sequence[TuneStage]) -> tuple[TuneStage, ...]:
        """Store an answer that came and all stages after it. Return those that are new."""
        fresh = self._fresh(stages)
        kept = SavedAnswer.of(self._answers + 1, self._clock(), request, answer)
        self._tunings.append_answer(self.tuning.id, self._session, kept, fresh)
        self._answers += 1
        self._stages.extend(fresh)
        return fresh

    def decided(self, stages: Sequence[TuneStage]) -> tuple[TuneStage, ...]:
        """Store the stages that were decided without a new answer. Return those that are new."""
        fresh = self._fresh(stages)
        if fresh:
            self._tunings.append_stages(self.tuning.id, fresh, self._clock())
            self._stages.extend(fresh)
        return fresh

    def end(self, outcome: TuningOutcome, reason: str | None = None) -> None:
        """`reason`: what went wrong, or why nothing more was tried."""
        self._tunings.end_session(self.tuning.id, self._session, at=self._clock(), outcome=outcome, reason=reason)
        self._ended = True

    def differs(self, what: str) -> UserError:
        """That this search is not the one that was begun. Nothing has been written then."""
        tuning, hint = self.tuning, "begin a new one; `skep tune show` and `skep tune export` still know this one"
        if tuning.skep_version != __version__:
            begun = f"was begun by skep {tuning.skep_version}, which searches differently"
            return UserError(f"tuning `{tuning.id}` {begun} ({what})", hint=hint)
        return UserError(f"tuning `{tuning.id}` cannot go on: it was begun on other terms ({what})", hint=hint)

    def _fresh(self, stages: Sequence[TuneStage]) -> tuple[TuneStage, ...]:
        """Return the stages to store: a search that is replayed may not have reached the last stored one yet."""
        for stored, made in zip(self._stages, stages, strict=False):
            if stored != made:
                raise self.differs(f"stage {stored.number} was `{stored.title}`: {stored.decision}")
        return tuple(stages[len(self._stages) :])
