"""What sessions get from a setup: how many stay warm, turns a minute at several numbers of them,
and the number beyond which they push each other out of the KV cache.

Plays sessions that are under way (`planner.sessions`) on the setup's speed model.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
from msgspec.structs import replace

from skep.catalog.session_shapes import (
    STEADY_TURNS,
    SessionShape,
    mean_of,
    prompt_totals,
    steady_sessions,
    typical_tokens,
)
from skep.planner.caching import CachingReplica, KvTier
from skep.planner.predict import SpeedModel
from skep.planner.sessions import play_sessions

# Blocks are coarse: a plan tells sessions apart, not tokens.
_BLOCK_TOKENS = 512
# Fewer turns a minute than so much of the most are a loss.
_LOSS = 0.97
# Hits that are so far below the possible ones are a loss.
_LOST_HITS = 0.10


class SessionLevel(msgspec.Struct, frozen=True):
    """What so many sessions at once get. First tokens are of turns after a session's first."""

    sessions: int
    turns_per_min: float
    session_s: float  # one of the usual number of turns, pauses included
    first_token_s: float
    first_token_p95_s: float
    hit_share: float
    possible_share: float
    preemptions: int


class SessionOutlook(msgspec.Struct, frozen=True):
    """What a setup does for sessions of a shape.

    `cliff`: the most sessions of those levels before turns a minute fall or hits are lost; None:
    that begins at none of them.
    """

    shape: str
    window_tokens: int  # that a session may have
    typical_tokens: int  # that it has on average
    warm_sessions: int
    levels: tuple[SessionLevel, ...]
    cliff: int | None = None
    ram_tokens: int = 0
    warm_in_ram: int | None = None
    levels_with_ram: tuple[SessionLevel, ...] = ()


def session_level(
    speed_model: SpeedModel,
    shape: SessionShape,
    sessions: int,
    window_tokens: int,
    ram: KvTier | None = None,
) -> SessionLevel:
    """Return what so many sessions get, all at once, in the middle of their work."""
    steps = speed_model.steps or (speed_model.step,) * speed_model.setup.layout.replicas
    replicas = [
        CachingReplica(
            step,
            speed_model.slots,
            speed_model.pool_tokens,
            speed_model.chunk_tokens,
            block_tokens=_BLOCK_TOKENS,
            ram=ram,
        )
        for step in steps
    ]
    scripts = steady_sessions(shape, sessions, window_tokens=window_tokens)
    outcome = play_sessions(replicas, scripts, at_once=sessions)
    turn_s = outcome.session_s / STEADY_TURNS
    found_tokens = outcome.hit_tokens + outcome.ram_tokens
    return SessionLevel(
        sessions=sessions,
        turns_per_min=60.0 * outcome.turns / outcome.session_s,
        session_s=turn_s * shape.turns.median,
        first_token_s=outcome.first_token_s,
        first_token_p95_s=outcome.first_token_p95_s,
        hit_share=found_tokens / outcome.prompt_tokens,
        possible_share=prompt_totals(scripts).possible_share,
        preemptions=outcome.preemptions,
    )


def warm_sessions(
    speed_model: SpeedModel, shape: SessionShape, window_tokens: int, ram_tokens: float = 0.0
) -> int:
    """Return how many sessions of the usual size the pools of all replicas hold: what they share
    is held once in each.
    """
    own = typical_tokens(shape, window_tokens) - shape.shared_tokens
    room = max(0.0, speed_model.pool_tokens - shape.shared_tokens) + ram_tokens
    return int(room // own) * speed_model.setup.layout.replicas


def cliff_of(levels: Sequence[SessionLevel]) -> int | None:
    """Return the last level before turns a minute fall or hits leave the possible ones."""
    for before, level in pairwise(levels):
        falls = level.turns_per_min < _LOSS * before.turns_per_min
        loses_hits = level.hit_share < level.possible_share - _LOST_HITS
        held_hits = before.hit_share >= before.possible_share - _LOST_HITS
        if falls or (loses_hits and held_hits):
            return before.sessions
    return None


def outlook(
    speed_model: SpeedModel,
    shape: SessionShape,
    window_tokens: int,
    at: Sequence[int],
    ram: KvTier | None = None,
) -> SessionOutlook:
    """Return what sessions get at these numbers of them; where `ram` is given, with it, too."""

    def levels(tier: KvTier | None) -> tuple[SessionLevel, ...]:
        return tuple(
            session_level(speed_model, shape, sessions, window_tokens, tier) for sessions in at
        )

    on_cards = levels(None)
    on_card_outlook = SessionOutlook(
        shape=shape.name,
        window_tokens=window_tokens,
        typical_tokens=typical_tokens(shape, window_tokens),
        warm_sessions=warm_sessions(speed_model, shape, window_tokens),
        levels=on_cards,
        cliff=cliff_of(on_cards),
    )
    if ram is None:
        return on_card_outlook
    return replace(
        on_card_outlook,
        ram_tokens=int(ram.tokens),
        warm_in_ram=warm_sessions(speed_model, shape, window_tokens, ram.tokens),
        levels_with_ram=levels(ram),
    )


def typical_request(shape: SessionShape, window_tokens: int) -> tuple[int, int, float]:
    """Return the usual prompt and answer of a session in tokens, and the share of the prompt that
    a cache may hold.
    """
    scripts = steady_sessions(shape, 32, window_tokens=window_tokens)
    output = round(mean_of(shape.output_tokens))
    prompt = typical_tokens(shape, window_tokens) - output
    return prompt, output, prompt_totals(scripts).possible_share
