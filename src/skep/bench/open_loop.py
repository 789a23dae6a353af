"""Requests that arrive at a rate, whether or not the server keeps up.

Latency counts from when one was due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import accumulate, count, takewhile
from random import Random
from typing import Any

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

# Offsets in seconds from the beginning of a load, without end, of a rate per second. The first of
# the random ones comes after a gap as well: it has no beginning of its own.
ARRIVALS: Mapping[str, Callable[[float, Random], Iterator[float]]] = {
    "poisson": lambda rate, rng: accumulate(exponential(rng, 1.0 / rate) for _ in count()),
    "constant": lambda rate, _: (
        place / rate for place in count()
    ),  # not summed up, so that nothing drifts
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
        most = max(self.rates)
        if most * self.for_s > MOST_REQUESTS:
            what = f"{most:g} requests a second for {self.for_s:g} s make {most * self.for_s:,.0f}"
            raise UserError(
                what, hint=f"at most {MOST_REQUESTS:,} at each rate: choose a shorter --for"
            )

    def identity(self, model: str) -> Identity:
        timing = {
            "rates": self.rates,
            "arrivals": self.arrivals,
            "for_s": self.for_s,
            "runs": self.runs,
        }
        config = {**msgspec.to_builtins(self.workload), **timing}
        told = {key: str(value) for key, value in config.items() if key != "seed"}
        return Identity(
            "open", workload_fingerprint({"kind": "open", "model": model, **told})[:16], config
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
        how: dict[str, Any] = {
            "timeout_s": plan.timeout_s,
            "keep_text": plan.keep_text,
            "meter": meter,
        }
        session = RunSession(endpoint, recording, on_progress, widest=CONNECTIONS, **how)
        async with session.open():
            await session.warm_up(maker, 1)
            for place, (level, repeat) in enumerate(places):
                rate = plan.rates[level - 1]
                offsets = arrivals_of(plan, level, repeat)
                now = {
                    "level": level,
                    "repeat": repeat,
                    "label": f"{rate:g}/s",
                    "total": len(offsets),
                }
                session.begin(**now, done=0, runs_done=place, runs_left=len(places) - place)
                tasks = tasks_of(maker, level, repeat, len(offsets))
                load = partial(scheduled, tasks=zip(offsets, tasks, strict=False))
                width = min(CONNECTIONS, max(1, round(rate)))
                await session.driver.run_load(
                    level, repeat, load, width, session.took, is_closed=False
                )
                recording.check()
    return session.summary(closed=False)


def arrivals_of(plan: OpenPlan, level: int, repeat: int) -> list[float]:
    """Return when requests are due, in seconds from the beginning of a run."""
    rng = Random(f"{plan.workload.seed}/arrivals/{level}/{repeat}")
    return list(
        takewhile(lambda at: at < plan.for_s, ARRIVALS[plan.arrivals](plan.rates[level - 1], rng))
    )


def tasks_of(maker: TaskMaker, level: int, repeat: int, most: int) -> Iterator[BenchTask]:
    """Yield tasks whose prompts are made before the first of them is sent."""
    return endless_tasks(maker.tasks(level, repeat, min(most, MADE_BEFOREHAND)))
