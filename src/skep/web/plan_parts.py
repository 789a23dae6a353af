"""What the plan page shows of a plan: a sentence, the curve beside what was measured, memory, layouts, reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from skep.report import theme
from skep.report.charts import ChartCurve, curves_chart
from skep.report.markup import Markup, banner, card, figure, join, section, table, tag, text, trusted
from skep.report.svg import picture
from skep.units import GIB, UNKNOWN, milliseconds, moment, number
from skep.web.layout import head_row
from skep.web.plan_measured import MOST_DRAWN, MeasuredRun

BAR = 1000
_DASHES: tuple[tuple[int, ...], ...] = ((), (7, 4), (2, 3))
_SHAPES = {"diamond": "M8 2l6 6l-6 6l-6 -6z", "square": "M3 3h10v10h-10z", "triangle-up": "M8 2l6 11h-12z"}  # of runs


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


def mark_of(one: MeasuredRun, place: int) -> Markup:
    """The shape of a measured run, for the list below the pictures."""
    shape = tag("path", d=list(_SHAPES.values())[(place - 1) % 3], fill=theme.PAPER if one.simulated else theme.ROSE,
                stroke=theme.ROSE, stroke_width="1.5")  # fmt: skip
    return tag("svg", shape, viewBox="0 0 16 16", aria_hidden="true", class_="mark-of")


def _told(point: Document) -> str:
    return (
        f"C = {point['concurrency']}: {number(point['effective_tok_s'])} tok/s, {number(point['low'])} to "
        f"{number(point['high'])}, the first token after {milliseconds(point['ttft_ms'])}"
    )


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
