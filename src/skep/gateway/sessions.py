"""The sessions of agents, turn by turn: which turn a request is, how long its agent was silent
before it, what the prefix cache could have held, and why it held less.

`Sessions` is told of each request that ended. It keeps digests and counts, never text, of the
last few thousand conversations. Knows no clock, no connection and no engine."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping
from statistics import median

import msgspec

from skep.config.gateway_messages import ReplicaSpec, SessionFigures
from skep.gateway.prompt_sketch import PromptSketch
from skep.gateway.replica_table import process_of
from skep.gateway.request_log import SessionColumns
from skep.gateway.session_names import digest_text

# Why a turn was cold: the cache held clearly less of its prompt than it could have.
FIRST = "first"
MOVED = "moved"
EVICTED = "evicted"
RESTARTED = "restarted"
CHANGED = "changed"
CONVERSATIONS_KEPT = 4096  # conversations; the one with the oldest last turn is forgotten first
PAUSES_KEPT = 64  # of a conversation, the last ones: for their median
# Tokens that a cache may lack before a turn is cold: engines cache whole blocks.
ALLOWED_TOKENS = 1024
ALLOWED_SHARE = 0.1


class RequestSession(msgspec.Struct, array_like=True):
    """What a request says of its session, as the process that carried it read it."""

    session: int
    conversation: int
    sketch: PromptSketch | None = None  # None: a small prompt
    tool_call: bool | None = None
    reasoning_tokens: int = 0  # of the output: they are no part of the next prompt


class EndedTurn(msgspec.Struct):
    """A request that ended. Times are of one monotonic clock, except `seen_at`."""

    model: str
    replica: str
    arrived_at: float
    ended_at: float
    seen_at: float  # unix time of its end
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    request: RequestSession


ConversationKey = tuple[str, int]  # model and conversation


class Conversation(msgspec.Struct):
    """A conversation as its last turn left it, and what all its turns add up to."""

    session: int
    begun_at: float  # unix time
    last: EndedTurn
    pauses: deque[float]  # seconds before each of its last turns
    cold: Counter[str]  # turns, by why they were cold
    turns: int = 0
    prompt_tokens: int = 0  # of turns whose cached tokens are known, as the two below
    cached_tokens: int = 0
    possible_tokens: int = 0


class Coldness(msgspec.Struct, frozen=True):
    reason: str
    at_token: int | None = None  # where the prompt was changed


class Sessions:
    def __init__(self, remembered: int = CONVERSATIONS_KEPT) -> None:
        self._remembered = remembered
        self._conversations: OrderedDict[ConversationKey, Conversation] = OrderedDict()
        self._latest: dict[ConversationKey, int] = {}  # by model and session: its conversation
        self._started: dict[tuple[str, str, str], float] = {}  # by process: when it appeared
        # By model and the digest of a conversation: turns that an earlier gateway has counted.
        self._earlier_turns: dict[tuple[str, str], int] = {}

    def __repr__(self) -> str:
        return f"<Sessions {len(self._conversations)} conversations>"

    def set_replicas(self, specs: Iterable[ReplicaSpec], now: float) -> None:
        """Take in which replicas serve. A new one is a process with an empty cache."""
        self._started = {
            process: self._started.get(process, now) for process in map(process_of, specs)
        }

    def continue_turns(self, earlier: Mapping[tuple[str, str], int]) -> None:
        """Go on with the turn numbers of an earlier gateway, by model and digest of a
        conversation; those that have had turns meanwhile, too.
        """
        self._earlier_turns = dict(earlier)
        for (model, number), conversation in self._conversations.items():
            conversation.turns += self._earlier_turns.pop((model, digest_text(number)), 0)

    def failed(self, request: RequestSession) -> SessionColumns:
        """Return the columns of a request without a whole answer. Its session goes on as if it had
        not been sent.
        """
        names = (digest_text(request.session), digest_text(request.conversation))
        return (*names, None, None, None, None, None, None)

    def ended(self, turn: EndedTurn) -> SessionColumns:
        """Take the turn that has ended, and return its columns."""
        key = self._key_of(turn)
        conversation = self._conversations.pop(key, None)
        last = conversation.last if conversation is not None else None
        possible = possible_tokens(last, turn)
        coldness = self._coldness(last, turn)
        if conversation is None:
            begun_at = turn.seen_at - (turn.ended_at - turn.arrived_at)
            conversation = Conversation(
                turn.request.session, begun_at, turn, deque(maxlen=PAUSES_KEPT), Counter()
            )
            conversation.turns = self._earlier_turns.pop((turn.model, digest_text(key[1])), 0)
        self._conversations[key] = conversation
        self._latest[turn.model, turn.request.session] = key[1]
        pause_s = None
        if last is not None and turn.arrived_at >= last.ended_at:
            pause_s = turn.arrived_at - last.ended_at
            conversation.pauses.append(pause_s)
        conversation.last = turn
        conversation.turns += 1
        _count(conversation, turn, possible, coldness)
        self._forget_oldest()
        return (
            digest_text(turn.request.session),
            digest_text(key[1]),
            conversation.turns,
            pause_s,
            turn.request.tool_call,
            coldness.reason if coldness is not None else None,
            coldness.at_token if coldness is not None else None,
            possible,
        )

    def figures(self, limit: int) -> list[SessionFigures]:
        """Return the figures of the sessions whose turns ended last, newest first."""
        by_session: dict[ConversationKey, list[Conversation]] = {}
        for (model, _), conversation in reversed(self._conversations.items()):
            by_session.setdefault((model, conversation.session), []).append(conversation)
        newest = list(by_session.items())[:limit]
        return [_figures(model, conversations) for (model, _), conversations in newest]

    def _key_of(self, turn: EndedTurn) -> ConversationKey:
        """Return the conversation that a turn goes on: by its digest, or by its end where a
        session changed how its prompt begins.
        """
        request = turn.request
        key = (turn.model, request.conversation)
        if key in self._conversations or request.sketch is None:
            return key
        latest = (turn.model, self._latest.get((turn.model, request.session), 0))
        conversation = self._conversations.get(latest)
        if conversation is None or conversation.session != request.session:
            return key
        sketch = conversation.last.request.sketch
        if sketch is not None and sketch.ends_inside(request.sketch):
            return latest
        return key

    def _coldness(self, last: EndedTurn | None, turn: EndedTurn) -> Coldness | None:
        """Return why the cache held clearly less than it could; None: it held enough, or
        the engine did not say.

        Judged by the last prompt alone: many templates write an answer anew in the next prompt.
        """
        prompt = turn.prompt_tokens
        cached = turn.cached_tokens
        if prompt is None or cached is None:
            return None
        if last is None:
            return Coldness(FIRST) if falls_short(cached, prompt) else None
        expected = min(last.prompt_tokens or 0, prompt)
        if not falls_short(cached, expected):
            return None
        if turn.replica != last.replica:
            return Coldness(MOVED)
        if self._has_restarted(turn, last.ended_at):
            return Coldness(RESTARTED)
        changed_at = changed_token(last.request.sketch, turn.request.sketch, prompt)
        if changed_at is not None and falls_short(changed_at, expected):
            return Coldness(CHANGED, changed_at)
        return Coldness(EVICTED)

    def _has_restarted(self, turn: EndedTurn, since: float) -> bool:
        """Return whether the process that answered appeared after that time."""
        return any(
            started_at > since
            for (name, _url, model), started_at in self._started.items()
            if name == turn.replica and model == turn.model
        )

    def _forget_oldest(self) -> None:
        while len(self._conversations) > self._remembered:
            (model, number), conversation = self._conversations.popitem(last=False)
            place = (model, conversation.session)
            if self._latest.get(place) == number:
                del self._latest[place]


def possible_tokens(last: EndedTurn | None, turn: EndedTurn) -> int | None:
    """Return how many tokens of a prompt the cache could have held: what the turn before left
    there, and at least what it did hold.
    """
    cached = turn.cached_tokens
    if last is None or last.prompt_tokens is None or turn.prompt_tokens is None:
        return cached
    output = (last.output_tokens or 0) - last.request.reasoning_tokens
    left_tokens = last.prompt_tokens + max(0, output)
    return max(cached or 0, min(left_tokens, turn.prompt_tokens))


def falls_short(tokens: int, expected: int) -> bool:
    return expected - tokens > max(ALLOWED_TOKENS, ALLOWED_SHARE * expected)


def changed_token(
    sketch: PromptSketch | None, later: PromptSketch | None, prompt_tokens: int
) -> int | None:
    """Estimate the first token in which a prompt differs from the one before; None: it goes on
    where that ended, or one of them has no sketch.
    """
    if sketch is None or later is None:
        return None
    changed_at = sketch.changed_at(later)
    if changed_at is None:
        return None
    return round(changed_at / later.length * prompt_tokens)


def _count(
    conversation: Conversation, turn: EndedTurn, possible: int | None, coldness: Coldness | None
) -> None:
    """Add a turn to the sums of its conversation."""
    if coldness is not None:
        conversation.cold[coldness.reason] += 1
    if turn.prompt_tokens is not None and turn.cached_tokens is not None:
        conversation.prompt_tokens += turn.prompt_tokens
        conversation.cached_tokens += turn.cached_tokens
        conversation.possible_tokens += possible or 0


def _figures(model: str, conversations: list[Conversation]) -> SessionFigures:
    """Return the figures of a session; the conversation whose turn ended last comes first."""
    last = conversations[0].last
    prompt = sum(conversation.prompt_tokens for conversation in conversations)
    cached = sum(conversation.cached_tokens for conversation in conversations)
    possible = sum(conversation.possible_tokens for conversation in conversations)
    pauses = [pause for conversation in conversations for pause in conversation.pauses]
    cold = sum((conversation.cold for conversation in conversations), Counter[str]())
    return SessionFigures(
        session=digest_text(conversations[0].session),
        model=model,
        replica=last.replica,
        conversations=len(conversations),
        turns=sum(conversation.turns for conversation in conversations),
        prompt_tokens=last.prompt_tokens,
        hit_rate=cached / prompt if prompt else None,
        possible_rate=possible / prompt if prompt else None,
        cold=dict(cold),
        pause_s=median(pauses) if pauses else None,
        first_at=min(conversation.begun_at for conversation in conversations),
        last_at=last.seen_at,
    )
