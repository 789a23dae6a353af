"""Summaries of levels become charts in Vega-Lite's terms.

Knows nothing of SVG and pages. A chart is None where there is nothing to draw. Levels without a value are left out,
never drawn as zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from skep.records import LevelSummary, SweepSummary
from skep.report import theme
from skep.report.figures import known, milliseconds, number, percent, seconds, times

Spec = dict[str, Any]


def effective_chart(levels: Sequence[LevelSummary]) -> Spec | None:
    """Effective tok/s against C, the spread over repeats, and what one agent's speed times C would give."""
    rows = [_effective_row(level) for level in _rising(levels) if known(level.effective_tok_s)]
    if not rows:
        return None
    top = 1.3 * max(row["high"] for row in rows)
    ideal = _ideal_line(rows, top)
    x, y = _concurrency(rows), _quantity("tok_s", "tok/s", [0, top])
    named = _apart(rows)
    low = [row for row in named if row["tok_s"] < 0.14 * top]
    high = [row for row in named if row["tok_s"] >= 0.14 * top]
    early = bool(ideal) and ideal[-1]["c"] < 0.6 * rows[-1]["c"]
    beside = _text("left", dx=10, dy=7, color=theme.MUTED) if early else _text("right", dx=-14, color=theme.MUTED)
    spread = {"y": {**y, "field": "low"}, "y2": {"field": "high"}}
    fill = {"condition": {"test": "datum.limited", "value": theme.PAPER}, "value": theme.HONEY}
    return {
        "layer": [
            _layer(ideal, _line(theme.STONE, width=1.5, dash=[5, 4]), x=x, y={**y, "field": "ideal"}),
            _layer(ideal[-1:], beside, x=x, y={**y, "field": "ideal"}, text="label"),
            _layer(rows, {"type": "area", "color": theme.HONEY, "opacity": 0.16}, x=x, **spread),
            _layer(rows, {"type": "rule", "color": theme.HONEY, "strokeWidth": 1.5}, x=x, **spread),
            _layer(rows, _line(theme.HONEY, width=2.5), x=x, y=y),
            _layer(rows, {**_point(theme.HONEY), "fill": theme.HONEY}, x=x, y=y, fill=fill),
            _layer(high[:1], _text("center", dy=17, weight=600), x=x, y=y, text="label"),
            _layer(high[1:], _text("left", dx=5, dy=15, weight=600), x=x, y=y, text="label"),
            _layer(low, _text("center", dx=-9, dy=-16, weight=600), x=x, y=y, text="label"),
        ]
    }


def contention_chart(levels: Sequence[LevelSummary]) -> Spec | None:
    """How much of its solo speed a task loses, in per cent of it."""
    rows: list[Spec] = [
        {"c": level.concurrency, "pct": pct, "above": max(pct, 0.0), "label": percent(pct)}
        for level in levels
        if (pct := level.contention_pct) is not None and known(pct)
    ]
    if not rows:
        return None
    low = 1.15 * min([0.0, *(row["pct"] for row in rows)])
    x = {"field": "c", "type": "ordinal", "title": _AGENTS, "axis": {"labelAngle": 0}, "scale": {"padding": 0.42}}
    y = _quantity("pct", None, [low, 100])
    above = {**y, "field": "above"}
    y["axis"]["labelExpr"] = "datum.label + ' %'"
    bar = {"type": "bar", "color": theme.ROSE, "cornerRadiusEnd": 4}
    return {
        "layer": [
            _layer(rows, bar, x=x, y=y),
            _layer([r for r in rows if r["pct"] <= 90], _text("center", dy=-9, weight=600), x=x, y=above, text="label"),
            _layer(
                [r for r in rows if r["pct"] > 90],
                _text("center", dy=13, weight=600, color=theme.PAPER),
                x=x,
                y=y,
                text="label",
            ),
        ]
    }


def ttft_chart(levels: Sequence[LevelSummary]) -> Spec | None:
    """Time to first token against C: the median whole, the 95th percentile dashed."""
    measured = [(level.concurrency, level.ttft_ms) for level in _rising(levels) if level.ttft_ms is not None]
    middle = [_ttft_row(c, "p50", ttft.p50) for c, ttft in measured]
    slow = [_ttft_row(c, "p95", ttft.p95) for c, ttft in measured]
    if not measured:
        return None
    unit, scale = ("s", 1000) if slow[-1]["ms"] >= 10_000 else ("ms", 1)
    for row in middle + slow:
        row["ms"] /= scale
    top = 1.12 * max(row["ms"] for row in middle + slow) or 1
    x, y = _concurrency(middle), _quantity("ms", unit, [0, top])
    right = 7 * max(len(middle[-1]["label"]), len(slow[-1]["label"])) - 6
    nudge = 7 if slow[-1]["ms"] - middle[-1]["ms"] < 0.09 * top else 0
    return {
        "padding": {"left": 5, "top": 5, "bottom": 5, "right": right},
        "layer": [
            _layer(slow, _line(theme.SKY, width=2, dash=[5, 4]), x=x, y=y),
            _layer(middle, _line(theme.SKY, width=2.5), x=x, y=y),
            _layer(slow, {**_point(theme.SKY), "fill": theme.PAPER}, x=x, y=y),
            _layer(middle, {**_point(theme.SKY), "fill": theme.SKY}, x=x, y=y),
            _layer(slow[-1:], _text("left", dx=11, dy=-nudge, weight=600), x=x, y=y, text="label"),
            _layer(middle[-1:], _text("left", dx=11, dy=nudge, weight=600), x=x, y=y, text="label"),
        ],
    }


