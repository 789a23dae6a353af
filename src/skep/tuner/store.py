"""The journal of the tuner: what was asked and answered, the stages decided of it, and who worked on it when.

An answer and the stages that it decided are one transaction, so what a call returned from is kept even if the process
is killed, and no half of it is. Which state a tuning is in is derived, never stored. Knows no clock: times are
arguments, unix seconds; knows nothing of how a search decides.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from sqlite3 import Connection, Row
from typing import Annotated, Any, Literal, Self, TypeVar

import msgspec
from msgspec.structs import replace

from skep.catalog.presets import Preset
from skep.errors import StoreError, UserError
from skep.store.database import Store
from skep.store.rows import (
    NamedRows,
    OwnOrder,
    StoredAs,
    document_text,
    finite,
    free_id,
    insert,
    new_suffix,
    queries,
    read,
    this_process,
    writes_on,
)
from skep.tuner.records import (
    BenchRequest,
    BenchResult,
    ConfigFailure,
    JudgeRequest,
    JudgeResult,
    MeasurementRound,
    MeasureRequest,
    ServerStart,
    StageDecision,
    TuneStage,
    Tuning,
)
from skep.tuner.summary import baseline_of, best_of, total_gain
from skep.units import Interval

TuningOutcome = Literal["done", "stopped", "failed"]
AnswerKind = Literal["round", "judged"]

T = TypeVar("T")

_NO_NUMBER = "no_number"


class TuningState(StrEnum):
    RUNNING = "running"  # a living process searches
    ENDED = "ended"  # nothing is left to be tried, or its time is over
    INTERRUPTED = "interrupted"  # unfinished, and nobody searches: `skep tune resume`


class TuningRecord(msgspec.Struct, frozen=True):
    """Its state is derived, never stored. `stages` and `failure`: where `record` or `records` read them."""

    tuning: Tuning
    state: TuningState
    sessions: int
    answers: int
    measured_s: float  # that the answers took, pauses between sessions left out
    worked_at: float  # when the last session began; of one without a session: when it was made
    ended_at: float | None = None  # of the last session; None while it searches, and of one that was killed
    reason: str | None = None  # why the last session ended: what went wrong, or why nothing more was tried
    presets: tuple[str, ...] = ()  # that were made of it, in that order
    stages: tuple[TuneStage, ...] = ()
    failure: ConfigFailure | None = None  # of a baseline that never ran

    @property
    def id(self) -> str:
        return self.tuning.id

    @property
    def unfinished(self) -> str | None:
        """Its state, where it did not come to its end."""
        return None if self.state is TuningState.ENDED else self.state.value


class SavedAnswer(msgspec.Struct, frozen=True):
    """What was asked of the bench and what came, as documents. `number` from 1, over all sessions."""

    number: int
    at: float
    kind: AnswerKind
    seconds: float
    request: Annotated[Mapping[str, Any], StoredAs("errand", write=document_text)]
    answer: OwnOrder

    @classmethod
    def of(cls, number: int, at: float, request: BenchRequest, answer: BenchResult) -> Self:
        kind = next(kind for kind, (_, made) in _KINDS.items() if isinstance(answer, made))
        return cls(number, at, kind, answer.seconds, to_document(request), to_document(answer))

    def values(self) -> tuple[BenchRequest, BenchResult]:
        """Return what was asked and what came."""
        try:
            asked, came = _KINDS[self.kind]
            return from_document(self.request, asked), from_document(self.answer, came)
        except (KeyError, msgspec.ValidationError) as error:
            raise StoreError(f"this skep cannot read answer {self.number} of the tuning: {error}") from error


_KINDS: Mapping[AnswerKind, tuple[type[BenchRequest], type[BenchResult]]] = {
    "round": (MeasureRequest, MeasurementRound),
    "judged": (JudgeRequest, JudgeResult),
}


def to_document(value: Any) -> Any:
    """Return a frozen value as its document."""
    return _open_ended(msgspec.to_builtins(value))


def from_document(document: Any, kind: type[T]) -> T:
    """Return what `to_document` was given. Fields that an older skep did not know have their defaults."""
    return msgspec.convert(_numbers(document), kind)


def base_of(tuning: Tuning) -> Preset:
    """Return the preset that its configurations are turned from."""
    return from_document({key: value for key, value in tuning.base.items() if key not in ("wishes", "terrain")}, Preset)


def state_of(row: Row) -> TuningState:
    if row["outcome"] == "done":
        return TuningState.ENDED
    alive = row["sessions"] and row["ended_at"] is None and writes_on(row)
    return TuningState.RUNNING if alive else TuningState.INTERRUPTED


def _bounds(name: str, interval: Interval | None) -> dict[str, float | None]:
    """For other programs: an open end is NULL. The document has it."""
    low, figure, high = (None,) * 3 if interval is None else (interval.low, interval.estimate, interval.high)
    return {f"{name}_low": finite(low), name: finite(figure), f"{name}_high": finite(high)}


def _value(row: Row, kind: type[T], tuning_id: str) -> T:
    try:
        return from_document(json.loads(row["document"]), kind)
    except msgspec.ValidationError as error:
        raise StoreError(f"tuning `{tuning_id}` has a row that this skep cannot read: {error}") from error
    except ValueError as error:
        raise StoreError(f"tuning `{tuning_id}` has unreadable JSON in its column `document`: {error}") from error


def _open_ended(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else {_NO_NUMBER: str(value)}
    if isinstance(value, dict):
        return {name: _open_ended(one) for name, one in value.items()}
    return [_open_ended(one) for one in value] if isinstance(value, list | tuple) else value


def _numbers(value: Any) -> Any:
    if isinstance(value, Mapping):
        if value.keys() == {_NO_NUMBER}:
            return float(value[_NO_NUMBER])
        return {name: _numbers(one) for name, one in value.items()}
    return [_numbers(one) for one in value] if isinstance(value, list) else value


TUNINGS = NamedRows(
    "tunings",
    queries("skep.tuner")["tunings"],
    "tuning",
    lists="`skep tune list` lists them all",
    makes="`skep tune MODEL` makes one",
    parts=("tuning_presets", "tuning_stages", "tuning_answers", "tuning_session_ends", "tuning_sessions"),
    key="tuning_id",
)
_ANSWERS = "SELECT * FROM tuning_answers WHERE tuning_id = ?1 AND (?2 IS NULL OR kind = ?2) ORDER BY number"
_STAGES = "SELECT * FROM tuning_stages WHERE tuning_id = ? ORDER BY number"


class TuningStore:
    """Over an open store. What was appended is final; at most one living process is at work on a tuning."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def begin(self, tuning: Tuning, *, suffix: Callable[[], str] = new_suffix) -> str:
        """Return its id, which takes the place of the value's own. Nobody works on it before a session is begun."""
        with self._store.transaction() as connection:
            tuning_id = free_id(connection, tuning.created_at, suffix)
            aim, document = tuning.aim, document_text(to_document(replace(tuning, id=tuning_id)))
            insert(
                connection, "tunings", id=tuning_id, created_at=tuning.created_at, model=tuning.model,
                engine=tuning.engine, rig=tuning.rig, goal=str(aim), shape=aim.shape, slo=aim.slo,
                budget_s=tuning.budget_s, simulated=tuning.simulated, document=document,
                skep_version=tuning.skep_version,
            )  # fmt: skip
        return tuning_id

    def begin_session(self, tuning_id: str, at: float) -> int:
        """Its number, from 1. This process is its writer; UserError where another one is, or where it has ended."""
        with self._store.transaction() as connection:
            row = TUNINGS.find(self._store, tuning_id)
            check_free(tuning_id, state_of(row))
            number = int(row["sessions"]) + 1
            insert(connection, "tuning_sessions", this_process(), tuning_id=tuning_id, number=number, started_at=at)
        return number

    def end_session(
        self, tuning_id: str, session: int, *, at: float, outcome: TuningOutcome, reason: str | None = None
    ) -> None:
        """`done`: of the whole tuning, which takes no more from then on."""
        with self._store.transaction() as connection:
            ended = {"ended_at": at, "outcome": outcome, "reason": reason}
            insert(connection, "tuning_session_ends", tuning_id=tuning_id, number=session, **ended)

    def append_answer(
        self, tuning_id: str, session: int, answer: SavedAnswer, stages: Sequence[TuneStage] = ()
    ) -> None:
        """With the stages that it decided, or nothing. Each number is written once, whoever comes second."""
        with self._store.transaction() as connection:
            insert(connection, "tuning_answers", answer, tuning_id=tuning_id, session=session)
            _insert_stages(connection, tuning_id, stages, answer.at)

    def append_stages(self, tuning_id: str, stages: Sequence[TuneStage], at: float) -> None:
        """Those that were decided without a new answer. All of them or none."""
        with self._store.transaction() as connection:
            _insert_stages(connection, tuning_id, stages, at)

    def append_preset(self, tuning_id: str, name: str, at: float, *, stage: int | None = None) -> None:
        """That a preset of this name was made of it; also after its end."""
        with self._store.transaction() as connection:
            insert(connection, "tuning_presets", tuning_id=tuning_id, name=name, stage=stage, at=at)

    def find(self, name: str) -> TuningRecord:
        """By its id, by the beginning of it, or "last"."""
        return self._saved([TUNINGS.find(self._store, name)])[0]

    def find_unfinished(self, name: str) -> TuningRecord:
        """Return one that can go on; "last" is the newest such one. UserError where there is nothing left to do."""
        unfinished = (one for one in self.tunings() if one.state is TuningState.INTERRUPTED)
        found = (next(unfinished, None) if name == "last" else None) or self.find(name)
        check_free(found.id, found.state)
        return found

    def tunings(self, limit: int | None = None) -> list[TuningRecord]:
        """Newest first."""
        return self._saved(TUNINGS.newest(self._store, limit))

    def stages(self, tuning_id: str) -> list[TuneStage]:
        """In the order in which they were decided."""
        return [_value(row, TuneStage, tuning_id) for row in self._store.read(_STAGES, tuning_id)]

    def record(self, name: str) -> TuningRecord:
        """Return all of one tuning, by its id, by the beginning of it, or "last"."""
        found = self.find(name)
        stages = tuple(self.stages(found.id))
        failures = [start.failure for start in self.starts(found.id) if start.failure] if not stages else []
        return replace(found, stages=stages, failure=failures[-1] if failures else None)

    def records(self, limit: int | None = None, model: str = "") -> list[TuningRecord]:
        """Return them newest first; of one model, where one is named."""
        found = [one for one in self.tunings(None if model else limit) if not model or one.tuning.model == model]
        return [replace(one, stages=tuple(self.stages(one.id))) for one in found[:limit]]

    def starts(self, tuning_id: str) -> list[ServerStart]:
        """Return every start of a server that was measured, in order."""
        rounds = [one.values()[1] for one in self.answers(tuning_id, "round")]
        return [start for one in rounds if isinstance(one, MeasurementRound) for start in one.starts]

    def answers(self, tuning_id: str, kind: str | None = None) -> list[SavedAnswer]:
        """In the order in which they came."""
        return read(self._store.read(_ANSWERS, tuning_id, kind), SavedAnswer, "tuning")

    def delete(self, ids: Iterable[str]) -> int:
        """Return how many there were to delete. One that somebody works on stays, and the others with it."""
        return TUNINGS.delete(self._store, ids, lambda row: check_stopped(row["id"], state_of(row)))

    def _saved(self, rows: Sequence[Row]) -> list[TuningRecord]:
        presets: dict[str, tuple[str, ...]] = {}
        for whose, name in self._store.read("SELECT tuning_id, name FROM tuning_presets ORDER BY id"):
            presets[whose] = (*presets.get(whose, ()), name)
        return read(
            rows,
            TuningRecord,
            tuning=lambda row: replace(_value(row, Tuning, row["id"]), id=row["id"]),  # it had none when it was written
            state=state_of,
            measured_s=lambda row: row["measured_s"] or 0.0,
            worked_at=lambda row: row["created_at"] if row["started_at"] is None else row["started_at"],
            presets=lambda row: presets.get(row["id"], ()),
        )


