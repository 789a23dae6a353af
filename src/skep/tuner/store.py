"""The journal of the tuner: what was asked and answered, the stages decided of it, and who worked
on it when.

An answer and the stages that it decided are one transaction, so what a call returned from is kept
even if the process is killed, and no half of it is. Which state a tuning is in is derived, never
stored. Knows no clock: times are arguments, unix seconds; knows nothing of how a search decides.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from sqlite3 import Connection, Row
from typing import Any, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from skep.catalog.presets import Preset
from skep.errors import StoreError, UserError
from skep.store.database import Store
from skep.store.rows import (
    NamedRows,
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
    JudgeRequest,
    JudgeResult,
    MeasurementRound,
    MeasureRequest,
    TuneStage,
    Tuning,
)
from skep.units import Interval

TuningOutcome = Literal["done", "stopped", "failed"]
Answered = tuple[BenchRequest, BenchResult]
T = TypeVar("T")

_NO_NUMBER = "no_number"
_KINDS: Mapping[str, tuple[type[BenchRequest], type[BenchResult]]] = {
    "round": (MeasureRequest, MeasurementRound),
    "judged": (JudgeRequest, JudgeResult),
}


class TuningState(StrEnum):
    RUNNING = "running"  # a living process searches
    ENDED = "ended"  # nothing is left to be tried, or its time is over
    INTERRUPTED = "interrupted"  # unfinished, and nobody searches: `skep tune resume`


class TuningRecord(msgspec.Struct, frozen=True):
    """Its state is derived, never stored. `stages`: where `record` or `records` read them."""

    tuning: Tuning
    state: TuningState
    sessions: int
    answers: int
    measured_s: float  # that the answers took, pauses between sessions left out
    worked_at: float  # when the last session began; of one without a session: when it was made
    # why the last session ended: what went wrong, or why nothing more was tried
    reason: str | None = None
    presets: tuple[str, ...] = ()  # that were made of it, in that order
    stages: tuple[TuneStage, ...] = ()

    @property
    def id(self) -> str:
        return self.tuning.id

    @property
    def unfinished(self) -> str | None:
        """The state of a tuning that did not come to its end; None of one that did."""
        if self.state is TuningState.ENDED:
            return None
        return self.state.value


def to_document(value: Any) -> Any:
    """Return a frozen value as its document."""
    return _open_ended(msgspec.to_builtins(value))


def from_document(document: Any, kind: type[T]) -> T:
    """Return what `to_document` was given.

    Fields that an older skep did not know have their defaults.
    """
    return msgspec.convert(_numbers(document), kind)


def base_of(tuning: Tuning) -> Preset:
    """Return the preset that its configurations are turned from."""
    return from_document(
        {key: value for key, value in tuning.base.items() if key not in ("wishes", "terrain")},
        Preset,
    )


def state_of(row: Row) -> TuningState:
    if row["outcome"] == "done":
        return TuningState.ENDED
    alive = row["sessions"] and row["ended_at"] is None and writes_on(row)
    if alive:
        return TuningState.RUNNING
    return TuningState.INTERRUPTED


def _value(text: str, kind: type[T], owner: str) -> T:
    """Return what a column holds. `owner` names its row in errors."""
    try:
        return from_document(json.loads(text), kind)
    except ValueError as error:  # no JSON, or none of this kind
        raise StoreError(f"{owner} has a row that this skep cannot read: {error}") from error


def _open_ended(value: Any) -> Any:
    """Return a document in which numbers that JSON does not have are marked."""
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return {_NO_NUMBER: str(value)}
    if isinstance(value, dict):
        return {name: _open_ended(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_open_ended(member) for member in value]
    return value


def _numbers(value: Any) -> Any:
    """Return a document in which marked numbers are numbers again."""
    if isinstance(value, Mapping):
        if value.keys() == {_NO_NUMBER}:
            return float(value[_NO_NUMBER])
        return {name: _numbers(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_numbers(member) for member in value]
    return value


TUNINGS = NamedRows(
    "tunings",
    queries("skep.tuner")["tunings"],
    "tuning",
    lists="`skep tune list` lists them all",
    makes="`skep tune MODEL` makes one",
    parts=(
        "tuning_presets",
        "tuning_stages",
        "tuning_answers",
        "tuning_session_ends",
        "tuning_sessions",
    ),
    key="tuning_id",
)
_ANSWERS = "SELECT kind, errand, answer FROM tuning_answers WHERE tuning_id = ? ORDER BY number"
_STAGES = "SELECT document FROM tuning_stages WHERE tuning_id = ? ORDER BY number"
_WHERE = """SELECT (SELECT max(number) FROM tuning_sessions WHERE tuning_id = ?1),
    (SELECT count(*) FROM tuning_answers WHERE tuning_id = ?1)"""


class TuningStore:
    """The tunings of an open store.

    What was appended is final; at most one living process is at work on a tuning.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def begin(self, tuning: Tuning, *, suffix: Callable[[], str] = new_suffix) -> str:
        """Store a tuning and return its id, which takes the place of the value's own.

        Nobody works on it before a session is begun.
        """
        with self._store.transaction() as connection:
            tuning_id = free_id(connection, tuning.created_at, suffix)
            aim = tuning.aim
            document = document_text(to_document(replace(tuning, id=tuning_id)))
            insert(
                connection,
                "tunings",
                id=tuning_id,
                created_at=tuning.created_at,
                model=tuning.model,
                engine=tuning.engine,
                rig=tuning.rig,
                goal=str(aim),
                shape=aim.shape,
                slo=aim.slo,
                budget_s=tuning.budget_s,
                simulated=tuning.simulated,
                document=document,
                skep_version=tuning.skep_version,
            )
        return tuning_id

    def begin_session(self, tuning_id: str, at: float) -> int:
        """Begin a session and return its number, from 1.

        This process is its writer; UserError where another one is, or where it has ended.
        """
        with self._store.transaction() as connection:
            row = TUNINGS.find(self._store, tuning_id)
            check_free(tuning_id, state_of(row))
            number = int(row["sessions"]) + 1
            insert(
                connection,
                "tuning_sessions",
                this_process(),
                tuning_id=tuning_id,
                number=number,
                started_at=at,
            )
        return number

    def end_session(
        self,
        tuning_id: str,
        session: int,
        *,
        at: float,
        outcome: TuningOutcome,
        reason: str | None = None,
    ) -> None:
        """End a session. With the outcome `done` the whole tuning takes no more from then on.

        `reason`: why nothing more was tried.
        """
        with self._store.transaction() as connection:
            ended = {"ended_at": at, "outcome": outcome, "reason": reason}
            insert(connection, "tuning_session_ends", tuning_id=tuning_id, number=session, **ended)

    def append(
        self,
        tuning_id: str,
        stages: Sequence[TuneStage],
        at: float,
        answered: Answered | None = None,
    ) -> None:
        """Store what was asked of the bench and what came, with the stages that it decided; all of
        it or nothing.
        """
        with self._store.transaction() as connection:
            session, answers = connection.execute(_WHERE, (tuning_id,)).fetchone()
            if answered is not None:
                request, answer = answered
                answers += 1
                if isinstance(answer, JudgeResult):
                    kind = "judged"
                else:
                    kind = "round"
                documents = {
                    "errand": document_text(to_document(request)),
                    "answer": document_text(to_document(answer)),
                }
                insert(
                    connection,
                    "tuning_answers",
                    tuning_id=tuning_id,
                    number=answers,
                    session=session,
                    at=at,
                    kind=kind,
                    seconds=answer.seconds,
                    **documents,
                )
            for stage in stages:
                _insert_stage(connection, tuning_id, stage, at, answers)

    def append_preset(
        self, tuning_id: str, name: str, at: float, *, stage: int | None = None
    ) -> None:
        """Note that a preset of this name was made of it; also after its end."""
        with self._store.transaction() as connection:
            insert(
                connection, "tuning_presets", tuning_id=tuning_id, name=name, stage=stage, at=at
            )

    def find(self, name: str) -> TuningRecord:
        """Return a tuning by its id, by the beginning of it, or "last"."""
        return self._saved([TUNINGS.find(self._store, name)])[0]

    def find_unfinished(self, name: str) -> TuningRecord:
        """Return one that can go on; "last" is the newest such one.

        UserError where there is nothing left to do.
        """
        record = None
        if name == "last":
            record = self._newest_unfinished()
        if record is None:
            record = self.find(name)
        check_free(record.id, record.state)
        return record

    def _newest_unfinished(self) -> TuningRecord | None:
        for record in self.tunings():
            if record.state is TuningState.INTERRUPTED:
                return record
        return None

    def tunings(self, limit: int | None = None) -> list[TuningRecord]:
        """Return the tunings, newest first."""
        return self._saved(TUNINGS.newest(self._store, limit))

    def stages(self, tuning_id: str) -> list[TuneStage]:
        """Return the stages of a tuning in the order in which they were decided."""
        rows = self._store.read(_STAGES, tuning_id)
        return [_value(row["document"], TuneStage, f"tuning `{tuning_id}`") for row in rows]

    def record(self, name: str) -> TuningRecord:
        """Return all of one tuning, by its id, by the beginning of it, or "last"."""
        record = self.find(name)
        return replace(record, stages=tuple(self.stages(record.id)))

    def records(self, limit: int | None = None, model: str = "") -> list[TuningRecord]:
        """Return the tunings with their stages, newest first; of one model, where one is named."""
        if model:
            records = [record for record in self.tunings() if record.tuning.model == model]
        else:
            records = self.tunings(limit)
        return [
            replace(record, stages=tuple(self.stages(record.id))) for record in records[:limit]
        ]

    def answers(self, tuning_id: str) -> list[Answered]:
        """Return what was asked of the bench and what came, in order."""
        answered = []
        owner = f"tuning `{tuning_id}`"
        for kind, request_text, answer_text in self._store.read(_ANSWERS, tuning_id):
            if kind not in _KINDS:
                raise StoreError(
                    f"{owner} has an answer of the kind `{kind}`, which this skep does not know"
                )
            request, answer = _KINDS[kind]
            answered.append(
                (_value(request_text, request, owner), _value(answer_text, answer, owner))
            )
        return answered

    def delete(self, ids: Iterable[str]) -> int:
        """Return how many there were to delete.

        One that somebody works on stays, and the others with it.
        """
        return TUNINGS.delete(
            self._store, ids, lambda row: check_stopped(row["id"], state_of(row))
        )

    def _saved(self, rows: Sequence[Row]) -> list[TuningRecord]:
        presets: dict[str, tuple[str, ...]] = {}
        for whose, name in self._store.read(
            "SELECT tuning_id, name FROM tuning_presets ORDER BY id"
        ):
            presets[whose] = (*presets.get(whose, ()), name)
        return read(
            rows,
            TuningRecord,
            tuning=lambda row: replace(
                _value(row["document"], Tuning, f"tuning `{row['id']}`"), id=row["id"]
            ),
            state=state_of,
            measured_s=lambda row: row["measured_s"] or 0.0,
            worked_at=lambda row: (
                row["created_at"] if row["started_at"] is None else row["started_at"]
            ),
            presets=lambda row: presets.get(row["id"], ()),
        )


