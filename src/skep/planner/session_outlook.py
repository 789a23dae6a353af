"""What sessions get from a setup: how many stay warm, turns a minute with several numbers of
sessions at once, and the number beyond which they evict each other from the KV cache.

Plays sessions in the middle of their work (`planner.sessions`) on the setup's speed model.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from statistics import fmean

import msgspec
from msgspec.structs import replace

from skep.catalog.engines import kind_of
from skep.catalog.session_shapes import (
    STEADY_TURNS,
    SessionShape,
    prompt_totals,
    steady_sessions,
    typical_tokens,
)
from skep.planner.caching import CachingReplica, KvTier
from skep.planner.candidates import PlanGoal
from skep.planner.memory import state_pages
from skep.planner.predict import SpeedModel
from skep.planner.sessions import play_sessions

# Blocks are coarse: a plan tells sessions apart, not tokens.
_BLOCK_TOKENS = 512
# Fewer turns a minute than this share of the level before are a loss.
_LOSS = 0.97
_ROUNDS = 4  # of an estimate, until speed and the number of sequences that decode agree
_LEAST_FREE = 0.1  # of a card's time, for answers, however many prompts there are
# A share of hits that lies so far below the possible one is a loss.
_LOST_HITS = 0.10


class SessionLevel(msgspec.Struct, frozen=True):
    """What so many sessions get at once. First tokens are of turns after a session's first."""

    sessions: int
    turns_per_min: float
    session_s: float  # one of the usual number of turns, pauses included
    first_token_s: float  # by the median
    first_token_p95_s: float
    first_token_mean_s: float
    hit_share: float
    possible_share: float
    preemptions: int