def _insert_stages(connection: Connection, tuning_id: str, stages: Sequence[TuneStage], at: float) -> None:
    asked = "SELECT count(*) FROM tuning_answers WHERE tuning_id = ?"
    answers = int(connection.execute(asked, (tuning_id,)).fetchone()[0])
    for stage in stages:
        failure = stage.failure
        insert(
            connection, "tuning_stages", tuning_id=tuning_id, number=stage.number, at=at, answers=answers,
            decision=stage.decision, title=stage.title, why=stage.why, predicted_ratio=stage.predicted,
            config=document_text(to_document(stage.config.as_dict)), document=document_text(to_document(stage)),
            ttft_ms=stage.ttft_ms, tpot_ms=stage.tpot_ms, starts=stage.starts, readings=stage.readings,
            seconds=stage.seconds, failure_kind=failure and failure.kind, failure=failure and str(failure),
            **_bounds("figure", stage.figure), **_bounds("ratio", stage.ratio),
        )  # fmt: skip


def check_stopped(tuning_id: str, state: TuningState) -> None:
    if state is TuningState.RUNNING:
        hint = f"`skep tune show {tuning_id}` shows how it stands; Ctrl-C in its terminal stops it"
        raise UserError(f"a process is working on tuning `{tuning_id}`", hint=hint)


