"""Tunings, their stages, answers and sessions as rows, and back. Knows columns; runs no statement.

A value's document is JSON that every reader takes: what is no number in JSON stands there as an object, so that an open
interval comes out as it went in.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from sqlite3 import Row
from typing import Any, Literal, TypeVar

import msgspec

from skep.errors import StoreError
from skep.store.rows import insert, storable
from skep.store.writers import Writer, is_alive
from skep.tunings import Stage, Tuning
from skep.units import Interval

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
class KeptTuning:
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
class KeptAnswer:
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


def packed(value: Any) -> Any:
    """A frozen value as its document."""
    return _open_ended(msgspec.to_builtins(value))


def unpacked(document: Any, kind: type[T]) -> T:
    """What `packed` was given. Fields that an older skep did not know have their defaults."""
    return msgspec.convert(_numbers(document), kind)


def document_text(document: Any) -> str:
    """ASCII only, so that any string survives, and in its own order."""
    return json.dumps(document, allow_nan=False)


def tuning_row(tuning: Tuning) -> tuple[Any, ...]:
    """Values in the order of the columns in `INSERT_TUNING`."""
    aim = tuning.aim
    texts = map(storable, (tuning.model, tuning.engine, tuning.rig, str(aim), aim.shape, aim.slo))
    document = document_text(packed(tuning))
    return (
        tuning.id, tuning.created_at, *texts, tuning.budget_s, tuning.simulated, document, tuning.skep_version
    )  # fmt: skip


def stage_row(tuning_id: str, stage: Stage, *, at: float, answers: int) -> tuple[Any, ...]:
    """Values in the order of the columns in `INSERT_STAGE`."""
    document = packed(stage)
    texts = (stage.decision.value, storable(stage.title), storable(stage.why))
    failure = (None, None) if stage.failure is None else (stage.failure.kind, storable(str(stage.failure)))
    return (
        tuning_id, stage.number, at, answers, *texts, document_text(packed(stage.config.as_dict)),
        *_bounds(stage.figure), *_bounds(stage.ratio), stage.predicted, stage.ttft_ms, stage.tpot_ms,
        stage.starts, stage.readings, stage.seconds, *failure, document_text(document),
    )  # fmt: skip


def answer_row(tuning_id: str, session: int, answer: KeptAnswer) -> tuple[Any, ...]:
    """Values in the order of the columns in `INSERT_ANSWER`."""
    texts = (document_text(answer.errand), document_text(answer.answer))
    return (tuning_id, answer.number, session, answer.at, answer.kind, answer.seconds, *texts)


def tuning_of(row: Row) -> Tuning:
    """Its id is the column's: it had none when the document was made."""
    return replace(_value(row, "document", Tuning, row["id"]), id=row["id"])


def stage_of(row: Row) -> Stage:
    return _value(row, "document", Stage, row["tuning_id"])


def answer_of(row: Row) -> KeptAnswer:
    errand, answer = (_document(row, column, row["tuning_id"]) for column in ("errand", "answer"))
    return KeptAnswer(row["number"], row["at"], row["kind"], row["seconds"], errand, answer)


def kept_of(row: Row, presets: tuple[str, ...] = ()) -> KeptTuning:
    return KeptTuning(
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
    return is_alive(Writer(row["writer_pid"], row["writer_start_ticks"], row["boot_id"]))


def _bounds(interval: Interval | None) -> tuple[float | None, ...]:
    """For other programs: an open end is NULL. The document has it."""
    ends = (None,) * 3 if interval is None else (interval.low, interval.estimate, interval.high)
    return tuple(end if end is not None and math.isfinite(end) else None for end in ends)


def _value(row: Row, column: str, kind: type[T], tuning_id: str) -> T:
    try:
        return unpacked(_document(row, column, tuning_id), kind)
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
