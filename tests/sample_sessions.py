"""Turns of sessions made by hand, and shapes so small that a level takes a second."""

from msgspec import to_builtins

from skep.bench.agent_figures import CONVERSATIONS, ConversationFact, agents_summary
from skep.catalog.session_shapes import SessionShape, Varying
from skep.store.records import EngineTimings, LevelFact, Request

SHARED = 100  # tokens
GROWTH = 40  # new ones of a turn
ANSWER = 10


def turn(session, number, *, prompt, cached, level=1, repeat=0, start=0.0, **fields):
    """Return a turn that takes a second, its first token half of it."""
    times = {"first_token_s": start + 0.5, "last_token_s": start + 1.0}
    return Request(
        level,
        repeat,
        100 * session + number,
        "session",
        start,
        start + 1.0,
        prompt_tokens=prompt,
        output_tokens=ANSWER,
        engine=EngineTimings(cached_tokens=cached),
        session=session,
        turn=number,
        traffic="coding",
        **{**times, **fields},
    )


def session_turns(session, *, turns=4, hit=1.0, start=0.0, pause_s=0.0, **fields):
    """Return the turns of a session: each hits so large a share of what it could."""
    rows = []
    possible = 0
    for number in range(turns):
        prompt = SHARED + GROWTH + number * (GROWTH + ANSWER)
        at = start + number * (1.0 + pause_s)
        rows.append(
            turn(session, number, prompt=prompt, cached=round(hit * possible), start=at, **fields)
        )
        possible = prompt + ANSWER
    return rows


def planned_sessions(count, *, turns=4, level=1, repeat=0):
    """Return the fact of a level that says what was planned."""
    plans = [
        to_builtins(ConversationFact(number, number, turns, SHARED, SHARED + GROWTH))
        for number in range(count)
    ]
    return LevelFact(level, repeat, CONVERSATIONS, {CONVERSATIONS: plans})


def level_rows(level, *, hit=1.0, pause_s=0.0, repeat=0, sessions=4):
    """Return the turns of a level, all sessions at once, and its fact."""
    rows = [
        row
        for session in range(sessions)
        for row in session_turns(
            session, hit=hit, pause_s=pause_s, level=level, repeat=repeat, start=0.01 * session
        )
    ]
    return rows, planned_sessions(sessions, level=level, repeat=repeat)


def summary_of(*levels):
    """Return the figures of levels, each as `level_rows` gives it."""
    rows = [row for of_level, _ in levels for row in of_level]
    return agents_summary("run", rows, (), [fact for _, fact in levels])


def tiny_shape(**fields):
    """Return a shape of a few hundred tokens, with short pauses."""
    few = {"first_tokens": Varying(40, 60), "turns": Varying(3, 4)}
    few |= {"growth_tokens": Varying(30, 50), "output_tokens": Varying(4, 6)}
    few |= {"pause_s": Varying(0.01, 0.02), "subagents": Varying(1, 1)}
    settings = {
        "about": "for tests",
        "shared_tokens": 150,
        "subagent_share": 0.0,
        "subagent_shared_tokens": 80,
        "subagent_turns": Varying(2, 2),
        "compact_share": 0.9,
        "summary_tokens": 30,
        "least_window_tokens": 512,
        "wanted_window_tokens": 2_048,
        "name": "tiny",
    }
    return SessionShape(**{**settings, **few, **fields})
