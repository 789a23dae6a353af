"""The journal of the tuner: what was asked and answered, the stages decided of it, and who worked on it when.

An answer and the stages that it decided are one transaction, so what a call returned from is kept even if the process
is killed, and no half of it is. Which state a tuning is in is derived, never stored. Knows no clock: times are
arguments, unix seconds; knows nothing of how a climb decides.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from sqlite3 import Connection, Row
from typing import Any, Literal, TypeVar

import msgspec

from skep.errors import StoreError, UserError
from skep.store.database import Store
from skep.store.rows import insert, storable
from skep.store.writer_process import WriterProcess, free_id, is_alive, new_suffix, this_process
from skep.tuner.records import TuneStage, Tuning
from skep.units import Interval

# Those that point at others come first: they are deleted in this order.
TABLES_OF_A_TUNING = (
    ("tuning_presets", "tuning_id"),
    ("tuning_stages", "tuning_id"),
    ("tuning_answers", "tuning_id"),
    ("tuning_session_ends", "tuning_id"),
    ("tuning_sessions", "tuning_id"),
    ("tunings", "id"),
)

TuningOutcome = Literal["done", "stopped", "failed"]
AnswerKind = Literal["round", "judged", "curve"]

T = TypeVar("T")

_NO_NUMBER = "no_number"

INSERT_TUNING = insert(
    "tunings",
    ("id", "created_at", "model", "engine", "rig", "goal", "shape", "slo", "budget_s", "simulated", "document",
     "skep_version"),
)  # fmt: skip
INSERT_STAGE = insert(
    "tuning_stages",
    ("tuning_id", "number", "at", "answers", "decision", "title", "why", "config",
     "figure_low", "figure", "figure_high", "ratio_low", "ratio", "ratio_high", "predicted_ratio", "ttft_ms", "tpot_ms",
     "starts", "readings", "seconds", "failure_kind", "failure", "document"),
)  # fmt: skip
INSERT_ANSWER = insert(
    "tuning_answers", ("tuning_id", "number", "session", "at", "kind", "seconds", "errand", "answer")
)


class TuningState(StrEnum):
    RUNNING = "running"  # a living process climbs
    ENDED = "ended"  # nothing is left to be tried, or its time is over
    INTERRUPTED = "interrupted"  # unfinished, and nobody climbs: `skep tune resume`


@dataclass(frozen=True, slots=True)
class SavedTuning:
    """A tuning as the store has it. Its state is derived, never stored."""

    tuning: Tuning
    state: TuningState
    sessions: int
    answers: int
    stages: int
    measured_s: float  # that the answers took, pauses between sessions left out
    worked_at: float  # when the last session began; of one without a session: when it was made
    ended_at: float | None = None  # of the last session; None while it climbs, and of one that was killed
    reason: str | None = None  # why the last session ended: what went wrong, or why nothing more was tried
    presets: tuple[str, ...] = ()  # that were made of it, in that order

    @property
    def id(self) -> str:
        return self.tuning.id

    @property
    def error(self) -> str | None:
        """What went wrong, where it did not finish."""
        return None if self.state is TuningState.ENDED else self.reason


@dataclass(frozen=True, slots=True)
class SavedAnswer:
    """What was asked of the bench and what came, as documents. `number` from 1, over all sessions."""

    number: int
    at: float
    kind: AnswerKind
    seconds: float
    errand: Mapping[str, Any]
    answer: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TuningSession:
    """One process at work on a tuning. `outcome` is None while it works, and of one that was killed for good."""

    number: int
    started_at: float
    ended_at: float | None
    outcome: TuningOutcome | None
    reason: str | None
    alive: bool


def to_document(value: Any) -> Any:
    """A frozen value as its document."""
    return _open_ended(msgspec.to_builtins(value))


def from_document(document: Any, kind: type[T]) -> T:
    """What `packed` was given. Fields that an older skep did not know have their defaults."""
    return msgspec.convert(_numbers(document), kind)


def document_text(document: Any) -> str:
    """ASCII only, so that any string survives, and in its own order."""
    return json.dumps(document, allow_nan=False)


def tuning_row(tuning: Tuning) -> tuple[Any, ...]:
    """Values in the order of the columns in `INSERT_TUNING`."""
    aim = tuning.aim
    texts = map(storable, (tuning.model, tuning.engine, tuning.rig, str(aim), aim.shape, aim.slo))
    document = document_text(to_document(tuning))
    return (
        tuning.id, tuning.created_at, *texts, tuning.budget_s, tuning.simulated, document, tuning.skep_version
    )  # fmt: skip


def stage_row(tuning_id: str, stage: TuneStage, *, at: float, answers: int) -> tuple[Any, ...]:
    """Values in the order of the columns in `INSERT_STAGE`."""
    document = to_document(stage)
    texts = (stage.decision.value, storable(stage.title), storable(stage.why))
    failure = (None, None) if stage.failure is None else (stage.failure.kind, storable(str(stage.failure)))
    return (
        tuning_id, stage.number, at, answers, *texts, document_text(to_document(stage.config.as_dict)),
        *_bounds(stage.figure), *_bounds(stage.ratio), stage.predicted, stage.ttft_ms, stage.tpot_ms,
        stage.starts, stage.readings, stage.seconds, *failure, document_text(document),
    )  # fmt: skip


def answer_row(tuning_id: str, session: int, answer: SavedAnswer) -> tuple[Any, ...]:
    """Values in the order of the columns in `INSERT_ANSWER`."""
    texts = (document_text(answer.errand), document_text(answer.answer))
    return (tuning_id, answer.number, session, answer.at, answer.kind, answer.seconds, *texts)


def tuning_of(row: Row) -> Tuning:
    """Its id is the column's: it had none when the document was made."""
    return replace(_value(row, "document", Tuning, row["id"]), id=row["id"])


