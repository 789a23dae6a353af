"""The pictures of the plan page: predicted curves beside measured points, and what one card holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from skep.report import theme
from skep.report.charts import spread
from skep.report.markup import Markup, join, tag, text
from skep.report.ticks import tick_number, value_scale
from skep.units import milliseconds, number

Document = Mapping[str, Any]
Axis = Callable[[float], float]
Dot = tuple[int, float, float | None, float | None]  # C, value, low, high
WIDTH, HEIGHT = 500, 290
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 30, 22, 46
BAR = 1000
_DASHES = ("", "7 4", "2 3")
_SHAPES = ("l6 11l-12 0z", "l6 6l-6 6l-6 -6z", "l10 0l0 10l-10 0z")  # triangle, diamond, square
_AROUND = tuple((15 * math.cos(turn * math.pi / 4), 15 * math.sin(turn * math.pi / 4)) for turn in range(8))
_WIDE = 24  # from this ratio of the levels on, the axis is logarithmic
_SAME_LOAD = 0.25  # as a share


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    concurrency: int
    effective_tok_s: float
    low: float | None  # 95 % of the mean, where runs were repeated
    high: float | None
    ttft_ms: float | None
    client_limited: bool


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One stored run of the model. `same_rig`: on cards of the kind and number that are planned."""

    run_id: str
    created_at: float
    machine: str
    engine: str
    layout: str
    simulated: bool
    same_rig: bool
    points: tuple[MeasuredPoint, ...]
    input_tokens: int | None = None  # of a request, on the average: a plan is for a load, and the run had its own
    output_tokens: int | None = None

    @property
    def best(self) -> MeasuredPoint:
        return max(self.points, key=lambda point: point.effective_tok_s)

    @property
    def alone_ttft_ms(self) -> float | None:
        return next((point.ttft_ms for point in self.points if point.concurrency == 1), None)

    def has_other_load(self, input_tokens: int, output_tokens: int) -> bool:
        """A curve for other prompts and answers than those of the run says little about it."""
        if self.input_tokens is None or self.output_tokens is None:
            return False
        shares = (self.input_tokens / input_tokens, self.output_tokens / output_tokens)
        return any(abs(share - 1) > _SAME_LOAD for share in shares)


def speed_chart(plans: Sequence[Document], measured: Sequence[MeasuredRun]) -> Markup:
    """Effective tok/s against C, with the band of the first plan. Letters name layouts, numbers measured runs."""
    first = plans[0]["predicted"]
    most = [min(point["high"], 2.5 * point["effective_tok_s"]) for point in first]
    points = [[(p.concurrency, p.effective_tok_s, p.low, p.high) for p in one.points] for one in measured]
    label = "Predicted effective tok/s against agents at once, with its band" + (", and measured" if measured else "")
    return _chart(plans, measured, points, "effective_tok_s", "tok/s", label, most)


def wait_chart(plans: Sequence[Document], measured: Sequence[MeasuredRun]) -> Markup:
    """Time to the first token against C."""
    points = [[(p.concurrency, p.ttft_ms, None, None) for p in one.points if p.ttft_ms is not None] for one in measured]
    label = "Predicted time to the first token against agents at once" + (", and measured" if measured else "")
    return _chart(plans, measured, points, "ttft_ms", "ms", label)


def _chart(
    plans: Sequence[Document],
    measured: Sequence[MeasuredRun],
    points: Sequence[Sequence[Dot]],
    field: str,
    unit: str,
    label: str,
    most: Sequence[float] = (),
) -> Markup:
    levels = [point["concurrency"] for plan in plans for point in plan["predicted"]]
    levels += [dot[0] for dots in points for dot in dots]
    predicted = [point[field] for plan in plans for point in plan["predicted"]]
    highest = max([*most, *predicted, *(dot[1] for dots in points for dot in dots)])
    x, y = _across(levels), _upright(highest)
    parts = [_grid(sorted(set(levels)), x, highest, y, unit)]
    if most:
        parts.append(_band(plans[0], x, y, highest))
    parts += [_curve(plan, place, field, x, y) for place, plan in enumerate(plans)]
    parts.append(_letters(plans, field, x, y))
    parts += [
        _dots(one, dots, place, unit, x, y) for place, (one, dots) in enumerate(zip(measured, points, strict=True), 1)
    ]
    taken = [spot for plan in plans for spot in _way([(p["concurrency"], p[field]) for p in plan["predicted"]], x, y)]
    taken += [(x(dot[0]), y(value)) for dots in points for dot in dots for value in dot[1:] if value is not None]
    parts.append(_numbers(points, taken, x, y))
    return tag("svg", *parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=label)


