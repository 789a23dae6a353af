"""What the plan page shows of a plan: a sentence, the curve beside what was measured, memory, layouts, reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from skep.report.figures import UNKNOWN, milliseconds, moment, number
from skep.report.markup import Markup, banner, card, figure, join, section, table, tag, text
from skep.units import GIB
from skep.web.plan_chart import mark_of, memory_bar, places_of, speed_chart, swatch, wait_chart
from skep.web.plan_measured import MOST_DRAWN, Measured

Document = Mapping[str, Any]
Again = Callable[[int, int], str]
_DRAWN = 3
_SAME_LOAD = 0.25  # as a share
COLUMNS = ("rig", "layout", "engine", "quant", "kv_dtype", "slots", "context", "concurrency", "effective_tok_s", "low",
           "high", "task_tok_s", "ttft_ms", "tpot_ms", "source", "run")  # fmt: skip


def plan_parts(found: Document, measured: Sequence[Measured], command: str, again: Again) -> Markup:
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


def plan_rows(found: Document, measured: Sequence[Measured]) -> list[list[Any]]:
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


def _curves(drawn: Sequence[Document], beside: Sequence[Measured], goal: Document, again: Again) -> list[Markup]:
    dots = " Numbers: runs on such cards, hollow where simulated." if beside else ""
    pictures = tag(
        "div",
        figure(speed_chart(drawn, beside), "Effective tok/s", f"Shaded: the band of A.{dots}"),
        figure(wait_chart(drawn, beside), "Time to the first token", "Mean over all tasks; measured: the median."),
        class_="charts",
    )
    return [pictures, _legend(drawn, beside, goal, again)]


def _legend(drawn: Sequence[Document], beside: Sequence[Measured], goal: Document, again: Again) -> Markup:
    entries = [tag("li", tag("b", text(chr(65 + place))), text(layout_name(plan))) for place, plan in enumerate(drawn)]
    for place, one in enumerate(beside, 1):
        told = f"{'simulated' if one.simulated else 'measured'} {moment(one.created_at)}, {one.engine} {one.layout}"
        link = tag("a", text(told), href=f"/runs/{one.run_id}")
        said = tag("span", link, *_other_load(one, goal, again))
        entries.append(tag("li", mark_of(one, place), tag("b", text(place)), said))
    return tag("ul", *entries, class_="legend")


def _other_load(one: Measured, goal: Document, again: Again) -> list[Markup]:
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
    left = names[:4]
    head = tag("tr", *(tag("th", text(name), scope="col", class_="left" if name in left else None) for name in names))
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


def _measured(measured: Sequence[Measured]) -> Markup:
    if not measured:
        said = "None is stored. After `skep bench sweep` on this model its points stand beside the curve."
        return tag("p", text(said), class_="below")
    names = ("When", "Machine", "Engine", "best tok/s", "at C", "TTFT p50, C = 1")
    head = tag("tr", *(tag("th", text(name), scope="col", class_="left" if i < 3 else None)
                       for i, name in enumerate(names)))  # fmt: skip
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