def check_free(tuning_id: str, state: TuningState) -> None:
    check_stopped(tuning_id, state)
    if state is TuningState.ENDED:
        hint = f"`skep tune show {tuning_id}` shows it, `skep tune MODEL` starts another"
        raise UserError(f"tuning `{tuning_id}` has ended, there is nothing left to do", hint=hint)


def tuning_json(found: TuningRecord) -> dict[str, Any]:
    """Return the document of `skep tune show --json` and of the dashboard."""
    stages = found.stages
    baseline, best = baseline_of(stages), best_of(stages)
    tuning: dict[str, Any] = finite(msgspec.to_builtins(found.tuning))
    knobs = [{name: knob[name] for name in ("name", "title", "values")} for knob in tuning["knobs"]]
    told = {name: value for name, value in tuning.items() if name not in ("aim", "baseline", "base", "host")}
    state = {"state": found.state, "measured_s": finite(found.measured_s)}
    return {
        "tuning": {**told, "goal": str(found.tuning.aim), **tuning["aim"], **state, "knobs": knobs},
        "baseline": None if baseline is None else stage_json(baseline),
        "best": None if best is None else stage_json(best),
        "gain": _interval(total_gain(stages)),
        "stages": [stage_json(one) for one in stages],
    }


def stage_json(stage: TuneStage) -> dict[str, Any]:
    document: dict[str, Any] = finite(msgspec.to_builtins(stage))
    predicted = document.pop("predicted")
    return document | {
        "title": stage.title,
        "config": finite(stage.config.as_dict),
        "key": stage.config.key,
        "accepted": stage.decision is StageDecision.ACCEPTED,
        "figure": _interval(stage.figure),
        "ratio": _interval(stage.ratio),
        "predicted_ratio": predicted,
        "failure": None if stage.failure is None else failure_json(stage.failure),
    }


def failure_json(failure: ConfigFailure) -> dict[str, Any]:
    return {**msgspec.to_builtins(failure), "mended": finite(dict(failure.mended))}


def _interval(interval: Interval | None) -> dict[str, float | None] | None:
    """Of what cannot be below zero, whatever two runs make of it."""
    if interval is None:
        return None
    ends: dict[str, float | None] = finite(msgspec.to_builtins(interval))
    return {name: None if value is None else max(0.0, value) for name, value in ends.items()}