def memory_bar(terms: Sequence[Document], card_bytes: int, places: Mapping[str, int]) -> Markup:
    """One card as a bar: each term as long as its share, and what is free at the end."""
    total = max(card_bytes, sum(term["bytes"] for term in terms))
    at, parts = 0.0, []
    for term in terms:
        wide = BAR * term["bytes"] / total
        title = tag("title", text(f"{term['term']}: {term['bytes'] / (1 << 30):.2f} GiB"))
        parts.append(
            tag("rect", title, x=f"{at:.1f}", y="0", width=f"{max(wide - 1, 0.4):.1f}", height="34",
                fill=colour_of(places[term["term"]]), opacity="1" if term["inside"] else "0.55")
        )  # fmt: skip
        at += wide
    free = tag("rect", x=f"{at:.1f}", y="0.5", width=f"{max(BAR - at - 0.5, 0):.1f}", height="33", fill="none",
               stroke=theme.GRID)  # fmt: skip
    label = f"What one card of {card_bytes / (1 << 30):.1f} GiB holds"
    return tag("svg", *parts, free, viewBox=f"0 0 {BAR} 34", role="img", aria_label=label,
               preserveAspectRatio="none", class_="bar")  # fmt: skip


def places_of(plans: Sequence[Document]) -> dict[str, int]:
    """One colour a term, the same in every bar; weights and KV cache first."""
    names = ["weights", "KV pool", *(term["term"] for plan in plans for term in plan["memory"])]
    return {name: place for place, name in enumerate(dict.fromkeys(names))}


def colour_of(place: int) -> str:
    colours = (theme.HONEY, theme.SKY, theme.PLUM, theme.MOSS, theme.ROSE, theme.STONE, *theme.SERIES)
    return colours[place % len(colours)]


def swatch(place: int) -> Markup:
    square = tag("rect", width="12", height="12", rx="3", fill=colour_of(place))
    return tag("svg", square, viewBox="0 0 12 12", aria_hidden="true", class_="swatch")


def _across(levels: Sequence[int]) -> Axis:
    low, high = min(levels), max(levels)
    wide = WIDTH - _LEFT - _RIGHT - 20
    if low == high:
        return lambda _c: _LEFT + 10 + wide / 2
    if high / low >= _WIDE:
        return lambda c: _LEFT + 10 + wide * math.log(c / low) / math.log(high / low)
    return lambda c: _LEFT + 10 + wide * (c - low) / (high - low)


def _upright(highest: float) -> Axis:
    scale = value_scale(0.0, highest)
    return lambda value: HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * min(max(scale.share(value), 0.0), 1.0)


