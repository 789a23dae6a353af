"""The client watches itself: a measurement made by a client that could not keep up is marked as such."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from skep.stats.percentiles import percentile

SAMPLE_EVERY_S = 0.02
LAG_LIMIT_MS = 50.0  # p99 of the event loop's lag
CPU_LIMIT = 0.85  # of one core


@dataclass(slots=True)
class ClientHealth:
    lags_ms: list[float] = field(default_factory=list)
    cpu_share: float = 0.0

    @property
    def lag_p99_ms(self) -> float:
        return percentile(self.lags_ms, 99) if self.lags_ms else 0.0

    @property
    def lag_max_ms(self) -> float:
        return max(self.lags_ms, default=0.0)

    @property
    def limited(self) -> bool:
        return self.lag_p99_ms > LAG_LIMIT_MS or self.cpu_share > CPU_LIMIT


@asynccontextmanager
async def watch_client() -> AsyncIterator[ClientHealth]:
    """Samples while the block runs; `cpu_share` is there after it."""
    health = ClientHealth()
    cpu, wall = time.process_time(), time.monotonic()
    sampler = asyncio.create_task(_sample(health))
    try:
        yield health
    finally:
        sampler.cancel()
        health.cpu_share = (time.process_time() - cpu) / max(1e-9, time.monotonic() - wall)


async def _sample(health: ClientHealth) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + SAMPLE_EVERY_S
        await asyncio.sleep(SAMPLE_EVERY_S)
        health.lags_ms.append(max(0.0, (loop.time() - due) * 1000))