def stage_of(row: Row) -> TuneStage:
    return _value(row, "document", TuneStage, row["tuning_id"])


def answer_of(row: Row) -> SavedAnswer:
    errand, answer = (_document(row, column, row["tuning_id"]) for column in ("errand", "answer"))
    return SavedAnswer(row["number"], row["at"], row["kind"], row["seconds"], errand, answer)


def kept_of(row: Row, presets: tuple[str, ...] = ()) -> SavedTuning:
    return SavedTuning(
        tuning=tuning_of(row),
        state=state_of(row),
        sessions=row["sessions"],
        answers=row["answers"],
        stages=row["stages"],
        measured_s=row["measured_s"] or 0.0,
        worked_at=row["created_at"] if row["started_at"] is None else row["started_at"],
        ended_at=row["ended_at"],
        reason=row["reason"],
        presets=presets,
    )


def session_of(row: Row) -> TuningSession:
    return TuningSession(
        number=row["number"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        outcome=row["outcome"],
        reason=row["reason"],
        alive=_is_alive(row),
    )


def state_of(row: Row) -> TuningState:
    if row["outcome"] == "done":
        return TuningState.ENDED
    return TuningState.RUNNING if row["sessions"] and _is_alive(row) else TuningState.INTERRUPTED


def _is_alive(row: Row) -> bool:
    if row["ended_at"] is not None:
        return False
    return is_alive(WriterProcess(row["writer_pid"], row["writer_start_ticks"], row["boot_id"]))


def _bounds(interval: Interval | None) -> tuple[float | None, ...]:
    """For other programs: an open end is NULL. The document has it."""
    ends = (None,) * 3 if interval is None else (interval.low, interval.estimate, interval.high)
    return tuple(end if end is not None and math.isfinite(end) else None for end in ends)


def _value(row: Row, column: str, kind: type[T], tuning_id: str) -> T:
    try:
        return from_document(_document(row, column, tuning_id), kind)
    except msgspec.ValidationError as error:
        raise StoreError(f"tuning `{tuning_id}` has a row that this skep cannot read: {error}") from error


def _document(row: Row, column: str, tuning_id: str) -> Any:
    try:
        return json.loads(row[column])
    except ValueError as error:
        raise StoreError(f"tuning `{tuning_id}` has unreadable JSON in its column `{column}`: {error}") from error


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


__all__ = ["SavedAnswer", "SavedTuning", "TuningOutcome", "TuningSession", "TuningState", "TuningStore"]

# A tuning's last session is the one that counts.
_TUNINGS = """
SELECT tunings.*,
    (SELECT count(*) FROM tuning_answers WHERE tuning_id = tunings.id) AS answers,
    (SELECT sum(seconds) FROM tuning_answers WHERE tuning_id = tunings.id) AS measured_s,
    (SELECT count(*) FROM tuning_stages WHERE tuning_id = tunings.id) AS stages,
    coalesce(last.number, 0) AS sessions, last.started_at, last.writer_pid, last.writer_start_ticks, last.boot_id,
    ends.ended_at, ends.outcome, ends.reason
FROM tunings
LEFT JOIN tuning_sessions AS last ON last.tuning_id = tunings.id
    AND last.number = (SELECT max(number) FROM tuning_sessions WHERE tuning_id = tunings.id)
LEFT JOIN tuning_session_ends AS ends ON ends.tuning_id = last.tuning_id AND ends.number = last.number
"""
_NEWEST_FIRST = " ORDER BY tunings.created_at DESC, tunings.rowid DESC LIMIT ?"
_BY_PREFIX = "WHERE substr(tunings.id, 1, length(?1)) = ?1 ORDER BY tunings.id LIMIT 6"
_SESSIONS = """
SELECT tuning_sessions.*, ends.ended_at, ends.outcome, ends.reason
FROM tuning_sessions LEFT JOIN tuning_session_ends AS ends
    ON ends.tuning_id = tuning_sessions.tuning_id AND ends.number = tuning_sessions.number
WHERE tuning_sessions.tuning_id = ? ORDER BY tuning_sessions.number
"""
_ANSWERS = "SELECT * FROM tuning_answers WHERE tuning_id = ?1 AND (?2 IS NULL OR kind = ?2) ORDER BY number"
_STAGES = "SELECT * FROM tuning_stages WHERE tuning_id = ? ORDER BY number"
_PRESETS = "SELECT tuning_id, name FROM tuning_presets WHERE ?1 IS NULL OR tuning_id = ?1 ORDER BY id"
_HINT = "`skep tune ls` lists them all"


class TuningStore:
    """Over an open store. What was appended is final; at most one living process is at work on a tuning."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"<TuningStore {self._store.path}>"

    def begin(self, tuning: Tuning, *, suffix: Callable[[], str] = new_suffix) -> str:
        """Its id, which takes the place of the value's own. Nobody works on it before a session is begun."""
        with self._store.transaction() as connection:
            tuning_id = free_id(connection, tuning.created_at, suffix)
            connection.execute(INSERT_TUNING, tuning_row(replace(tuning, id=tuning_id)))
        return tuning_id

    def begin_session(self, tuning_id: str, at: float) -> int:
        """Its number, from 1. This process is its writer; UserError where another one is, or where it has ended."""
        writer = this_process()
        with self._store.transaction() as connection:
            row = connection.execute(_TUNINGS + "WHERE tunings.id = ?", (tuning_id,)).fetchone()
            if row is None:
                raise _unclear(tuning_id, [], self._newest())
            check_free(tuning_id, state_of(row))
            number = int(row["sessions"]) + 1
            values = (tuning_id, number, at, writer.pid, writer.start_ticks, writer.boot_id)
            connection.execute("INSERT INTO tuning_sessions VALUES (?, ?, ?, ?, ?, ?)", values)
        return number

    def end_session(
        self, tuning_id: str, session: int, *, at: float, outcome: TuningOutcome, reason: str | None = None
    ) -> None:
        """`done`: of the whole tuning, which takes no more from then on."""
        with self._store.transaction() as connection:
            values = (tuning_id, session, at, outcome, storable(reason))
            connection.execute("INSERT INTO tuning_session_ends VALUES (?, ?, ?, ?, ?)", values)

    def append_answer(
        self, tuning_id: str, session: int, answer: SavedAnswer, stages: Sequence[TuneStage] = ()
    ) -> None:
        """With the stages that it decided, or nothing. Each number is written once, whoever comes second."""
        with self._store.transaction() as connection:
            connection.execute(INSERT_ANSWER, answer_row(tuning_id, session, answer))
            _insert_stages(connection, tuning_id, stages, answer.at)

    def append_stages(self, tuning_id: str, stages: Sequence[TuneStage], at: float) -> None:
        """Those that were decided without a new answer. All of them or none."""
        with self._store.transaction() as connection:
            _insert_stages(connection, tuning_id, stages, at)

    def append_preset(self, tuning_id: str, name: str, at: float, *, stage: int | None = None) -> None:
        """That a preset of this name was made of it; also after its end."""
        with self._store.transaction() as connection:
            sql = "INSERT INTO tuning_presets (tuning_id, name, stage, at) VALUES (?, ?, ?, ?)"
            connection.execute(sql, (tuning_id, storable(name), stage, at))

    def find(self, name: str) -> SavedTuning:
        """By its id, by the beginning of it, or "last"."""
        if name == "last":
            return self._last()
        matches = self._store.read(_TUNINGS + _BY_PREFIX, storable(name)) if name else []
        found = [row for row in matches if row["id"] == name] or matches
        if len(found) == 1:
            return kept_of(found[0], self._presets(found[0]["id"]).get(found[0]["id"], ()))
        raise _unclear(name, [row["id"] for row in found], self._newest())

    def tuning(self, name: str) -> Tuning:
        return self.find(name).tuning

    def state(self, name: str) -> TuningState:
        return self.find(name).state

    def tunings(self, limit: int | None = None) -> list[SavedTuning]:
        """Newest first."""
        presets = self._presets()
        rows = self._store.read(_TUNINGS + _NEWEST_FIRST, -1 if limit is None else limit)
        return [kept_of(row, presets.get(row["id"], ())) for row in rows]

    def stages(self, tuning_id: str) -> list[TuneStage]:
        """In the order in which they were decided."""
        return [stage_of(row) for row in self._store.read(_STAGES, tuning_id)]

    def answers(self, tuning_id: str, kind: str | None = None) -> list[SavedAnswer]:
        """In the order in which they came."""
        return [answer_of(row) for row in self._store.read(_ANSWERS, tuning_id, kind)]

    def sessions(self, tuning_id: str) -> list[TuningSession]:
        return [session_of(row) for row in self._store.read(_SESSIONS, tuning_id)]

    def count(self) -> tuple[int, int]:
        """Tunings, and stages of all of them."""
        (row,) = self._store.read("SELECT (SELECT count(*) FROM tunings), (SELECT count(*) FROM tuning_stages)")
        return row[0], row[1]

    def delete(self, ids: Iterable[str]) -> int:
        """How many there were to delete. One that somebody works on stays, and the others with it."""
        with self._store.transaction() as connection:
            connection.executemany("INSERT INTO deleting VALUES (?)", [(name,) for name in sorted(set(ids))])
            doomed = connection.execute(_TUNINGS + "JOIN deleting ON deleting.run_id = tunings.id").fetchall()
            for row in doomed:
                if state_of(row) is TuningState.RUNNING:
                    raise _at_work(row["id"])
            for table, key in TABLES_OF_A_TUNING:
                connection.execute(f"DELETE FROM {table} WHERE {key} IN (SELECT run_id FROM deleting)")  # noqa: S608
            connection.execute("DELETE FROM deleting")
        return len(doomed)

    def _presets(self, tuning_id: str | None = None) -> dict[str, tuple[str, ...]]:
        made: dict[str, tuple[str, ...]] = {}
        for whose, name in self._store.read(_PRESETS, tuning_id):
            made[whose] = (*made.get(whose, ()), name)
        return made

    def _last(self) -> SavedTuning:
        newest = self.tunings(1)
        if not newest:
            raise UserError("there are no tunings yet", hint="`skep tune MODEL` makes one")
        return newest[0]

    def _newest(self) -> list[str]:
        sql = "SELECT id FROM tunings ORDER BY created_at DESC, rowid DESC LIMIT 3"
        return [name for (name,) in self._store.read(sql)]


def _insert_stages(connection: Connection, tuning_id: str, stages: Sequence[TuneStage], at: float) -> None:
    asked = "SELECT count(*) FROM tuning_answers WHERE tuning_id = ?"
    answers = int(connection.execute(asked, (tuning_id,)).fetchone()[0])
    connection.executemany(INSERT_STAGE, [stage_row(tuning_id, one, at=at, answers=answers) for one in stages])


def check_free(tuning_id: str, state: TuningState) -> None:
    if state is TuningState.RUNNING:
        raise _at_work(tuning_id)
    if state is TuningState.ENDED:
        hint = f"`skep tune show {tuning_id}` shows it, `skep tune MODEL` begins another"
        raise UserError(f"tuning `{tuning_id}` has ended, there is nothing left to do", hint=hint)


def _at_work(tuning_id: str) -> UserError:
    hint = f"`skep tune show {tuning_id}` shows how it stands; Ctrl-C in its terminal stops it"
    return UserError(f"a process is at work on tuning `{tuning_id}`", hint=hint)


def _unclear(name: str, candidates: list[str], newest: list[str]) -> UserError:
    if candidates:
        return UserError(f"tuning `{name}` could be {' or '.join(f'`{c}`' for c in candidates)}", hint=_HINT)
    known = f"; the newest are {', '.join(f'`{n}`' for n in newest)}" if newest else "; there are none yet"
    return UserError(f"there is no tuning `{name}`{known}", hint=_HINT)
