"""This box's own sessions, out of the gateway's stored requests: lengths, pauses and sub-agents as
they were, without a word of what was said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from msgspec.structs import replace

from skep.catalog.session_shapes import ScriptedTurn, SessionScript
from skep.store.records import GatewayRequest

SESSION = "log"
SUBAGENT = "log sub-agent"
USUAL_OUTPUT_TOKENS = 250  # where nobody counted an answer
# A longer one is a person's break: the session goes on after this time.
LONGEST_PAUSE_S = 600.0


def logged_sessions(rows: Iterable[GatewayRequest]) -> list[SessionScript]:
    """Return the sessions of requests, in the order in which they began.

    The first conversation of a session is its own, others are its sub-agents'. What the first
    turns of most had in the cache counts as the beginning that all share.
    """
    sessions = [_conversations(turns) for turns in _by_session(rows).values()]
    shared_tokens = {
        SESSION: _shared_tokens(session[0] for session in sessions),
        SUBAGENT: _shared_tokens(child for session in sessions for child in session[1:]),
    }
    scripts = []
    for main_turns, *others in sessions:
        script = _script(main_turns, SESSION, shared_tokens)
        for child_turns in others:
            child = _script(child_turns, SUBAGENT, shared_tokens)
            place = _place_of(child_turns, main_turns)
            script = _with_subagent(script, place, child)
        scripts.append(script)
    return scripts


def _by_session(rows: Iterable[GatewayRequest]) -> dict[str, list[GatewayRequest]]:
    """Return the turns whose prompts were counted by session, in the order of their arrival."""
    sessions: dict[str, list[GatewayRequest]] = {}
    for row in sorted(rows, key=lambda row: row.arrived_at):
        if row.session is not None and row.turn is not None and row.prompt_tokens:
            sessions.setdefault(row.session, []).append(row)
    return sessions


def _conversations(turns: Sequence[GatewayRequest]) -> list[list[GatewayRequest]]:
    """Return the turns of each conversation, the one that began first before all others."""
    conversations: dict[str | None, list[GatewayRequest]] = {}
    for turn in turns:
        conversations.setdefault(turn.conversation, []).append(turn)
    return list(conversations.values())


def _shared_tokens(conversations: Iterable[Sequence[GatewayRequest]]) -> int:
    """Return how many tokens the first turns had in the cache, of those that had any."""
    cached = [turns[0].cached_tokens for turns in conversations]
    known_counts = [count for count in cached if count]
    return round(median(known_counts)) if known_counts else 0


def _script(
    turns: Sequence[GatewayRequest], name: str, shared_by_name: dict[str, int]
) -> SessionScript:
    first_prompt = turns[0].prompt_tokens or 1
    shared_tokens = min(shared_by_name[name], first_prompt - 1)
    scripted: list[ScriptedTurn] = []
    before: GatewayRequest | None = None
    for turn in turns:
        scripted.append(_scripted(turn, before, shared_tokens))
        before = turn
    return SessionScript(name, shared_tokens, tuple(scripted))


def _scripted(
    turn: GatewayRequest, before: GatewayRequest | None, shared_tokens: int
) -> ScriptedTurn:
    prompt_tokens = turn.prompt_tokens or 1
    held_tokens = shared_tokens
    begins_anew = False
    pause_s = 0.0
    if before is not None:
        begins_anew = prompt_tokens < (before.prompt_tokens or 0)
        pause_s = _pause_s(turn, before)
        if not begins_anew:
            held_tokens = (before.prompt_tokens or 0) + (before.output_tokens or 0)
    return ScriptedTurn(
        new_tokens=max(1, prompt_tokens - held_tokens),
        output_tokens=turn.output_tokens or USUAL_OUTPUT_TOKENS,
        pause_s=pause_s,
        begins_anew=begins_anew,
    )


def _pause_s(turn: GatewayRequest, before: GatewayRequest) -> float:
    """Return the time from the end of one turn to the arrival of the next."""
    pause_s = turn.pause_s
    if pause_s is None:
        pause_s = turn.arrived_at - _ended_at(before)
    return min(LONGEST_PAUSE_S, max(0.0, pause_s))


def _ended_at(turn: GatewayRequest) -> float:
    return turn.arrived_at + turn.ended_s


def _place_of(child_turns: Sequence[GatewayRequest], main_turns: Sequence[GatewayRequest]) -> int:
    """Return the last turn of a session that had ended when a sub-agent began."""
    began_at = child_turns[0].arrived_at
    place = 0
    for number, turn in enumerate(main_turns):
        if _ended_at(turn) <= began_at:
            place = number
    return place


def _with_subagent(script: SessionScript, place: int, child: SessionScript) -> SessionScript:
    """Return the session with one more sub-agent that this turn starts."""
    turns = list(script.turns)
    parent = turns[place]
    subagents = (*parent.subagents, child)
    turns[place] = replace(parent, subagents=subagents)
    return replace(script, turns=tuple(turns))
