"""What others measured with the same model on the same cards, beside what a plan expects there."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any

import msgspec

from skep.planner.choose import Plan, PlanChoice
from skep.planner.quants import QUANTS
from skep.planner.ranking import band
from skep.planner.setup import Layout, PlannedLoad, Speculation

EVIDENCE = "measured on "  # begins a note about such a figure


class Measured(msgspec.Struct, frozen=True):
    tok_s: float
    load: PlannedLoad
    metric: str  # effective: over wall time; decode: agents x the speed of a stream once it runs
    way: str  # layout, drafts and engine, as plans write them
    quant: str | None
    where: str


def evidence(choices: Sequence[PlanChoice], agents: int) -> list[str]:
    """Return a sentence a rig: of all that was measured on it the fastest at about as many agents."""
    said = []
    for rig, plans in ((choice.rig.title, choice.plans) for choice in choices if choice.plans):
        found = list(measurements(plans[0]))
        if found:
            nearest = min(abs(math.log2(one.load.concurrency / agents)) for one in found)
            near = [one for one in found if abs(math.log2(one.load.concurrency / agents)) <= nearest + 0.5]
            said.append(_sentence(rig, plans, max(near, key=lambda one: one.tok_s)))
    return said


def measurements(plan: Plan) -> Iterator[Measured]:
    """Yield what presets and published tables have of its model on its cards."""
    from skep.config.presets import preset_tables

    model = plan.setup.model.id
    counted = Counter(card.id for card in plan.rated.rig.cards)
    cards = " + ".join(f"{count}x {name}" if count > 1 else name for name, count in counted.items())
    for name, preset in preset_tables(model).items():
        if preset["hardware"] != cards or preset.get("history"):
            continue
        at_once = preset.get("slots", 1) * preset.get("replicas", 1)  # with more, somebody waited
        for row in preset.get("published", ()):
            metric = "effective" if row["metric"] == "output" else row["metric"]
            stated = "input_tokens" in row and "output_tokens" in row  # a stream's own rate hardly depends on them
            if row["concurrency"] <= at_once and (metric == "decode" or (metric == "effective" and stated)):
                load = PlannedLoad(row["concurrency"], row.get("input_tokens", 128), row.get("output_tokens", 512))
                yield Measured(row["tok_s"], load, metric, _preset_way(preset), None, f"preset {name}")
    for line in files("skep.planner").joinpath("published.tsv").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{model}\t{cards}\t"):
            _, _, way, quant, concurrency, prompt, answer, shape, spread, metric, tok_s, source = line.split("\t")
            load = PlannedLoad(int(concurrency), int(prompt), int(answer), shape=shape, spread=float(spread))
            yield Measured(float(tok_s), load, metric, way, quant, source)


def _sentence(rig: str, plans: Sequence[Plan], measured: Measured) -> str:
    best, load = plans[0], measured.load
    here = best.rated.prospect.figure(load, measured.metric)
    differs = measured.way != _plan_way(best)
    alike = not differs and measured.quant in (None, best.setup.quant.id)
    how = [f"with {measured.way}"] if differs else []
    how += [QUANTS[measured.quant].title] if measured.quant not in (None, best.setup.quant.id) else []
    same = next((one for one in plans[1:] if differs and _plan_way(one) == measured.way), None)  # as they did it
    why = f", and {same.rated.prospect.figure(load, measured.metric):,.0f} with that layout" if same else ""
    around = band(best.setup, best.rated.card, load.concurrency)
    slots = (best.setup.slots or load.concurrency) * best.setup.layout.replicas
    if slots < load.concurrency:
        why = f" with its {slots} slot{'s' if slots > 1 else ''} for longer tasks"
    elif alike and not here * around.low <= measured.tok_s <= here * around.high:
        why = "; trust the measurement, not the plan"
    alone = measured.metric == "decode" and load.concurrency == 1  # the speed of one stream, whatever its length
    task = "" if alone else f"{load.input_tokens:g} tokens in, {load.output_tokens:g} out, "
    pure = " while they decode" if measured.metric == "decode" and not alone else ""
    found = " ".join([f"{measured.tok_s:,.0f} tok/s{pure}", *filter(None, [", ".join(how)])])
    return (
        f"{EVIDENCE}{rig}: {found} at {task}C={load.concurrency} ({measured.where}); this plan "
        f"expects {here:,.0f} there, {(here / measured.tok_s - 1) * 100:+.0f} %{why}"
    )


def _preset_way(preset: dict[str, Any]) -> str:
    options = preset.get("options", {})
    tp, replicas = options.get("tp", 1), preset.get("replicas", 1) * options.get("dp", 1)
    method, _, depth = options.get("speculation", "").partition(":")
    layout = Layout(tp, options.get("pp", 1), tp if options.get("ep") else 1, replicas)
    return way_of(layout, Speculation(method, int(depth)) if method else None, preset["engine"])


def _plan_way(plan: Plan) -> str:
    return way_of(plan.setup.layout, plan.setup.spec, plan.setup.engine)


def way_of(layout: Layout, spec: Speculation | None, engine: str) -> str:
    return f"{layout}{f', {spec}' if spec else ''} ({engine})"