class SessionOutlook(msgspec.Struct, frozen=True):
    """What a setup does for sessions of a shape.

    `cliff`: the sessions of the last level before turns a minute fall or hits are lost; None:
    neither happens at any of the levels.
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
    """Return what `sessions` get that are held at once, in the middle of their work."""
    steps = speed_model.steps or (speed_model.step,) * speed_model.setup.layout.replicas
    pages = state_pages(speed_model.setup)
    replicas = [
        CachingReplica(
            step,
            speed_model.slots,
            pool_of(speed_model, shape, window_tokens),
            speed_model.chunk_tokens,
            block_tokens=_BLOCK_TOKENS if pages is None else pages.block_tokens,
            state_blocks=0 if pages is None else pages.blocks,
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
        first_token_mean_s=outcome.first_token_mean_s,
        hit_share=found_tokens / outcome.prompt_tokens,
        possible_share=prompt_totals(scripts).possible_share,
        preemptions=outcome.preemptions,
    )


def estimated_level(
    speed_model: SpeedModel, shape: SessionShape, sessions: int, window_tokens: int
) -> SessionLevel:
    """Estimate what `session_level` returns, without playing: enough to tell many setups apart.

    A turn takes its pause, its prompt and its answer; the prompts of the others slow it down, and
    prompts that a full pool has lost are computed again.
    """
    turn = usual_turn(shape, window_tokens)
    step = speed_model.step
    replica_sessions = sessions / speed_model.setup.layout.replicas
    own_tokens = typical_tokens(shape, window_tokens) - shape.shared_tokens
    own_tokens += kept_states_tokens(speed_model, turn)
    wanted_tokens = shape.shared_tokens + replica_sessions * own_tokens
    pool_tokens = pool_of(speed_model, shape, window_tokens)
    kept_share = min(1.0, pool_tokens / wanted_tokens)
    computed_tokens = turn.new_tokens + (1 - kept_share) * (turn.prompt_tokens - turn.new_tokens)
    chunk_tokens = min(float(speed_model.chunk_tokens), computed_tokens)
    passes = computed_tokens / chunk_tokens
    prefill_s = passes * step.seconds(0, 0.0, chunk_tokens, turn.prompt_tokens)
    decoding = min(replica_sessions, float(speed_model.slots))
    turn_s = turn.pause_s
    for _ in range(_ROUNDS):
        sequences = max(1, round(decoding))
        token_s = step.seconds(sequences, sequences * turn.prompt_tokens)
        answer_s = turn.output_tokens * token_s / step.tokens_per_step(sequences)
        free_share = max(
            _LEAST_FREE,
            1 - replica_sessions * prefill_s / max(turn_s, replica_sessions * prefill_s),
        )
        turn_s = turn.pause_s + prefill_s + answer_s / free_share
        decoding = min(float(speed_model.slots), replica_sessions * answer_s / free_share / turn_s)
    turn_s = max(turn_s, replica_sessions * prefill_s)
    wait_s = max(prefill_s, turn_s - turn.pause_s - answer_s)
    return SessionLevel(
        sessions=sessions,
        turns_per_min=60.0 * sessions / turn_s,
        session_s=turn_s * shape.turns.median,
        first_token_s=wait_s,
        first_token_p95_s=wait_s,
        first_token_mean_s=wait_s,
        hit_share=1 - computed_tokens / turn.prompt_tokens,
        possible_share=1 - turn.new_tokens / turn.prompt_tokens,
        preemptions=0,
    )


def warm_sessions(
    speed_model: SpeedModel, shape: SessionShape, window_tokens: int, ram_tokens: float = 0.0
) -> int:
    """Return how many sessions of the usual size the pools of all replicas hold: what they share
    is held once in each. Where slots have their own memory, each holds one session.
    """
    replicas = speed_model.setup.layout.replicas
    session_tokens = typical_tokens(shape, window_tokens)
    if not kind_of(speed_model.setup.engine).has_pool:
        on_cards = int(min(speed_model.slots, speed_model.pool_tokens // session_tokens))
        return (on_cards + int(ram_tokens // session_tokens)) * replicas
    own_tokens = session_tokens - shape.shared_tokens
    own_tokens += kept_states_tokens(speed_model, usual_turn(shape, window_tokens))
    pool_tokens = pool_of(speed_model, shape, window_tokens)
    room = max(0.0, pool_tokens - shape.shared_tokens) + ram_tokens
    return int(room // own_tokens) * replicas


def kept_states_tokens(speed_model: SpeedModel, turn: UsualTurn) -> int:
    """Return the tokens whose KV takes as much of the pool as the states of linear layers that a
    turn leaves: at the end of its prompt, of the passes over it, and of its answer.
    """
    pages = state_pages(speed_model.setup)
    if pages is None:
        return 0
    pass_tokens = max(speed_model.chunk_tokens, pages.block_tokens)
    passes = turn.new_tokens / pass_tokens
    answers = min(1.0, turn.output_tokens / pages.block_tokens)
    return round(pages.tokens * (1 + passes + answers))


def pool_of(speed_model: SpeedModel, shape: SessionShape, window_tokens: int) -> float:
    """Return how many tokens sessions may hold in a replica's memory. Slots with memory of their
    own count with a session of the usual size each, even where they have room for more.
    """
    if kind_of(speed_model.setup.engine).has_pool:
        return speed_model.whole_pool_tokens
    in_slots = speed_model.slots * typical_tokens(shape, window_tokens)
    return min(speed_model.pool_tokens, float(in_slots))


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
    """Return what sessions get at the numbers of them in `at`, also with KV in `ram` if given."""

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


class UsualTurn(msgspec.Struct, frozen=True):
    """The means over the turns of sessions that are under way."""

    prompt_tokens: float
    new_tokens: float  # of the prompt
    output_tokens: float
    pause_s: float


@cache
def usual_turn(shape: SessionShape, window_tokens: int) -> UsualTurn:
    scripts = steady_sessions(shape, 32, window_tokens=window_tokens)
    turns = [turn for script in scripts for turn in script.turns]
    return UsualTurn(
        prompt_tokens=fmean(prompt for script in scripts for prompt in script.prompts()),
        new_tokens=fmean(turn.new_tokens for turn in turns),
        output_tokens=fmean(turn.output_tokens for turn in turns),
        pause_s=fmean(turn.pause_s for turn in turns),
    )


def with_sessions(goal: PlanGoal, shape: SessionShape, window_tokens: int) -> PlanGoal:
    """Return the goal for sessions of a shape, each with a context of `window_tokens`."""
    turn = usual_turn(shape, window_tokens)
    return replace(
        goal,
        input_tokens=round(turn.prompt_tokens),
        output_tokens=round(turn.output_tokens),
        shape=shape.name,
        cached_share=1 - turn.new_tokens / turn.prompt_tokens,
        shared_tokens=shape.shared_tokens,
        window_tokens=window_tokens,
        least_window_tokens=shape.least_window_tokens,
    )
