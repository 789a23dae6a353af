"""Sessions played on simulated replicas in virtual time: what agents get while their KV fits into
the cache, and what they get where it does not.

A session sends turn after turn, pauses while its tools run, and waits for its sub-agents. It stays
on one replica. Knows scripts and replicas; knows nothing of cards and models.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from heapq import heappop, heappush

import msgspec

from skep.catalog.session_shapes import SessionScript, prompt_totals
from skep.planner.batching import BatchPass, Sequence
from skep.planner.caching import CachingReplica
from skep.planner.prefix_cache import Block

# Seconds that a token of a prompt takes before the engine begins: HTTP, template, tokenizer.
# Measured with vLLM 0.24 and 64 slots on an H200: 40 ms for 16,000 tokens that were all cached.
READ_IN_S = 2.5e-6
# A session is warm if its later turns got this share of what the cache could have given them.
WARM_SHARE = 0.9


class SessionOutcome(msgspec.Struct, frozen=True):
    """What sessions get. First tokens are of later turns: a session's first is always cold."""

    sessions: int
    turns: int
    wall_s: float
    session_s: float  # by the median, from its first turn on
    first_token_s: float  # by the median
    first_token_p95_s: float
    first_token_mean_s: float
    prompt_tokens: float
    hit_tokens: float
    ram_tokens: float
    possible_tokens: float
    output_tokens: float
    warm_sessions: int
    preemptions: int

    @property
    def turns_per_min(self) -> float:
        return 60.0 * self.turns / self.wall_s if self.wall_s else 0.0

    @property
    def hit_share(self) -> float:
        """The share of prompt tokens that were found on the card."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def possible_share(self) -> float:
        return self.possible_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def output_tok_s(self) -> float:
        return self.output_tokens / self.wall_s if self.wall_s else 0.0


@dataclass(eq=False)
class PlayedSession:
    """A session or one of its sub-agents while it is played."""

    script: SessionScript
    number: int
    replica: int
    parent: PlayedSession | None = None
    turn: int = 0
    begun_s: float = 0.0
    sent_s: float = 0.0
    epoch: int = 0  # how often it began anew: blocks of an earlier epoch are not used again
    held_tokens: int = 0  # prompt and answer of the turn before
    children_left: int = 0
    due_s: float = 0.0  # when its pause is over
    found_tokens: float = 0.0  # that its later turns got from the cache
    findable_tokens: float = 0.0  # that they could have got

    @property
    def is_warm(self) -> bool:
        return self.found_tokens >= WARM_SHARE * self.findable_tokens


@dataclass(eq=False)
class _Measured:
    first_token_s: list[float] = field(default_factory=list)
    session_s: list[float] = field(default_factory=list)
    turns: int = 0
    output_tokens: float = 0.0
    warm_sessions: int = 0


def play_sessions(
    replicas: Several[CachingReplica], scripts: Several[SessionScript], *, at_once: int
) -> SessionOutcome:
    """Return what becomes of the sessions if `at_once` of them are let in at a time."""
    return _SessionPlay(replicas, scripts, at_once).run()


class _SessionPlay:
    def __init__(
        self, replicas: Several[CachingReplica], scripts: Several[SessionScript], at_once: int
    ) -> None:
        self.replicas = list(replicas)
        self.scripts = list(scripts)
        self.measured = _Measured()
        self._at_once = at_once
        self._waiting = deque(self.scripts)
        self._live = [0] * len(self.replicas)  # sessions under way, by replica
        self._last_number = 0
        self._now = 0.0
        # What is to be done: when, a number that makes entries comparable, the action.
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        # Passes under way: when each ends, the number of its replica, the pass.
        self._passes: list[tuple[float, int, BatchPass]] = []
        self._idle = set(range(len(self.replicas)))
        self._order = 0
        self._sent: dict[int, PlayedSession] = {}  # by the id of its sequence

    def run(self) -> SessionOutcome:
        for _ in range(min(self._at_once, len(self._waiting))):
            self._begin_session()
        while self._due or self._passes or not self._all_idle():
            self._start_passes()
            next_due = self._due[0][0] if self._due else math.inf
            next_pass = self._passes[0][0] if self._passes else math.inf
            if math.isinf(next_due) and math.isinf(next_pass):
                break
            if next_due <= next_pass:
                self._now, _, act = heappop(self._due)
                act()
            else:
                self._now, index, done = heappop(self._passes)
                self._finish(index, done)
        return self._outcome()

    def _all_idle(self) -> bool:
        return all(not replica.load for replica in self.replicas)

    # Sessions

    def _begin_session(self) -> None:
        replica = min(range(len(self.replicas)), key=self._live.__getitem__)
        self._live[replica] += 1
        session = self._new_session(self._waiting.popleft(), replica)
        if session.script.earlier_tokens:
            self._hold_earlier(session)
        self._send(session)

    def _hold_earlier(self, session: PlayedSession) -> None:
        """Put what a session sent before these turns into the cache of its replica."""
        replica = self.replicas[session.replica]
        size = replica.block_tokens
        replica.hold(blocks_of(session, 0, session.held_tokens // size, size))

    def _new_session(
        self, script: SessionScript, replica: int, parent: PlayedSession | None = None
    ) -> PlayedSession:
        self._last_number += 1
        return PlayedSession(
            script=script,
            number=self._last_number,
            replica=replica,
            parent=parent,
            begun_s=self._now,
            held_tokens=script.shared_tokens + script.earlier_tokens,
        )

    def _send(self, session: PlayedSession) -> None:
        turn = session.script.turns[session.turn]
        if turn.begins_anew:
            session.epoch += 1
            session.held_tokens = session.script.shared_tokens
        earlier_tokens = session.held_tokens
        prompt_tokens = earlier_tokens + turn.new_tokens
        session.held_tokens = prompt_tokens + turn.output_tokens
        session.sent_s = self._now
        if session.turn and not turn.begins_anew:
            session.findable_tokens += earlier_tokens
        self._order += 1
        replica = self.replicas[session.replica]
        size = replica.block_tokens
        prompt_blocks = blocks_of(session, 0, prompt_tokens // size, size)
        answer_blocks = blocks_of(
            session, prompt_tokens // size, session.held_tokens // size, size
        )
        sequence = Sequence(
            self._order, float(prompt_tokens), float(turn.output_tokens), blocks=prompt_blocks
        )
        sequence.answer_blocks = answer_blocks
        self._sent[sequence.id] = session
        self._schedule(self._now + prompt_tokens * READ_IN_S, lambda: replica.submit(sequence))

    def _end_turn(self, session: PlayedSession) -> None:
        """Count the turn, send its sub-agents, and go on with the session when they are done."""
        turn = session.script.turns[session.turn]
        self.measured.turns += 1
        self.measured.output_tokens += turn.output_tokens
        session.turn += 1
        is_over = session.turn == len(session.script.turns)
        pause_s = 0.0 if is_over else session.script.turns[session.turn].pause_s
        session.due_s = self._now + pause_s
        session.children_left = len(turn.subagents)
        for script in turn.subagents:
            self._send(self._new_session(script, session.replica, session))
        if not session.children_left:
            self._go_on(session)

    def _go_on(self, session: PlayedSession) -> None:
        """Send the next turn when its pause is over, or end the session."""
        if session.turn < len(session.script.turns):
            self._schedule(max(self._now, session.due_s), lambda: self._send(session))
            return
        parent = session.parent
        if parent is not None:
            parent.children_left -= 1
            if not parent.children_left:
                self._go_on(parent)
            return
        self.measured.session_s.append(self._now - session.begun_s)
        self.measured.warm_sessions += session.is_warm
        self._live[session.replica] -= 1
        if self._waiting:
            self._begin_session()

    def _schedule(self, due_s: float, act: Callable[[], None]) -> None:
        self._order += 1
        heappush(self._due, (due_s, self._order, act))

    # Passes

    def _start_passes(self) -> None:
        """Start the next pass of each idle replica, cut short where an event is due before."""
        next_due = self._due[0][0] if self._due else math.inf
        for index in sorted(self._idle):
            replica = self.replicas[index]
            batch_pass = replica.next_pass()
            if batch_pass is None:
                continue
            if batch_pass.steps > 1 and self._now + batch_pass.seconds > next_due:
                step_s = batch_pass.seconds / batch_pass.steps
                steps = max(1, math.ceil((next_due - self._now) / step_s))
                batch_pass = replica.next_pass(steps) or batch_pass
            self._idle.discard(index)
            heappush(self._passes, (self._now + batch_pass.seconds, index, batch_pass))

    def _finish(self, index: int, done: BatchPass) -> None:
        result = self.replicas[index].finish(done)
        self._idle.add(index)
        for sequence in result.started:
            session = self._sent[sequence.id]
            if session.turn:
                self.measured.first_token_s.append(self._now - session.sent_s)
                session.found_tokens += sequence.cached
        for sequence in result.ended:
            self._end_turn(self._sent.pop(sequence.id))

    def _outcome(self) -> SessionOutcome:
        counts = [replica.counts for replica in self.replicas]
        firsts = sorted(self.measured.first_token_s)
        durations = sorted(self.measured.session_s)
        return SessionOutcome(
            sessions=len(durations),
            turns=self.measured.turns,
            wall_s=self._now,
            session_s=quantile(durations, 0.5),
            first_token_s=quantile(firsts, 0.5),
            first_token_p95_s=quantile(firsts, 0.95),
            first_token_mean_s=sum(firsts) / max(1, len(firsts)),
            prompt_tokens=sum(count.prompt_tokens for count in counts),
            hit_tokens=sum(count.hit_tokens for count in counts),
            ram_tokens=sum(count.ram_tokens for count in counts),
            possible_tokens=float(prompt_totals(self.scripts).possible_tokens),
            output_tokens=self.measured.output_tokens,
            warm_sessions=self.measured.warm_sessions,
            preemptions=sum(count.preemptions for count in counts),
        )


def blocks_of(
    session: PlayedSession, begin: int, end: int, block_tokens: int
) -> tuple[Block, ...]:
    """Return the names of a conversation's blocks from `begin` to `end`: of the beginning that it
    shares with others, then its own.
    """
    shared_blocks = session.script.shared_tokens // block_tokens
    shared_name = session.script.shared_name
    own_name = (session.number, session.epoch)
    return tuple(
        (shared_name, place) if place < shared_blocks else (own_name, place)
        for place in range(begin, end)
    )


def quantile(ordered: Several[float], share: float) -> float:
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
