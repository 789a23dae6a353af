"""A tuning in the terminal: the ladder as a table, the climb as bars, the winner's curve beside the baseline's.

Values in, lines out: what is stored where, and who asked, it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from skep.cli.output import note, number, print_table
from skep.cli.swarm_words import one_line
from skep.records import Interval
from skep.report.tuning_words import KEPT, accepted, baseline_of, best_of, total_gain, unit_of
from skep.tunings import FAILURES, Aim, Config, CurvePoint, Knob, Stage, Tuning, value_words
from skep.units import format_seconds

BAR, LONGEST_WHY, LONGEST_CHANGE = 40, 90, 60
LADDER = ("STAGE", "CHANGE", "FIGURE", "95 %", "RATIO", "95 % OF RATIO", "FORESEEN", "TPOT", "TTFT", "DECISION", "WHY")


@dataclass(frozen=True, slots=True)
class Prospect:
    """A change that could be tried first. `minutes`: two starts of both sides."""

    change: str
    predicted: float | None  # ratio over the baseline; None: the planner has nothing to say
    seconds: float
    refused: str | None = None


def headline(tuning: Tuning, stages: Sequence[Stage]) -> str:
    """From where to where, of what, under which load."""
    mark = "SIMULATED: " if tuning.simulated else ""
    what = f"{mark}{tuning.model} ({tuning.engine}) on {tuning.rig}, {tuning.aim.shape}"
    base, best, unit = baseline_of(stages), best_of(stages), unit_of(tuning)
    if base is None or best is None or base.figure is None or best.figure is None:
        return f"{what}: nothing was measured"
    if best is base:
        return f"{what}: {figure_words(base.figure)} {unit}; no change was shown to be better"
    steps, gain = len(accepted(stages)), total_gain(stages)
    times = "" if gain is None else f", {gain.estimate:.2f} times ({gain.low:.2f} to {gain.high:.2f})"
    climb = f"from {number(base.figure.estimate)} to {figure_words(best.figure)} {unit}{times}"
    return f"{what}: {climb} in {steps} accepted step{'s' if steps > 1 else ''}"


def print_ladder(tuning: Tuning, stages: Sequence[Stage]) -> None:
    if not stages:
        note("no stage is decided yet")
        return
    unit = unit_of(tuning)
    columns = [unit if name == "FIGURE" else name for name in LADDER]
    right = [name for name in columns if name not in ("CHANGE", "DECISION", "WHY")]
    print_table(columns, [ladder_cells(stage) for stage in stages], right=right)
    for line in dead_ends(stages):
        print(line)  # noqa: T201


def ladder_cells(stage: Stage) -> list[str]:
    return [
        str(stage.number),
        one_line(stage.title, LONGEST_CHANGE),
        "–" if stage.figure is None else number(stage.figure.estimate),
        _range(stage.figure, 1),
        "–" if stage.ratio is None else f"{stage.ratio.estimate:.3f}",
        _range(stage.ratio, 3),
        "–" if stage.predicted is None else f"{stage.predicted:.2f}",
        "–" if stage.tpot_ms is None else f"{stage.tpot_ms:.1f} ms",
        "–" if stage.ttft_ms is None else f"{stage.ttft_ms:,.0f} ms",
        stage.decision.value,
        one_line(stage.why, LONGEST_WHY),
    ]


def dead_ends(stages: Iterable[Stage]) -> list[str]:
    """In full, with the engine's own line and what would mend it: a table has no room for them."""
    lines: list[str] = []
    for stage in stages:
        failure = stage.failure
        if failure is None:
            continue
        lines.append(f"stage {stage.number} {FAILURES.get(failure.kind, failure.kind)}: {one_line(failure.cause, 300)}")
        if failure.evidence:
            lines.append(f"  it said: {one_line(failure.evidence, 300)}")
        if failure.remedy:
            lines.append(f"  remedy: {one_line(failure.remedy, 300)}")
    return lines


def print_climb(tuning: Tuning, stages: Sequence[Stage]) -> None:
    for line in climb_lines(stages, unit_of(tuning)):
        print(line)  # noqa: T201


