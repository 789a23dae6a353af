"""A against B in turns: every run of a level at A has its partner at B moments before or after, with the same tasks.

What the machine or the network does meanwhile befalls both, so it falls out of the ratio of each pair.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial

from skep.bench.compare import Side, compare
from skep.bench.endpoint import Endpoint
from skep.bench.metrics import repeat_of
from skep.bench.recording import Identity, Recording
from skep.bench.records import Comparison
from skep.bench.summary import summarise
from skep.bench.sweep import Progress, Sweep, SweepPlan, run_fingerprint
from skep.bench.tasks import TaskMaker
from skep.catalog.machine import HostFacts
from skep.stats.intervals import paired_ratio_interval
from skep.store.database import Store
from skep.store.records import Request

FEWEST = 3


@dataclass(frozen=True, slots=True)
class Duel:
    a: Side
    b: Side
    comparisons: list[Comparison]


async def run_ab(
    plan: SweepPlan,
    endpoints: tuple[Endpoint, Endpoint],
    store: Store,
    host: HostFacts,
    makers: tuple[TaskMaker, TaskMaker],
    on_progress: Callable[[str, Progress], None] = lambda _, __: None,
) -> Duel:
    """Two stored runs of the kind `ab`. Ends when every level's ratio is known to the plan's precision, or in time."""
    plan = replace(plan, kind="ab")
    async with AsyncExitStack() as stack:
        sides: list[Sweep] = []
        for name, endpoint, maker in zip("AB", endpoints, makers, strict=True):
            config = {**asdict(plan), "side": name, "against": endpoints[name == "A"].url}
            identity = Identity("ab", run_fingerprint(plan, endpoint, host), config)
            recording = await stack.enter_async_context(Recording(store, endpoint, host, identity))
            show = partial(on_progress, name)
            sweep = Sweep(plan, endpoint, recording, maker, show)
            stack.push_async_callback(sweep.close)
            sides.append(sweep)
        for sweep in sides:
            await sweep.warm_up()
        await _take_turns(plan, sides[0], sides[1])
    a, b = (_side(sweep) for sweep in sides)
    return Duel(a, b, compare(a, b, paired=True))


async def _take_turns(plan: SweepPlan, a: Sweep, b: Sweep) -> None:
    began = time.monotonic()
    ratios: dict[int, list[tuple[float, float]]] = {level: [] for level in plan.concurrency}
    for number in range(plan.runs or plan.most_runs):
        unsure = [level for level in plan.concurrency if plan.runs is not None or not _is_known(ratios[level], plan)]
        for place, level in enumerate(unsure):
            if plan.runs is None and number >= FEWEST and _is_late(began, plan.budget_s):
                return
            first, second = (a, b) if (number + place) % 2 == 0 else (b, a)
            rows = {first: await first.run_level(level), second: await second.run_level(level)}
            ratios[level].append((_speed(rows[a]), _speed(rows[b])))


def _is_known(pairs: list[tuple[float, float]], plan: SweepPlan) -> bool:
    if len(pairs) < FEWEST or any(not low for pair in pairs for low in pair):
        return False
    found = paired_ratio_interval(pairs)
    return found is not None and found.half_width <= plan.precision


def _is_late(began: float, budget_s: float | None) -> bool:
    return budget_s is not None and time.monotonic() - began > budget_s


def _speed(rows: list[Request]) -> float:
    return repeat_of(0, rows, None).effective_tok_s


def _side(sweep: Sweep) -> Side:
    recording = sweep.recording
    stored = (recording.rows, recording.samples, recording.facts)
    summary = summarise(recording.run_id, *stored, simulated=recording.simulated)
    return Side(summary, recording.rows)
