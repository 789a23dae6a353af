"""What the plan page shows of a plan: a sentence, the curve beside what was measured, memory, layouts, reasons."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from skep.report import theme
from skep.report.charts import spread
from skep.report.markup import Markup, banner, card, figure, join, section, table, tag, text
from skep.report.ticks import tick_number, value_scale
from skep.units import GIB, UNKNOWN, milliseconds, moment, number
from skep.web.layout import head_row
from skep.web.plan_measured import MOST_DRAWN, MeasuredRun

Axis = Callable[[float], float]
Dot = tuple[int, float, float | None, float | None]  # C, value, low, high
WIDTH, HEIGHT = 500, 290
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 30, 22, 46
BAR = 1000
_DASHES = ("", "7 4", "2 3")
_SHAPES = ("l6 11l-12 0z", "l6 6l-6 6l-6 -6z", "l10 0l0 10l-10 0z")  # triangle, diamond, square
_AROUND = tuple((15 * math.cos(turn * math.pi / 4), 15 * math.sin(turn * math.pi / 4)) for turn in range(8))
_WIDE = 24  # from this ratio of the levels on, the axis is logarithmic


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


Document = Mapping[str, Any]
Again = Callable[[int, int], str]
_DRAWN = 3
_SAME_LOAD = 0.25  # as a share
COLUMNS = ("rig", "layout", "engine", "quant", "kv_dtype", "slots", "context", "concurrency", "effective_tok_s", "low",
           "high", "task_tok_s", "ttft_ms", "tpot_ms", "source", "run")  # fmt: skip


def plan_parts(found: Document, measured: Sequence[MeasuredRun], command: str, again: Again) -> Markup:
    """`again` gives the address of the same plan for another load, by tokens of a prompt and of an answer."""
    plans: Sequence[Document] = found["plans"]
    best, agents = plans[0], found["goal"]["agents"]
    drawn = [plan for plan in plans if len(plan["predicted"]) > 1][:_DRAWN] or plans[:1]
    beside = [one for one in measured if one.same_rig][:MOST_DRAWN]
    return join(
        [
            tag("h2", text(f"{found['model']} on {best['rig']}")),
            tag("p", text(_lead(best, agents)), class_="lead"),
            banner("note", "Predicted, not measured.", "The band is where 8 of 10 measurements should lie."),
            _cards(best, agents),
            section("curve", "What to expect, beside what was measured", *_curves(drawn, beside, found["goal"], again)),
            section("memory", "What one card holds", *_bars(plans[:2])),
            section("layouts", "Layouts, best first", _layouts(plans, agents)),
            section("measured", "Measured runs of this model", _measured(measured)),
            section("why", "Why this one", _list(best["why"])),
            _rules(best) or text(""),
            section("start", "How to start it", *_commands(best, command)),
            _dropped(found["rejected"]) or text(""),
            section("notes", "Notes", _list(found["notes"])) if found["notes"] else text(""),
        ]
    )


def layout_name(plan: Document) -> str:
    layout = plan["topology"]
    parts = [f"TP={layout['tp']}", *(f"{k.upper()}={layout[k]}" for k in ("pp", "ep") if layout[k] > 1)]
    where = f"{layout['replicas']} x {' + '.join(parts)}" if layout["replicas"] > 1 else " + ".join(parts)
    return ", ".join(filter(None, (where, plan["quant"], plan["spec"], plan["engine"])))


def plan_rows(found: Document, measured: Sequence[MeasuredRun]) -> list[list[Any]]:
    """The layouts and their predicted levels for `/api/plan.csv`, and the levels of the runs beside them."""
    rows: list[list[Any]] = [
        [plan["rig"], layout_name(plan), plan["engine"], plan["quant"], plan["kv_dtype"], plan["slots"],
         plan["context"], *(point[name] for name in COLUMNS[7:14]), "predicted", None]
        for plan in found["plans"] for point in plan["predicted"]
    ]  # fmt: skip
    rows += [
        [one.machine, one.layout, one.engine, None, None, None, None, point.concurrency, point.effective_tok_s,
         point.low, point.high, None, point.ttft_ms, None, "simulated" if one.simulated else "measured", one.run_id]
        for one in measured for point in one.points
    ]  # fmt: skip
    return rows


def _lead(best: Document, agents: int) -> str:
    at = _at(best, agents)
    plural = "agents" if agents > 1 else "agent"
    return (
        f"{layout_name(best)} gives {agents} {plural} {number(at['effective_tok_s'])} tok/s together "
        f"({number(at['low'])} to {number(at['high'])}), {number(at['task_tok_s'])} each, the first token after "
        f"{milliseconds(at['ttft_ms'])}."
    )


def _at(plan: Document, agents: int) -> Document:
    found: Document = next((p for p in plan["predicted"] if p["concurrency"] == agents), plan["predicted"][-1])
    return found


def _cards(best: Document, agents: int) -> Markup:
    at = _at(best, agents)
    return tag(
        "dl",
        card(number(at["effective_tok_s"]), "tok/s together", f"{number(at['low'])} to {number(at['high'])}"),
        card(number(at["task_tok_s"]), "tok/s each", f"with {agents} at once"),
        card(milliseconds(at["ttft_ms"]), "First token", f"then one every {at['tpot_ms']:.1f} ms"),
        card(*_context(best)),
        class_="cards",
    )


def _context(best: Document) -> tuple[str, str, str]:
    most = best["largest_context"]
    told = "with every slot full" if most else "not every slot can be full at once"
    return f"{most:,}" if most else UNKNOWN, "Tokens of context", told


def _curves(drawn: Sequence[Document], beside: Sequence[MeasuredRun], goal: Document, again: Again) -> list[Markup]:
    dots = " Numbers: runs on such cards, hollow where simulated." if beside else ""
    pictures = tag(
        "div",
        figure(speed_chart(drawn, beside), "Effective tok/s", f"Shaded: the band of A.{dots}"),
        figure(wait_chart(drawn, beside), "Time to the first token", "Mean over all tasks; measured: the median."),
        class_="charts",
    )
    return [pictures, _legend(drawn, beside, goal, again)]


def _legend(drawn: Sequence[Document], beside: Sequence[MeasuredRun], goal: Document, again: Again) -> Markup:
    entries = [tag("li", tag("b", text(chr(65 + place))), text(layout_name(plan))) for place, plan in enumerate(drawn)]
    for place, one in enumerate(beside, 1):
        told = f"{'simulated' if one.simulated else 'measured'} {moment(one.created_at)}, {one.engine} {one.layout}"
        link = tag("a", text(told), href=f"/runs/{one.run_id}")
        said = tag("span", link, *_other_load(one, goal, again))
        entries.append(tag("li", mark_of(one, place), tag("b", text(place)), said))
    return tag("ul", *entries, class_="legend")


def _other_load(one: MeasuredRun, goal: Document, again: Again) -> list[Markup]:
    """A curve for other prompts and answers than those of the run says little about it: a way to the one that does."""
    if one.input_tokens is None or one.output_tokens is None:
        return []
    wanted = (one.input_tokens, one.output_tokens)
    planned = (goal["input_tokens"], goal["output_tokens"])
    if all(abs(a / b - 1) <= _SAME_LOAD for a, b in zip(wanted, planned, strict=True)):
        return []
    had = f"Its prompts had {wanted[0]:,} tokens, its answers {wanted[1]:,}"
    said = f"{had}; planned are {planned[0]:,} and {planned[1]:,}: "
    return [tag("br"), tag("small", text(said), tag("a", text("plan for its load"), href=again(*wanted)))]


def _bars(plans: Sequence[Document]) -> list[Markup]:
    places = places_of(plans)
    return [_memory(plan, letter, places) for letter, plan in zip("AB", plans, strict=False)]


def _memory(plan: Document, letter: str, places: Mapping[str, int]) -> Markup:
    terms, have = plan["memory"], plan["card_bytes"]
    rows = [
        tag("li", swatch(places[term["term"]]), tag("span", text(term["term"])),
            tag("b", text(f"{term['bytes'] / GIB:.2f} GiB")),
            title=term["how"] + ("" if term["inside"] else "; beside the engine's budget"))
        for term in terms
    ]  # fmt: skip
    used = sum(term["bytes"] for term in terms)
    free = tag("li", tag("span", text("free"), class_="free"), tag("b", text(f"{max(have - used, 0) / GIB:.2f} GiB")))
    most = plan["largest_context"]
    at_once = f"at once {plan['slots']} sequences" + (f" of {most:,} tokens" if most else " do not all fit when full")
    caption = f"{used / GIB:.1f} of {have / GIB:.1f} GiB a card; {at_once}"
    body = join([memory_bar(terms, have, places), tag("ul", *rows, free, class_="terms-list")])
    return figure(body, f"{letter}: {layout_name(plan)}", caption)


def _layouts(plans: Sequence[Document], agents: int) -> Markup:
    names = ("", "Layout", "Rig", "KV", "Slots", "Context", "tok/s", "low", "high", "each", "first token")
    head = head_row(names, names[:4])
    rows = []
    for place, plan in enumerate(plans):
        at = _at(plan, agents)
        figures = (number(plan["slots"], digits=0), f"{plan['context']:,}", number(at["effective_tok_s"]),
                   number(at["low"]), number(at["high"]), number(at["task_tok_s"]),
                   milliseconds(at["ttft_ms"]))  # fmt: skip
        cells = (layout_name(plan), plan["rig"], plan["kv_dtype"])
        rows.append(
            tag("tr", tag("th", text(chr(65 + place) if place < 26 else ""), scope="row"),
                *(tag("td", text(cell), class_="left") for cell in cells), *(tag("td", text(one)) for one in figures),
                class_=None if place else "best")
        )  # fmt: skip
    return table(f"Expected with {agents} agents at once", [head], rows)


def _measured(measured: Sequence[MeasuredRun]) -> Markup:
    if not measured:
        said = "None is stored. After `skep bench sweep` on this model its points stand beside the curve."
        return tag("p", text(said), class_="below")
    names = ("When", "Machine", "Engine", "best tok/s", "at C", "TTFT p50, C = 1")
    head = head_row(names, names[:3])
    rows = []
    for one in measured:
        best = max(one.points, key=lambda point: point.effective_tok_s)
        alone = next((point.ttft_ms for point in one.points if point.concurrency == 1), None)
        flag = tag("span", text("simulated"), class_="flag sky") if one.simulated else None
        same = tag("span", text("these cards"), class_="flag moss") if one.same_rig else None
        rows.append(
            tag("tr", tag("th", tag("a", text(moment(one.created_at)), href=f"/runs/{one.run_id}"), scope="row"),
                tag("td", text(one.machine), flag, same, class_="left"),
                tag("td", text(f"{one.engine} {one.layout}"), class_="left"),
                *(tag("td", text(cell)) for cell in (number(best.effective_tok_s), best.concurrency,
                                                     milliseconds(alone))))
        )  # fmt: skip
    return table("Measured runs of this model", [head], rows)


def _rules(best: Document) -> Markup | None:
    spoken = [rule for rule in best["rules"] if rule["verdict"] in ("costs", "depends")]
    if not spoken:
        return None
    lines = [f"{rule['verdict']}: {rule['sentence']} ({rule['source']})" for rule in spoken]
    return section("rules", "What depends, and what costs", _list(lines))


def _commands(best: Document, command: str) -> list[Markup]:
    lines = [*best["launch"], *([best["gateway"]] if best["gateway"] else [])]
    shown = [tag("pre", tag("code", text(line))) for line in lines]
    asked = tag("p", text("The same plan at the command line: "), tag("code", text(command)), class_="below")
    return [*shown, asked]


def _dropped(rejected: Sequence[Document]) -> Markup | None:
    if not rejected:
        return None
    lines = []
    for one in rejected:
        layout = one["topology"]
        name = f"{layout['replicas']} x TP={layout['tp']} PP={layout['pp']} EP={layout['ep']}"
        lines.append(f"{name}, {', '.join(one['quants'])}: {one['reason']}")
    summary = tag("summary", text(f"{len(lines)} layouts were dropped"))
    return section("dropped", "What was dropped", tag("details", summary, _list(lines)))


def _list(lines: Sequence[str]) -> Markup:
    return tag("ul", join(tag("li", text(one)) for one in lines), class_="checks")
