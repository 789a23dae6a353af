"""A tuning as its readers get it (`--json`, HTTP): its keys stay, and what is no number is null. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from skep.store.rows import finite
from skep.tuner.records import ConfigFailure, CurvePoint, StageDecision, TuneStage, Value
from skep.tuner.store import TuningRecord
from skep.tuner.summary import baseline_of, best_of, total_gain
from skep.units import Interval


def tuning_json(found: TuningRecord) -> dict[str, Any]:
    """Return the document of `skep tune show --json` and of the dashboard."""
    stages, curve = found.stages, found.curve
    baseline, best = baseline_of(stages), best_of(stages)
    return {
        "tuning": _tuning(found),
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


def _tuning(found: TuningRecord) -> dict[str, Any]:
    document: dict[str, Any] = finite(msgspec.to_builtins(found.tuning))
    knobs = [{name: knob[name] for name in ("name", "title", "values")} for knob in document["knobs"]]
    told = {name: value for name, value in document.items() if name not in ("aim", "baseline", "base", "host")}
    goal = {"goal": str(found.tuning.aim), **document["aim"]}
    spent_s = finite(found.saved.measured_s)
    return {**told, **goal, "state": found.saved.state, "measured_s": spent_s, "knobs": knobs}


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
