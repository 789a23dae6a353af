"""KV types below 8 bits and agents: whether a plan gives sessions one that nobody has shown to be
good enough.
"""

from __future__ import annotations

from skep.planner.choose import Plan

FEWEST_BYTES = 1.0  # of a value in the KV cache; what has fewer is below 8 bits


def gives_small_kv(plan: Plan) -> bool:
    """Return whether sessions of agents get a KV type below 8 bits. Only a user, or the author of
    a preset, chooses one.
    """
    is_for_sessions = plan.rated.goal.shape is not None
    return is_for_sessions and plan.setup.kv.bytes < FEWEST_BYTES


def kv_caveat(plan: Plan, shown_by: str) -> str | None:
    """Return a warning of a KV type below 8 bits; None: sessions get none, or a stored comparison
    has shown that it answers as well. `shown_by`: the run that did; empty: none.
    """
    if not gives_small_kv(plan) or shown_by:
        return None
    title = plan.setup.kv.title
    return (
        f"KV OF {title} HAS LESS THAN 8 BITS, which is not shown to be good enough for tool "
        "calls: `skep bench quality --bank tools`, with it and with KV of 16 bits, can show it"
    )
