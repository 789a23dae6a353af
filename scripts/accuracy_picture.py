"""The picture of docs/accuracy.md: every row as a point, published against predicted, and where it
should lie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from picture_file import panel, standalone

from skep.planner.validation import ValidationPoint
from skep.report import theme
from skep.report.charts import Spec

_BESIDE = 1.2  # 20 % on either side


def accuracy_picture(points: Sequence[ValidationPoint], title: str, subtitle: str) -> str | None:
    """An SVG document; None where nothing was predicted."""
    rows = [_row(point) for point in points if point.predicted > 0]
    if not rows:
        return None
    low = 10 ** math.floor(math.log10(min(min(r["published"], r["predicted"]) for r in rows)))
    high = 10 ** math.ceil(math.log10(max(max(r["published"], r["predicted"]) for r in rows)))
    even = [{"published": at, "predicted": at} for at in (low, high)]
    steps = [low * (high / low) ** (n / 60) for n in range(61)]
    around = [
        {"published": at, "under": max(low, at / _BESIDE), "over": min(high, at * _BESIDE)}
        for at in steps
    ]
    look = {"field": "kind", "type": "nominal"}
    key = {
        "orient": "top-left",
        "title": None,
        "offset": 10,
        "symbolStrokeWidth": 1.5,
        "symbolSize": 50,
    }
    shape, colour = (
        {"domain": [*_LOOKS], "range": list(some)} for some in zip(*_LOOKS.values(), strict=True)
    )
    looks = {
        "shape": {**look, "scale": shape, "legend": key},
        "color": {**look, "scale": colour, "legend": key},
    }
    dots = {"type": "point", "filled": True, "size": 16, "opacity": 0.55}
    spec: Spec = {
        "encoding": {"x": _axis("published", low, high), "y": _axis("predicted", low, high)},
        "layer": [
            {
                "data": {"values": around},
                "mark": {"type": "area", "color": theme.HONEY, "opacity": 0.16},
                "encoding": {"y": {"field": "under"}, "y2": {"field": "over"}},
            },
            {
                "data": {"values": even},
                "mark": {"type": "line", "color": theme.STONE, "strokeDash": [5, 4]},
            },
            {"data": {"values": rows}, "mark": dots, "encoding": looks},
        ],
    }
    return standalone(panel(spec, title, subtitle, 520, 420), title)


_LOOKS = {
    "one agent": ("circle", theme.SERIES[0]),
    "several agents": ("square", theme.SERIES[1]),
    "speculation": ("triangle-up", theme.SERIES[2]),
}


def _row(point: ValidationPoint) -> Spec:
    alone = point.case.load.concurrency == 1
    if point.case.setup.spec is not None:
        kind = "speculation"
    elif alone:
        kind = "one agent"
    else:
        kind = "several agents"
    return {"published": point.case.published, "predicted": point.predicted, "kind": kind}


def _axis(field: str, low: float, high: float) -> Spec:
    scale = {"type": "log", "domain": [low, high], "nice": False}
    powers = [10**n for n in range(round(math.log10(low)), round(math.log10(high)) + 1)]
    title = f"{field} tok/s"
    return {
        "field": field,
        "type": "quantitative",
        "title": title,
        "scale": scale,
        "axis": {"values": powers},
    }
