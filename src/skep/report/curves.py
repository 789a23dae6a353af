"""A few curves against C in one chart, each with its last value in words at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from skep.report import theme
from skep.report.figures import known, milliseconds
from skep.report.marks import Spec, concurrency, halo, label, layer, line, place, point, quantity, rule, spread

_WIDER_PX = 2.0  # a letter: the reader's font may be wider than the renderer's


@dataclass(frozen=True, slots=True)
class Curve:
    """`points` are (C, milliseconds), by C; `ranges` (C, low, high) stand upright at their points."""

    points: tuple[tuple[int, float], ...]
    colour: str
    end: str
    dash: tuple[int, ...] = ()
    shape: str = "circle"
    hollow: bool = False
    ranges: tuple[tuple[int, float, float], ...] = ()


def time_chart(curves: Sequence[Curve], *, height: int = 200, labelled: bool = False) -> Spec | None:
    """Milliseconds, or seconds where they are many. `labelled`: each point but the last has its value above it."""
    curves = [curve for curve in curves if curve.points]
    if not curves:
        return None
    ends = [y for curve in curves for _, y in curve.points]
    ends += [high for curve in curves for _, _, high in curve.ranges if known(high)]
    unit, scale = ("s", 1000.0) if max(ends) >= 2_000 else ("ms", 1.0)
    top = 1.15 * max(ends) / scale or 1.0
    axis = [c for curve in curves for c, _ in curve.points]
    x, y = concurrency(axis), quantity("value", unit, [0, top])
    layers: list[Spec] = []
    for curve in curves:
        rows = [{"c": c, "value": value / scale} for c, value in curve.points]
        spans = [{"c": c, "value": low / scale, "high": high / scale} for c, low, high in curve.ranges]
        mark = {**point(curve.colour, curve.shape), "fill": theme.PAPER if curve.hollow else curve.colour}
        layers += [
            layer(spans, rule(curve.colour), x=x, y=y, y2={"field": "high"}),
            layer(rows, line(curve.colour, width=2.5, dash=curve.dash), x=x, y=y),
            layer(rows, mark, x=x, y=y),
        ]
    if labelled:
        layers += _values(curves, scale, x, y)
    layers += _ends(curves, scale, 17 / height * top, top, x, y)
    spare = round(_WIDER_PX * max(len(curve.end) for curve in curves))
    return {"padding": {"left": 5, "top": 5, "bottom": 5, "right": 5 + spare}, "layer": layers}


def _values(curves: Sequence[Curve], scale: float, x: Spec, y: Spec) -> list[Spec]:
    layers: list[Spec] = []
    for curve in curves:
        axis = [c for c, _ in curve.points]
        last: int | None = None
        for c, value in curve.points[:-1]:
            if last is not None and place(c, axis) - place(last, axis) < 0.14:
                continue
            last = c
            row = {"c": c, "value": value / scale, "label": milliseconds(value)}
            layers += halo([row], label("center", dy=-15), x=x, y=y)
    return layers


def _ends(curves: Sequence[Curve], scale: float, gap: float, top: float, x: Spec, y: Spec) -> list[Spec]:
    """Beside the last point of each; apart from each other where curves end at the same C."""
    layers: list[Spec] = []
    for c in sorted({curve.points[-1][0] for curve in curves}):
        ending = [curve for curve in curves if curve.points[-1][0] == c]
        heights = spread([curve.points[-1][1] / scale for curve in ending], min(gap, top / len(ending)), 0.0, top)
        for curve, height in zip(ending, heights, strict=True):
            mark = label("left", dx=11, weight=600, color=curve.colour)
            layers += halo([{"c": c, "at": height, "label": curve.end}], mark, x=x, y={**y, "field": "at"})
    return layers
