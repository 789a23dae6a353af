"""What a plan says about sessions of agents: sentences, and a table with a row for each number
of sessions.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from skep.catalog.session_shapes import find_shape
from skep.planner.choose import Plan
from skep.planner.session_outlook import SessionLevel, SessionOutlook
from skep.report.columns import Column, plural
from skep.units import format_seconds

# A context of at least this share of the wanted one gets no warning: nobody notices the rest.
_ENOUGH_SHARE = 0.95


class SessionRow(Struct, frozen=True):
    """The figures for one number of sessions, with and without KV in RAM."""

    level: SessionLevel
    with_ram: SessionLevel | None


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _turns_with_ram(row: SessionRow) -> float | None:
    if row.with_ram is None:
        return None
    return row.with_ram.turns_per_min


SESSIONS: tuple[Column[SessionRow], ...] = (
    Column("sessions", "SESSIONS", lambda row: row.level.sessions),
    Column(
        "turns_per_min", "TURNS/MIN", lambda row: row.level.turns_per_min, lambda n: f"{n:.1f}"
    ),
    Column("session_s", "A SESSION", lambda row: format_seconds(row.level.session_s)),
    Column("first_token_s", "FIRST TOKEN", lambda row: format_seconds(row.level.first_token_s)),
    Column(
        "first_token_p95_s",
        "P95",
        lambda row: format_seconds(row.level.first_token_p95_s),
        rank=1,
    ),
    Column("hit_share", "HITS", lambda row: _percent(row.level.hit_share)),
    Column("possible_share", "POSSIBLE", lambda row: _percent(row.level.possible_share), rank=1),
    Column(
        "with_ram",
        "WITH KV IN RAM",
        _turns_with_ram,
        lambda n: f"{n:.1f}",
        rank=2,
        optional=True,
    ),
)


def session_rows(outlook: SessionOutlook) -> list[SessionRow]:
    with_ram: Sequence[SessionLevel | None] = outlook.levels_with_ram or (None,) * len(
        outlook.levels
    )
    return [
        SessionRow(level, ram_level)
        for level, ram_level in zip(outlook.levels, with_ram, strict=True)
    ]


def level_at(outlook: SessionOutlook, sessions: int) -> SessionLevel:
    return next(level for level in outlook.levels if level.sessions == sessions)


def speed_line(outlook: SessionOutlook, agents: int) -> str:
    level = level_at(outlook, agents)
    turns = find_shape(outlook.shape).turns.median
    return (
        f"{level.turns_per_min:.1f} turns/min together; a session of {turns:.0f} turns takes "
        f"{format_seconds(level.session_s)}, pauses for its tools included"
    )


def wait_line(plan: Plan, outlook: SessionOutlook) -> str:
    level = level_at(outlook, plan.rated.goal.agents)
    return (
        f"first token of a turn after {format_seconds(level.first_token_s)} "
        f"(p95 {format_seconds(level.first_token_p95_s)}); a session may have "
        f"{plan.setup.context:,} tokens"
    )


def warm_line(outlook: SessionOutlook) -> str:
    """Return how many sessions stay warm, where the cliff is, and what KV in RAM would add."""
    warm = (
        f"{plural(outlook.warm_sessions, 'session')} of {outlook.typical_tokens:,} tokens "
        f"{'stays' if outlook.warm_sessions == 1 else 'stay'} warm"
    )
    parts = [warm]
    if outlook.cliff is not None:
        following = next(
            level.sessions for level in outlook.levels if level.sessions > outlook.cliff
        )
        parts.append(f"session cliff between {outlook.cliff} and {following}")
    else:
        parts.append(f"no session cliff up to {outlook.levels[-1].sessions}")
    if outlook.warm_in_ram is not None:
        parts.append(f"with KV in RAM, too, {outlook.warm_in_ram} stay warm")
    return "; ".join(parts)


def load_words(outlook: SessionOutlook) -> str:
    shape = find_shape(outlook.shape)
    return (
        f"--load {shape.name}: {shape.shared_tokens:,} shared tokens, {shape.turns.median:.0f} "
        f"turns, sessions grown to all sizes that {outlook.window_tokens:,} tokens hold"
    )


def window_warning(plan: Plan) -> str | None:
    """Return a warning where a session gets less context than agents of its kind want; None: it
    gets enough.
    """
    rated = plan.rated
    goal = rated.goal
    if goal.shape is None:
        return None
    shape = find_shape(goal.shape)
    window = plan.setup.context or 0
    if window >= _ENOUGH_SHARE * shape.wanted_window_tokens:
        return None
    if window < shape.least_window_tokens:
        return (
            f"A SESSION GETS {window:,} TOKENS OF CONTEXT: agents of this kind cannot work with "
            f"less than {shape.least_window_tokens:,}"
        )
    return (
        f"a session gets {window:,} tokens of context: agents of this kind compact often below "
        f"{shape.wanted_window_tokens:,}"
    )
