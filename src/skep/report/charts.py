"""Charts in Vega-Lite's terms: the parts that all of them share, and those of a sweep's levels.

A chart is None where there is nothing to draw. Levels without a value are left out, never drawn as zero.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from skep.bench.records import LevelSummary, Speedup, SweepSummary
from skep.report import theme
from skep.stats.turning import Turning
from skep.units import known, milliseconds, number, percent, printable, seconds, shortened, times

Spec = dict[str, Any]
AGENTS = "agents at once (C)"
# Lines beside each other differ in these as well as in colour.
DASHES: tuple[tuple[int, ...], ...] = ((), (7, 4), (2, 3), (9, 3, 2, 3))
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "circle", "square")
_WIDE = 24  # from this ratio of the largest C to the smallest on, the axis is logarithmic


def layer(rows: Sequence[Spec], mark: Spec, text: str | Spec | None = None, **encoding: Spec) -> Spec:
    """Return one layer. The `tip` of a row is what a reader sees when the pointer rests on its mark."""
    if text is not None:
        encoding["text"] = {"field": text} if isinstance(text, str) else text
    if any("tip" in row for row in rows):
        mark, encoding = {**mark, "aria": True}, {**encoding, "description": {"field": "tip"}}
    return {"data": {"values": list(rows)}, "mark": mark, "encoding": encoding}


def line(color: str, *, width: float, dash: Sequence[int] | None = None) -> Spec:
    mark = {"type": "line", "color": color, "strokeWidth": width, "strokeCap": "round"}
    return mark if not dash else {**mark, "strokeDash": list(dash)}


def rule(color: str, *, width: float = 1.5, dash: Sequence[int] | None = None) -> Spec:
    mark = {"type": "rule", "color": color, "strokeWidth": width}
    return mark if not dash else {**mark, "strokeDash": list(dash)}


def point(color: str, shape: str = "circle") -> Spec:
    return {"type": "point", "stroke": color, "strokeWidth": 2, "size": 60, "opacity": 1, "shape": shape}


def label(align: str, *, dx: int = 0, dy: int = 0, weight: int = 400, color: str = theme.INK) -> Spec:
    place = {"type": "text", "align": align, "baseline": "middle", "dx": dx, "dy": dy}
    return {**place, "fontWeight": weight, "color": color}


def halo(rows: Sequence[Spec], mark: Spec, **encoding: Spec) -> list[Spec]:
    """The labels of `rows`, readable where they cross a line: behind each is its own shape in the paper's colour."""
    behind = {**mark, "color": theme.PAPER, "stroke": theme.PAPER, "strokeWidth": 4}
    return [layer(rows, one, text="label", **encoding) for one in (behind, mark)]


def is_wide(levels: Sequence[int]) -> bool:
    """Return whether the levels span so much that a linear axis would crowd the small ones."""
    return bool(levels) and min(levels) > 0 and max(levels) / min(levels) >= _WIDE


def place(c: float, levels: Sequence[int]) -> float:
    """Return where C lies on its axis: 0 at the left end, 1 at the right; 0.5 where there is one level only."""
    low, high = min(levels), max(levels)
    if low == high:
        return 0.5
    return math.log(c / low) / math.log(high / low) if is_wide(levels) else (c - low) / (high - low)


def concurrency(levels: Sequence[int]) -> Spec:
    low, high = min(levels), max(levels)
    values = sorted(row["c"] for row in apart([{"c": c} for c in sorted(set(levels))], levels, gap=0.09))
    scale: Spec = {"domain": [low, high] if low < high else [low - 1, high + 1], "nice": False, "padding": 22}
    axis: Spec = {"values": values, "format": "d", "labelOverlap": False}
    title = f"{AGENTS}, logarithmic" if is_wide(levels) else AGENTS
    if is_wide(levels):
        scale |= {"type": "log", "base": 2}
        axis |= {"labelExpr": "datum.value"}
    return {"field": "c", "type": "quantitative", "title": title, "scale": scale, "axis": axis}


def quantity(field: str, title: str | None, domain: list[float]) -> Spec:
    return {
        "field": field,
        "type": "quantitative",
        "title": title,
        "scale": {"domain": domain, "nice": False},
        "stack": None,  # a stacked bar is clipped, with an id that counts up over the life of the process
        "axis": {"tickCount": 5, "format": ",~r"},
    }


