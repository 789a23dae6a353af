"""The six axes of the radar: each from 0 to 1, the more the better, with its arithmetic in words.

*Full load* is the highest level that was measured. One axis, solo speed, is relative to the models shown beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from skep.quality.mixed_advice import other_length
from skep.units import format_seconds
from skep.verdicts import Axis, MixedLevel, MixedSummary, SideFigures, TurnFigures

SOLO_SPEED = "solo speed"
TTFT_STABILITY = "TTFT stability"
LATENCY = "latency under load"
THROUGHPUT = "throughput"
SIDE_ACCURACY = "side-task accuracy"
PRIMARY_ACCURACY = "primary accuracy"

UNKNOWN = "not measured"


def axes_of(levels: Sequence[MixedLevel]) -> tuple[Axis, ...]:
    """Of one model alone; `levels` in order of C."""
    solo = next((level for level in levels if level.concurrency == 1), None)
    full = levels[-1] if levels and levels[-1].concurrency > 1 else None
    return (
        _solo_speed(solo),
        _ttft_stability(solo, full),
        _latency(solo, full),
        _throughput(solo, full),
        _accuracy(SIDE_ACCURACY, "side tasks", full, full.side if full else ()),
        _accuracy(PRIMARY_ACCURACY, "turns of the conversation", full, full.turns if full else ()),
    )


def with_solo_speeds(summaries: Sequence[MixedSummary]) -> list[MixedSummary]:
    """The same models side by side: the fastest alone has solo speed 1, the others their share of it."""
    if len(summaries) < 2:
        return list(summaries)
    speeds = [_turn_1_tok_s(_solo_of(summary)) for summary in summaries]
    fastest = max((speed for speed in speeds if speed), default=None)
    definition = "tok/s of turn 1 at C=1, over that of the fastest model shown"
    found = []
    for summary, speed in zip(summaries, speeds, strict=True):
        share = speed / fastest if speed and fastest else None
        shown = UNKNOWN if speed is None else f"{speed:,.0f} tok/s"
        axes = [
            Axis(SOLO_SPEED, definition, share, shown) if axis.name == SOLO_SPEED else axis for axis in summary.axes
        ]
        found.append(replace(summary, axes=tuple(axes)))
    return found


def turn_1_ttft_ms(level: MixedLevel | None) -> float | None:
    return level.turns[0].ttft_ms if level and level.turns else None


def _solo_speed(solo: MixedLevel | None) -> Axis:
    speed = _turn_1_tok_s(solo)
    definition = "tok/s of turn 1 at C=1, over that of the fastest model shown; 1 where one model is shown alone"
    shown = UNKNOWN if speed is None else f"{speed:,.0f} tok/s, the only model"
    return Axis(SOLO_SPEED, definition, None if speed is None else 1.0, shown)


def _ttft_stability(solo: MixedLevel | None, full: MixedLevel | None) -> Axis:
    definition = "TTFT of turn 1 at C=1, over that at full load; at most 1"
    alone, loaded = turn_1_ttft_ms(solo), turn_1_ttft_ms(full)
    if alone is None or loaded is None or full is None:
        return Axis(TTFT_STABILITY, definition, None, UNKNOWN)
    shown = f"{loaded:,.0f} ms at C={full.concurrency}, {alone:,.0f} ms at C=1"
    return Axis(TTFT_STABILITY, definition, _share(alone, loaded), shown)


def _latency(solo: MixedLevel | None, full: MixedLevel | None) -> Axis:
    definition = "time of the whole conversation at C=1, over that at full load; at most 1"
    alone, loaded = solo.primary_s if solo else None, full.primary_s if full else None
    if not alone or loaded is None or full is None:
        return Axis(LATENCY, definition, None, UNKNOWN)
    shown = [
        f"{format_seconds(loaded)} at C={full.concurrency}",
        f"{loaded / alone:.1f}x of C=1",
        other_length(full, solo),
    ]
    return Axis(LATENCY, definition, _share(alone, loaded), ", ".join(filter(None, shown)))


def _throughput(solo: MixedLevel | None, full: MixedLevel | None) -> Axis:
    definition = "aggregate tok/s at full load, over C times that at C=1; at most 1: 1 is perfect scaling, 1/C none"
    alone, loaded = solo.aggregate_tok_s if solo else None, full.aggregate_tok_s if full else None
    if not alone or loaded is None or full is None:
        return Axis(THROUGHPUT, definition, None, UNKNOWN)
    shown = f"{loaded:,.0f} tok/s at C={full.concurrency}, {loaded / alone:.1f}x of C=1"
    return Axis(THROUGHPUT, definition, min(1.0, loaded / (full.concurrency * alone)), shown)


def _accuracy(
    name: str, what: str, full: MixedLevel | None, parts: Sequence[TurnFigures] | Sequence[SideFigures]
) -> Axis:
    definition = f"share of the {what} at full load whose answers passed when they were executed"
    passed, judged = sum(part.passed for part in parts), sum(part.judged for part in parts)
    if not judged or full is None:
        return Axis(name, definition, None, UNKNOWN)
    return Axis(name, definition, passed / judged, f"{passed} of {judged} at C={full.concurrency}")


def _share(alone: float, loaded: float) -> float:
    return min(1.0, alone / loaded) if loaded > 0 else 1.0


def _solo_of(summary: MixedSummary) -> MixedLevel | None:
    return next((level for level in summary.levels if level.concurrency == 1), None)


def _turn_1_tok_s(level: MixedLevel | None) -> float | None:
    return level.turns[0].tok_s if level and level.turns else None