def _grid(levels: Sequence[int], x: Axis, highest: float, y: Axis, unit: str) -> Markup:
    scale = value_scale(0.0, highest)
    parts = []
    for tick in scale.ticks:
        at = f"{y(tick):.1f}"
        parts.append(tag("line", x1=str(_LEFT), x2=str(WIDTH - _RIGHT), y1=at, y2=at, stroke=theme.GRID))
        parts.append(_word(tick_number(tick, scale.ticks), _LEFT - 8, y(tick) + 4, "end"))
    bottom, last = HEIGHT - _BOTTOM, -math.inf
    for level in levels:
        if x(level) - last >= 26:
            last = x(level)
            parts.append(_word(str(level), last, bottom + 18, "middle"))
    base = str(bottom)
    parts.append(tag("line", x1=str(_LEFT), x2=str(WIDTH - _RIGHT), y1=base, y2=base, stroke=theme.STONE))
    parts.append(_word("agents at once (C)", (_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 8, "middle"))
    parts.append(_word(unit, _LEFT - 8, _TOP - 9, "end"))
    return join(parts)


def _band(plan: Document, x: Axis, y: Axis, highest: float) -> Markup:
    points = plan["predicted"]
    upper = [(x(p["concurrency"]), y(min(p["high"], highest * 1.2))) for p in points]
    lower = [(x(p["concurrency"]), y(p["low"])) for p in reversed(points)]
    way = " ".join(f"{a:.1f},{b:.1f}" for a, b in (*upper, *lower))
    return tag("polygon", points=way, fill=theme.SERIES[0], opacity="0.16")


def _curve(plan: Document, place: int, field: str, x: Axis, y: Axis) -> Markup:
    colour = theme.SERIES[place]
    points = [(x(p["concurrency"]), y(p[field])) for p in plan["predicted"]]
    way = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    line = tag("polyline", points=way, fill="none", stroke=colour, stroke_width="2.5",
               stroke_dasharray=_DASHES[place % 3] or None, stroke_linejoin="round")  # fmt: skip
    dots = [
        tag("circle", tag("title", text(_told(p))), cx=f"{a:.1f}", cy=f"{b:.1f}", r="3.4", fill=colour)
        for (a, b), p in zip(points, plan["predicted"], strict=True)
    ]
    return join([line, *dots])


def _letters(plans: Sequence[Document], field: str, x: Axis, y: Axis) -> Markup:
    """Beside the end of each curve, apart from each other."""
    ends = [plan["predicted"][-1] for plan in plans]
    heights = spread([y(end[field]) for end in ends], 15.0, float(_TOP), float(HEIGHT - _BOTTOM))
    return join(
        _word(chr(65 + place), x(end["concurrency"]) + 9, height + 4, "start", theme.SERIES[place], bold=True)
        for place, (end, height) in enumerate(zip(ends, heights, strict=True))
    )


def _dots(one: MeasuredRun, dots: Sequence[Dot], place: int, unit: str, x: Axis, y: Axis) -> Markup:
    """Each run has its own shape, hollow where nothing real ran; upright the interval of the mean."""
    parts = []
    for level, value, low, high in dots:
        a, b = x(level), y(value)
        if low is not None and high is not None:
            at = f"{a:.1f}"
            parts.append(tag("line", x1=at, x2=at, y1=f"{y(low):.1f}", y2=f"{y(high):.1f}", stroke=theme.ROSE,
                             stroke_width="1.5"))  # fmt: skip
        said = (
            f"{'simulated' if one.simulated else 'measured'}, run {one.run_id}: {number(value)} {unit} at C = {level}"
        )
        parts.append(_mark(a, b, place, tag("title", text(said)), hollow=one.simulated))
    return join(parts)


def _mark(a: float, b: float, place: int, inside: Markup | None = None, *, hollow: bool) -> Markup:
    start = f"M{a:.1f} {b - 6:.1f}" if place % 3 != 2 else f"M{a - 5:.1f} {b - 5:.1f}"
    return tag("path", inside, d=start + _SHAPES[place % 3], fill=theme.PAPER if hollow else theme.ROSE,
               stroke=theme.ROSE, stroke_width="1.5")  # fmt: skip


def mark_of(one: MeasuredRun, place: int) -> Markup:
    """The shape of a measured run, for the list below the pictures."""
    shape = _mark(8, 8, place, hollow=one.simulated)
    return tag("svg", shape, viewBox="0 0 16 16", aria_hidden="true", class_="mark-of")


def _numbers(points: Sequence[Sequence[Dot]], taken: list[tuple[float, float]], x: Axis, y: Axis) -> Markup:
    """Each at one of its run's points, where it is farthest from all that is drawn."""
    found = []
    for place, dots in enumerate(points, 1):
        spots = [(x(dot[0]) + across, y(dot[1]) + up) for dot in dots for across, up in _AROUND]
        inside = [(a, b) for a, b in spots if _LEFT + 6 < a < WIDTH - _RIGHT - 6 and _TOP < b < HEIGHT - _BOTTOM - 6]
        if inside:
            a, b = max(inside, key=lambda spot: min(math.dist(spot, other) for other in taken))
            taken.append((a, b))
            found.append(_word(str(place), a, b + 4.5, "middle", theme.ROSE, bold=True))
    return join(found)


def _way(points: Sequence[tuple[int, float]], x: Axis, y: Axis) -> list[tuple[float, float]]:
    """A curve as places that are near to each other."""
    ends = [(x(level), y(value)) for level, value in points]
    between = [
        (a + (c - a) * step / 8, b + (d - b) * step / 8)
        for (a, b), (c, d) in pairwise(ends) for step in range(8)
    ]  # fmt: skip
    return between + ends[-1:]


def _told(point: Document) -> str:
    return (
        f"C = {point['concurrency']}: {number(point['effective_tok_s'])} tok/s, {number(point['low'])} to "
        f"{number(point['high'])}, the first token after {milliseconds(point['ttft_ms'])}"
    )


def _word(said: str, x: float, y: float, anchor: str, colour: str = theme.MUTED, *, bold: bool = False) -> Markup:
    return tag("text", text(said), x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, fill=colour, font_size="13",
               font_weight="700" if bold else None)  # fmt: skip
