"""Charts in Vega-Lite's terms: `pictures/*.json` says how each is drawn, here and in the pages
stands what.

A chart is None where there is nothing to draw. Levels without a value are left out, never drawn as
zero."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from string import Template
from typing import Any

import msgspec

from skep.bench.metrics import LevelSummary
from skep.report import theme
from skep.stats.turning import Turning
from skep.units import known, milliseconds, number, percent

Spec = dict[str, Any]
AGENTS = "agents at once (C)"
# Lines beside each other differ in these as well as in colour.
DASHES: tuple[tuple[int, ...], ...] = ((), (7, 4), (2, 3), (9, 3, 2, 3))
SHAPES = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "cross",
    "triangle-down",
    "circle",
    "square",
)
_WIDE = 24  # from this ratio of the largest C to the smallest on, the axis is logarithmic
_TALLEST = 1.6  # of the largest value: few repeats that differ may give an interval of any width
_WIDER_PX = 2.0  # a letter: the reader's font may be wider than the renderer's
_APART = 0.09  # of the axis, between the labels of two levels


def drawing(name: str, rows: Mapping[str, Sequence[Spec]], **values: Any) -> Spec:
    """Return the chart of `pictures/NAME.json`: `$name` in it is a colour or one of `values`, its
    data are `rows`.

    A layer without a row is left out. A text with a `halo` is readable where it crosses a line.
    """
    substitutes = {key: json.dumps(value) for key, value in values.items()}
    spec: Spec = json.loads(
        Template(theme.coloured(f"pictures/{name}.json")).substitute(substitutes)
    )
    _fill(spec, rows)
    return spec


def _fill(part: Spec, rows: Mapping[str, Sequence[Spec]]) -> None:
    """Put the rows into a part of a chart and into what it holds, in place."""
    if "data" in part:
        name = part["data"]["name"]
        part["data"] = {"values": list(rows.get(name, ()))}
    for inner in (*part.get("layer", ()), *part.get("vconcat", ())):
        _fill(inner, rows)
    if "layer" in part:
        layers = []
        for layer in part["layer"]:
            if layer["data"]["values"]:
                layers += [*_halo(layer), layer]
        part["layer"] = layers


def _halo(layer: Spec) -> list[Spec]:
    """Return what lies behind a text: its own shape in the paper's colour."""
    if not layer["mark"].pop("halo", False):
        return []
    mark = {**layer["mark"], "color": theme.PAPER, "stroke": theme.PAPER, "strokeWidth": 4}
    return [
        {**layer, "mark": mark, "encoding": {**layer["encoding"], "color": {"value": theme.PAPER}}}
    ]


def is_wide(levels: Sequence[int]) -> bool:
    """Return whether the levels span so much that a linear axis would crowd the small ones."""
    return bool(levels) and min(levels) > 0 and max(levels) / min(levels) >= _WIDE


def along(levels: Sequence[int]) -> Callable[[Spec], float]:
    """Return a function that tells where a row's C lies on its axis: 0 at the left end, 1 at the
    right; 0.5 where there is one level only.
    """
    low = min(levels)
    high = max(levels)

    def place(row: Spec) -> float:
        if low == high:
            return 0.5
        c = row["c"]
        if is_wide(levels):
            return float(math.log(c / low) / math.log(high / low))
        return float((c - low) / (high - low))

    return place


def apart(rows: Sequence[Spec], gap: float, place: Callable[[Spec], float]) -> list[Spec]:
    """Return the rows whose labels do not run into each other, from the last, which is always
    among them.
    """
    chosen: list[Spec] = []
    for row in reversed(rows):
        if not chosen or place(chosen[-1]) - place(row) >= gap:
            chosen.append(row)
    return chosen