def climb_lines(stages: Sequence[Stage], unit: str) -> list[str]:
    """A bar for each configuration that was the best of its time; what was tried and left stands between."""
    most = max((stage.figure.high for stage in stages if stage.decision in KEPT and stage.figure), default=0.0)
    lines: list[str] = []
    left: list[Stage] = []
    for stage in stages:
        if stage.decision not in KEPT or stage.figure is None:
            left.append(stage)
            continue
        lines += _left_words(left)
        left = []
        lines.append(
            f"{stage.number:>5}  {_bar(stage.figure, most)}  {figure_words(stage.figure)} {unit}  {stage.title}"
        )
    return lines + _left_words(left)


def _bar(figure: Interval, most: float) -> str:
    """Solid up to the interval's lower end, then light to its upper end."""
    low, high = round(BAR * max(0.0, figure.low) / most), round(BAR * figure.high / most)
    full = max(1, low)
    return ("█" * full + "░" * max(0, high - full)).ljust(BAR)


def _left_words(left: Sequence[Stage]) -> list[str]:
    if not left:
        return []
    words = "; ".join(f"{one_line(stage.title, LONGEST_CHANGE)} ({stage.decision.value})" for stage in left[:3])
    more = f"; and {len(left) - 3} more" if len(left) > 3 else ""
    return [f"       tried and left: {words}{more}"]


def print_curve(points: Sequence[CurvePoint], baseline: Config, best: Config) -> None:
    """Effective tok/s of both over concurrency. Intervals of two runs are wide, and say so."""
    if not points:
        return
    levels = sorted({point.concurrency for point in points})
    alone = baseline == best
    by_place = {(point.concurrency, point.config.key): point for point in points}
    rows = []
    for level in levels:
        first, second = by_place.get((level, baseline.key)), by_place.get((level, best.key))
        rows.append([str(level), *_curve_cells(first), *_curve_cells(second), _times(first, second)])
    columns = ("C", "baseline tok/s", "95 %", "TTFT", "best tok/s", "95 % ", "TTFT ", "TIMES")
    shown = 4 if alone else len(columns)
    print_table(columns[:shown], [row[:shown] for row in rows], right=columns)


def _curve_cells(point: CurvePoint | None) -> list[str]:
    if point is None or point.figure is None:
        return ["–", "–", "–"]
    ttft = "–" if point.ttft_ms is None else f"{point.ttft_ms:,.0f} ms"
    return [number(point.figure.estimate), _range(point.figure, 1), ttft]


def _times(first: CurvePoint | None, second: CurvePoint | None) -> str:
    if first is None or second is None or first.figure is None or second.figure is None or not first.figure.estimate:
        return "–"
    return f"{second.figure.estimate / first.figure.estimate:.2f}"


def print_prospects(prospects: Sequence[Prospect]) -> None:
    """On stderr with the rest of the story: the data of the command is the ladder."""
    for one in prospects:
        gain = "not foreseen" if one.predicted is None else f"{100 * (one.predicted - 1):+.0f} %"
        rest = f"refused: {one.refused}" if one.refused else f"about {format_seconds(one.seconds)}"
        note(f"  {one_line(one.change, LONGEST_CHANGE):<{LONGEST_CHANGE}}  {gain:>12}  {rest}")


def config_words(config: Config, knobs: Sequence[Knob]) -> str:
    """`slots 4, kv f16, ...`: by the names that --knobs takes."""
    return ", ".join(f"{knob.name} {value_words(config.get(knob.name))}" for knob in knobs)


def differences(baseline: Config, best: Config) -> str:
    return ", ".join(map(str, best.changes_from(baseline))) or "nothing"


def aim_words(aim: Aim) -> str:
    limits = f", within {aim.slo}" if aim.slo else ""
    context = f", context of {aim.min_context} at least" if aim.min_context else ""
    return f"{aim} ({aim.shape}{limits}{context})"


def figure_words(figure: Interval) -> str:
    return f"{number(figure.estimate)} ({number(figure.low)} to {number(figure.high)})"


def _range(interval: Interval | None, digits: int) -> str:
    """Of what cannot be below zero, whatever two runs make of it."""
    return "–" if interval is None else f"{max(0.0, interval.low):,.{digits}f}..{interval.high:,.{digits}f}"
