"""Requests that arrive at a rate, whether or not the server keeps up.

Latency counts from when one was due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import accumulate, count, takewhile
from random import Random

import msgspec

from skep.bench.endpoint import Endpoint
from skep.bench.load_shapes import endless_tasks, scheduled
from skep.bench.metrics import SweepSummary
from skep.bench.session import Identity, OnProgress, Recording, RunSession
from skep.bench.tasks import BenchTask, TaskMaker, Workload
from skep.catalog.gpus import HostFacts
from skep.errors import UserError
from skep.host.power import PowerMeter
from skep.store.database import Store
from skep.workload.filling import exponential
from skep.workload.prompts import workload_fingerprint

CONNECTIONS = 512
MADE_BEFOREHAND = 256  # prompts of a level: making one takes as long as dozens of tokens
MOST_REQUESTS = 100_000  # of one level; all their times are kept

# By name, the offsets in seconds from the beginning of a load, without end, for a rate per second.
# The first of the random arrivals comes after a gap as well.
ARRIVALS: Mapping[str, Callable[[float, Random], Iterator[float]]] = {
    "poisson": lambda rate, rng: accumulate(exponential(rng, 1.0 / rate) for _ in count()),
    # Not summed up, so that nothing drifts.
    "constant": lambda rate, _: (place / rate for place in count()),
}


class OpenPlan(msgspec.Struct, frozen=True):
    rates: tuple[float, ...]  # requests a second; the levels are their places, from 1
    arrivals: str
    for_s: float  # at each rate
    runs: int = 1
    workload: Workload = msgspec.field(default_factory=Workload)
    timeout_s: float = 900.0
    keep_text: bool = True

    def __post_init__(self) -> None:
        if self.arrivals not in ARRIVALS:
            hint = f"choose one of {', '.join(ARRIVALS)}"
            raise UserError(f"--arrivals `{self.arrivals}` is unknown", hint=hint)
        highest_rate = max(self.rates)
        requests = highest_rate * self.for_s
        if requests > MOST_REQUESTS:
            raise UserError(
                f"{highest_rate:g} requests a second for {self.for_s:g} s make {requests:,.0f}",
                hint=f"at most {MOST_REQUESTS:,} at each rate: choose a shorter --for",
            )

    def identity(self, model: str) -> Identity:
        timing = {
            "rates": self.rates,
            "arrivals": self.arrivals,
            "for_s": self.for_s,
            "runs": self.runs,
        }
        config = {**msgspec.to_builtins(self.workload), **timing}
        settings = {key: str(value) for key, value in config.items() if key != "seed"}
        return Identity(
            "open", workload_fingerprint({"kind": "open", "model": model, **settings})[:16], config
        )


async def run_open(
    plan: OpenPlan,
    endpoint: Endpoint,
    store: Store,
    host: HostFacts,
    maker: TaskMaker,
    on_progress: OnProgress = lambda _: None,
    *,
    meter: PowerMeter | None = None,
) -> SweepSummary:
    places = [
        (level, repeat) for repeat in range(plan.runs) for level in range(1, len(plan.rates) + 1)
    ]
    async with Recording(store, endpoint, host, plan.identity(endpoint.model)) as recording:
        session = RunSession(
            endpoint,
            recording,
            on_progress,
            widest=CONNECTIONS,
            keep_text=plan.keep_text,
            timeout_s=plan.timeout_s,
            meter=meter,
        )
        async with session.open():
            await session.warm_up(maker, 1)
            for place, (level, repeat) in enumerate(places):
                rate = plan.rates[level - 1]
                offsets = arrivals_of(plan, level, repeat)
                session.begin(
                    level=level,
                    repeat=repeat,
                    label=f"{rate:g}/s",
                    done=0,
                    total=len(offsets),
                    runs_done=place,
                    runs_left=len(places) - place,
                )
                tasks = tasks_of(maker, level, repeat, len(offsets))
                await session.driver.run_load(
                    level=level,
                    repeat=repeat,
                    load=partial(scheduled, tasks=zip(offsets, tasks, strict=False)),
                    width=min(CONNECTIONS, max(1, round(rate))),
                    on_row=session.count_row,
                    is_closed=False,
                )
                recording.check()
    return session.summary(closed=False)


def arrivals_of(plan: OpenPlan, level: int, repeat: int) -> list[float]:
    """Return when requests are due, in seconds from the beginning of a run."""
    rng = Random(f"{plan.workload.seed}/arrivals/{level}/{repeat}")
    offsets = ARRIVALS[plan.arrivals](plan.rates[level - 1], rng)
    return list(takewhile(lambda at: at < plan.for_s, offsets))


def tasks_of(maker: TaskMaker, level: int, repeat: int, count: int) -> Iterator[BenchTask]:
    """Yield tasks whose prompts are made before the first of them is sent."""
    return endless_tasks(maker.tasks(level, repeat, min(count, MADE_BEFOREHAND)))
