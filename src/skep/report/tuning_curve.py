"""The charts of a tuning: its ladder as bars, and the winner against the baseline over C, which is a table as well.

Knows nothing of pages. A curve is drawn only where at least one configuration was measured at some level.
"""

from __future__ import annotations

from collections.abc import Sequence

from skep.report import theme
from skep.report.charts import (
    ChartCurve,
    Spec,
    concurrency,
    halo,
    label,
    layer,
    line,
    place,
    point,
    quantity,
    rule,
    spread,
    time_chart,
)
from skep.report.levels import interval_text
from skep.report.markup import Markup, table, tag, text
from skep.tuner.records import CurvePoint, KnobConfig, StageDecision, TuneStage, Tuning
from skep.tuner.summary import KEPT, best_of, config_name, given_up, ratio_words, unit_of
from skep.units import UNKNOWN, Interval, known, milliseconds, number, printable, shortened

_TALLEST = 1.6  # of the largest figure: the interval of two repeats may be of any width
_LOOKS = (
    (theme.STONE, (6, 4), "square"),
    (theme.HONEY, (), "circle"),
    (theme.SKY, (2, 3), "triangle-up"),
    (theme.PLUM, (9, 3, 2, 3), "diamond"),
)


def ladder_chart(tuning: Tuning, stages: Sequence[TuneStage]) -> Spec | None:
    """Draw a bar for each configuration that was the best of its time. None where nothing was measured."""
    best, lost = best_of(stages), given_up(stages)
    kept = [(one, one.figure) for one in stages if one.decision in KEPT and one.figure is not None]
    rows = [
        _ladder_row(one, figure, best=one is best, lost=one.number in lost)
        for one, figure in kept
        if known(figure.estimate)
    ]
    if not rows:
        return None
    largest = max(row["value"] for row in rows)
    for row in rows:
        row["high"] = min(row["high"], _TALLEST * largest)
    x = quantity("value", unit_of(tuning), [0, 1.45 * max(row["high"] for row in rows) or 1.0])
    axis = {"labelFontSize": 13, "labelColor": theme.INK, "labelLimit": 330}
    y = {"field": "name", "type": "nominal", "sort": None, "title": None, "axis": axis, "scale": {"padding": 0.3}}
    fill = {"field": "colour", "type": "nominal", "scale": None}
    ends = {"x": {**x, "field": "low"}, "x2": {"field": "high"}}
    layers = [
        layer(rows, {"type": "bar", "cornerRadiusEnd": 3}, x=x, y=y, color=fill),
        layer(rows, rule(theme.INK), y=y, **ends),
        layer(rows, label("left", dx=8, weight=600), x={**x, "field": "high"}, y=y, text="label"),
    ]
    padding = {"left": 26, "top": 5, "bottom": 5, "right": 5}  # another font may be wider than the renderer's
    return {"padding": padding, "height": max(90, 36 * len(rows)), "layer": layers}


def _ladder_row(stage: TuneStage, figure: Interval, *, best: bool, lost: bool) -> Spec:
    bounded = known(figure.low) and known(figure.high)
    low, high = (max(0.0, figure.low), figure.high) if bounded else (figure.estimate, figure.estimate)
    words, colour = [number(figure.estimate)], theme.STONE
    if stage.decision is StageDecision.ACCEPTED:
        mark, colour = ("died later", theme.ROSE) if lost else ("best", theme.HONEY) if best else ("", theme.SKY)
        words += [ratio_words(stage.ratio), *([mark] if mark else [])]
    name = f"{stage.number}. {shortened(printable(stage.title), 48)}"
    return {"name": name, "value": figure.estimate, "low": low, "high": high, "label": ", ".join(words),
            "colour": colour}  # fmt: skip


def curve_chart(
    tuning: Tuning, stages: Sequence[TuneStage], points: Sequence[CurvePoint], height: int = 270
) -> Spec | None:
    """A line for each configuration, named at its end. None where nothing was measured."""
    curves = [(config, _rows(config, points)) for config in _configs(tuning, points)]
    curves = [(config, rows) for config, rows in curves if rows]
    if not curves:
        return None
    every = [row for _, rows in curves for row in rows]
    largest = max(row["value"] for row in every)
    top = 1.12 * min(max(row["high"] for row in every), _TALLEST * largest) or 1.0
    axis = [row["c"] for row in every]
    x, y = concurrency(axis), quantity("value", "tok/s", [0, top])
    layers: list[Spec] = []
    for i, (_, rows) in enumerate(curves):
        colour, dash, mark = _LOOKS[i % len(_LOOKS)]
        for row in rows:
            row["low"], row["high"] = max(0.0, row["low"]), min(top, row["high"])
        ends = {"y": {**y, "field": "low"}, "y2": {"field": "high"}}
        layers += [
            layer(rows, rule(colour, width=2), x=x, **ends),
            layer(rows, line(colour, width=2.5, dash=dash), x=x, y=y),
            layer(rows, {**point(colour, mark), "fill": colour}, x=x, y=y),
        ]
    layers += _values(curves, axis, x, y)
    names = [config_name(config, tuning, stages) for config, _ in curves]
    layers += _names(curves, names, 17 / height * top, top, x, y)
    return {"padding": {"left": 5, "top": 5, "bottom": 5, "right": 24}, "layer": layers}


