"""The parts that charts are put together from: axes, lines, points, texts and panels, in Vega-Lite's terms.

Knows nothing of what is drawn with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from skep.report import theme

Spec = dict[str, Any]

AGENTS = "agents at once (C)"
_WIDE = 24  # from this ratio of the largest C to the smallest on, the axis is logarithmic


def layer(rows: Sequence[Spec], mark: Spec, text: str | Spec | None = None, **encoding: Spec) -> Spec:
    if text is not None:
        encoding["text"] = {"field": text} if isinstance(text, str) else text
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
    return {
        "type": "text",
        "align": align,
        "baseline": "middle",
        "dx": dx,
        "dy": dy,
        "fontWeight": weight,
        "color": color,
    }


def halo(rows: Sequence[Spec], mark: Spec, **encoding: Spec) -> list[Spec]:
    """The labels of `rows`, readable where they cross a line: behind each is its own shape in the paper's colour."""
    behind = {**mark, "color": theme.PAPER, "stroke": theme.PAPER, "strokeWidth": 4}
    return [layer(rows, one, text="label", **encoding) for one in (behind, mark)]


def is_wide(levels: Sequence[int]) -> bool:
    """Whether the levels span so much that a linear axis would crowd the small ones."""
    return bool(levels) and min(levels) > 0 and max(levels) / min(levels) >= _WIDE


def place(c: float, levels: Sequence[int]) -> float:
    """Where C lies on its axis: 0 at the left end, 1 at the right; 0.5 where there is one level only."""
    low, high = min(levels), max(levels)
    if low == high:
        return 0.5
    if is_wide(levels):
        return math.log(c / low) / math.log(high / low)
    return (c - low) / (high - low)


def concurrency(levels: Sequence[int]) -> Spec:
    low, high = min(levels), max(levels)
    values = sorted(row["c"] for row in apart([{"c": c} for c in sorted(set(levels))], levels, gap=0.09))
    scale: Spec = {"domain": [low, high] if low < high else [low - 1, high + 1], "nice": False, "padding": 22}
    axis: Spec = {"values": values, "format": "d", "labelOverlap": False}
    title = AGENTS
    if is_wide(levels):
        scale |= {"type": "log", "base": 2}
        axis |= {"labelExpr": "datum.value"}
        title = f"{AGENTS}, logarithmic"
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


def apart(rows: Sequence[Spec], levels: Sequence[int], gap: float = 0.075) -> list[Spec]:
    """The rows whose labels do not run into each other, from the last, which is always among them."""
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
        ceiling = high if i == len(placed) - 1 else placed[i + 1] - gap
        placed[i] = min(placed[i], ceiling)
    return [place for _, place in sorted(zip(order, placed, strict=True))]


def sized(spec: Spec | None, title: str, subtitle: str, width: int, height: int) -> Spec:
    """`spec` as one panel of a larger picture; an empty panel says so."""
    nothing = layer([{}], label("center", color=theme.MUTED), text={"value": "not measured"})
    panel = {key: value for key, value in (spec or nothing).items() if key != "padding"}
    return {
        **panel,
        "title": {"text": title, "subtitle": subtitle, "frame": "group"},
        "width": width,
        "height": height,
    }
