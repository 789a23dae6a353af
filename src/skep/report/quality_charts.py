"""Quality under load as charts: the difference against C = 1, what became of the answers, and how long they took.

Knows nothing of SVG and pages. A chart is None where there is nothing to draw.
"""

from __future__ import annotations

from collections.abc import Sequence

from skep.report import theme
from skep.report.curves import Curve, time_chart
from skep.report.figures import known, milliseconds, number, percent
from skep.report.marks import Spec, halo, label, layer, line, point, quantity, rule
from skep.verdicts import ArmFigures, Claim, LevelQuality, Outcome, QualitySummary

# Shape beside colour: a filled circle holds, a hollow square is not shown, a filled triangle points down at a loss.
_LOOKS = {
    Claim.HOLDS: (theme.MOSS, "circle", theme.MOSS),
    Claim.UNSHOWN: (theme.HONEY, "square", theme.PAPER),
    Claim.LOST: (theme.ROSE, "triangle-down", theme.ROSE),
}
# Fill, and the colour of a figure on it.
_FILLS = {
    Outcome.PASSED: (theme.MOSS, theme.PAPER),
    Outcome.WRONG: (theme.ROSE, theme.PAPER),
    Outcome.BROKEN: (theme.PLUM, theme.PAPER),
    Outcome.NO_ANSWER: (theme.STONE, theme.INK),
    Outcome.EXCEEDED: (theme.HONEY, theme.PAPER),
    Outcome.TRUNCATED: (theme.PALE, theme.INK),
    Outcome.TIMED_OUT: (theme.SKY, theme.PAPER),
    Outcome.FAILED: (theme.INK, theme.PAPER),
}
_MOST_NAMED = 5  # levels whose claims fit beside their points
_BAR, _GAP, _BETWEEN = 22, 5, 16
_NAME_PX, _COUNT_PX = 160, 110
_FIGURE_PX, _NAMED_PX = 38, 118  # the least width of a part with its share, and with its name too
_KEY_PX, _KEY_LINE = 116, 30


def difference_chart(summary: QualitySummary) -> Spec | None:
    """In points, by level, with one-sided bounds; the line at -delta, and C = 1 against itself as a grey band."""
    levels = [level for level in summary.levels if known(level.difference.difference)]
    if not levels:
        return None
    rows = [_difference_row(level) for level in levels]
    delta = -100 * summary.delta
    noise = [] if summary.noise is None else [{"d": 100 * summary.noise.low, "high": 100 * summary.noise.high}]
    ends = [value for row in (*rows, *noise) for value in (row["d"], row["high"], row.get("low", 0.0))]
    low, high = min([0.0, delta, *ends]), max([0.0, *ends])
    room = high - low or 1.0
    y = quantity("d", "points against C = 1", [low - 0.12 * room, high + 0.2 * room])
    y["axis"]["labelExpr"] = "replace(datum.label, '-', '−')"
    x = {
        "field": "c",
        "type": "ordinal",
        "title": "agents at once (C)",
        "sort": None,
        "scale": {"type": "point", "padding": 0.6},
        "axis": {"labelAngle": 0},
    }
    upright = {"y": {**y, "field": "low"}, "y2": {"field": "high"}}
    edge = [{"d": delta, "label": f"−{100 * summary.delta:g} points: the loss that would matter"}]
    layers = [
        layer(noise, {"type": "rect", "color": theme.STONE, "opacity": 0.22}, y=y, y2={"field": "high"}),
        layer([{"d": 0.0}], rule(theme.STONE, width=1), y=y),
        layer(edge, rule(theme.ROSE, dash=[6, 4]), y=y),
        *halo(edge, label("left", dx=4, dy=11, color=theme.ROSE), x={"value": 0}, y=y),
        layer(rows, {"type": "area", "color": theme.SKY, "opacity": 0.13}, x=x, **upright),
        layer(rows, line(theme.SKY, width=1.5), x=x, y=y),
        layer(rows, rule(theme.SKY, width=2), x=x, **upright),
    ]
    for row, level in zip(rows, levels, strict=True):
        colour, shape, fill = _LOOKS[level.claim]
        layers.append(layer([row], {**point(colour, shape), "fill": fill, "size": 90}, x=x, y=y))
        layers += halo([row], label("left", dx=9), x=x, y=y)
        if len(rows) <= _MOST_NAMED:
            claim = [{**row, "label": level.claim.value}]
            layers += halo(claim, label("center", dy=-12, weight=700, color=colour), x=x, y={**y, "field": "high"})
    return {"layer": layers}