def first_token_chart(tuning: Tuning, stages: Sequence[TuneStage], points: Sequence[CurvePoint]) -> Spec | None:
    """What the queue costs: TTFT over C, in the looks of the other chart."""
    curves = []
    for i, config in enumerate(_configs(tuning, points)):
        colour, dash, mark = _LOOKS[i % len(_LOOKS)]
        found = sorted((one.concurrency, one.ttft_ms) for one in points if one.config == config and known(one.ttft_ms))
        measured = tuple((c, ms) for c, ms in found if ms is not None)
        if measured:
            end = f"{config_name(config, tuning, stages)}  {milliseconds(measured[-1][1])}"
            curves.append(ChartCurve(measured, colour, end, dash, mark))
    return time_chart(curves, height=270)


def curve_table(tuning: Tuning, stages: Sequence[TuneStage], points: Sequence[CurvePoint]) -> Markup | None:
    """A row for each C; of each configuration its figure, interval, TTFT and TPOT; then the last over the first."""
    configs = _configs(tuning, points)
    if not configs:
        return None
    names = [config_name(config, tuning, stages) for config in configs]
    columns = ("tok/s", "95 %", "TTFT p50", "TPOT p50")
    groups = [tag("th", text(name), colspan=str(len(columns)), scope="colgroup") for name in names]
    pair = len(configs) > 1
    last = tag("th", text(f"{names[-1]} over {names[0]}"), rowspan="2", scope="col") if pair else None
    first = tag("th", text("C"), rowspan="2", scope="col")
    head = [
        tag("tr", first, *groups, last, class_="group"),
        tag("tr", *(tag("th", text(one), scope="col") for _ in configs for one in columns)),
    ]
    rows = [_row(c, configs, points) for c in sorted({one.concurrency for one in points})]
    return table("Effective tok/s over concurrency", head, rows)


def _configs(tuning: Tuning, points: Sequence[CurvePoint]) -> list[KnobConfig]:
    """The baseline first, then in the order of the points."""
    met = list(dict.fromkeys(one.config for one in points))
    return sorted(met, key=lambda config: config != tuning.baseline)


def _rows(config: KnobConfig, points: Sequence[CurvePoint]) -> list[Spec]:
    rows: list[Spec] = []
    for one in sorted(points, key=lambda found: found.concurrency):
        figure = one.figure
        if one.config != config or figure is None or not known(figure.estimate):
            continue
        bounded = known(figure.low) and known(figure.high)
        low, high = (figure.low, figure.high) if bounded else (figure.estimate, figure.estimate)
        rows.append({"c": one.concurrency, "value": figure.estimate, "low": low, "high": high,
                     "label": number(figure.estimate)})  # fmt: skip
    return rows


def _values(curves: Sequence[tuple[KnobConfig, list[Spec]]], axis: Sequence[int], x: Spec, y: Spec) -> list[Spec]:
    """Above the points of the last curve, which is the one that was climbed to, where there is room."""
    layers: list[Spec] = []
    before: float | None = None
    for row in curves[-1][1]:
        at = place(row["c"], axis)
        if before is None or at - before >= 0.09:
            before = at
            layers += halo([row], label("center", dy=-15, weight=600), x=x, y={**y, "field": "high"})
    return layers


def _names(
    curves: Sequence[tuple[KnobConfig, list[Spec]]], names: Sequence[str], gap: float, top: float, x: Spec, y: Spec
) -> list[Spec]:
    """At the end of each, apart from each other."""
    heights = spread([rows[-1]["value"] for _, rows in curves], min(gap, top / len(curves)), 0.0, top)
    layers: list[Spec] = []
    for i, ((_, rows), name, height) in enumerate(zip(curves, names, heights, strict=True)):
        colour = theme.MUTED if _LOOKS[i % len(_LOOKS)][0] == theme.STONE else _LOOKS[i % len(_LOOKS)][0]
        row = {"c": rows[-1]["c"], "at": height, "label": name}
        layers += halo([row], label("left", dx=11, weight=600, color=colour), x=x, y={**y, "field": "at"})
    return layers


def _row(c: int, configs: Sequence[KnobConfig], points: Sequence[CurvePoint]) -> Markup:
    met = {one.config: one for one in points if one.concurrency == c}
    cells = [tag("th", text(c), scope="row")]
    for config in configs:
        one = met.get(config)
        figure = None if one is None else one.figure
        cells += [
            tag("td", text(number(None if figure is None else figure.estimate))),
            tag("td", text(interval_text(figure)), class_="soft"),
            tag("td", text(milliseconds(None if one is None else one.ttft_ms))),
            tag("td", text(milliseconds(None if one is None else one.tpot_ms))),
        ]
    if len(configs) > 1:
        cells.append(tag("td", text(_over(met.get(configs[0]), met.get(configs[-1])))))
    return tag("tr", *cells)


def _over(base: CurvePoint | None, one: CurvePoint | None) -> str:
    if base is None or one is None or base.figure is None or one.figure is None:
        return UNKNOWN
    a, b = base.figure.estimate, one.figure.estimate
    return f"{number(b / a, digits=2)}×" if known(a) and known(b) and a > 0 else UNKNOWN
