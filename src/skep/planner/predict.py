"""A published row's expected speed: the step model of its cards, played through with its load."""

from __future__ import annotations

import math
from collections.abc import Sequence as Several
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from skep.catalog.gpus import Device
from skep.planner.batching import BatchPass, Sequence, SimulatedReplica
from skep.planner.constants import Constants
from skep.planner.fit import kv_capacity_tokens, pool_tokens_as_reported
from skep.planner.memory import defaults, kv_bytes_per_token, memory, state_bytes, weights_bytes, window_bytes
from skep.planner.points import PublishedCase, Unpredictable
from skep.planner.rigs import group_link, groups, pace_setter
from skep.planner.setup import CardLink, PlannedLoad, Rig, Setup
from skep.planner.step import LLAMACPP, UNTUNED, StepModel, StepTuning, step_model
from skep.units import GIB

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
    return simulate_load_on([SimulatedReplica(step, slots, pool_tokens, chunk_tokens) for _ in range(replicas)], load)


def simulate_load_on(replicas: Several[SimulatedReplica], load: PlannedLoad) -> PredictedOutcome:
    """On empty replicas, each at its own pace: a task goes where the least wait for their share of slots."""
    return _LoadSimulation(replicas, load).run()


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
        place = self.upcoming
        self.upcoming += 1
        self.sent[place] = now
        self._target().submit(Sequence(place, self.prompt, self.outputs[place], self.cached))

    def _target(self) -> SimulatedReplica:
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


_AT_ONCE = {"sglang": 2048, "trtllm": 2048}  # bounded by memory alone, as far as people meet it
_AT_ONCE_DRAFTING = {"sglang": 48}  # set by SGLang itself as soon as it speculates
_FEW = 8  # sequences: who has room for fewer raises the engine's share of the card
_FILLED = 0.96
_PUSHED_OUT = 0.2  # of what the prefix cache could have answered, where the pool is too small to keep it


def case_setup(case: PublishedCase) -> Setup:
    return Setup(
        case.model, case.quant, case.kv, case.engine, case.layout, slots=case.slots, utilization=case.utilization,
        graphs=case.graphs, spec=case.spec, batched_tokens=case.chunk_tokens,
    )  # fmt: skip


def case_step(case: PublishedCase, constants: Constants, tuning: StepTuning = UNTUNED) -> StepModel:
    return step_model(
        case.model, case.quant, case.kv, case.card, case.layout, case.link, engine=case.engine, graphs=case.graphs,
        spec=case.spec, constants=constants, split=case.split, tuning=tuning, weight_only=case.weight_only,
    )  # fmt: skip


def case_pool_tokens(case: PublishedCase) -> float:
    """Tokens of KV beside the weights. The row was measured, so one sequence fits whatever the arithmetic says."""
    setup = case_setup(case)
    context = int(case.load.input_tokens + case.load.output_tokens)
    each = case.layout.cards_each
    weights = weights_bytes(case.model, case.quant, with_vision=False)
    if weights > 1.02 * case.card.memory_gib * GIB * each:
        has = f"{each} x {case.card.memory_gib:g} GiB"
        raise Unpredictable(f"memory: {weights / GIB:.0f} GiB of {case.quant.title} weights do not fit {has}")
    if case.engine in LLAMACPP:
        return float(context) * case.load.concurrency * 2  # taken at the start, for every slot
    usual = defaults(case.engine, case.card)
    slots = case.slots or usual.slots
    plan = memory(setup, case.card, context=context, slots=slots, vision=False)
    sequence = kv_bytes_per_token(setup) * context
    sequence += window_bytes(setup, context, case.chunk_tokens or usual.batched_tokens) + state_bytes(setup)
    held = plan.pool_bytes / sequence * context if sequence else float("inf")
    if case.pool_tokens is not None:
        reported = pool_tokens_as_reported(setup, plan)
        scale = held / reported if case.model.sliding_layers and reported else 1.0
        held = case.pool_tokens * scale
    if held < _FEW * context and held < case.load.concurrency * context:
        held = max(held, (_FILLED * case.card.memory_gib * GIB * each - weights) / each / sequence * context)
    return max(1.1 * context, held)


def predict(case: PublishedCase, constants: Constants, tuning: StepTuning = UNTUNED) -> PredictedOutcome:
    step = case_step(case, constants, tuning)
    usual = defaults(case.engine, case.card)
    pool, load = case_pool_tokens(case), case.load
    if load.cached_share and pool < 1.5 * load.concurrency * (load.input_tokens + load.output_tokens):
        load = replace(load, cached_share=_PUSHED_OUT * load.cached_share)
    return simulate_load(
        step, load, slots=case.slots or _slots(case, usual.slots), pool_tokens=pool,
        chunk_tokens=case.chunk_tokens or usual.batched_tokens, replicas=case.layout.replicas,
    )  # fmt: skip


def _slots(case: PublishedCase, usual: int) -> int:
    drafting = _AT_ONCE_DRAFTING.get(case.engine) if case.spec is not None else None
    return drafting or _AT_ONCE.get(case.engine, usual)


def value_of(case: PublishedCase, outcome: PredictedOutcome, constants: Constants) -> float:
    """In the row's own terms."""
    if case.metric == "decode":
        return outcome.task_tok_s * case.load.concurrency
    return outcome.effective_tok_s * (constants.run_tail if case.load.concurrency > 1 else 1.0)


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
        played = simulate_load_on(
            [SimulatedReplica(step, self.slots, self.pool_tokens, self.chunk_tokens) for step in steps], load
        )
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
            found[card, link] = step_model(
                setup.model, setup.quant, setup.kv, card, setup.layout, link, engine=setup.engine, graphs=setup.graphs,
                spec=setup.spec, constants=constants, split=split, tuning=tuning, weight_only=_weight_only(setup, card),
            )  # fmt: skip
        replicas.append((found[card, link], card, link))
    step, card, link = max(replicas, key=lambda one: one[0].seconds(1, context))
    smallest = replace(card, memory_gib=min(rig.cards[place].memory_gib for place in range(setup.layout.cards)))
    usual = defaults(setup.engine, smallest)
    slots = setup.slots or usual.slots
    pool = kv_capacity_tokens(setup, smallest, context=context, slots=slots)
    chunk = setup.batched_tokens or usual.batched_tokens
    steps = tuple(one for one, _, _ in replicas)
    return SpeedModel(setup, card, link, step, slots, float(pool), chunk, constants, steps)


def _weight_only(setup: Setup, card: Device) -> bool:
    """A format the card has no hardware for is unpacked to 16 bit by the kernel."""
    return setup.quant.family in ("fp8", "fp4", "int8") and setup.quant.family not in card.formats
