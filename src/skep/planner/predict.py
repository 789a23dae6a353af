"""A setup's expected speed: the step model of its cards, played through with its load in virtual
time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence as Several
from heapq import heappop, heappush

import msgspec
from msgspec.structs import replace

from skep.catalog.gpus import Device
from skep.planner.batching import BatchPass, Sequence, SimulatedReplica
from skep.planner.memory import defaults, kv_capacity_tokens, state_pages
from skep.planner.setup import CardLink, PlannedLoad, Rig, Setup, group_link, groups, pace_setter
from skep.planner.step import UNTUNED, Constants, StepModel, StepTuning, step_model

_GOLDEN = 0.6180339887498949
_RUN_TAIL = 0.98  # what runs keep beside steps: stragglers, uneven ends, clients
# tasks an agent does in a steady load: the level has settled, the end weighs little
_ROUNDS = 3
_UNEVEN_ROUNDS = 14
_QUEUE_WAVES = 16  # agents a slot, beyond which a further agent only makes the queue longer
# agents a slot that are played through instead
_FEWER_WAVES = 4
_MORE_WAVES = 8


class PredictedOutcome(msgspec.Struct, frozen=True):
    """What a load is expected to get.

    `task_tok_s` and `tpot_s` are of the decoding alone; `ttft_s` counts from when the task was
    sent.
    """

    effective_tok_s: float
    task_tok_s: float
    ttft_s: float
    tpot_s: float  # mean over tasks; `task_tok_s` is the mean of their speeds, as people average
    wall_s: float
    tasks: int
    running: float  # sequences in the engine at once, on average


def simulate_load(
    step: StepModel,
    load: PlannedLoad,
    *,
    slots: int,
    pool_tokens: float,
    chunk_tokens: int,
    replicas: int = 1,
) -> PredictedOutcome:
    alike = [SimulatedReplica(step, slots, pool_tokens, chunk_tokens) for _ in range(replicas)]
    simulation = _LoadSimulation(alike, load)
    return simulation.run()


def lengths(count: int, mean: float, spread: float) -> list[float]:
    """Return lengths evenly drawn from one distribution, in a mixed order; without chance, so that
    a plan can be repeated.
    """
    if spread <= 0 or count < 1:
        return [max(1.0, mean)] * count
    drawn = []
    for place in range(count):
        share = (0.5 + place * _GOLDEN) % 1.0
        length = min(4.0, -math.log(1.0 - share))
        drawn.append((1 - spread) + spread * length)
    total = mean * count
    scale = total / sum(drawn)
    return [max(1.0, value * scale) for value in drawn]


class _LoadSimulation:
    """One load on replicas that are empty at first, each at its own speed: a task goes where the
    fewest wait for their share of slots.
    """

    def __init__(self, replicas: Several[SimulatedReplica], load: PlannedLoad) -> None:
        self.load = load
        self.replicas = list(replicas)
        self.steps_per_s = [1.0 / replica.step.seconds(1, 1000.0) for replica in self.replicas]
        self.busy: list[tuple[float, int, BatchPass]] = []
        self.idle = set(range(len(self.replicas)))
        # seconds, by task
        self.sent: dict[int, float] = {}
        self.first: dict[int, float] = {}
        self.ended: dict[int, float] = {}
        if load.shape == "burst":
            rounds = 1
        elif load.spread:
            rounds = _UNEVEN_ROUNDS
        else:
            rounds = _ROUNDS
        tasks = load.tasks or load.concurrency * rounds
        self.outputs = lengths(tasks, load.output_tokens, load.spread)
        # Whoever has an answer sends the next task.
        self.is_closed = load.shape != "burst" and not load.rate_per_s
        uncached = load.input_tokens * (1 - load.cached_share)
        self.prompt = max(1.0, uncached)
        if load.input_tokens > self.prompt:
            self.cached = load.input_tokens - self.prompt
        else:
            self.cached = 0.0
        self.upcoming = 0
        self.area = 0.0

    def run(self) -> PredictedOutcome:
        now = 0.0
        total = len(self.outputs)
        arrivals: list[float] = []
        sent_at_once = 0
        if self.load.rate_per_s:
            arrivals = [place / self.load.rate_per_s for place in range(total)]
        elif self.load.shape == "burst":
            sent_at_once = total
        else:
            sent_at_once = min(total, self.load.concurrency)
        for _ in range(sent_at_once):
            self._send(now)
        while len(self.ended) < total:
            if arrivals and self.upcoming < total:
                arrival = arrivals[self.upcoming]
            else:
                arrival = None
            self._start(now, arrival)
            if arrival is not None and (not self.busy or arrival <= self.busy[0][0]):
                now = max(now, arrival)
                self._send(now)
            elif self.busy:
                now, index, done = heappop(self.busy)
                self._finish(index, done, now)
            else:
                break
        return self._outcome(now)

    def _send(self, now: float) -> None:
        """Send the next task to the replica with the fewest in it; of several with a free slot to
        the fastest.
        """
        place = self.upcoming
        self.upcoming += 1
        self.sent[place] = now
        best = self.replicas[0]
        if len(self.replicas) > 1:
            with_speeds = zip(self.replicas, self.steps_per_s, strict=True)
            best, _ = min(with_speeds, key=_fullness)
        sequence = Sequence(place, self.prompt, self.outputs[place], self.cached)
        best.submit(sequence)

    def _start(self, now: float, next_arrival: float | None) -> None:
        for index in sorted(self.idle):
            replica = self.replicas[index]
            following = replica.next_pass()
            if following is None:
                continue
            ends_at = now + following.seconds
            if next_arrival is not None and following.steps > 1 and ends_at > next_arrival:
                step_s = following.seconds / following.steps
                until_arrival_s = next_arrival - now
                steps = max(1, math.ceil(until_arrival_s / step_s))
                following = replica.next_pass(at_most=steps)
                assert following is not None
                ends_at = now + following.seconds
            self.idle.discard(index)
            running = following.decoding + len(following.pieces)
            self.area += following.seconds * running
            heappush(self.busy, (ends_at, index, following))

    def _finish(self, index: int, done: BatchPass, now: float) -> None:
        progress = self.replicas[index].finish(done)
        self.idle.add(index)
        for sequence in progress.started:
            self.first[sequence.id] = now
        for sequence in progress.ended:
            self.ended[sequence.id] = now
            if self.is_closed and self.upcoming < len(self.outputs):
                self._send(now)

    def _outcome(self, wall: float) -> PredictedOutcome:
        count = max(1, len(self.ended))
        produced = sum(self.outputs[place] for place in self.ended)
        ttft_s = sum(self.first[task] - self.sent[task] for task in self.ended) / count
        decoded = [task for task in self.ended if self.outputs[task] > 1]
        times = [(self.ended[task] - self.first[task], self.outputs[task] - 1) for task in decoded]
        decoded_count = max(1, len(decoded))
        tpot_s = sum(seconds / tokens for seconds, tokens in times) / decoded_count
        task_tok_s = sum(tokens / seconds for seconds, tokens in times if seconds) / decoded_count
        return PredictedOutcome(
            effective_tok_s=produced / wall if wall else 0.0,
            task_tok_s=task_tok_s,
            ttft_s=ttft_s,
            tpot_s=tpot_s,
            wall_s=wall,
            tasks=len(self.ended),
            running=self.area / wall if wall else 0.0,
        )


def _fullness(pair: tuple[SimulatedReplica, float]) -> tuple[bool, int, float]:
    """Return what a replica, with its steps a second, is chosen by: the least is the best."""
    replica, steps_per_s = pair
    load = replica.load
    return load >= replica.slots, load, -steps_per_s


def _extended(fewer: PredictedOutcome, longer: PredictedOutcome, tasks: int) -> PredictedOutcome:
    """Return the outcome of so many tasks: walls, waits and sums over tasks grow in a straight
    line with them.
    """
    share = (tasks - fewer.tasks) / (longer.tasks - fewer.tasks)

    def grown(of_fewer: float, of_more: float) -> float:
        difference = of_more - of_fewer
        return of_fewer + share * difference

    def mean(of_fewer: float, of_more: float) -> float:
        sum_of_fewer = of_fewer * fewer.tasks
        sum_of_more = of_more * longer.tasks
        return grown(sum_of_fewer, sum_of_more) / tasks

    wall_s = grown(fewer.wall_s, longer.wall_s)
    produced = grown(fewer.effective_tok_s * fewer.wall_s, longer.effective_tok_s * longer.wall_s)
    area = grown(fewer.running * fewer.wall_s, longer.running * longer.wall_s)
    return PredictedOutcome(
        effective_tok_s=produced / wall_s,
        task_tok_s=mean(fewer.task_tok_s, longer.task_tok_s),
        ttft_s=grown(fewer.ttft_s, longer.ttft_s),
        tpot_s=mean(fewer.tpot_s, longer.tpot_s),
        wall_s=wall_s,
        tasks=tasks,
        running=area / wall_s,
    )


class SpeedModel(msgspec.Struct, frozen=True):
    """`card`, `link`, `step` and `pool_tokens` are of the slowest replica; `steps` of each."""

    setup: Setup
    card: Device
    link: CardLink | None
    step: StepModel
    slots: int  # of one replica
    pool_tokens: float  # of one replica
    chunk_tokens: int
    constants: Constants
    context_tokens: int  # of the sequences that the pool was counted for, each with its state
    steps: tuple[StepModel, ...] = ()

    @property
    def whole_pool_tokens(self) -> float:
        """Return the tokens that one replica's pool holds while no state of linear layers takes a
        part of it. `pool_tokens` leave room for one in each sequence of `context_tokens`.
        """
        pages = state_pages(self.setup)
        if pages is None:
            return self.pool_tokens
        return self.pool_tokens * (1 + pages.tokens / self.context_tokens)

    def outcome(self, load: PlannedLoad) -> PredictedOutcome:
        """Return what a user would measure: output tokens over wall time, run-to-run losses
        counted.
        """
        played = self._queued(load)
        if played is None:
            played = self._played(load)
        tail = _RUN_TAIL if load.concurrency > 1 else 1.0
        effective_tok_s = played.effective_tok_s * tail
        return replace(played, effective_tok_s=effective_tok_s)

    def _played(self, load: PlannedLoad) -> PredictedOutcome:
        steps = self.steps
        if not steps:
            steps = (self.step,) * self.setup.layout.replicas
        replicas = [
            SimulatedReplica(step, self.slots, self.pool_tokens, self.chunk_tokens)
            for step in steps
        ]
        return _LoadSimulation(replicas, load).run()

    def _queued(self, load: PlannedLoad) -> PredictedOutcome | None:
        """Return the outcome where far more agents than slots wait; None where they are few enough
        to be played.
        """
        slots = self.slots * self.setup.layout.replicas
        if load.shape == "burst" or load.spread or load.tasks or load.rate_per_s:
            return None
        if load.concurrency <= _QUEUE_WAVES * slots:
            return None
        uneven = load.concurrency % slots  # so that the last wave is as full as it will be
        fewer_agents = _FEWER_WAVES * slots + uneven
        more_agents = _MORE_WAVES * slots + uneven
        fewer = self._played(replace(load, concurrency=fewer_agents))
        longer = self._played(replace(load, concurrency=more_agents))
        tasks = load.concurrency * _ROUNDS
        return _extended(fewer, longer, tasks)

    def figure(self, load: PlannedLoad, metric: str) -> float:
        """Return the tokens a second as `metric` counts them: effective, over wall time; decode,
        agents x the rate of a stream.
        """
        if metric == "effective":
            return self.outcome(load).effective_tok_s
        among_prompts = load.shape == "burst" and load.concurrency > 1
        if among_prompts:
            tok_s_each = self.outcome(load).task_tok_s
        else:
            tok_s_each = self.stream_tok_s(load)
        return load.concurrency * tok_s_each

    def stream_tok_s(self, load: PlannedLoad) -> float:
        """Return the speed of one stream once it runs, beside those of the other agents and
        nobody's prompt.
        """
        agents_each = -(-load.concurrency // self.setup.layout.replicas)
        sequences = max(1, min(self.slots, agents_each))
        context_each = load.input_tokens + load.output_tokens / 2
        seconds = self.step.seconds(sequences, sequences * context_each)
        tokens = self.step.tokens_per_step(sequences)
        return tokens / seconds


def prospect(
    setup: Setup,
    rig: Rig,
    constants: Constants,
    *,
    context: int,
    tuning: StepTuning = UNTUNED,
) -> SpeedModel:
    """Return the speed model of a setup on a rig.

    `context`: tokens of a whole sequence, prompt and answer. `tuning`: what a calibration of this
    machine found.
    """
    step_models: dict[tuple[Device, CardLink | None], StepModel] = {}
    replicas = []
    for group in groups(setup.layout):
        cards = [rig.cards[place] for place in group]
        card = pace_setter(cards, in_turn=setup.layout.tp == 1)
        link = None
        if setup.layout.tp > 1:
            link = group_link(rig, group)
        if (card, link) not in step_models:
            step_models[card, link] = step_model(setup, card, link, constants, tuning=tuning)
        step = step_models[card, link]
        replicas.append((step, card, link))
    step, card, link = max(replicas, key=lambda replica: replica[0].seconds(1, context))
    used = range(setup.layout.cards)
    memory_gib = min(rig.cards[place].memory_gib for place in used)
    smallest = dataclasses.replace(card, memory_gib=memory_gib)
    usual = defaults(setup.engine, smallest)
    slots = setup.slots or usual.slots
    pool = kv_capacity_tokens(setup, smallest, context=context, slots=slots)
    chunk = setup.batched_tokens or usual.batched_tokens
    steps = tuple(step_of_replica for step_of_replica, _, _ in replicas)
    return SpeedModel(
        setup=setup,
        card=card,
        link=link,
        step=step,
        slots=slots,
        pool_tokens=float(pool),
        chunk_tokens=chunk,
        constants=constants,
        context_tokens=context,
        steps=steps,
    )
