"""The page of a plan, made of the document of `skep plan --json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import convert

from skep.deploy.plan_request import FigureBeside
from skep.planner.setup import Layout, Speculation, find_kv, find_quant
from skep.report.plan import (
    correction_words,
    engine_words,
    rejected_words,
    setup_words,
    signed_percent,
)
from skep.units import GIB, milliseconds, number

if TYPE_CHECKING:
    from skep.report.charts import Spec

Document = Mapping[str, Any]
_DRAWN = 3  # plans with a curve on a page


def plan_page(document: Document) -> str:
    """Return one HTML document that needs no other file and no network.

    Nothing on it was measured, and it says so.
    """
    from skep.report.page import render

    plans = document["plans"]
    agents = document["goal"]["agents"]
    best = plans[0]
    drawn = [plan for plan in plans if len(plan["predicted"]) > 2][:_DRAWN]
    legend = "; ".join(
        f"{chr(65 + n)}: {layout_name(plan)} on {plan['rig']}" for n, plan in enumerate(drawn)
    )
    memory = [(term["term"], term["bytes"] / GIB) for term in best["memory"]]
    pictures = [
        (predicted_chart(drawn, "effective_tok_s", "tok/s"), "Effective tok/s", legend),
        (predicted_chart(drawn, "ttft_ms", "ms"), "Time to first token", "mean over all tasks"),
        (_bars(memory, "GiB"), "Memory of one GPU", f"of {best['card_bytes'] / GIB:.1f} GiB"),
    ]
    figures: list[FigureBeside] = []
    if document["preset"]:
        figures = convert(document["preset"]["figures"], list[FigureBeside])
    return render(
        "plan_page.html",
        kind="plan",
        name="plan",
        title=f"{document['model']} on {best['rig']}",
        found=document,
        best=best,
        at=level_of(best, agents),
        agents=agents,
        drawn=pictures,
        correction=correction_words(figures),
        signed_percent=signed_percent,
        level_of=level_of,
        layout_name=layout_name,
        rejected_name=rejected_name,
    )


def layout_name(plan: Document) -> str:
    """Return what a plan of the document runs, in the words of the command line."""
    method, _, depth = (plan["spec"] or "").partition(":")
    spec = Speculation(method, int(depth)) if method else None
    layout = convert(plan["topology"], Layout)
    engine = engine_words(plan["engine"], graphs=plan["graphs"])
    return setup_words(layout, find_quant(plan["quant"]), find_kv(plan["kv_dtype"]), spec, engine)


def rejected_name(rejected: Document) -> str:
    return rejected_words(
        convert(rejected["topology"], Layout), rejected["quants"], rejected["engine"]
    )


def level_of(plan: Document, agents: int) -> Document:
    document: Document = next(
        (p for p in plan["predicted"] if p["concurrency"] == agents), plan["predicted"][-1]
    )
    return document


def predicted_chart(plans: Sequence[Document], field: str, unit: str) -> Spec | None:
    """Return one curve a plan, its letter at the end, the first with its band."""
    from skep.report import theme
    from skep.report.charts import DASHES, ChartCurve, curves_chart

    curves = []
    for place, plan in enumerate(plans):
        levels = {level["concurrency"]: level for level in plan["predicted"]}
        banded = field == "effective_tok_s" and not place
        points = [(c, level[field]) for c, level in levels.items()]
        if banded:
            ranges = {c: (level["low"], level["high"]) for c, level in levels.items()}
        else:
            ranges = {}
        curves.append(
            ChartCurve(
                points,
                theme.SERIES[place],
                end=chr(65 + place),
                dash=DASHES[place],
                ranges=ranges,
                tips={c: _tip(level) for c, level in levels.items()},
                shaded=banded,
            )
        )
    return curves_chart(curves, unit)


def _tip(level: Document) -> str:
    """Return what is read where the pointer rests on a point."""
    speed = number(level["effective_tok_s"])
    band = f"{number(level['low'])} to {number(level['high'])}"
    first_token = milliseconds(level["ttft_ms"])
    return f"C = {level['concurrency']}: {speed} tok/s, {band}, time to first token {first_token}"


def _bars(values: Sequence[tuple[str, float]], unit: str) -> Spec:
    from skep.report.charts import bars_chart

    digits = 2 if unit == "GiB" else 0
    rows = [
        {"name": name, "value": value, "label": f"{value:,.{digits}f}"} for name, value in values
    ]
    return bars_chart(rows, unit, room=1.25)
