"""What is drawn of runs of the mixed workload, of one or of several beside each other: curves over
C, tasks, axes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from skep.quality.mixed_figures import MixedLevel, MixedSummary, TaskFigures
from skep.report import charts
from skep.report.charts import Spec
from skep.report.comparison import Series
from skep.units import known, number, printable, seconds

MixedSeries = Series[MixedSummary]
Drawn = tuple[Spec | None, str, str]  # chart, title, caption
_ROW_PX = 27  # of a bar

# What is drawn over C: title, unit, caption and figure.
_CURVES: tuple[tuple[str, str, str, Callable[[MixedLevel], float | None]], ...] = (
    ("Time to first token", "ms", "Of turn 1; median over repeats.", lambda level: level.ttft_ms),
    (
        "Time of the conversation",
        "s",
        "All three turns. Vertical lines: fastest to slowest repeat.",
        lambda level: level.primary_s,
    ),
    (
        "Speed of the conversation",
        "tok/s",
        "Of turn 1, while its answer streams.",
        lambda level: level.tok_s,
    ),
    (
        "Passed tasks a minute",
        "a minute",
        "Turns and side tasks whose answers passed when they were executed.",
        lambda level: level.passed_per_minute,
    ),
)


def mixed_pictures(
    runs: Sequence[MixedSeries], side_tasks: Mapping[str, Sequence[TaskFigures | None]]
) -> list[Drawn]:
    """Return the curves over C, the bars of the side tasks and those of the axes.

    `side_tasks`: those at full load by name, with the figures of each run.
    """
    curves = [
        (_curves(runs, unit, figure), title, caption) for title, unit, caption, figure in _CURVES
    ]
    task_bars = {name: list(map(_task_bar, tasks)) for name, tasks in side_tasks.items()}
    tasks = _bars(runs, task_bars, "s", room=2.1)
    axes = _bars(runs, _axis_bars(runs), "0 to 1, the more the better", room=1.18)
    caption = "Median time, and how many answers passed when they were executed."
    return [
        *curves,
        (tasks, "Side tasks at full load", caption),
        (axes, "Axes", "What each means stands below, with its figures."),
    ]


def _curves(
    runs: Sequence[MixedSeries], unit: str, figure: Callable[[MixedLevel], float | None]
) -> Spec | None:
    """Return one curve a run; the letter stands at its end where there are several."""
    curves = []
    for run in runs:
        measured = [(level.concurrency, figure(level)) for level in run.levels]
        points = [(c, value) for c, value in measured if value is not None and known(value)]
        ranges = {
            level.concurrency: ends
            for level in run.levels
            if unit == "s" and (ends := _repeats_range(level))
        }
        end = run.letter if len(runs) > 1 else ""
        curves.append(
            charts.ChartCurve(points, run.colour, end, run.dash, run.shape, ranges=ranges)
        )
    return charts.curves_chart(curves, unit, labelled=len(runs) == 1)


def _repeats_range(level: MixedLevel) -> tuple[float, float] | None:
    low = level.primary_low_s
    high = level.primary_high_s
    if low is None or high is None or low == high:
        return None
    return (low, high)


Bar = tuple[float, str]  # value and label


def _bars(
    runs: Sequence[MixedSeries],
    by_name: Mapping[str, Sequence[Bar | None]],
    unit: str,
    *,
    room: float,
) -> Spec | None:
    """Return a bar a run for each name, in the run's colour; what is not known is left out, never
    drawn as zero.
    """
    rows = []
    for name, bars in by_name.items():
        for run, bar in zip(runs, bars, strict=True):
            if bar is not None:
                label = printable(f"{name}  {run.letter}" if len(runs) > 1 else name)
                rows.append(
                    {"name": label, "value": bar[0], "label": bar[1], "colour": run.colour}
                )
    if rows:
        return charts.bars_chart(rows, unit, room=room, row_px=_ROW_PX)
    return None


def _task_bar(task: TaskFigures | None) -> Bar | None:
    if task is None or task.seconds is None:
        return None
    if task.judged:
        verdict = f"{task.passed}/{task.judged} passed"
    else:
        verdict = "not judged"
    return task.seconds, f"{seconds(task.seconds)}, {verdict}"


def _axis_bars(runs: Sequence[MixedSeries]) -> dict[str, list[Bar | None]]:
    names = dict.fromkeys(axis.name for run in runs for axis in run.summary.axes)
    values = [{axis.name: axis.value for axis in run.summary.axes} for run in runs]
    return {
        name: [
            None if (value := of.get(name)) is None else (value, number(value, digits=2))
            for of in values
        ]
        for name in names
    }
