"""The document of `skep plan --json`, which its page is made of too."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from skep.bench.planning import Answer
from skep.engines.commands import command_lines, gateway_line
from skep.planner.choice import Choice, Plan
from skep.planner.explain import account
from skep.planner.setup import Layout


def document(found: Answer, *, explain: bool = False) -> dict[str, Any]:
    """The JSON of docs/plan.md."""
    runner = [choice.runner_up for choice in found.choices]
    return {
        "model": found.model.geometry.id,
        "goal": {**asdict(found.goal), "limits": dict(found.goal.limits)},
        "rigs": [rig_document(choice) for choice in found.choices],
        "plans": [plan_document(found, choice, plan, explain=explain) for choice, plan in found.ranked],
        "rejected": [
            {"rig": choice.rig.title, "topology": topology(r.layout), "engine": r.engine, "quants": list(r.quants),
             "rule": r.rule, "reason": r.reason, "remedy": r.remedy}
            for choice in found.choices for r in choice.rejected
        ],
        "runner_up": [
            {"rig": choice.rig.title, "topology": topology(r.plan.setup.layout), "quant": r.plan.setup.quant.id,
             "behind": round(r.behind, 4), "why": r.why, "wins_if": list(r.wins_if), "tried": list(r.tried)}
            for choice, r in zip(found.choices, runner, strict=True) if r is not None
        ],
        "further_cards": [
            {"rig": choice.rig.title, "cards": f.cards, "topology": topology(f.layout) if f.layout else None,
             "effective_tok_s": f.effective_tok_s, "share": f.share}
            for choice in found.choices for f in choice.further
        ],
        "other_engines": [plan_document(found, c, p, explain=explain) for c in found.choices for p in c.others],
        "notes": list(found.notes),
    }  # fmt: skip


def rig_document(choice: Choice) -> dict[str, Any]:
    rig = choice.rig
    return {
        "rig": rig.title,
        "cards": [card.id for card in rig.cards],
        "numbers": list(choice.order),
        "link": asdict(rig.default_link) if rig.default_link else None,
        "pairs": [{"cards": [choice.order[a], choice.order[b]], **asdict(link)} for a, b, link in rig.pairs],
        "price": rig.price,
    }


def topology(layout: Layout) -> dict[str, int]:
    return {"tp": layout.tp, "pp": layout.pp, "ep": layout.ep, "replicas": layout.replicas}


def plan_document(found: Answer, choice: Choice, plan: Plan, *, explain: bool = False) -> dict[str, Any]:
    setup, memory = plan.setup, plan.memory
    at = plan.rated.outcome.effective_tok_s
    watts = watts_of(plan)
    made: dict[str, Any] = {
        "rig": choice.rig.title,
        "engine": setup.engine,
        "topology": topology(setup.layout),
        "quant": setup.quant.id,
        "kv_dtype": setup.kv.id,
        "slots": setup.slots,
        "spec": f"{setup.spec.method}:{setup.spec.depth}" if setup.spec else None,
        "context": setup.context,
        "utilization": setup.utilization,
        "graphs": setup.graphs,
        "memory": [{"term": t.name, "bytes": t.bytes, "how": t.how, "inside": t.inside} for t in memory.terms],
        "card_bytes": memory.usable_bytes,
        "largest_context": plan.largest_context,
        "largest_slots": plan.largest_slots,
        "predicted": [
            {"concurrency": p.concurrency, "effective_tok_s": round(p.effective_tok_s, 4),
             "task_tok_s": round(p.task_tok_s, 4), "ttft_ms": round(p.ttft_ms, 2), "tpot_ms": round(p.tpot_ms, 4),
             "low": round(p.low, 4), "high": round(p.high, 4)}
            for p in plan.predicted
        ],
        "meets_slo": plan.rated.over_limit <= 1.0 if found.goal.limits else None,
        "launch": list(commands_of(plan)),
        "gateway": gateway_line(setup, plan.rated.rig),
        "why": list(plan.why),
        "rules": [asdict(finding) for finding in plan.rated.findings],
        "price": choice.rig.price,
        "tok_s_per_price": round(at / choice.rig.price, 4) if choice.rig.price else None,
        "tok_s_per_watt": round(at / watts, 4) if watts else None,
    }  # fmt: skip
    if explain:
        levels = dict.fromkeys((1, found.goal.agents))
        made["explain"] = [asdict(account(plan.rated.prospect, found.goal, level)) for level in levels]
    return made


def commands_of(plan: Plan) -> tuple[str, ...]:
    """One a replica, or a machine."""
    return command_lines(plan.setup, plan.rated.rig, checkpoint=plan.checkpoint, order=plan.order)


def watts_of(plan: Plan) -> float | None:
    """Of the cards in use, by their data sheets."""
    cards = plan.rated.rig.cards[: plan.setup.layout.cards]
    known = [card.tdp_w for card in cards if card.tdp_w is not None]
    return sum(known) if len(known) == len(cards) else None