def wall_chart(summary: SweepSummary) -> Spec | None:
    """Wall time at C=1 and at the largest C, as two bars."""
    serial, swarm = summary.serial_wall_s, summary.swarm_wall_s
    if serial is None or swarm is None or not (known(serial) and known(swarm)):
        return None
    rows = [
        {"how": "serial", "s": serial, "label": seconds(serial), "colour": theme.STONE},
        {"how": "swarm", "s": swarm, "label": _swarm_label(summary), "colour": theme.MOSS},
    ]
    x = _quantity("s", "wall time, s", [0, 1.5 * max(serial, swarm)])
    axis = {"labelFontSize": 13, "labelColor": theme.INK, "labelPadding": 10, "domain": False}
    y = {"field": "how", "type": "nominal", "sort": None, "title": None, "axis": axis, "scale": {"padding": 0.4}}
    bar = {"type": "bar", "cornerRadiusEnd": 4}
    fill = {"field": "colour", "type": "nominal", "scale": None}
    return {
        "layer": [
            _layer(rows, bar, x=x, y=y, color=fill),
            _layer(rows, _text("left", dx=10, weight=600), x=x, y=y, text="label"),
        ]
    }


def sized(spec: Spec | None, title: str, subtitle: str, width: int, height: int) -> Spec:
    """`spec` as one panel of a larger picture; an empty panel says so."""
    nothing = _layer([{}], _text("center", color=theme.MUTED), text={"value": "not measured"})
    panel = {key: value for key, value in (spec or nothing).items() if key != "padding"}
    return {
        **panel,
        "title": {"text": title, "subtitle": subtitle, "frame": "group"},
        "width": width,
        "height": height,
    }


_AGENTS = "agents at once (C)"


def _rising(levels: Sequence[LevelSummary]) -> list[LevelSummary]:
    return sorted(levels, key=lambda level: level.concurrency)


def _effective_row(level: LevelSummary) -> Spec:
    value = level.effective_tok_s
    low = level.effective_low if known(level.effective_low) else value
    high = level.effective_high if known(level.effective_high) else value
    return {
        "c": level.concurrency,
        "tok_s": value,
        "low": low,
        "high": high,
        "limited": level.client_limited,
        "label": number(value),
    }


def _ttft_row(concurrency: int, name: str, ms: float) -> Spec:
    return {"c": concurrency, "ms": ms, "label": f"{name}  {milliseconds(ms)}"}


def _ideal_line(rows: Sequence[Spec], top: float) -> list[Spec]:
    """From C=1 to the last level or the edge of the picture; empty without C=1."""
    alone = next((row["tok_s"] for row in rows if row["c"] == 1), None)
    if not alone or len(rows) == 1:
        return []
    end = min(max(row["c"] for row in rows), top / alone)
    return [{"c": c, "ideal": c * alone, "label": "ideal: C × one agent"} for c in (1, end)]


def _apart(rows: Sequence[Spec]) -> list[Spec]:
    """The rows whose labels do not run into each other, from the last, which is always among them."""
    gap = 0.075 * (rows[-1]["c"] - rows[0]["c"])
    kept = [rows[-1]]
    for row in reversed(rows[:-1]):
        if kept[-1]["c"] - row["c"] >= gap:
            kept.append(row)
    return kept


def _swarm_label(summary: SweepSummary) -> str:
    text = seconds(summary.swarm_wall_s)
    return text if summary.speedup is None else f"{text}  ({times(summary.speedup)})"


def _concurrency(rows: Sequence[Spec]) -> Spec:
    levels = [row["c"] for row in rows]
    low, high = min(levels), max(levels)
    return {
        "field": "c",
        "type": "quantitative",
        "title": _AGENTS,
        "scale": {"domain": [low, high] if low < high else [low - 1, high + 1], "nice": False, "padding": 22},
        "axis": {"values": levels, "format": "d", "labelOverlap": "greedy", "labelSeparation": 5},
    }


def _quantity(field: str, title: str | None, domain: list[float]) -> Spec:
    return {
        "field": field,
        "type": "quantitative",
        "title": title,
        "scale": {"domain": domain, "nice": False},
        "stack": None,  # a stacked bar is clipped, with an id that counts up over the life of the process
        "axis": {"tickCount": 5, "format": ",~r"},
    }


def _layer(rows: Sequence[Spec], mark: Spec, text: str | Spec | None = None, **encoding: Spec) -> Spec:
    if text is not None:
        encoding["text"] = {"field": text} if isinstance(text, str) else text
    return {"data": {"values": list(rows)}, "mark": mark, "encoding": encoding}


def _line(color: str, *, width: float, dash: list[int] | None = None) -> Spec:
    mark = {"type": "line", "color": color, "strokeWidth": width, "strokeCap": "round"}
    return mark if dash is None else {**mark, "strokeDash": dash}


def _point(color: str) -> Spec:
    return {"type": "point", "stroke": color, "strokeWidth": 2, "size": 60, "opacity": 1}


def _text(align: str, *, dx: int = 0, dy: int = 0, weight: int = 400, color: str = theme.INK) -> Spec:
    return {
        "type": "text",
        "align": align,
        "baseline": "middle",
        "dx": dx,
        "dy": dy,
        "fontWeight": weight,
        "color": color,
    }
