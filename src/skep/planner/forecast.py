"""One load on one setup, played through in virtual time: effective tok/s, per-task speed, time to the first token."""

from __future__ import annotations

import math
from collections.abc import Sequence as Several
from dataclasses import dataclass
from heapq import heappop, heappush

from skep.planner.batching import Pass, Replica, Sequence
from skep.planner.setup import Load
from skep.planner.step import StepModel

_GOLDEN = 0.6180339887498949
_ROUNDS, _UNEVEN_ROUNDS = 3, 14  # tasks an agent does in a steady load: the level has settled, the end weighs little


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


def play(
    step: StepModel, load: Load, *, slots: int, pool_tokens: float, chunk_tokens: int, replicas: int = 1
) -> Outcome:
    """On replicas that are all alike."""
    return play_on([Replica(step, slots, pool_tokens, chunk_tokens) for _ in range(replicas)], load)


def play_on(replicas: Several[Replica], load: Load) -> Outcome:
    """On empty replicas, each at its own pace: a task goes where the least wait for their share of slots."""
    return _Play(replicas, load).run()


def lengths(count: int, mean: float, spread: float) -> list[float]:
    """Evenly drawn from one distribution, in a mixed order; without chance, so that a plan can be repeated."""
    if spread <= 0 or count < 1:
        return [max(1.0, mean)] * count
    drawn = []
    for place in range(count):
        share = (0.5 + place * _GOLDEN) % 1.0
        drawn.append((1 - spread) + spread * min(4.0, -math.log(1.0 - share)))
    scale = mean * count / sum(drawn)
    return [max(1.0, value * scale) for value in drawn]


class _Play:
    def __init__(self, replicas: Several[Replica], load: Load) -> None:
        self.load = load
        self.replicas = list(replicas)
        self.pace = [1.0 / replica.step.seconds(1, 1000.0) for replica in self.replicas]
        self.busy: list[tuple[float, int, Pass]] = []
        self.idle = set(range(len(self.replicas)))
        self.sent: dict[int, float] = {}
        self.first: dict[int, float] = {}
        self.ended: dict[int, float] = {}
        rounds = 1 if load.shape == "burst" else _UNEVEN_ROUNDS if load.spread else _ROUNDS
        tasks = load.tasks or load.concurrency * rounds
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
            following = arrivals[self.upcoming] if arrivals and self.upcoming < total else None
            self._start(now, following)
            if following is not None and (not self.busy or following <= self.busy[0][0]):
                now = max(now, following)
                self._send(now)
            elif self.busy:
                now, index, done = heappop(self.busy)
                self._finish(index, done, now)
            else:
                break
        return self._outcome(now)

    def _send(self, now: float) -> None:
        place = self.upcoming
        self.upcoming += 1
        self.sent[place] = now
        self._target().submit(Sequence(place, self.prompt, self.outputs[place], self.cached))

    def _target(self) -> Replica:
        """The fewest in it; of several with a free slot the fastest."""
        order = range(len(self.replicas))
        best = min(
            order, key=lambda n: (self.replicas[n].load >= self.replicas[n].slots, self.replicas[n].load, -self.pace[n])
        )
        return self.replicas[best]

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
        )
