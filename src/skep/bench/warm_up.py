"""The warm-up before anything is measured: one request alone, then batches until they are alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from skep.bench.load_generator import LoadGenerator, check_warm_up
from skep.bench.load_shapes import OnRow
from skep.bench.tasks import TaskMaker
from skep.stats.precision import WarmUpDetector
from skep.store.records import Request

WARM_UP_TOKENS = 16
WARM_UP_BATCHES = 12


async def warm_up(
    driver: LoadGenerator,
    maker: TaskMaker,
    width: int,
    *,
    on_row: OnRow,
    on_batch: Callable[[int], None] = lambda _count: None,
    limit_s: float | None = None,
    quick: bool = False,
) -> None:
    """The first request finds out whether there is an answer at all. `quick`: one batch, however it went."""
    settling = WarmUpDetector(most=WARM_UP_BATCHES)
    tokens = min(WARM_UP_TOKENS, maker.workload.max_tokens)
    began, index, count = time.monotonic(), 0, 1
    while True:
        on_batch(count)
        tasks = maker.warm_up(count, index, tokens)
        index += count
        rows, _ = await driver.run_tasks(0, 0, tasks, count, on_row)
        check_warm_up(driver.endpoint, rows)
        if index > 1:
            settling.feed(_batch_speed(rows))
        late = limit_s is not None and time.monotonic() - began > limit_s
        if settling.done or late or (quick and index > 1):
            return
        count = width


def _batch_speed(rows: Sequence[Request]) -> float:
    wall_s = max(row.ended_s for row in rows) - min(row.started_s for row in rows)
    return sum(row.output_tokens or 0 for row in rows if row.ok) / wall_s if wall_s > 0 else 0.0
