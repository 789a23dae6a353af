"""What is asked and answered, as stored documents and back, and a whole tuning as its readers get it. Pure.

The stored form keeps every bit: `skep tune resume` gives it to the search again. The readers' form (`--json`) keeps its
keys and has null for what is no number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from skep.errors import StoreError
from skep.store.rows import finite
from skep.tuner.ports import BenchRequest, BenchResult, CurveRequest, JudgeRequest, MeasureRequest
from skep.tuner.records import (
    ConfigFailure,
    CurvePoint,
    CurveResult,
    JudgeResult,
    MeasurementRound,
    StageDecision,
    TuneStage,
    Tuning,
    Value,
)
from skep.tuner.store import AnswerKind, SavedAnswer, TuningState, from_document, to_document
from skep.tuner.summary import baseline_of, best_of, total_gain
from skep.units import Interval

_KINDS: Mapping[type, AnswerKind] = {MeasurementRound: "round", JudgeResult: "judged", CurveResult: "curve"}
_REQUESTS: Mapping[str, type[BenchRequest]] = {"round": MeasureRequest, "judged": JudgeRequest, "curve": CurveRequest}
_ANSWERS: Mapping[str, type[BenchResult]] = {"round": MeasurementRound, "judged": JudgeResult, "curve": CurveResult}


def kept_answer(number: int, at: float, request: BenchRequest, answer: BenchResult) -> SavedAnswer:
    return SavedAnswer(number, at, _KINDS[type(answer)], answer.seconds, to_document(request), to_document(answer))


def asked_and_answered(kept: SavedAnswer) -> tuple[BenchRequest, BenchResult]:
    try:
        return from_document(kept.request, _REQUESTS[kept.kind]), from_document(kept.answer, _ANSWERS[kept.kind])
    except msgspec.ValidationError as error:
        raise StoreError(f"this skep cannot read answer {kept.number} of the tuning: {error}") from error


def curve_of(answers: Iterable[SavedAnswer]) -> CurveResult | None:
    """Return the newest, where one was measured."""
    curves = [one for one in answers if one.kind == "curve"]
    return from_document(curves[-1].answer, CurveResult) if curves else None


def tuning_json(
    tuning: Tuning,
    stages: Sequence[TuneStage],
    curve: CurveResult | None = None,
    *,
    state: TuningState | None = None,
    measured_s: float | None = None,
) -> dict[str, Any]:
    """Return the document of `skep tune --json` and `skep tune show --json`."""
    baseline, best = baseline_of(stages), best_of(stages)
    return {
        "tuning": _tuning(tuning, state, measured_s),
        "baseline": None if baseline is None else stage_json(baseline),
        "best": None if best is None else stage_json(best),
        "gain": _interval(total_gain(stages)),
        "stages": [stage_json(one) for one in stages],
        "curve": None if curve is None else [_point(one, stages) for one in curve.points],
    }


def stage_json(stage: TuneStage) -> dict[str, Any]:
    document: dict[str, Any] = finite(msgspec.to_builtins(stage))
    predicted = document.pop("predicted")
    return document | {
        "title": stage.title,
        "config": _values(stage.config.values),
        "key": stage.config.key,
        "accepted": stage.decision is StageDecision.ACCEPTED,
        "figure": _interval(stage.figure),
        "ratio": _interval(stage.ratio),
        "predicted_ratio": predicted,
        "failure": None if stage.failure is None else failure_json(stage.failure),
    }


def _tuning(tuning: Tuning, state: TuningState | None, measured_s: float | None) -> dict[str, Any]:
    document: dict[str, Any] = finite(msgspec.to_builtins(tuning))
    knobs = [{name: knob[name] for name in ("name", "title", "values")} for knob in document["knobs"]]
    told = {name: value for name, value in document.items() if name not in ("aim", "baseline", "base", "host")}
    goal = {"goal": str(tuning.aim), **document["aim"]}
    return {**told, **goal, "state": state, "measured_s": finite(measured_s), "knobs": knobs}


def _point(point: CurvePoint, stages: Sequence[TuneStage]) -> dict[str, Any]:
    """`stage`: the last one of this configuration; null where none has it."""
    stage = next((one.number for one in reversed(stages) if one.config == point.config), None)
    return {
        "concurrency": point.concurrency,
        "stage": stage,
        "key": point.config.key,
        "effective_tok_s": _interval(point.figure),
        "ttft_ms": finite(point.ttft_ms),
        "tpot_ms": finite(point.tpot_ms),
    }


def failure_json(failure: ConfigFailure) -> dict[str, Any]:
    return {**msgspec.to_builtins(failure), "mended": _values(failure.mended)}


def _values(values: Iterable[tuple[str, Value]]) -> dict[str, Value]:
    return {knob: finite(value) for knob, value in values}


def _interval(interval: Interval | None) -> dict[str, float | None] | None:
    """Of what cannot be below zero, whatever two runs make of it."""
    if interval is None:
        return None
    ends: dict[str, float | None] = finite(msgspec.to_builtins(interval))
    return {name: None if value is None else max(0.0, value) for name, value in ends.items()}
