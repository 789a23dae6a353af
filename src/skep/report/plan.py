"""The page of a plan: what is expected of the best layouts, what one card holds, where a step's time goes, and why.

Takes the document of `skep plan --json --explain`, gives text. Nothing on it was measured, and it says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from skep.report import theme
from skep.report.charts import ChartCurve, Spec, bars_chart, curves_chart
from skep.report.markup import Markup, banner, card, join, section, tag, text, text_table
from skep.report.style import document, mark
from skep.report.svg import chart_figure

Document = Mapping[str, Any]
_DASHES: tuple[tuple[int, ...], ...] = ((), (7, 4), (2, 3))
_SHAPES = ("circle", "square", "triangle-up")
_DRAWN = len(_SHAPES)
_GIB = 1 << 30


def plan_page(found: Document) -> str:
    """One HTML document that needs no other file and no network."""
    plans: Sequence[Document] = found["plans"]
    best, agents = plans[0], found["goal"]["agents"]
    drawn = [plan for plan in plans if len(plan["predicted"]) > 2][:_DRAWN]
    header = tag(
        "header",
        mark("plan"),
        tag("h1", text(f"{found['model']} on {best['rig']}")),
        banner("note", "Predicted, not measured.", "LOW to HIGH is where 8 of 10 measurements should lie."),
        tag("p", text(_lead(best, agents)), class_="lead"),
    )
    legend = "; ".join(f"{chr(65 + n)}: {layout_name(plan)} on {plan['rig']}" for n, plan in enumerate(drawn))
    pictures = tag(
        "div",
        chart_figure(_curves(drawn, "effective_tok_s", "tok/s", banded=True), "Effective tok/s", legend),
        chart_figure(_curves(drawn, "ttft_ms", "ms"), "Time to the first token", "mean over all tasks"),
        chart_figure(_bars([(t["term"], t["bytes"] / _GIB) for t in best["memory"]], "GiB"), "What one card holds",
                     f"{best['card_bytes'] / _GIB:.1f} GiB are there"),
        *(_step(part) for part in best.get("explain", ())[-1:]),
        class_="charts",
    )  # fmt: skip
    main = tag(
        "main",
        _cards(best, agents),
        section("pictures", "What to expect", pictures),
        section("layouts", "Layouts, best first", _layouts(plans, agents)),
        section("why", "Why this one", _list(best["why"])),
        section("rules", "What depends, and what costs", _list(_rules(best))),
        section("start", "How to start it", *(tag("p", tag("code", text(one))) for one in _commands(best))),
        section("dropped", "What was dropped", _dropped(found["rejected"])),
        section("notes", "Notes", _list(found["notes"])) if found["notes"] else None,
    )
    return document(f"{found['model']} on {best['rig']}: skep plan", header, main)


def _lead(best: Document, agents: int) -> str:
    at = level_of(best, agents)
    return (
        f"{layout_name(best)} gives {agents} agents {at['effective_tok_s']:,.0f} tok/s together ({at['low']:,.0f} to "
        f"{at['high']:,.0f}), {at['task_tok_s']:,.0f} each, the first token after {_seconds(at['ttft_ms'])}."
    )


def layout_name(plan: Document) -> str:
    layout = plan["topology"]
    parts = [f"TP={layout['tp']}", *(f"{k.upper()}={layout[k]}" for k in ("pp", "ep") if layout[k] > 1)]
    where = f"{layout['replicas']} x {' + '.join(parts)}" if layout["replicas"] > 1 else " + ".join(parts)
    return ", ".join(filter(None, (where, plan["quant"], plan["spec"], plan["engine"])))


def level_of(plan: Document, agents: int) -> Document:
    found: Document = next((p for p in plan["predicted"] if p["concurrency"] == agents), plan["predicted"][-1])
    return found


def _seconds(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def _cards(best: Document, agents: int) -> Markup:
    at = level_of(best, agents)
    shown = [
        card(f"{at['effective_tok_s']:,.0f}", "tok/s together", f"{at['low']:,.0f} to {at['high']:,.0f}"),
        card(f"{at['task_tok_s']:,.0f}", "tok/s each", f"with {agents} at once"),
        card(_seconds(at["ttft_ms"]), "first token", f"then one every {at['tpot_ms']:.1f} ms"),
        card(f"{best['largest_context']:,}", "tokens of context", "with every slot full"),
    ]
    return tag("dl", *shown, class_="cards")


def _curves(plans: Sequence[Document], field: str, unit: str, *, banded: bool = False) -> Spec | None:
    """Return one curve a plan, its letter at the end; where banded, a rule from low to high at each level."""
    curves = []
    for place, plan in enumerate(plans):
        points = [(level["concurrency"], level[field]) for level in plan["predicted"]]
        ranges = {level["concurrency"]: (level["low"], level["high"]) for level in plan["predicted"]} if banded else {}
        look = (chr(65 + place), _DASHES[place], _SHAPES[place])
        curves.append(ChartCurve(points, theme.SERIES[place], *look, ranges=ranges))
    return curves_chart(curves, unit)


def _bars(values: Sequence[tuple[str, float]], unit: str) -> Spec:
    digits = 2 if unit == "GiB" else 0
    rows = [{"name": name, "value": value, "label": f"{value:,.{digits}f}"} for name, value in values]
    return bars_chart(rows, unit, room=1.25)


def _step(part: Document) -> Markup:
    values = [(term["name"], term["seconds"] * 1e6) for term in part["terms"]]
    caption = f"{part['sequences']} sequences, {part['seconds'] * 1e6:,.0f} us in all"
    return chart_figure(_bars(values, "us"), "Where a step's time goes", caption)


def _layouts(plans: Sequence[Document], agents: int) -> Markup:
    columns = (("Rig", "left"), ("Layout", "left"), ("KV", "left"), "Slots", "Context", "tok/s", "low", "high", "each",
               "first token")  # fmt: skip
    rows = []
    for plan in plans:
        at = level_of(plan, agents)
        figures = (f"{at[name]:,.0f}" for name in ("effective_tok_s", "low", "high", "task_tok_s"))
        which = (plan["rig"], layout_name(plan), plan["kv_dtype"], plan["slots"], f"{plan['context']:,}")
        rows.append((*which, *figures, _seconds(at["ttft_ms"])))
    return text_table(f"Expected with {agents} agents at once", columns, rows, best=[0])


def _rules(best: Document) -> list[str]:
    spoken = [r for r in best["rules"] if r["verdict"] in ("costs", "depends")]
    return [f"{r['verdict']}: {r['sentence']} ({r['source']})" for r in spoken] or ["nothing"]


def _commands(best: Document) -> list[str]:
    return [*best["launch"], *([best["gateway"]] if best["gateway"] else [])]


def _dropped(rejected: Sequence[Document]) -> Markup:
    if not rejected:
        return tag("p", text("Nothing."))
    shown = []
    for one in rejected:
        layout = one["topology"]
        name = f"{layout['replicas']} x TP={layout['tp']} PP={layout['pp']} EP={layout['ep']}"
        shown.append(f"{one['rig']}, {name}, {', '.join(one['quants'])}: {one['reason']}")
    return _list(shown)


def _list(lines: Sequence[str]) -> Markup:
    return tag("ul", join(tag("li", text(one)) for one in lines))
