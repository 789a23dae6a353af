"""The pictures of the plan page: predicted curves beside measured points, and what one card holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skep.report import theme
from skep.report.charts import ChartCurve, curves_chart
from skep.report.markup import Markup, tag, text, trusted
from skep.report.svg import picture
from skep.units import milliseconds, number

Document = Mapping[str, Any]
BAR = 1000
_DASHES: tuple[tuple[int, ...], ...] = ((), (7, 4), (2, 3))
_SHAPES = {"diamond": "M8 2l6 6l-6 6l-6 -6z", "square": "M3 3h10v10h-10z", "triangle-up": "M8 2l6 11h-12z"}  # of runs
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
    label = "Predicted effective tok/s against agents at once, with its band" + (", and measured" if measured else "")
    band = {point["concurrency"]: (point["low"], point["high"]) for point in plans[0]["predicted"]}
    curves = [_predicted(plan, place, "effective_tok_s", {} if place else band) for place, plan in enumerate(plans)]
    for place, one in enumerate(measured, 1):
        ranges = {p.concurrency: (p.low, p.high) for p in one.points if p.low is not None and p.high is not None}
        curves.append(
            _measured_curve(one, place, [(p.concurrency, p.effective_tok_s) for p in one.points], "tok/s", ranges)
        )
    return _chart(curves, "tok/s", label)


def wait_chart(plans: Sequence[Document], measured: Sequence[MeasuredRun]) -> Markup:
    """Time to the first token against C."""
    label = "Predicted time to the first token against agents at once" + (", and measured" if measured else "")
    curves = [_predicted(plan, place, "ttft_ms", {}) for place, plan in enumerate(plans)]
    for place, one in enumerate(measured, 1):
        points = [(point.concurrency, point.ttft_ms) for point in one.points if point.ttft_ms is not None]
        curves.append(_measured_curve(one, place, points, "ms", {}))
    return _chart(curves, "ms", label)


def _chart(curves: Sequence[ChartCurve], unit: str, label: str) -> Markup:
    spec = curves_chart(curves, unit)
    return text("not predicted") if spec is None else trusted(picture({**spec, "width": 500, "height": 290}, label))


def _predicted(plan: Document, place: int, name: str, ranges: Mapping[int, tuple[float, float]]) -> ChartCurve:
    points = [(point["concurrency"], point[name]) for point in plan["predicted"]]
    tips = {point["concurrency"]: _told(point) for point in plan["predicted"]}
    colour, letter = theme.SERIES[place], chr(65 + place)
    return ChartCurve(points, colour, letter, _DASHES[place % 3], ranges=ranges, tips=tips, shaded=bool(ranges))


def _measured_curve(
    one: MeasuredRun,
    place: int,
    points: Sequence[tuple[int, float]],
    unit: str,
    ranges: Mapping[int, tuple[float, float]],
) -> ChartCurve:
    """Points alone. Each run has its own shape, hollow where nothing real ran; upright the interval of the mean."""
    how = f"{'simulated' if one.simulated else 'measured'}, run {one.run_id}"
    tips = {c: f"{how}: {number(value)} {unit} at C = {c}" for c, value in points}
    shape, hollow = list(_SHAPES)[(place - 1) % 3], [c for c, _ in points] if one.simulated else []
    return ChartCurve(points, theme.ROSE, str(place), (), shape, hollow, ranges, tips, joined=False)


def memory_bar(terms: Sequence[Document], card_bytes: int, places: Mapping[str, int]) -> Markup:
    """Return one card as a bar: each term as long as its share, and what is free at the end."""
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
    """Return one colour a term, the same in every bar; weights and KV cache first."""
    names = ["weights", "KV pool", *(term["term"] for plan in plans for term in plan["memory"])]
    return {name: place for place, name in enumerate(dict.fromkeys(names))}


def colour_of(place: int) -> str:
    colours = (theme.HONEY, theme.SKY, theme.PLUM, theme.MOSS, theme.ROSE, theme.STONE, *theme.SERIES)
    return colours[place % len(colours)]


def swatch(place: int) -> Markup:
    square = tag("rect", width="12", height="12", rx="3", fill=colour_of(place))
    return tag("svg", square, viewBox="0 0 12 12", aria_hidden="true", class_="swatch")


def mark_of(one: MeasuredRun, place: int) -> Markup:
    """Return the shape of a measured run, for the list below the pictures."""
    shape = tag("path", d=list(_SHAPES.values())[(place - 1) % 3], fill=theme.PAPER if one.simulated else theme.ROSE,
                stroke=theme.ROSE, stroke_width="1.5")  # fmt: skip
    return tag("svg", shape, viewBox="0 0 16 16", aria_hidden="true", class_="mark-of")


def _told(point: Document) -> str:
    return (
        f"C = {point['concurrency']}: {number(point['effective_tok_s'])} tok/s, {number(point['low'])} to "
        f"{number(point['high'])}, the first token after {milliseconds(point['ttft_ms'])}"
    )
