"""Six figures of each model on six spokes, the more the better.

Drawn in pixels: names stand outside, on the side of their spoke, with each model's value beneath. A spoke without a
value is a gap in the outline, which is then not filled, and a dash among the values; never a zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import wrap

from skep.report import theme
from skep.report.charts import Spec, halo, label, layer, line, point
from skep.report.figures import UNKNOWN, known, number, printable, shortened
from skep.report.subjects import Subject
from skep.verdicts import Axis

WIDTH = 470
RADIUS = 126
_LINE = 16  # of text
_RINGS = (0.25, 0.5, 0.75, 1.0)
_LONGEST_NAME = 13  # letters in a line
_MOST_VALUES = 4  # models whose values stand at the spokes; the table has all
_OUT = 12  # from the end of a spoke to its name

Place = tuple[float, float]


def radar_chart(subjects: Sequence[Subject], width: int = WIDTH) -> Spec | None:
    """None where no model has a value, or there are too few spokes for an outline."""
    names = list(dict.fromkeys(axis.name for one in subjects for axis in one.summary.axes))
    if len(names) < 3 or not any(_usable(axis) for one in subjects for axis in one.summary.axes):
        return None
    shown = list(subjects) if len(subjects) <= _MOST_VALUES else []
    lines = [_lines(name) for name in names]
    margin = _OUT + _LINE * (max(map(len, lines)) + len(shown)) + 4
    centre = (width / 2, margin + RADIUS)
    height = 2 * (margin + RADIUS)
    frame = {
        "x": {"field": "x", "type": "quantitative", "scale": {"domain": [0, width], "nice": False}, "axis": None},
        "y": {"field": "y", "type": "quantitative", "scale": {"domain": [height, 0], "nice": False}, "axis": None},
    }
    layers = _grid(centre, len(names), frame)
    for one in subjects:
        layers += _outline(one, names, centre, frame)
    layers += _ring_values(centre, len(names), frame)
    for i, text in enumerate(lines):
        layers += _spoke_name(i, names, text, shown, centre, frame)
    return {"width": width, "height": height, "padding": 0, "layer": layers}


def _usable(axis: Axis | None) -> bool:
    return axis is not None and axis.value is not None and known(axis.value)


def _lines(name: str) -> list[str]:
    found = wrap(printable(name), _LONGEST_NAME) or [UNKNOWN]
    return [shortened(one, _LONGEST_NAME + 3) for one in found[:2]]


def _at(i: float, count: int, share: float, centre: Place) -> Place:
    """The first spoke points up; they go round with the clock."""
    angle = 2 * math.pi * i / count
    return centre[0] + RADIUS * share * math.sin(angle), centre[1] - RADIUS * share * math.cos(angle)


def _row(place: Place, **more: object) -> Spec:
    return {"x": round(place[0], 2), "y": round(place[1], 2), **more}


def _path(places: Sequence[Place], mark: Spec, frame: Spec) -> Spec:
    rows = [_row(place, i=i) for i, place in enumerate(places)]
    return layer(rows, mark, **frame, order={"field": "i", "type": "quantitative"})


def _grid(centre: Place, count: int, frame: Spec) -> list[Spec]:
    layers = []
    for ring in _RINGS:
        mark = {**line(theme.STONE if ring == 1 else theme.GRID, width=1), "interpolate": "linear-closed"}
        layers.append(_path([_at(i, count, ring, centre) for i in range(count)], mark, frame))
    layers += [_path([centre, _at(i, count, 1.0, centre)], line(theme.GRID, width=1), frame) for i in range(count)]
    return layers


def _ring_values(centre: Place, count: int, frame: Spec) -> list[Spec]:
    """Half-way between the last spoke and the first, where no value lies."""
    inward = math.cos(math.pi / count)
    rows = [_row(_at(-0.5, count, ring * inward, centre), label=f"{ring:g}") for ring in _RINGS[:-1]]
    return halo(rows, {**label("center", color=theme.MUTED), "fontSize": 11}, **frame)


def _outline(one: Subject, names: Sequence[str], centre: Place, frame: Spec) -> list[Spec]:
    values = {axis.name: axis.value for axis in one.summary.axes if _usable(axis)}
    places = [
        _at(i, len(names), min(max(values[name] or 0.0, 0.0), 1.0), centre) if name in values else None
        for i, name in enumerate(names)
    ]
    stroke = line(one.look.colour, width=2.5, dash=one.look.dash)
    marks = [_row(place) for place in places if place is not None]
    dots = layer(marks, {**point(one.look.colour, one.look.shape), "fill": one.look.colour}, **frame)
    if None not in places:
        closed = {**stroke, "interpolate": "linear-closed", "fill": one.look.colour, "fillOpacity": 0.1}
        return [_path([place for place in places if place is not None], closed, frame), dots]
    sides = [(place, places[(i + 1) % len(places)]) for i, place in enumerate(places)]
    return [*(_path([a, b], stroke, frame) for a, b in sides if a is not None and b is not None), dots]


def _spoke_name(
    i: int, names: Sequence[str], lines: Sequence[str], shown: Sequence[Subject], centre: Place, frame: Spec
) -> list[Spec]:
    x, y = _at(i, len(names), 1.0, centre)
    turn = math.sin(2 * math.pi * i / len(names))
    align = "center" if abs(turn) < 0.1 else "left" if turn > 0 else "right"
    x += 0.0 if align == "center" else math.copysign(_OUT, turn)
    texts: list[tuple[str, str, int]] = [(one, theme.INK, 600) for one in lines]
    texts += [(_value(one, names[i], alone=len(shown) == 1), one.look.colour, 400) for one in shown]
    tall = _LINE * len(texts)
    top = y - tall / 2
    if align == "center":
        top = y - _OUT - tall if y < centre[1] else y + _OUT
    return [
        layer(
            [_row((x, top + _LINE * (n + 0.5)), label=words)],
            label(align, weight=weight, color=colour),
            text="label",
            **frame,
        )
        for n, (words, colour, weight) in enumerate(texts)
    ]


def _value(one: Subject, name: str, *, alone: bool) -> str:
    axis = next((axis for axis in one.summary.axes if axis.name == name), None)
    value = number(axis.value, digits=2) if axis is not None else UNKNOWN
    return value if alone else f"{one.look.letter}  {value}"
