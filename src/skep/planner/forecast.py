"""One load on one setup, played through in virtual time: effective tok/s, per-task speed, time to the first token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heappop, heappush

from skep.planner.batching import Pass, Replica, Sequence
from skep.planner.setup import Load
from skep.planner.step import StepModel

_GOLDEN = 0.6180339887498949
_ROUNDS = 3  # tasks an agent does in a steady load, so that the level has settled


@dataclass(frozen=True, slots=True)
class Outcome:
    """`task_tok_s` and `tpot_s` are of the decoding alone; `ttft_s` counts from when the task was sent."""

    effective_tok_s: float
    task_tok_s: float
    ttft_s: float
    tpot_s: float  # mean over tasks; `task_tok_s` is the mean of their speeds, as people average it
    wall_s: float
    tasks: int
    running: float  # sequences in the engine at once, on average
    queue_s: float  # of the time to first token: waiting for a slot


def play(
    step: StepModel, load: Load, *, slots: int, pool_tokens: float, chunk_tokens: int, replicas: int = 1
) -> Outcome:
    return _Play(step, load, slots, pool_tokens, chunk_tokens, replicas).run()


def lengths(count: int, mean: float, spread: float) -> list[float]:
    """Evenly drawn from one distribution, in a mixed order; without chance, so that a plan can be repeated."""
    if spread <= 0:
        return [max(1.0, mean)] * count
    drawn = []
    for place in range(count):
        share = (0.5 + place * _GOLDEN) % 1.0
        drawn.append((1 - spread) + spread * min(4.0, -math.log(1.0 - share)))
    scale = mean * count / sum(drawn)
    return [max(1.0, value * scale) for value in drawn]


class _Play:
    def __init__(
        self, step: StepModel, load: Load, slots: int, pool_tokens: float, chunk_tokens: int, replicas: int
    ) -> None:
        self.load = load
        self.replicas = [Replica(step, slots, pool_tokens, chunk_tokens) for _ in range(replicas)]
        self.busy: list[tuple[float, int, Pass]] = []
        self.idle = set(range(replicas))
        self.sent: dict[int, float] = {}
        self.first: dict[int, float] = {}
        self.ended: dict[int, float] = {}
        tasks = load.tasks or (load.concurrency * (1 if load.shape == "burst" else _ROUNDS))
        self.outputs = lengths(tasks, load.output_tokens, load.spread)
        self.prompt = max(1.0, load.input_tokens * (1 - load.cached_share))
        self.cached = load.input_tokens - self.prompt if load.input_tokens > self.prompt else 0.0
        self.upcoming = 0
        self.area = 0.0

    def run(self) -> Outcome:
        now = 0.0
        total = len(self.outputs)
        arrivals: list[float] = []
        if self.load.rate_per_s:
            arrivals = [place / self.load.rate_per_s for place in range(total)]
        else:
            for _ in range(min(total, total if self.load.shape == "burst" else self.load.concurrency)):
                self._send(now)
        while len(self.ended) < total:
            while arrivals and self.upcoming < total and arrivals[self.upcoming] <= now + 1e-12:
                self._send(now)
            self._start(now, arrivals[self.upcoming] if arrivals and self.upcoming < total else None)
            if not self.busy:
                if not arrivals or self.upcoming >= total:
                    break
                now = arrivals[self.upcoming]
                continue
            then, index, done = heappop(self.busy)
            now = then
            self._finish(index, done, now)
        return self._outcome(now)

    def _send(self, now: float) -> None:
        place = self.upcoming
        self.upcoming += 1
        self.sent[place] = now
        target = min(self.replicas, key=lambda replica: replica.load)
        sequence = Sequence(place, self.prompt, self.outputs[place], self.cached)
        target.submit(sequence)

    def _start(self, now: float, next_arrival: float | None) -> None:
        for index in sorted(self.idle):
            replica = self.replicas[index]
            following = replica.next_pass()
            if following is None:
                continue
            if next_arrival is not None and following.steps > 1 and now + following.seconds > next_arrival:
                each = following.seconds / following.steps
                fewer = max(1, math.ceil((next_arrival - now) / each))
                following = replica.next_pass(at_most=fewer)
                assert following is not None
            self.idle.discard(index)
            self.area += following.seconds * (following.decoding + len(following.pieces))
            heappush(self.busy, (now + following.seconds, index, following))

    def _finish(self, index: int, done: Pass, now: float) -> None:
        progress = self.replicas[index].finish(done)
        self.idle.add(index)
        for sequence in progress.started:
            self.first[sequence.id] = now
        for sequence in progress.ended:
            self.ended[sequence.id] = now
            if self.load.shape != "burst" and not self.load.rate_per_s and self.upcoming < len(self.outputs):
                self._send(now)

    def _outcome(self, wall: float) -> Outcome:
        count = max(1, len(self.ended))
        produced = sum(self.outputs[place] for place in self.ended)
        ttft = sum(self.first[p] - self.sent[p] for p in self.ended) / count
        decode = [(self.ended[p] - self.first[p], self.outputs[p] - 1) for p in self.ended if self.outputs[p] > 1]
        tpot = sum(seconds / tokens for seconds, tokens in decode) / max(1, len(decode))
        return Outcome(
            effective_tok_s=produced / wall if wall else 0.0,
            task_tok_s=sum(tokens / seconds for seconds, tokens in decode if seconds) / max(1, len(decode)),
            ttft_s=ttft,
            tpot_s=tpot,
            wall_s=wall,
            tasks=len(self.ended),
            running=self.area / wall if wall else 0.0,
            queue_s=0.0,
        )