def spread(values: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return the values moved as little as needed to lie `gap` apart, in the same order, and
    inside low..high where they fit.
    """
    order = sorted(range(len(values)), key=lambda index: values[index])
    placed = [min(max(values[index], low), high) for index in order]
    lowest = -math.inf
    for rank, value in enumerate(placed):
        placed[rank] = max(value, lowest)
        lowest = placed[rank] + gap
    highest = high
    for rank in reversed(range(len(placed))):
        placed[rank] = min(placed[rank], highest)
        highest = placed[rank] - gap
    in_order = [0.0] * len(values)
    for index, value in zip(order, placed, strict=True):
        in_order[index] = value
    return in_order


def concurrency(levels: Sequence[int]) -> Spec:
    """Return the axis of C; on it are named the levels that have room for their name."""
    low = min(levels)
    high = max(levels)
    rows = [{"c": c} for c in sorted(set(levels))]
    named = apart(rows, _APART, along(levels))
    scale: Spec = {"domain": [low, high], "nice": False, "padding": 22}
    if low == high:
        scale["domain"] = [low - 1, high + 1]
    axis: Spec = {
        "values": sorted(row["c"] for row in named),
        "format": "d",
        "labelOverlap": False,
    }
    title = AGENTS
    if is_wide(levels):
        title = f"{AGENTS}, logarithmic"
        scale |= {"type": "log", "base": 2}
        axis |= {"labelExpr": "datum.value"}
    return {
        "field": "c",
        "type": "quantitative",
        "title": title,
        "scale": scale,
        "axis": axis,
    }


class ChartCurve(msgspec.Struct, frozen=True):
    """One line over C: `points` are (C, value) by C; by C, too, what lies around them and is told
    of them.
    """

    points: Sequence[tuple[int, float]]
    colour: str
    end: str = ""  # beside its last point
    dash: Sequence[int] = ()
    shape: str = "circle"
    hollow: Collection[int] = ()
    ranges: Mapping[int, tuple[float, float]] = {}  # stand upright at their points
    tips: Mapping[int, str] = {}
    shaded: bool = False  # from range to range
    joined: bool = True

    def rows(self, name: str, top: float, per: float) -> Iterator[Spec]:
        """Yield a row a point; `per`: values in one unit of the axis, which ends at `top`."""
        for c, value in self.points:
            low, high = self.ranges.get(c, (value, value))
            row = {
                "c": c,
                "value": value / per,
                "low": max(0.0, low / per),
                "high": min(top, high / per),
                "curve": name,
                "colour": self.colour,
                "dash": list(self.dash),
                "shape": self.shape,
                "fill": theme.PAPER if c in self.hollow else self.colour,
            }
            if c in self.tips:
                row["tip"] = self.tips[c]
            yield row


class ChartText(msgspec.Struct, frozen=True):
    """Words in a chart over C, `dx` and `dy` pixels from their place."""

    c: float
    value: float
    label: str
    align: str = "center"
    dx: int = 0
    dy: int = 0
    weight: int = 400
    colour: str = theme.INK


# What else a chart over C shows: rows by the name of their layer, and texts. It is worked out from
# the rows of the points and the top of the axis.
Marks = tuple[Mapping[str, Sequence[Spec]], Sequence[ChartText]]
MarksOf = Callable[[Sequence[Spec], float], Marks]


def curves_chart(
    curves: Sequence[ChartCurve],
    unit: str,
    *,
    height: int = 200,
    labelled: bool = False,
    room: float = 1.15,
    heights: Sequence[float] = (),
    marks_of: MarksOf | None = None,
) -> Spec | None:
    """Draw curves from zero, each named at its end.

    `labelled`: the last curve has its values above its points. `marks_of` gives what else is
    drawn; the axis has room for its `heights`.
    """
    curves = [curve for curve in curves if curve.points]
    if not curves:
        return None
    unit, per = _axis_unit(curves, unit)
    top = room * _highest(curves, heights) / per or 1.0
    axis = [c for curve in curves for c, _ in curve.points]
    rows = [list(curve.rows(str(n), top, per)) for n, curve in enumerate(curves)]
    data: dict[str, Sequence[Spec]] = _curve_rows(curves, rows)
    texts: list[ChartText] = []
    if marks_of is not None:
        marks, words = marks_of(data["points"], top)
        data |= marks
        texts += words
    if labelled:
        texts += _value_texts(apart(rows[-1], _APART, along(axis)))
    texts += _ends(curves, per, 17 / height * top, top)
    data["labels"] = msgspec.to_builtins(texts)
    longest_end = max(len(curve.end) for curve in curves)
    spare = 5 + round(_WIDER_PX * longest_end)
    return drawing(
        "curves",
        data,
        x=concurrency(axis),
        unit=unit,
        top=top,
        spare=spare,
    )


def _axis_unit(curves: Sequence[ChartCurve], unit: str) -> tuple[str, float]:
    """Return the unit of the axis, and how many of the curves' own units are one of it."""
    longest = max(value for curve in curves for _, value in curve.points)
    if unit == "ms" and longest >= 10_000:
        return "s", 1000.0
    return unit, 1.0


def _highest(curves: Sequence[ChartCurve], heights: Sequence[float]) -> float:
    """Return the largest value that has to be seen; an interval is cut where it is very wide."""
    values = [value for curve in curves for _, value in curve.points]
    ranges = [ends for curve in curves for ends in curve.ranges.values()]
    highs = [high for _, high in ranges if known(high)]
    longest = max(values)
    return min(max([longest, *highs, *heights]), _TALLEST * longest)


def _curve_rows(
    curves: Sequence[ChartCurve], rows: Sequence[Sequence[Spec]]
) -> dict[str, Sequence[Spec]]:
    """Return the rows of each layer, from those of each curve's points."""
    drawn: dict[str, list[Spec]] = {"points": [], "ranges": [], "shades": [], "lines": []}
    for curve, points in zip(curves, rows, strict=True):
        ranged = [row for row in points if row["c"] in curve.ranges]
        drawn["points"] += points
        drawn["ranges"] += ranged
        if curve.shaded:
            drawn["shades"] += ranged
        if curve.joined:
            drawn["lines"] += points
    return {**drawn}


def _value_texts(rows: Sequence[Spec]) -> Iterator[ChartText]:
    """Yield the value of each point, above its range."""
    for row in rows:
        yield ChartText(
            row["c"],
            row["high"],
            label=number(row["value"]),
            dy=-15,
            weight=600,
        )


def _ends(curves: Sequence[ChartCurve], per: float, gap: float, top: float) -> Iterator[ChartText]:
    """Yield the name of each curve, beside its last point; names of curves that end at the same C
    lie apart.
    """
    by_end: dict[int, list[ChartCurve]] = {}
    for curve in curves:
        c, _ = curve.points[-1]
        ending = by_end.setdefault(c, [])
        if curve.end:
            ending.append(curve)
    for c, ending in sorted(by_end.items()):
        values = [curve.points[-1][1] / per for curve in ending]
        room = top / max(len(ending), 1)
        heights = spread(values, min(gap, room), 0.0, top)
        for curve, height in zip(ending, heights, strict=True):
            colour = curve.colour
            if colour == theme.STONE:
                colour = theme.MUTED
            yield ChartText(
                c,
                height,
                label=curve.end,
                align="left",
                dx=11,
                weight=600,
                colour=colour,
            )


def bars_chart(rows: Sequence[Spec], unit: str, *, room: float = 1.45, row_px: int = 0) -> Spec:
    """Draw a bar for each `name`, as long as its `value`, with its `label` behind it; from `low`
    to `high` a whisker.
    """
    rows = [
        {"colour": theme.HONEY, "low": row["value"], "high": row["value"], **row} for row in rows
    ]
    whiskers = [row for row in rows if row["low"] < row["high"]]
    longest = max(row["high"] for row in rows)
    spec = drawing(
        "bars",
        {"bars": rows, "whiskers": whiskers},
        unit=unit,
        top=room * longest or 1.0,
    )
    if row_px:
        spec["height"] = max(90, row_px * len(rows))
    return spec


def effective_chart(levels: Sequence[LevelSummary], turning: Turning | None = None) -> Spec | None:
    """Draw effective tok/s against C with its band, the plateau, the turning points, and C times
    one agent's speed.
    """
    drawn = [level for level in _rising(levels) if known(level.effective_tok_s)]
    plateau = [
        {"c": level.concurrency, "value": level.plateau_tok_s}
        for level in drawn
        if known(level.plateau_tok_s)
    ]
    curve = ChartCurve(
        [(level.concurrency, level.effective_tok_s or 0.0) for level in drawn],
        theme.HONEY,
        hollow=[level.concurrency for level in drawn if level.client_limited],
        ranges={level.concurrency: _effective_range(level) for level in drawn},
        shaded=True,
    )
    return curves_chart(
        [curve],
        "tok/s",
        room=1.3,
        heights=[row["value"] or 0.0 for row in plateau],
        marks_of=partial(_effective_marks, plateau, turning),
    )


def _effective_marks(
    plateau: Sequence[Spec], turning: Turning | None, rows: Sequence[Spec], top: float
) -> Marks:
    """Return the ideal line, the plateau, knee and cliff, and the value of each level."""
    axis = [row["c"] for row in rows]
    place = along(axis)
    ideal = _ideal_line(rows, top)
    turnings = list(_turning_rows(turning, axis)) if turning else []
    texts = [
        *_ideal_text(ideal, place),
        *_turning_texts(turnings, place),
        *_effective_texts(apart(rows, 0.075, place), top),
    ]
    brackets = [row for row in turnings if "from" in row]
    layers = {"ideal": ideal, "plateau": plateau, "turning": turnings, "brackets": brackets}
    return layers, texts


def _ideal_text(ideal: Sequence[Spec], place: Callable[[Spec], float]) -> Iterator[ChartText]:
    """Yield the name of the ideal line, at its end."""
    for row in ideal[-1:]:
        side: Spec = {"align": "left", "dx": 10, "dy": 7}
        if place(row) >= 0.6:
            side = {"align": "right", "dx": -14}
        yield ChartText(row["c"], row["value"], "ideal: C × one agent", **side, colour=theme.MUTED)


def _turning_texts(
    turnings: Sequence[Spec], place: Callable[[Spec], float]
) -> Iterator[ChartText]:
    """Yield the names of knee and cliff, one above the other at the foot of the chart."""
    for height, row in enumerate(turnings):
        side: Spec = {"align": "left", "dx": 6}
        if place(row) > 0.5:
            side = {"align": "right", "dx": -6}
        yield ChartText(row["c"], 0, row["label"], **side, dy=-12 - 18 * height)


def _effective_texts(rows: Sequence[Spec], top: float) -> Iterator[ChartText]:
    """Yield the value of each level: below its range, or above its point where that lies low."""
    for row in rows:
        value = row["value"]
        height = row["low"]
        side: Spec = {"dx": 10, "dy": 16}
        if value < 0.14 * top:
            height = value
            side = {"dx": -8, "dy": -16}
        yield ChartText(
            row["c"],
            height,
            label=number(value),
            weight=600,
            **side,
        )


def _ideal_line(rows: Sequence[Spec], top: float) -> list[Spec]:
    """Return a line from C=1 to the last level or the edge of the picture; none without C=1.

    It is bent where the axis is logarithmic.
    """
    alone = next((row["value"] for row in rows if row["c"] == 1), None)
    if not alone or len(rows) == 1:
        return []
    levels = [row["c"] for row in rows]
    end = min(max(levels), top / alone)
    steps = 1
    if is_wide(levels):
        steps = 24
    line = []
    for step in range(steps + 1):
        c = 1 + (end - 1) * (step / steps) ** 2
        line.append({"c": c, "value": c * alone})
    return line


def _turning_rows(turning: Turning, axis: Sequence[int]) -> Iterator[Spec]:
    """Yield knee and cliff with their names, and with their brackets where they have one."""
    points = (
        ("knee", turning.knee, turning.knee_bracket),
        ("cliff", turning.cliff, turning.cliff_bracket),
    )
    low = min(axis)
    high = max(axis)
    for name, c, bracket in points:
        if c is not None and low <= c <= high:
            row = {"c": c, "label": f"{name}: C = {c}"}
            if bracket:
                row |= {"from": max(bracket[0], low), "to": min(bracket[1], high)}
            yield row


def contention_chart(levels: Sequence[LevelSummary]) -> Spec | None:
    """Return how much of its solo speed a task loses, in per cent of it."""
    losses = [
        (level.concurrency, level.contention_pct)
        for level in levels
        if known(level.contention_pct)
    ]
    if not losses:
        return None
    # Over narrow bars stands the figure without its sign, which the axis has.
    bars_are_narrow = len(losses) > 9
    label_of = partial(number, digits=0) if bars_are_narrow else percent
    rows = [{"c": c, "pct": pct, "label": label_of(pct)} for c, pct in losses]
    lowest = min([0.0, *(pct or 0.0 for _, pct in losses)])
    return drawing("contention", {"bars": rows}, agents=AGENTS, low=1.15 * lowest)


def _percentiles_chart(
    figure: str,
    names: Sequence[str],
    colour: str,
    levels: Sequence[LevelSummary],
    height: int = 200,
) -> Spec | None:
    """Return a time against C: the median whole, the 95th percentile dashed, the 99th dotted."""
    measured = [(level.concurrency, getattr(level, figure)) for level in _rising(levels)]
    curves = {
        name: [(c, getattr(spread, name)) for c, spread in measured if spread is not None]
        for name in names
    }
    return latency_chart(curves, colour, height)


ttft_chart = partial(_percentiles_chart, "ttft_ms", ("p50", "p95", "p99"), theme.SKY)
tpot_chart = partial(_percentiles_chart, "tpot_ms", ("p50", "p95"), theme.PLUM)
Curves = Mapping[str, Sequence[tuple[int, float | None]]]  # (C, value), by name


def latency_chart(measured: Curves, colour: str, height: int) -> Spec | None:
    """Return one curve a percentile, in milliseconds; all but the first are dashed and hollow."""
    curves = []
    dashes: tuple[tuple[int, ...], ...] = ((), (5, 4), (1, 4))
    for (name, values), dash in zip(measured.items(), dashes, strict=False):
        points = [(c, value) for c, value in values if value is not None and known(value)]
        if not points:
            continue
        _, last = points[-1]
        hollow = []
        if dash:
            hollow = [c for c, _ in points]
        end = f"{name}  {milliseconds(last)}"
        curve = ChartCurve(
            points,
            colour,
            end=end,
            dash=dash,
            hollow=hollow,
        )
        curves.append(curve)
    return curves_chart(curves[::-1], "ms", height=height)


def has_interval(level: LevelSummary) -> bool:
    interval = level.effective_interval
    return interval is not None and known(interval.low) and known(interval.high)


def band_caption(levels: Sequence[LevelSummary]) -> str:
    """Return what the band of `effective_chart` shows, and hollow points."""
    words = (
        "band: 95 % interval of the mean; slowest to fastest run where there are fewer than three"
    )
    if any(level.client_limited for level in levels):
        return f"{words}; hollow: client-limited"
    return words


def _rising(levels: Sequence[LevelSummary]) -> list[LevelSummary]:
    return sorted(levels, key=lambda level: level.concurrency)


def _effective_range(level: LevelSummary) -> tuple[float, float]:
    """Return the ends of the interval, or the slowest and the fastest run where there is none."""
    interval = level.effective_interval
    if interval is not None and has_interval(level):
        return interval.low, interval.high
    value = level.effective_tok_s or 0.0
    low = level.effective_low
    high = level.effective_high
    if low is None or not known(low):
        low = value
    if high is None or not known(high):
        high = value
    return low, high