def upright(field: str, title: str, domain: list[float]) -> Spec:
    """Return an axis of values with its title above it, where it can be read."""
    y = quantity(field, title, domain)
    y["axis"] |= {"titleAngle": 0, "titleAlign": "left", "titleAnchor": "end", "titleX": 0, "titleY": -12}
    return y


def apart(rows: Sequence[Spec], levels: Sequence[int], gap: float = 0.075) -> list[Spec]:
    """Return the rows whose labels do not run into each other, from the last, which is always among them."""
    kept = list(rows[-1:])
    for row in reversed(rows[:-1]):
        if place(kept[-1]["c"], levels) - place(row["c"], levels) >= gap:
            kept.append(row)
    return kept


def spread(values: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """The values moved as little as needed to lie `gap` apart, in the same order, inside low..high where they fit."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    placed = [min(max(values[i], low), high) for i in order]
    for i in range(1, len(placed)):
        placed[i] = max(placed[i], placed[i - 1] + gap)
    for i in reversed(range(len(placed))):
        placed[i] = min(placed[i], high if i == len(placed) - 1 else placed[i + 1] - gap)
    return [place for _, place in sorted(zip(order, placed, strict=True))]


def sized(spec: Spec | None, title: str, subtitle: str, width: int, height: int) -> Spec:
    """`spec` as one panel of a larger picture; an empty panel says so."""
    nothing = {"layer": [layer([{}], label("center", color=theme.MUTED), text={"value": "not measured"})]}
    size = {"title": {"text": title, "subtitle": subtitle, "frame": "group"}, "width": width, "height": height}
    return {key: value for key, value in (spec or nothing).items() if key != "padding"} | size


def panels(main: Spec, above: Spec, below: Spec, spacing: int) -> Spec:
    """Return a large panel at the left, two small ones at the right."""
    right = {"vconcat": [above, below], "spacing": spacing, "bounds": "flush"}
    return {"hconcat": [main, right], "spacing": 90, "bounds": "flush"}


def headed(name: str, marks: Sequence[str], *facts: str, lines: Sequence[str] = ()) -> Spec:
    """Return the title of a picture that stands alone; `marks`, as SIMULATED, come first below it, in rose."""
    first = shortened(printable(" · ".join([*marks, *facts])), 130)
    warning = {"subtitleColor": theme.ROSE, "subtitleFontWeight": 600} if marks else {}
    subtitle = [line for line in (first, *(shortened(printable(line), 130) for line in lines)) if line]
    return {"text": shortened(printable(name), 80), "subtitle": subtitle, "fontSize": 18, "offset": 24, **warning}


_TALLEST = 1.6  # of the largest value: few repeats that differ may give an interval of any width
_WIDER_PX = 2.0  # a letter: the reader's font may be wider than the renderer's
COLOUR: Spec = {"field": "colour", "type": "nominal", "scale": None}  # as the row says


class ChartCurve(msgspec.Struct, frozen=True):
    """One line over C: `points` are (C, value) by C; by C, too, what lies around them and is told of them."""

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


def curves_chart(curves: Sequence[ChartCurve], unit: str, *, height: int = 200, labelled: bool = False) -> Spec | None:
    """Curves from zero, each named at its end. `labelled`: the last one has its values above its points."""
    curves = [curve for curve in curves if curve.points]
    if not curves:
        return None
    values = [value for curve in curves for _, value in curve.points]
    highs = [high for curve in curves for _, high in curve.ranges.values() if known(high)]
    unit, per = ("s", 1000.0) if unit == "ms" and max(values) >= 10_000 else (unit, 1.0)
    top = 1.15 * min(max(values + highs), _TALLEST * max(values)) / per or 1.0
    axis = [c for curve in curves for c, _ in curve.points]
    x, y = concurrency(axis), upright("value", unit, [0, top])
    layers = [one for curve in curves for one in curve_layers(curve, x, y, per)]
    if labelled:
        rows = curve_rows(curves[-1], top, per)
        layers += halo(apart(rows, axis, 0.09), label("center", dy=-15, weight=600), x=x, y={**y, "field": "high"})
    layers += _ends(curves, per, 17 / height * top, top, x, y)
    spare = round(_WIDER_PX * max(len(curve.end) for curve in curves))
    return {"padding": {"left": 14, "top": 5, "bottom": 5, "right": 5 + spare}, "layer": layers}


def curve_rows(curve: ChartCurve, top: float, per: float = 1.0) -> list[Spec]:
    """`per`: values in one unit of the axis, which ends at `top`."""
    rows: list[Spec] = []
    for c, value in curve.points:
        low, high = curve.ranges.get(c, (value, value))
        row = {"c": c, "value": value / per, "low": max(0.0, low / per), "high": min(top, high / per)}
        rows.append({**row, "hollow": c in curve.hollow, "label": number(value / per)})
        if c in curve.tips:
            rows[-1]["tip"] = curve.tips[c]
    return rows


def curve_layers(curve: ChartCurve, x: Spec, y: Spec, per: float = 1.0) -> list[Spec]:
    """Shade, intervals, line and points, those that the curve has."""
    rows = curve_rows(curve, y["scale"]["domain"][1], per)
    ranged = [{key: row[key] for key in ("c", "low", "high")} for row in rows if row["c"] in curve.ranges]
    ends = {"y": {**y, "field": "low"}, "y2": {"field": "high"}}
    fill = {"condition": {"test": "datum.hollow", "value": theme.PAPER}, "value": curve.colour}
    layers = []
    if curve.shaded:
        layers.append(layer(ranged, {"type": "area", "color": curve.colour, "opacity": 0.16}, x=x, **ends))
    if ranged:
        layers.append(layer(ranged, rule(curve.colour), x=x, **ends))
    if curve.joined:
        places = [{"c": row["c"], "value": row["value"]} for row in rows]
        layers.append(layer(places, line(curve.colour, width=2.5, dash=curve.dash), x=x, y=y))
    return [*layers, layer(rows, {**point(curve.colour, curve.shape), "fill": curve.colour}, x=x, y=y, fill=fill)]


def _ends(curves: Sequence[ChartCurve], per: float, gap: float, top: float, x: Spec, y: Spec) -> list[Spec]:
    """Beside the last point of each; apart from each other where curves end at the same C."""
    layers: list[Spec] = []
    for c in sorted({curve.points[-1][0] for curve in curves}):
        ending = [curve for curve in curves if curve.points[-1][0] == c and curve.end]
        heights = spread([curve.points[-1][1] / per for curve in ending], min(gap, top / max(len(ending), 1)), 0.0, top)
        for curve, height in zip(ending, heights, strict=True):
            colour = theme.MUTED if curve.colour == theme.STONE else curve.colour
            mark = label("left", dx=11, weight=600, color=colour)
            layers += halo([{"c": c, "at": height, "label": curve.end}], mark, x=x, y={**y, "field": "at"})
    return layers


def bars_chart(rows: Sequence[Spec], unit: str, *, room: float = 1.45, least: int = 0) -> Spec:
    """A bar for each `name`, as long as its `value`, with its `label` behind it; from `low` to `high` a whisker."""
    rows = [{"colour": theme.HONEY, "low": row["value"], "high": row["value"], **row} for row in rows]
    x = quantity("value", unit, [0, room * max(row["high"] for row in rows) or 1.0])
    axis = {"labelFontSize": 13, "labelColor": theme.INK, "labelLimit": 330, "labelPadding": 10, "domain": False}
    y = {"field": "name", "type": "nominal", "sort": None, "title": None, "axis": axis, "scale": {"padding": 0.35}}
    whiskers = [row for row in rows if row["low"] < row["high"]]
    layers = [
        layer(rows, {"type": "bar", "cornerRadiusEnd": 4}, x=x, y=y, color=COLOUR),
        layer(whiskers, rule(theme.INK), x={**x, "field": "low"}, x2={"field": "high"}, y=y),
        layer(rows, label("left", dx=9, weight=600), x={**x, "field": "high"}, y=y, text="label"),
    ]
    padding = {"left": 26, "top": 5, "bottom": 5, "right": 5}  # another font may be wider than the renderer's
    return {"padding": padding, "layer": layers, **({"height": max(90, least * len(rows))} if least else {})}


@dataclass(slots=True)
class MarkSheet:
    """Rectangles, rules, symbols and texts in terms of a chart's axes, one layer a kind; `tip` is shown at a mark."""

    rects: list[Spec] = field(default_factory=list)
    rules: list[Spec] = field(default_factory=list)
    symbols: list[Spec] = field(default_factory=list)
    texts: list[Spec] = field(default_factory=list)

    def rect(self, x: float, x2: float, y: float, y2: float, colour: str, **more: Any) -> None:
        """`stroke`, `dash` and `opacity` (of the filling) may be told too."""
        self.rects.append({"x": x, "x2": x2, "y": y, "y2": y2, "colour": colour, **more})

    def rule(self, x: float, x2: float, y: float, y2: float, colour: str, **more: Any) -> None:
        self.rules.append({"x": x, "x2": x2, "y": y, "y2": y2, "colour": colour, **more})

    def symbol(self, x: float, y: float, shape: str, colour: str, **more: Any) -> None:
        """`shape` may be a path in pixels, where `size` is 4."""
        self.symbols.append({"x": x, "y": y, "shape": shape, "colour": colour, **more})

    def text(self, x: float, y: float, label: str, colour: str = theme.MUTED, **more: Any) -> None:
        self.texts.append({"x": x, "y": y, "label": printable(label), "colour": colour, **more})

    def ground(self, x: Spec, y: Spec) -> list[Spec]:
        """Return what lies beneath the curves."""
        mark = {"type": "rect", "fill": _of("colour"), "fillOpacity": _of("opacity", 1), "stroke": _of("stroke", None),
                "strokeDash": _of("dash", []), "strokeWidth": 1}  # fmt: skip
        return [layer(self.rects, mark, x=x, y=y, **_OTHER_ENDS)] if self.rects else []

    def marks(self, x: Spec, y: Spec) -> list[Spec]:
        """Return what lies on them."""
        look = {"opacity": _of("opacity", 1), "strokeWidth": _of("width", 1), "strokeCap": _of("cap", "butt"),
                "strokeDash": _of("dash", [])}  # fmt: skip
        stroke = {"type": "rule", "stroke": _of("colour"), **look}
        mark = {"type": "point", "shape": _of("shape"), "stroke": _of("colour"), "fill": _of("fill", None),
                "size": _of("size", 4), **look}  # fmt: skip
        words = {**label("left"), "align": _of("align", "left"), "color": _of("colour"), "fontSize": _of("size", 12),
                 "fontWeight": _of("weight", 400)}  # fmt: skip
        drawn = (
            layer(self.rules, stroke, x=x, y=y, **_OTHER_ENDS),
            layer(self.symbols, mark, x=x, y=y),
            layer(self.texts, words, x=x, y=y, text="label"),
        )
        return [one for one in drawn if one["data"]["values"]]


_OTHER_ENDS: Spec = {"x2": {"field": "x2"}, "y2": {"field": "y2"}}


def _of(name: str, otherwise: Any = ...) -> Spec:
    """Return what a row says of itself."""
    return {"expr": f"datum.{name}" if otherwise is ... else f"datum.{name} || {json.dumps(otherwise)}"}


def effective_chart(levels: Sequence[LevelSummary], turning: Turning | None = None) -> Spec | None:
    """Effective tok/s against C with its band, the plateau, the turning points, and C times one agent's speed."""
    drawn = [level for level in _rising(levels) if known(level.effective_tok_s)]
    if not drawn:
        return None
    curve = ChartCurve(
        [(level.concurrency, level.effective_tok_s or 0.0) for level in drawn],
        theme.HONEY,
        hollow=[level.concurrency for level in drawn if level.client_limited],
        ranges={level.concurrency: _effective_range(level) for level in drawn},
        shaded=True,
    )
    plateau = [{"c": one.concurrency, "plateau": one.plateau_tok_s} for one in drawn if known(one.plateau_tok_s)]
    heights = [high for _, high in curve.ranges.values()] + [row["plateau"] or 0.0 for row in plateau]
    top = 1.3 * min(max(heights), _TALLEST * max(value for _, value in curve.points)) or 1.0
    rows = curve_rows(curve, top)
    axis = [row["c"] for row in rows]
    ideal = _ideal_line(rows, top)
    x, y = concurrency(axis), upright("value", "tok/s", [0, top])
    early = bool(ideal) and place(ideal[-1]["c"], axis) < 0.6
    aside: Spec = {"align": "left", "dx": 10, "dy": 7} if early else {"align": "right", "dx": -14}
    uprights, names = _turning_layers(turning, axis, top, x, y) if turning else ([], [])
    named = apart(rows, axis)
    lowest, others = ([row for row in named if (row["value"] < 0.14 * top) is near] for near in (True, False))
    return {
        "layer": [
            layer(ideal, line(theme.STONE, width=1.5, dash=[5, 4]), x=x, y={**y, "field": "ideal"}),
            *uprights,
            *halo(ideal[-1:], label(**aside, color=theme.MUTED), x=x, y={**y, "field": "ideal"}),
            layer(plateau, line(theme.HONEY, width=1, dash=[2, 3]), x=x, y={**y, "field": "plateau"}),
            *curve_layers(curve, x, y),
            *names,
            *halo(lowest, label("center", dx=-8, dy=-16, weight=600), x=x, y=y),
            *halo(others, label("center", dx=10, dy=16, weight=600), x=x, y={**y, "field": "low"}),
        ]
    }


def contention_chart(levels: Sequence[LevelSummary]) -> Spec | None:
    """Return how much of its solo speed a task loses, in per cent of it."""
    rows: list[Spec] = [
        {"c": level.concurrency, "pct": pct, "above": max(pct, 0.0), "label": percent(pct)}
        for level in levels
        if (pct := level.contention_pct) is not None and known(pct)
    ]
    if not rows:
        return None
    low = 1.15 * min([0.0, *(row["pct"] for row in rows)])
    x = {"field": "c", "type": "ordinal", "title": AGENTS, "axis": {"labelAngle": 0}, "scale": {"padding": 0.42}}
    y = quantity("pct", None, [low, 112])
    above = {**y, "field": "above"}
    y["axis"]["labelExpr"] = "datum.label + ' %'"
    if len(rows) > 9:  # narrow bars: the figure without its sign, which the axis has
        rows = [{**row, "label": number(row["pct"], digits=0)} for row in rows]
    bars = layer(rows, {"type": "bar", "color": theme.ROSE, "cornerRadiusEnd": 4}, x=x, y=y)
    return {"layer": [bars, layer(rows, label("center", dy=-9, weight=600), x=x, y=above, text="label")]}


def ttft_chart(levels: Sequence[LevelSummary], height: int = 200) -> Spec | None:
    """Time to first token against C: the median whole, the 95th percentile dashed, the 99th dotted."""
    return _percentiles_chart(levels, "ttft_ms", ("p50", "p95", "p99"), theme.SKY, height)


def tpot_chart(levels: Sequence[LevelSummary]) -> Spec | None:
    """Time per output token against C: the median whole, the 95th percentile dashed."""
    return _percentiles_chart(levels, "tpot_ms", ("p50", "p95"), theme.PLUM, 200)


def _percentiles_chart(
    levels: Sequence[LevelSummary], figure: str, names: Sequence[str], colour: str, height: int
) -> Spec | None:
    measured = [(level.concurrency, some) for level in _rising(levels) if (some := getattr(level, figure)) is not None]
    return latency_chart({name: [(c, getattr(some, name)) for c, some in measured] for name in names}, colour, height)


Curves = Mapping[str, Sequence[tuple[int, float | None]]]  # (C, value), by name


def latency_chart(measured: Curves, colour: str, height: int) -> Spec | None:
    """Return one curve a percentile, in milliseconds; all but the first are dashed and hollow."""
    curves = []
    for (name, some), dash in zip(measured.items(), ((), (5, 4), (1, 4)), strict=False):
        points = [(c, value) for c, value in some if value is not None and known(value)]
        if points:
            end = f"{name}  {milliseconds(points[-1][1])}"
            curves.append(ChartCurve(points, colour, end, dash, hollow=[c for c, _ in points] if dash else ()))
    return curves_chart(curves[::-1], "ms", height=height)


def wall_chart(summary: SweepSummary) -> Spec | None:
    """Wall time at C=1 and at the largest C, as two bars."""
    serial, swarm = summary.serial_wall_s, summary.swarm_wall_s
    if serial is None or swarm is None:
        return None
    gain = f"  ({times(summary.speedup)})" if summary.speedup is not None else ""
    rows = [
        {"name": "serial", "value": serial, "label": seconds(serial), "colour": theme.STONE},
        {"name": "swarm", "value": swarm, "label": f"{seconds(swarm)}{gain}", "colour": theme.MOSS},
    ]
    return bars_chart(rows, "wall time, s")


def speedup_chart(speedups: Speedup | None) -> Spec | None:
    """Return the speedup in each of its forms, green without answers cut at the token limit; unknown ones have none."""
    if speedups is None:
        return None
    forms = (
        ("by wall time", speedups.by_wall, theme.STONE),
        ("by tokens", speedups.by_tokens, theme.STONE),
        ("by wall, uncut", speedups.by_wall_whole, theme.MOSS),
        ("by tokens, uncut", speedups.by_tokens_whole, theme.MOSS),
    )
    known_forms = [(name, value, colour) for name, value, colour in forms if value is not None and known(value)]
    rows = [{"name": name, "value": value, "label": times(value), "colour": one} for name, value, one in known_forms]
    return bars_chart(rows, "times as fast as serial", room=1.25) if rows else None


def has_interval(level: LevelSummary) -> bool:
    interval = level.effective_interval
    return interval is not None and known(interval.low) and known(interval.high)


def band_caption(levels: Sequence[LevelSummary]) -> str:
    """Return what the band of `effective_chart` shows, where it is not the same at every level."""
    drawn = [level for level in _rising(levels) if known(level.effective_tok_s)]
    ranged = [level for level in drawn if not has_interval(level) and level.effective_low != level.effective_high]
    if not any(has_interval(level) for level in drawn):
        return "band: slowest to fastest run"
    if not ranged:
        return "band: 95 % interval of the mean"
    where = ", ".join(str(level.concurrency) for level in ranged)
    return f"band: 95 % interval of the mean; at C = {where} slowest to fastest run"


def _rising(levels: Sequence[LevelSummary]) -> list[LevelSummary]:
    return sorted(levels, key=lambda level: level.concurrency)


def _effective_range(level: LevelSummary) -> tuple[float, float]:
    interval, value = level.effective_interval if has_interval(level) else None, level.effective_tok_s or 0.0
    low, high = (interval.low, interval.high) if interval else (level.effective_low, level.effective_high)
    return low if low is not None and known(low) else value, high if high is not None and known(high) else value


def _ideal_line(rows: Sequence[Spec], top: float) -> list[Spec]:
    """From C=1 to the last level or the edge of the picture; empty without C=1. Bent where the axis is logarithmic."""
    alone = next((row["value"] for row in rows if row["c"] == 1), None)
    if not alone or len(rows) == 1:
        return []
    levels = [row["c"] for row in rows]
    end = min(max(levels), top / alone)
    steps = 24 if is_wide(levels) else 1
    places = (1 + (end - 1) * (i / steps) ** 2 for i in range(steps + 1))
    return [{"c": c, "ideal": c * alone, "label": "ideal: C × one agent"} for c in places]


def _turning_layers(
    turning: Turning, axis: Sequence[int], top: float, x: Spec, y: Spec
) -> tuple[list[Spec], list[Spec]]:
    """Return an upright line at the knee and at the cliff with its bracket shaded, and their names, at the foot."""
    uprights: list[Spec] = []
    names: list[Spec] = []
    found = (("knee", turning.knee, turning.knee_bracket), ("cliff", turning.cliff, turning.cliff_bracket))
    marked = [(name, c, bracket) for name, c, bracket in found if c is not None and min(axis) <= c <= max(axis)]
    for height, (name, c, bracket) in enumerate(marked):
        row: Spec = {"c": c, "top": top, "zero": 0, "label": f"{name}: C = {c}"}
        if bracket is not None:
            row |= {"from": max(bracket[0], min(axis)), "to": min(bracket[1], max(axis))}
        shade = {"type": "rect", "color": theme.STONE, "opacity": 0.15}
        side: Spec = {"align": "right", "dx": -6} if place(c, axis) > 0.5 else {"align": "left", "dx": 6}
        upright = {"y": {**y, "field": "zero"}, "y2": {"field": "top"}}
        uprights += [
            layer([row] if bracket else [], shade, x={**x, "field": "from"}, x2={"field": "to"}, **upright),
            layer([row], rule(theme.INK, width=1), x=x, **upright),
        ]
        names += halo([row], label(**side, dy=-12 - 18 * height), x=x, y={**y, "field": "zero"})
    return uprights, names
