"""The picture of docs/accuracy.md: every row as a point, published against predicted, and where it should lie."""

from __future__ import annotations

import math
from collections.abc import Sequence

from skep.planner.validation import ValidationPoint
from skep.report import theme
from skep.report.charts import Spec, halo, label, layer, line, sized
from skep.report.svg import standalone

_BESIDE = 1.2  # 20 % on either side


def accuracy_picture(points: Sequence[ValidationPoint], title: str, subtitle: str) -> str | None:
    """An SVG document; None where nothing was predicted."""
    rows = [_row(point) for point in points if point.predicted > 0]
    if not rows:
        return None
    low = 10 ** math.floor(math.log10(min(min(r["published"], r["predicted"]) for r in rows)))
    high = 10 ** math.ceil(math.log10(max(max(r["published"], r["predicted"]) for r in rows)))
    x, y = _axis("published", "published tok/s", low, high), _axis("predicted", "predicted tok/s", low, high)
    ends = [low, high]
    even = [{"published": at, "predicted": at} for at in ends]
    steps = [low * (high / low) ** (n / 60) for n in range(61)]
    around = [{"published": at, "under": max(low, at / _BESIDE), "over": min(high, at * _BESIDE)} for at in steps]
    band = {"y": {**y, "field": "under"}, "y2": {"field": "over"}}
    spec: Spec = {
        "layer": [
            layer(around, {"type": "area", "color": theme.HONEY, "opacity": 0.16}, x=x, **band),
            layer(even, line(theme.STONE, width=1.2, dash=[5, 4]), x=x, y=y),
            *(layer([r for r in rows if r["kind"] == kind], _dot(*look), x=x, y=y) for kind, look in _LOOKS.items()),
            *_legend(rows, x, y, low, high),
        ]
    }
    return standalone(sized(spec, title, subtitle, 520, 420), title)


_LOOKS = {
    "one agent": (theme.SERIES[0], "circle"),
    "several agents": (theme.SERIES[1], "square"),
    "speculation": (theme.SERIES[2], "triangle-up"),
}


def _row(point: ValidationPoint) -> Spec:
    alone = point.case.load.concurrency == 1
    kind = "speculation" if point.case.setup.spec is not None else "one agent" if alone else "several agents"
    return {"published": point.case.published, "predicted": point.predicted, "kind": kind}


def _dot(color: str, shape: str) -> Spec:
    return {"type": "point", "shape": shape, "filled": True, "color": color, "size": 16, "opacity": 0.55}


def _axis(field: str, title: str, low: float, high: float) -> Spec:
    scale = {"type": "log", "domain": [low, high], "nice": False}
    powers = [10**n for n in range(round(math.log10(low)), round(math.log10(high)) + 1)]
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": {"values": powers}}


def _legend(rows: Sequence[Spec], x: Spec, y: Spec, low: float, high: float) -> list[Spec]:
    marks: list[Spec] = []
    there = [kind for kind in _LOOKS if any(row["kind"] == kind for row in rows)]
    for place, kind in enumerate(there):
        at = {"published": low * 1.6, "predicted": high / 1.7 ** (place + 1), "label": kind}
        marks.append(layer([at], {**_dot(*_LOOKS[kind]), "size": 40, "opacity": 1}, x=x, y=y))
        marks += halo([at], label("left", dx=9, color=theme.MUTED), x=x, y=y)
    return marks
