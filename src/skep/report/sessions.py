"""Sessions of agents for the terminal and the dashboard: their list, and one of them turn by turn,
with the reasons of its cold turns in words and what to do about them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from skep.config.gateway_messages import SessionFigures
from skep.report.columns import Column, as_count, as_percent, at, plural
from skep.store.records import GatewayRequest
from skep.units import UNKNOWN, format_seconds, number, seconds

FIRST_TURN = "first"
LIVE_S = 600.0  # a session of which the gateway heard within that time is live
ADVISED_FROM = 3  # cold turns of one reason, from which on there is advice
BAR_CHARS = 32  # characters of the bar of the longest prompt
CACHED_SIGN = "█"
READ_SIGN = "░"
LEGEND = f"{CACHED_SIGN} from the cache, {READ_SIGN} read anew"
# By the reason of a cold turn: what follows the number of such turns.
REASON_WORDS = {
    "moved": "went to another replica",
    "evicted": "found their prompt evicted",
    "restarted": "came to an engine that was just started",
    "changed": "came with a changed prompt",
}
ADVICE_OF_REASONS = {
    "moved": (
        "It moves when its own replica has no free slot: run fewer sessions at once, or give a "
        "replica more slots."
    ),
    "evicted": (
        "Other prompts took its room in the cache: run fewer sessions at once, or make room by a "
        "smaller KV format, a shorter context or KV in RAM."
    ),
    "restarted": "Its engine was started anew: `skep ps` and `skep logs NAME` say why it ended.",
    "changed": (
        "Its client changes the prompt before its end: a clock or a changing line in the system "
        "prompt, tools in another order, a compacted history."
    ),
}


class DrawnTurn(msgspec.Struct, frozen=True):
    """A request of a session, with what its drawing needs from the other requests."""

    request: GatewayRequest
    # Which of the session's conversations, from 1; None: the session has only one.
    agent: int | None
    replica_before: str | None  # of the turn before, in the same conversation
    longest: int  # tokens of the longest prompt of the session

    @property
    def cached_tokens(self) -> int:
        return self.request.cached_tokens or 0

    @property
    def fresh_tokens(self) -> int | None:
        """The tokens of the prompt that were read anew."""
        if self.request.prompt_tokens is None:
            return None
        return max(0, self.request.prompt_tokens - self.cached_tokens)

    @property
    def reason(self) -> str | None:
        """Why the turn was cold, or how the request failed, in words; None: neither."""
        request = self.request
        if request.turn is None:
            return " ".join(filter(None, (request.outcome, request.code)))
        return cold_words(request, self.replica_before)


def has_turns(session: SessionFigures, now: float) -> bool:
    """Return whether a list shows the session. With a single turn it is shown while it is live:
    afterwards it was no session, but a single request.
    """
    return session.turns > 1 or is_live(session, now)


def is_live(session: SessionFigures, now: float) -> bool:
    return now - session.last_at < LIVE_S


def cold_turns(session: SessionFigures) -> int:
    """Return how many turns were cold that might have been warm."""
    return sum(count for reason, count in session.cold.items() if reason != FIRST_TURN)


def session_columns(now: float) -> list[Column[SessionFigures]]:
    return [
        Column("session", "SESSION", at("session"), right=False),
        Column("model", "MODEL", at("model"), right=False, rank=2),
        Column("replica", "REPLICA", at("replica"), right=False, rank=3),
        Column("turns", "TURNS", at("turns"), as_count),
        Column("prompt_tokens", "PROMPT", at("prompt_tokens"), as_count, rank=1),
        Column("hit_rate", "HITS", at("hit_rate"), as_percent),
        Column("possible_rate", "POSSIBLE", at("possible_rate"), as_percent),
        Column("cold_turns", "COLD", cold_turns, as_count),
        Column("pause_s", "PAUSE", at("pause_s"), seconds, rank=4),
        Column("last_at", "LAST SEEN", lambda session: last_seen(session, now), right=False),
    ]


def last_seen(session: SessionFigures, now: float) -> str:
    words = f"{format_seconds(max(0.0, now - session.last_at))} ago"
    if is_live(session, now):
        return f"{words}, live"
    return words


def session_document(session: SessionFigures, now: float) -> dict[str, object]:
    return {
        **msgspec.to_builtins(session),
        "cold_turns": cold_turns(session),
        "live": is_live(session, now),
    }


def drawn_turns(requests: Sequence[GatewayRequest]) -> list[DrawnTurn]:
    """Return the requests of a session, in the order of their arrival, as they are drawn."""
    longest = max((request.prompt_tokens or 0 for request in requests), default=0)
    conversations = dict.fromkeys(request.conversation for request in requests)
    agents: dict[str | None, int] = {}
    if len(conversations) > 1:
        agents = {conversation: number for number, conversation in enumerate(conversations, 1)}
    replicas: dict[str | None, str | None] = {}
    turns: list[DrawnTurn] = []
    for request in requests:
        conversation = request.conversation
        turns.append(
            DrawnTurn(request, agents.get(conversation), replicas.get(conversation), longest)
        )
        if request.turn is not None:
            replicas[conversation] = request.replica
    return turns


def cold_words(request: GatewayRequest, replica_before: str | None) -> str | None:
    """Return why a turn was cold, in words; None: it was not."""
    match request.cold:
        case None:
            return None
        case "first":
            return "first turn"
        case "moved":
            return f"moved from {replica_before or UNKNOWN} to {request.replica}"
        case "restarted":
            return "engine restarted"
        case "changed":
            return f"prompt changed at token {number(request.cold_at, digits=0)}"
        case _:
            if request.pause_s is None:
                return "evicted"
            return f"evicted after {format_seconds(request.pause_s).removesuffix(' 00 s')}"


def advice(requests: Sequence[GatewayRequest]) -> list[str]:
    """Return what to do about each reason for which turns were cold again and again."""
    reasons = Counter(request.cold for request in requests if request.cold in ADVICE_OF_REASONS)
    return [
        f"{plural(count, 'turn')} {REASON_WORDS[reason]}. {ADVICE_OF_REASONS[reason]}"
        for reason, count in reasons.most_common()
        if reason is not None and count >= ADVISED_FROM
    ]


def prompt_bar(turn: DrawnTurn) -> str:
    """Return the prompt as a bar: first what came from the cache."""
    prompt = turn.request.prompt_tokens
    if not prompt or not turn.longest:
        return ""
    length = max(1, round(BAR_CHARS * prompt / turn.longest))
    cached = min(length, round(length * turn.cached_tokens / prompt))
    return CACHED_SIGN * cached + READ_SIGN * (length - cached)


def _turn_number(turn: DrawnTurn) -> str:
    return UNKNOWN if turn.request.turn is None else str(turn.request.turn)


TURNS: list[Column[DrawnTurn]] = [
    Column("turn", "TURN", _turn_number),
    Column("agent", "AGENT", at("agent"), optional=True),
    Column("bar", "", prompt_bar, right=False, rank=1),
    Column("prompt_tokens", "PROMPT", at("request.prompt_tokens"), as_count),
    Column("cached_tokens", "CACHED", at("request.cached_tokens"), as_count),
    Column("output_tokens", "OUT", at("request.output_tokens"), as_count, rank=5),
    Column("pause_s", "PAUSE", at("request.pause_s"), seconds, rank=3),
    Column("queued_s", "WAIT", at("request.queued_s"), seconds, rank=4),
    Column("first_byte_s", "FIRST BYTE", at("request.first_byte_s"), seconds, rank=2),
    Column("tool_call", "TOOL", at("request.tool_call"), rank=6),
    Column("reason", "COLD", lambda turn: turn.reason or "", right=False),
]


def turn_document(turn: DrawnTurn) -> dict[str, object]:
    request = turn.request
    return {
        "id": request.id,
        "at": request.arrived_at,
        "conversation": request.conversation,
        "turn": request.turn,
        "replica": request.replica,
        "outcome": request.outcome,
        "prompt_tokens": request.prompt_tokens,
        "cached_tokens": request.cached_tokens,
        "possible_tokens": request.possible_tokens,
        "output_tokens": request.output_tokens,
        "pause_s": request.pause_s,
        "queued_s": request.queued_s,
        "first_byte_s": request.first_byte_s,
        "ended_s": request.ended_s,
        "tool_call": request.tool_call,
        "cold": request.cold,
        "cold_at": request.cold_at,
        "reason": turn.reason,
    }


def story_document(
    session: SessionFigures, requests: Sequence[GatewayRequest], now: float
) -> dict[str, object]:
    return {
        **session_document(session, now),
        "requests": [turn_document(turn) for turn in drawn_turns(requests)],
        "advice": advice(requests),
    }


def session_title(session: SessionFigures) -> str:
    """Return a line with the model of a session, its turns and its cache hits."""
    facts = [session.model, plural(session.turns, "turn")]
    if session.conversations > 1:
        facts.append(plural(session.conversations, "conversation"))
    if session.hit_rate is not None and session.possible_rate is not None:
        hits = as_percent(session.hit_rate)
        facts.append(f"{hits} from the cache of {as_percent(session.possible_rate)} possible")
    return ", ".join(facts)