def _insert_stage(
    connection: Connection, tuning_id: str, stage: TuneStage, at: float, answers: int
) -> None:
    """Insert a stage, as a document and in plain columns.

    These are for other programs: an open end of an interval is NULL there.
    """
    failure = stage.failure
    bounds = {**_bounds("figure", stage.figure), **_bounds("ratio", stage.ratio)}
    insert(
        connection,
        "tuning_stages",
        tuning_id=tuning_id,
        number=stage.number,
        at=at,
        answers=answers,
        decision=stage.decision,
        title=stage.title,
        why=stage.why,
        predicted_ratio=stage.predicted,
        config=document_text(to_document(stage.config.as_dict)),
        document=document_text(to_document(stage)),
        ttft_ms=stage.ttft_ms,
        tpot_ms=stage.tpot_ms,
        starts=stage.starts,
        readings=stage.readings,
        seconds=stage.seconds,
        failure_kind=failure and failure.kind,
        failure=failure and str(failure),
        **bounds,
    )


def _bounds(name: str, interval: Interval | None) -> dict[str, float | None]:
    if interval is None:
        return {f"{name}_low": None, name: None, f"{name}_high": None}
    return {
        f"{name}_low": finite(interval.low),
        name: finite(interval.estimate),
        f"{name}_high": finite(interval.high),
    }


def check_stopped(tuning_id: str, state: TuningState) -> None:
    """Raise UserError where a process is working on the tuning."""
    if state is TuningState.RUNNING:
        hint = f"`skep tune show {tuning_id}` shows how it stands; Ctrl-C in its terminal stops it"
        raise UserError(f"a process is working on tuning `{tuning_id}`", hint=hint)


def check_free(tuning_id: str, state: TuningState) -> None:
    """Raise UserError where the tuning cannot go on: a process works on it, or it has ended."""
    check_stopped(tuning_id, state)
    if state is TuningState.ENDED:
        hint = f"`skep tune show {tuning_id}` shows it, `skep tune MODEL` starts another"
        raise UserError(f"tuning `{tuning_id}` has ended, there is nothing left to do", hint=hint)
