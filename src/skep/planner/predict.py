"""A setup's expected speed: the step model of its cards, played through with its load."""

from __future__ import annotations

import math
from collections.abc import Sequence as Several
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from skep.catalog.gpus import Device
from skep.planner.batching import BatchPass, Sequence, SimulatedReplica
from skep.planner.constants import Constants
from skep.planner.fit import kv_capacity_tokens
from skep.planner.memory import defaults
from skep.planner.rigs import group_link, groups, pace_setter
from skep.planner.setup import CardLink, PlannedLoad, Rig, Setup
from skep.planner.step import LLAMACPP, UNTUNED, StepModel, StepTuning, step_model

_GOLDEN = 0.6180339887498949
_ROUNDS, _UNEVEN_ROUNDS = 3, 14  # tasks an agent does in a steady load: the level has settled, the end weighs little


@dataclass(frozen=True, slots=True)
class PredictedOutcome:
    """`task_tok_s` and `tpot_s` are of the decoding alone; `ttft_s` counts from when the task was sent."""

    effective_tok_s: float
    task_tok_s: float
    ttft_s: float
    tpot_s: float  # mean over tasks; `task_tok_s` is the mean of their speeds, as people average it
    wall_s: float
    tasks: int
    running: float  # sequences in the engine at once, on average


def simulate_load(
    step: StepModel, load: PlannedLoad, *, slots: int, pool_tokens: float, chunk_tokens: int, replicas: int = 1
) -> PredictedOutcome:
    """On replicas that are all alike."""
    alike = [SimulatedReplica(step, slots, pool_tokens, chunk_tokens) for _ in range(replicas)]
    return _LoadSimulation(alike, load).run()


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


class _LoadSimulation:
    """Empty replicas, each at its own pace: a task goes where the least wait for their share of slots."""

    def __init__(self, replicas: Several[SimulatedReplica], load: PlannedLoad) -> None:
        self.load = load
        self.replicas = list(replicas)
        self.pace = [1.0 / replica.step.seconds(1, 1000.0) for replica in self.replicas]
        self.busy: list[tuple[float, int, BatchPass]] = []
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

    def run(self) -> PredictedOutcome:
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
        """To the replica with the fewest in it; of several with a free slot to the fastest."""
        place = self.upcoming
        self.upcoming += 1
        self.sent[place] = now
        paced = zip(self.replicas, self.pace, strict=True)
        best, _ = min(paced, key=lambda one: (one[0].load >= one[0].slots, one[0].load, -one[1]))
        best.submit(Sequence(place, self.prompt, self.outputs[place], self.cached))

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

    def _finish(self, index: int, done: BatchPass, now: float) -> None:
        progress = self.replicas[index].finish(done)
        self.idle.add(index)
        for sequence in progress.started:
            self.first[sequence.id] = now
        for sequence in progress.ended:
            self.ended[sequence.id] = now
            if self.load.shape != "burst" and not self.load.rate_per_s and self.upcoming < len(self.outputs):
                self._send(now)

    def _outcome(self, wall: float) -> PredictedOutcome:
        count = max(1, len(self.ended))
        produced = sum(self.outputs[place] for place in self.ended)
        ttft = sum(self.first[p] - self.sent[p] for p in self.ended) / count
        decode = [(self.ended[p] - self.first[p], self.outputs[p] - 1) for p in self.ended if self.outputs[p] > 1]
        tpot = sum(seconds / tokens for seconds, tokens in decode) / max(1, len(decode))
        return PredictedOutcome(
            effective_tok_s=produced / wall if wall else 0.0,
            task_tok_s=sum(tokens / seconds for seconds, tokens in decode if seconds) / max(1, len(decode)),
            ttft_s=ttft,
            tpot_s=tpot,
            wall_s=wall,
            tasks=len(self.ended),
            running=self.area / wall if wall else 0.0,
        )


@dataclass(frozen=True, slots=True)
class SpeedModel:
    """`card`, `link`, `step` and `pool_tokens` are of the slowest replica; `steps` of each."""

    setup: Setup
    card: Device
    link: CardLink | None
    step: StepModel
    slots: int  # of one replica
    pool_tokens: float  # of one replica
    chunk_tokens: int
    constants: Constants
    steps: tuple[StepModel, ...] = ()

    def outcome(self, load: PlannedLoad) -> PredictedOutcome:
        """As a user would measure it: output tokens over wall time, run-to-run losses counted."""
        steps = self.steps or (self.step,) * self.setup.layout.replicas
        replicas = [SimulatedReplica(step, self.slots, self.pool_tokens, self.chunk_tokens) for step in steps]
        played = _LoadSimulation(replicas, load).run()
        tail = self.constants.run_tail if load.concurrency > 1 else 1.0
        return replace(played, effective_tok_s=played.effective_tok_s * tail)


def prospect(setup: Setup, rig: Rig, constants: Constants, *, context: int, tuning: StepTuning = UNTUNED) -> SpeedModel:
    """`context`: tokens of a whole sequence, prompt and answer. `tuning`: what a calibration of this machine found."""
    split = setup.engine in LLAMACPP and setup.layout.tp == 1 and setup.layout.pp > 1
    found: dict[tuple[Device, CardLink | None], StepModel] = {}
    replicas = []
    for group in groups(setup.layout):
        card = pace_setter([rig.cards[place] for place in group], in_turn=setup.layout.tp == 1)
        link = group_link(rig, group) if setup.layout.tp > 1 else None
        if (card, link) not in found:
            # a format the card has no hardware for is unpacked to 16 bit by the kernel
            unpacked = setup.quant.family in ("fp8", "fp4", "int8") and setup.quant.family not in card.formats
            found[card, link] = step_model(
                setup, card, link, constants, split=split, tuning=tuning, weight_only=unpacked
            )
        replicas.append((found[card, link], card, link))
    step, card, link = max(replicas, key=lambda one: one[0].seconds(1, context))
    smallest = replace(card, memory_gib=min(rig.cards[place].memory_gib for place in range(setup.layout.cards)))
    usual = defaults(setup.engine, smallest)
    slots = setup.slots or usual.slots
    pool = kv_capacity_tokens(setup, smallest, context=context, slots=slots)
    chunk = setup.batched_tokens or usual.batched_tokens
    steps = tuple(one for one, _, _ in replicas)
    return SpeedModel(setup, card, link, step, slots, float(pool), chunk, constants, steps)
