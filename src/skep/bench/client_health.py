"""The client watches itself: a measurement made by a client that could not keep up is marked as such."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from skep.stats.percentiles import percentile

SAMPLE_EVERY_S = 0.02
LAG_LIMIT_MS = 50.0  # p99 of the event loop's lag
CPU_LIMIT = 0.85  # of one core
LATE_LIMIT_MS = 50.0  # after the moment that all were to begin at
LEAST_DELIVERED = 0.95  # of the concurrency asked for; a client that delivers less is the limit
FEW_SAMPLES = 200
RARELY = (200_000, 50, 1000)


@dataclass(slots=True)
class ClientHealth:
    lags_ms: list[float] = field(default_factory=list)
    cpu_share: float = 0.0
    late_ms: float = 0.0  # the latest beginning
    _others: list[tuple[float, float]] = field(default_factory=list)  # p99 and largest lag of other processes

    @property
    def lag_p99_ms(self) -> float:
        """The p99 of the event loop's lag. A short run is counted without its two worst moments."""
        counted = sorted(self.lags_ms)[:-2] if len(self.lags_ms) < FEW_SAMPLES else self.lags_ms
        own = percentile(counted, 99) if counted else 0.0
        return max([own, *(p99 for p99, _ in self._others)])

    @property
    def lag_max_ms(self) -> float:
        return max([0.0, *self.lags_ms, *(largest for _, largest in self._others)])

    def add_worst(self, lag_p99_ms: float, lag_max_ms: float, cpu_share: float, late_ms: float = 0.0) -> None:
        """Add what another load process measured of itself; the worst process counts."""
        self._others.append((lag_p99_ms, lag_max_ms))
        self.cpu_share = max(self.cpu_share, cpu_share)
        self.late_ms = max(self.late_ms, late_ms)

    @property
    def late(self) -> bool:
        return self.late_ms > LATE_LIMIT_MS

    @property
    def limited(self) -> bool:
        return self.lag_p99_ms > LAG_LIMIT_MS or self.cpu_share > CPU_LIMIT or self.late


def limit_reason(
    lag_p99_ms: float | None, cpu_share: float | None, delivered: float | None, late_ms: float | None
) -> str:
    """Return why a client was the limit, from what is stored of it."""
    reasons = []
    if lag_p99_ms is not None and lag_p99_ms > LAG_LIMIT_MS:
        reasons.append(f"event loop lag {lag_p99_ms:,.0f} ms")
    if cpu_share is not None and cpu_share > CPU_LIMIT:
        reasons.append(f"it used {cpu_share:.0%} of a core".replace("%", " %"))
    if delivered is not None and delivered < LEAST_DELIVERED:
        reasons.append(f"{delivered:.0%} of the requests asked for were in flight".replace("%", " %"))
    if late_ms is not None:
        reasons.append(f"the load began {late_ms:,.0f} ms late")
    return ", ".join(reasons) or "the reason was not recorded"


@contextmanager
def garbage_kept() -> Iterator[None]:
    """Collect once before the block, and hardly ever while it runs. A heap that was frozen before stays frozen."""
    before, was_frozen = gc.get_threshold(), gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    gc.set_threshold(*RARELY)  # a collection over a million times and texts takes tens of milliseconds
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not was_frozen:
            gc.unfreeze()


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