def outcome_chart(summary: QualitySummary, width: int = 980) -> Spec | None:
    """One bar an arm, C = 1 above the level that was held against it; each outcome has its share of it."""
    arms = [arm for level in summary.levels for arm in (level.base, level.load) if arm.requests]
    if not arms:
        return None
    bars: list[Spec] = []
    texts: list[tuple[Spec, Spec]] = []
    y = 2.0
    for level in summary.levels:
        for arm, name in (
            (level.base, f"C = 1 beside C = {level.concurrency}"),
            (level.load, f"C = {level.concurrency}"),
        ):
            middle = y + _BAR / 2
            texts.append(
                ({"x": 0, "y": middle, "label": name}, label("left", weight=400 if arm is level.base else 600))
            )
            _fill_bar(arm, y, width, bars, texts)
            y += _BAR + _GAP
        y += _BETWEEN
    height = _key(arms, y, width, bars, texts)
    frame = {
        "x": {"field": "x", "type": "quantitative", "scale": {"domain": [0, width], "nice": False}, "axis": None},
        "y": {"field": "y", "type": "quantitative", "scale": {"domain": [height, 0], "nice": False}, "axis": None},
    }
    colour = {"field": "colour", "type": "nominal", "scale": None}
    ends = {"x2": {"field": "x2"}, "y2": {"field": "y2"}}
    layers = [layer(bars, {"type": "rect", "stroke": theme.PAPER, "strokeWidth": 1}, **frame, **ends, color=colour)]
    layers += [layer([row], mark, text="label", **frame) for row, mark in texts]
    return {"width": width, "height": height, "padding": 2, "layer": layers}


def ttft_chart(summary: QualitySummary, height: int = 200) -> Spec | None:
    arms = _arms(summary)
    return _latency([(arm.concurrency, arm.ttft_p50_ms, arm.ttft_p95_ms) for arm in arms], theme.SKY, height)


def total_chart(summary: QualitySummary, height: int = 200) -> Spec | None:
    arms = [(arm.concurrency, _ms(arm.total_p50_s), _ms(arm.total_p95_s)) for arm in _arms(summary)]
    return _latency(arms, theme.PLUM, height)


def _difference_row(level: LevelQuality) -> Spec:
    found = level.difference
    sign = "+" if found.difference > 0 else ""
    return {
        "c": str(level.concurrency),
        "d": 100 * found.difference,
        "low": 100 * found.low,
        "high": 100 * found.high,
        "label": f"{sign}{number(100 * found.difference, digits=1)}",
    }


def _fill_bar(arm: ArmFigures, y: float, width: int, bars: list[Spec], texts: list[tuple[Spec, Spec]]) -> None:
    """The parts of one bar, with their shares where they are wide enough, and its count behind."""
    room = width - _NAME_PX - _COUNT_PX
    total = sum(count for _, count in arm.outcomes)
    x = float(_NAME_PX)
    for outcome, (fill, ink) in _FILLS.items():
        count = dict(arm.outcomes).get(outcome.value, 0)
        if not count:
            continue
        wide = room * count / total
        bars.append({"x": round(x, 2), "x2": round(x + wide, 2), "y": y, "y2": y + _BAR, "colour": fill})
        share = percent(100 * count / total)
        words = f"{outcome.value} {share}" if wide >= _NAMED_PX else share if wide >= _FIGURE_PX else ""
        if words:
            where = {"x": round(x + wide / 2, 2), "y": y + _BAR / 2, "label": words}
            texts.append((where, label("center", weight=600, color=ink)))
        x += wide
    texts.append(
        ({"x": width - _COUNT_PX, "y": y + _BAR / 2, "label": f"{arm.requests:,} requests"}, label("left", dx=8))
    )


def _key(arms: Sequence[ArmFigures], y: float, width: int, bars: list[Spec], texts: list[tuple[Spec, Spec]]) -> float:
    """A sample of each outcome that occurs, in rows that fit; gives the height that is then taken."""
    seen = {name for arm in arms for name, count in arm.outcomes if count}
    shown = [(outcome, fill) for outcome, (fill, _) in _FILLS.items() if outcome.value in seen]
    in_row = max(1, (width - _NAME_PX) // _KEY_PX)
    for i, (outcome, fill) in enumerate(shown):
        x, top = _NAME_PX + _KEY_PX * (i % in_row), y + _KEY_LINE * (i // in_row)
        bars.append({"x": x, "x2": x + 14, "y": top, "y2": top + 14, "colour": fill})
        texts.append(({"x": x + 14, "y": top + 7, "label": outcome.value}, label("left", dx=6)))
    return y + _KEY_LINE * (1 + (len(shown) - 1) // in_row) - _KEY_LINE + 18


def _arms(summary: QualitySummary) -> list[ArmFigures]:
    """C = 1 as it was beside the first level, then the levels."""
    return [arm for level in summary.levels[:1] for arm in (level.base,)] + [level.load for level in summary.levels]


def _ms(value: float | None) -> float | None:
    return None if value is None else 1000 * value


def _latency(measured: Sequence[tuple[int, float | None, float | None]], colour: str, height: int) -> Spec | None:
    curves = []
    for name, place, dash in (("p50", 1, ()), ("p95", 2, (5, 4))):
        points = [(int(row[0]), value) for row in measured if (value := row[place]) is not None and known(value)]
        if points:
            end = f"{name}  {milliseconds(points[-1][1])}"
            curves.append(Curve(tuple(points), colour, end, dash, hollow=bool(dash)))
    return time_chart(curves, height=height)
