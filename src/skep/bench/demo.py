"""Levels of `skep demo`: a SIMULATED rig whose time runs faster,
through the gateway and past it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from skep.bench.endpoint import Endpoint
from skep.bench.load_shapes import OnRow, steady
from skep.bench.metrics import LevelSummary, SweepSummary
from skep.bench.session import Identity, LoadGenerator, Recording, fingerprint_of
from skep.bench.summary import summarise
from skep.bench.tasks import BenchTask, Sender
from skep.host.facts import read_host
from skep.store.database import Store
from skep.store.records import EngineTimings, Request

DEMO_LEVELS = {4: 16, 8: 24, 16: 32}  # agents, and their tasks
DEMO_TOKENS = 1024  # in and out, as published
DEMO_TASKS = 20  # of the swarm
DEMO_SCALE = 0.05  # seconds here for one of the simulated rig


@contextlib.asynccontextmanager
async def simulated_run(
    store: Store, kind: str, endpoints: Sequence[Endpoint], levels: Mapping[int, int], tokens: int
) -> AsyncIterator[Callable[[int], Awaitable[SweepSummary]]]:
    """Yield a function that measures a level and returns the summary so far.

    `levels`: the tasks by the number of agents. Several endpoints get equal shares of the agents,
    as from a proxy that counts connections.
    """
    host = read_host()
    config: dict[str, Any] = {
        "concurrency": [*levels],
        "max_tokens": tokens,
        "time_scale": DEMO_SCALE,
    }
    config["through"] = "skep"
    if len(endpoints) > 1:
        config["through"] = f"{len(endpoints)} engines, no gateway"
    identity = Identity(kind, fingerprint_of([kind, "demo"], endpoints[0], host), config)
    async with Recording(store, endpoints[0], host, identity) as recording:
        drivers = [
            LoadGenerator(
                endpoint, recording, timeout_s=300.0, keep_text=False, most_connections=DEMO_TASKS
            )
            for endpoint in endpoints
        ]

        def task(agents: int, number: int) -> BenchTask:
            messages = [
                {"role": "user", "content": f"{agents}.{number} " + "word " * (DEMO_TOKENS - 1)}
            ]
            return BenchTask(
                agents, 0, number, "demo", messages, tokens if agents else 1, fixed_output=True
            )

        async def measure(agents: int) -> SweepSummary:
            tasks = [task(agents, number) for number in range(levels.get(agents, 2))]
            shares = len(drivers)

            async def load(_: Sender, on_row: OnRow) -> None:
                def keep_in_rig_time(row: Request) -> None:
                    on_row(_in_rig_time(row))

                async with asyncio.TaskGroup() as group:
                    for number, driver in enumerate(drivers):
                        share = tasks[number::shares]
                        width = agents // shares or 1
                        group.create_task(steady(driver.sender, keep_in_rig_time, share, width))

            await drivers[0].run_load(
                level=agents,
                repeat=0,
                load=load,
                width=agents,
                on_row=lambda _: None,
                is_closed=agents > 0,
            )
            return summarise(recording.run_id, recording.rows, recording.samples, simulated=True)

        try:
            await measure(0)  # a warm-up
            yield measure
        finally:
            for driver in drivers:
                await driver.close()


def _in_rig_time(row: Request) -> Request:
    """Return the row with its times as they would be on the simulated rig."""
    names = ("started_s", "ended_s", "first_byte_s", "first_token_s", "last_token_s", "queued_ms")
    times: Any = {
        name: at / DEMO_SCALE for name in names if (at := getattr(row, name)) is not None
    }
    times["arrivals_s"] = tuple(at / DEMO_SCALE for at in row.arrivals_s)
    return replace(row, **times, engine=EngineTimings())


def fault_of(levels: Sequence[LevelSummary]) -> str:
    """Return why figures of these levels would mislead; empty: they do not."""
    if failed := sum(level.failed for level in levels):
        return f"{failed} requests failed"
    reasons = [level.repeats[-1].why for level in levels if level.client_limited]
    if reasons:
        return f"this machine was too busy: the client was the limit ({reasons[-1]})"
    return ""
