"""The sessions of a goal as a load: which shape, with which context, and how they are cut.

They are in the middle of their work, as those of a plan are: each first sends what it holds from
before, which is not measured, then turn after turn. A reading is a few turns of each. All readings
have turns of the same lengths and pauses, so that they compare. Measures nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from msgspec.structs import replace

from skep.catalog.session_shapes import (
    ScriptedTurn,
    SessionScript,
    SessionShape,
    check_window,
    find_shape,
    fitted,
    session_shapes,
    steady_sessions,
)
from skep.errors import UserError
from skep.planner.candidates import PlanGoal
from skep.planner.session_outlook import usual_turn, with_sessions
from skep.tuner.records import SessionAim, TuneGoal

MOST_TURNS = 4  # of a session in a reading
READING_S = 60.0  # that a reading should take at most, where one turn of each does not take longer
FILL_TOKENS = 8  # of the answer to what a session holds from before


def plan_goal_of(aim: TuneGoal, kind: str = "throughput") -> PlanGoal:
    """Return the goal of a plan for the same load."""
    if aim.sessions is None:
        return PlanGoal(kind, aim.concurrency, aim.input_tokens, aim.output_tokens)
    shape = find_shape(aim.sessions.load)
    return with_sessions(PlanGoal(kind, aim.concurrency), shape, aim.sessions.window_tokens)


def alone(shape: SessionShape) -> SessionShape:
    """Return the shape of sessions that start no sub-agents."""
    return replace(shape, subagent_share=0.0)


def choose_shape(wish: str | None, limit_tokens: int | None) -> SessionShape:
    """Return the shape that is wished for, else the first that has room in a context of so many
    tokens. Raise UserError where it has none. `limit_tokens` None: not known.
    """
    shapes = session_shapes()
    if wish is not None:
        if wish not in shapes:
            hint = f"write {' or '.join(shapes)}"
            raise UserError(f"--load `{wish}` is no kind of sessions", hint=hint)
        shape = shapes[wish]
    else:
        fitting = [
            candidate
            for candidate in shapes.values()
            if limit_tokens is None or candidate.least_window_tokens <= limit_tokens
        ]
        smallest = min(shapes.values(), key=lambda known_shape: known_shape.least_window_tokens)
        shape = next(iter(fitting), smallest)
    if limit_tokens is not None:
        check_window(shape, limit_tokens, "--load")
    return shape


def aim_of_sessions(
    aim: TuneGoal, wish: str | None, limit_tokens: int | None, wanted_tokens: int | None
) -> TuneGoal:
    """Return the goal with its sessions. `limit_tokens`: that the model takes at most;
    `wanted_tokens`: the context that somebody has chosen. None: not known, or nobody has.
    """
    limits = [tokens for tokens in (limit_tokens, wanted_tokens) if tokens is not None]
    shape = choose_shape(wish, min(limits, default=None))
    window = min(wanted_tokens or shape.wanted_window_tokens, limit_tokens or 1 << 30)
    return with_window_of(replace(aim, sessions=SessionAim(shape.name, window)), window)


def with_window_of(aim: TuneGoal, window_tokens: int) -> TuneGoal:
    """Return the goal for sessions that have so much context; its tokens are of a usual turn."""
    assert aim.sessions is not None
    shape = find_shape(aim.sessions.load)
    check_window(shape, window_tokens, "--load")
    turn = usual_turn(alone(shape), window_tokens)
    return replace(
        aim,
        input_tokens=round(turn.prompt_tokens),
        output_tokens=round(turn.output_tokens),
        sessions=replace(aim.sessions, window_tokens=window_tokens),
    )


def with_turns(aim: TuneGoal, turns_per_min: float | None) -> TuneGoal:
    """Return the goal with as many turns of each session in a reading as there is time for, by the
    turns a minute that are foreseen.
    """
    assert aim.sessions is not None
    turns = MOST_TURNS // 2
    if turns_per_min:
        turn_s = 60.0 * aim.concurrency / turns_per_min
        turns = min(MOST_TURNS, max(1, int(READING_S / turn_s)))
    return replace(aim, sessions=replace(aim.sessions, turns=turns))


def scripts_of(
    shape: SessionShape, count: int, window_tokens: int, turns: int, readings: int
) -> Sequence[SessionScript]:
    """Return so many sessions, the same ones each time: a turn with all that each holds from
    before, then `turns` for each reading. Turns of equal places in two readings are of the same
    lengths, in another order of sessions.
    """
    drawn = steady_sessions(alone(shape), count, window_tokens=window_tokens, turns=turns)
    scripts = []
    for number, script in enumerate(drawn):
        before = ScriptedTurn(max(1, script.earlier_tokens), FILL_TOKENS)
        later = [
            replace(turn, begins_anew=False)
            for reading in range(readings)
            for turn in drawn[(number + reading) % count].turns
        ]
        whole = replace(script, turns=(before, *later), earlier_tokens=0)
        scripts.append(fitted(whole, shape, window_tokens))
    return scripts


def session_words(aim: TuneGoal) -> str:
    """Return one line about the sessions and how they are cut."""
    assert aim.sessions is not None
    sessions = aim.sessions
    shape = find_shape(sessions.load)
    turns = "1 turn" if sessions.turns == 1 else f"{sessions.turns} turns"
    return (
        f"--load {sessions.load}: {shape.about}; a reading is {turns} of each of "
        f"{aim.concurrency} sessions in the middle of their work, in {sessions.window_tokens:,} "
        "tokens of context, with whole pauses and without sub-agents"
    )


def fill_tokens(shape: SessionShape, count: int, window_tokens: int) -> int:
    """Return the tokens that are read before anything is measured."""
    drawn = steady_sessions(alone(shape), count, window_tokens=window_tokens)
    return shape.shared_tokens + ceil(sum(script.earlier_tokens for script in drawn))
