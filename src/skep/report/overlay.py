"""Several runs in one chart. Each has a letter, a colour, a dash and a shape, so that no reader needs the colour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from skep.records import LevelSummary, Run, SweepSummary
from skep.report import theme
from skep.report.charts import has_interval
from skep.report.figures import known, moment, printable, shortened
from skep.report.marks import Spec, concurrency, halo, label, layer, line, point, quantity, rule, spread

MOST_RUNS = len(theme.SERIES)
_DASHES: tuple[tuple[int, ...], ...] = ((), (7, 4), (2, 3), (9, 3, 2, 3))
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "circle", "square")
_LONGEST_NAME = 70
_HEIGHT = 200  # of the part of a picture that curves are drawn in: letters keep their distance in its terms


@dataclass(frozen=True, slots=True)
class Series:
    """One run as it is drawn: `letter` in the pictures, `name` in the legend."""

    letter: str
    name: str
    run: Run
    summary: SweepSummary
    place: int

    @property
    def colour(self) -> str:
        return theme.SERIES[self.place % MOST_RUNS]

    @property
    def dash(self) -> tuple[int, ...]:
        return _DASHES[self.place % len(_DASHES)]

    @property
    def shape(self) -> str:
        return _SHAPES[self.place % len(_SHAPES)]

    @property
    def levels(self) -> list[LevelSummary]:
        return sorted(self.summary.levels, key=lambda level: level.concurrency)


def series_of(entries: Sequence[tuple[Run, SweepSummary]], labels: Sequence[str] | None = None) -> tuple[Series, ...]:
    """Lettered from A. Without labels a run is called by its model and time; its id is added where two are alike."""
    if labels is None:
        names = [f"{run.model} @ {moment(run.created_at)}" for run, _ in entries]
        names = [f"{name} ({entries[i][0].id})" if names.count(name) > 1 else name for i, name in enumerate(names)]
    else:
        names = list(labels)
    return tuple(
        Series(chr(ord("A") + i), shortened(printable(name), _LONGEST_NAME), run, summary, i)
        for i, ((run, summary), name) in enumerate(zip(entries, names, strict=True))
    )


def effective_overlay(runs: Sequence[Series], height: int = _HEIGHT) -> Spec | None:
    return _overlay(runs, lambda level: level.effective_tok_s, "tok/s", height, banded=True)


def task_overlay(runs: Sequence[Series], height: int = _HEIGHT) -> Spec | None:
    return _overlay(runs, lambda level: level.task_tok_s, "tok/s", height)


def ttft_overlay(runs: Sequence[Series], height: int = _HEIGHT) -> Spec | None:
    return _overlay(runs, lambda level: level.ttft_ms.p50 if level.ttft_ms else None, "ms", height)


def tpot_overlay(runs: Sequence[Series], height: int = _HEIGHT) -> Spec | None:
    return _overlay(runs, lambda level: level.tpot_ms.p50 if level.tpot_ms else None, "ms", height)


def legend_chart(runs: Sequence[Series]) -> Spec:
    """For a picture that stands alone: a sample of each line with its letter and name."""
    x = {"field": "x", "type": "quantitative", "scale": {"domain": [0, 100]}, "axis": None}
    y = {"field": "y", "type": "quantitative", "scale": {"domain": [len(runs) - 0.5, -0.5]}, "axis": None}
    layers = []
    for i, one in enumerate(runs):
        ends = [{"x": 0, "y": i}, {"x": 5, "y": i}]
        middle = [{"x": 2.5, "y": i, "label": f"{one.letter}   {one.name}"}]
        layers += [
            layer(ends, line(one.colour, width=2.5, dash=one.dash), x=x, y=y),
            layer(middle, {**point(one.colour, one.shape), "fill": one.colour}, x=x, y=y),
            layer(middle, label("left", dx=34), x=x, y=y, text="label"),
        ]
    return {"width": 760, "height": 22 * len(runs), "layer": layers}


def _overlay(
    runs: Sequence[Series], of: Callable[[LevelSummary], float | None], unit: str, height: int, *, banded: bool = False
) -> Spec | None:
    """One curve a run. A level that the client limited is hollow; the letter stands at the end of its curve."""
    curves = [(one, _rows(one, of, banded=banded)) for one in runs]
    curves = [(one, rows) for one, rows in curves if rows]
    if not curves:
        return None
    every = [row for _, rows in curves for row in rows]
    largest = max(row["value"] for row in every)
    if unit == "ms" and largest >= 10_000:
        unit, largest = "s", largest / 1000
        for row in every:
            row["value"] /= 1000
    top = 1.12 * min(max([largest, *(row["high"] for row in every if banded)]), 1.5 * largest) or 1.0
    axis = [row["c"] for row in every]
    x, y = concurrency(axis), quantity("value", unit, [0, top])
    layers: list[Spec] = []
    for one, rows in curves:
        fill = {"condition": {"test": "datum.limited", "value": theme.PAPER}, "value": one.colour}
        for row in rows:
            row["low"], row["high"] = max(0.0, row["low"]), min(top, row["high"])
        ends = {"y": {**y, "field": "low"}, "y2": {"field": "high"}}
        layers += [
            layer(rows if banded else [], rule(one.colour, width=1.5), x=x, **ends),
            layer(rows, line(one.colour, width=2.5, dash=one.dash), x=x, y=y),
            layer(rows, {**point(one.colour, one.shape), "fill": one.colour}, x=x, y=y, fill=fill),
        ]
    return {"layer": [*layers, *_letters(curves, 14 / height, top, x, y)]}


def _letters(curves: Sequence[tuple[Series, list[Spec]]], gap: float, top: float, x: Spec, y: Spec) -> list[Spec]:
    """Apart from each other where curves end at the same C."""
    layers: list[Spec] = []
    for c in sorted({rows[-1]["c"] for _, rows in curves}):
        ending = [(one, rows[-1]) for one, rows in curves if rows[-1]["c"] == c]
        heights = spread([row["value"] for _, row in ending], min(gap, 1 / len(ending)) * top, 0.0, top)
        for (one, _), height in zip(ending, heights, strict=True):
            row = {"c": c, "at": height, "label": one.letter}
            mark = label("left", dx=9, weight=700, color=one.colour)
            layers += halo([row], mark, x=x, y={**y, "field": "at"})
    return layers


def _rows(one: Series, of: Callable[[LevelSummary], float | None], *, banded: bool) -> list[Spec]:
    rows: list[Spec] = []
    for level in one.levels:
        value = of(level)
        if value is None or not known(value):
            continue
        low = high = value
        if banded and level.effective_interval is not None and has_interval(level):
            low, high = level.effective_interval.low, level.effective_interval.high
        rows.append({"c": level.concurrency, "value": value, "low": low, "high": high, "limited": level.client_limited})
    return rows
