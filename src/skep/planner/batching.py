"""Continuous batching, as vLLM does it: a decider without a clock.

`next_pass` says what to run and how long it takes, `finish` what has happened after it. A forecast
plays it through in virtual time, the simulated engine in real time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import msgspec

from skep.planner.prefix_cache import Block
from skep.planner.step import StepModel


@dataclass(slots=True, eq=False)
class Sequence:
    """One request inside the replica.

    Tokens are fractions: a speculative pass brings 2.7 of them on average.
    """

    id: int
    prompt: float  # tokens still to be computed before the first output token
    output: float
    cached: float = 0.0  # tokens of the prompt whose KV was there already
    prompt_left: float = 0.0
    ends_at: float = 0.0  # on the replica's count of tokens a sequence has gained
    is_released: bool = False
    # What tells the full blocks of the prompt from all others, and those that follow with the
    # answer. Without them nothing of it is found in a prefix cache.
    blocks: tuple[Block, ...] = ()
    answer_blocks: tuple[Block, ...] = ()
    # What tells the state of linear layers at the prompt's end from all others, while it runs.
    state: tuple[Block, ...] = ()
    has_begun: bool = False  # its first token was there, even if it was preempted later

    def __post_init__(self) -> None:
        self.prompt_left = self.prompt

    @property
    def need(self) -> float:
        """The KV it is admitted for: engines admit by the prompt and sort the rest out later."""
        return self.cached + self.prompt + self.output / 2


class BatchPass(msgspec.Struct, frozen=True):
    """`steps` passes of the same make-up, one after the other.

    `pieces`: whose prompt is carried, how much of it.
    """

    steps: int
    seconds: float  # of all steps
    decoding: int
    pieces: tuple[tuple[Sequence, float], ...]
    tokens_each: float  # output tokens that each decoding sequence gets from one step


class PassResult(msgspec.Struct, frozen=True):
    started: tuple[Sequence, ...]  # got their first token with this pass
    ended: tuple[Sequence, ...]
    # Lost their KV, and wait to be computed again; and those that decode again after that.
    preempted: tuple[Sequence, ...] = ()
    resumed: tuple[Sequence, ...] = ()


class SimulatedReplica:
    """One engine with continuous batching.

    All decoding sequences gain tokens at one pace, so only one count of them is kept, and where on
    it each ends.
    """

    def __init__(
        self,
        step: StepModel,
        slots: int,
        pool_tokens: float,
        chunk_tokens: int,
    ) -> None:
        self.step = step
        self.slots = slots
        self.pool_tokens = pool_tokens
        self.chunk_tokens = chunk_tokens  # of prompts, in one pass
        self.waiting: deque[Sequence] = deque()
        self.filling: list[Sequence] = []
        self.decoding = 0
        self._ends: list[tuple[float, int, Sequence]] = []
        self._gained = 0.0
        self._context = 0.0
        self._reserved_tokens = 0.0
        self._order = 0

    @property
    def load(self) -> int:
        return len(self.waiting) + self.running

    @property
    def running(self) -> int:
        return len(self.filling) + self.decoding

    @property
    def kv_tokens(self) -> float:
        return self._context + sum(s.cached + s.prompt - s.prompt_left for s in self.filling)

    def submit(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """Free the slot and the KV of a sequence; one that is not here any more is ignored."""
        if sequence.is_released:
            return
        sequence.is_released = True
        if sequence in self.waiting:
            self.waiting.remove(sequence)
            return
        if sequence in self.filling:
            self.filling.remove(sequence)
        else:
            self._stop_decoding(sequence)
        self._give_back(sequence)

    def next_pass(self, at_most: int = 1 << 30) -> BatchPass | None:
        """Return as many equal steps as nothing new happens in, at most `at_most`; None where
        there is nothing to do.
        """
        self._admit()
        if not self.decoding and not self.filling:
            return None
        sequences = self.decoding
        tokens_each = self.step.tokens_per_step(sequences)
        budget = max(16.0, self.chunk_tokens - sequences * (1 + self.step.depth))
        pieces, prompt, weighed = self._pieces(budget)
        steps = at_most
        if sequences:
            to_next_end = self._ends[0][0] - self._gained
            steps = min(steps, max(1, -int(-to_next_end // tokens_each)))
        if pieces:
            if len(pieces) == 1:
                steps = min(steps, max(1, int(pieces[0][0].prompt_left / budget)))
            else:
                steps = 1
        context = self._context
        if steps > 1:
            context += sequences * tokens_each * (steps - 1) / 2
            weighed += prompt * prompt * (steps - 1) / 2
        prompt_context = weighed / prompt if prompt else 0.0
        seconds = self.step.seconds(sequences, context, prompt, prompt_context) * steps
        return BatchPass(steps, seconds, sequences, tuple(pieces), tokens_each)

    def finish(self, done: BatchPass) -> PassResult:
        if done.decoding:
            gained = done.tokens_each * done.steps
        else:
            gained = 0.0
        self._gained += gained
        self._context += gained * self.decoding
        ended = []
        while self._ends and self._ends[0][0] <= self._gained + 1e-9:
            _, _, sequence = heappop(self._ends)
            ended.append(sequence)
            self._leave_batch(sequence)
        started = []
        for sequence, piece in done.pieces:
            sequence.prompt_left -= piece * done.steps
            if sequence.prompt_left <= 1e-9 and not sequence.is_released:
                started.append(sequence)
                self.filling.remove(sequence)
                self._start(sequence, ended)
        for sequence in ended:
            sequence.is_released = True
            self._give_back(sequence)
        return PassResult(tuple(started), tuple(ended))

    def _start(self, sequence: Sequence, ended: list[Sequence]) -> None:
        sequence.ends_at = self._gained + sequence.output - 1.0
        if sequence.output <= 1.0:
            ended.append(sequence)
            return
        self._order += 1
        heappush(self._ends, (sequence.ends_at, self._order, sequence))
        self._enter_batch(sequence)

    def _enter_batch(self, sequence: Sequence) -> None:
        self.decoding += 1
        self._context += self._context_of(sequence)

    def _leave_batch(self, sequence: Sequence) -> None:
        self.decoding -= 1
        self._context -= self._context_of(sequence)

    def _stop_decoding(self, sequence: Sequence) -> None:
        """Take a sequence out of the batch before its end."""
        self._leave_batch(sequence)
        self._ends = [entry for entry in self._ends if entry[2] is not sequence]
        heapify(self._ends)

    def _context_of(self, sequence: Sequence) -> float:
        left_to_write = sequence.ends_at - self._gained
        return sequence.cached + sequence.prompt + sequence.output - left_to_write

    def _admit(self) -> None:
        while self.waiting and self.running < self.slots:
            if self.running and not self._has_room(self.waiting[0]):
                return
            self._take_in(self.waiting.popleft())

    def _has_room(self, sequence: Sequence) -> bool:
        return self._reserved_tokens + sequence.need <= self.pool_tokens

    def _take_in(self, sequence: Sequence) -> None:
        self._reserved_tokens += sequence.need
        self.filling.append(sequence)

    def _give_back(self, sequence: Sequence) -> None:
        """Free the KV of a sequence that has left."""
        self._reserved_tokens -= sequence.need

    def _pieces(self, budget: float) -> tuple[list[tuple[Sequence, float]], float, float]:
        pieces = []
        budget_left = budget
        weighed = 0.0
        for sequence in self.filling:
            if budget_left <= 0:
                break
            piece = min(budget_left, sequence.prompt_left)
            pieces.append((sequence, piece))
            weighed += piece * (sequence.cached + sequence.prompt - sequence.prompt_left)
            budget_left -= piece
        return pieces, budget - budget_left, weighed
