"""What is read beside a load: the engine's own counters, and whether this client kept up with what it was to send."""

from __future__ import annotations

import asyncio
import gc
import time
import tomllib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from skep.stats.percentiles import percentile
from skep.wire.client import Pool, fetch_if_there
from skep.wire.prometheus import parse_metrics

SAMPLE_EVERY_S = 0.02
LAG_LIMIT_MS = 50.0  # p99 of the event loop's lag
CPU_LIMIT = 0.85  # of one core
LATE_LIMIT_MS = 50.0  # after the moment that all were to begin at
LEAST_DELIVERED = 0.95  # of the concurrency asked for; a client that delivers less is the limit
FEW_SAMPLES = 200
RARELY = (200_000, 50, 1000)
GATEWAYS_OWN = "skep_build_info"


@cache
def counter_names() -> dict[str, dict[str, list[str]]]:
    """Return, for `means` and `totals`, what a figure is called here and what engines call it."""
    return tomllib.loads(files("skep.bench").joinpath("engine_counters.toml").read_text(encoding="utf-8"))


@dataclass(slots=True)
class ClientHealth:
    lags_ms: list[float] = field(default_factory=list)
    cpu_share: float = 0.0
    late_ms: float = 0.0  # the latest beginning
    energy: Mapping[str, Any] | None = None  # drawn by the machine meanwhile; None: nothing measured it
    _others: list[tuple[float, float]] = field(default_factory=list)  # p99 and largest lag of other processes

    @property
    def lag_p99_ms(self) -> float:
        """The p99 of the event loop's lag. A short run is counted without its two worst moments."""
        counted = sorted(self.lags_ms)[:-2] if len(self.lags_ms) < FEW_SAMPLES else self.lags_ms
        return max([percentile(counted, 99) if counted else 0.0, *(p99 for p99, _ in self._others)])

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

    async def sample() -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + SAMPLE_EVERY_S
            await asyncio.sleep(SAMPLE_EVERY_S)
            health.lags_ms.append(max(0.0, (loop.time() - due) * 1000))

    sampler = asyncio.create_task(sample())
    try:
        yield health
    finally:
        sampler.cancel()
        health.cpu_share = (time.process_time() - cpu) / max(1e-9, time.monotonic() - wall)


async def read_counters(pool: Pool, headers: Mapping[str, str], model: str) -> dict[str, float]:
    """Return every sample of the engine's `/metrics`, over its labels; of skep's gateway, also those behind it."""
    found: dict[str, float] = {}
    for path in ("/metrics", f"/metrics/engines?model={quote(model)}"):
        answer = await fetch_if_there(pool, "GET", path, headers=dict(headers), timeout_s=10.0)
        found |= parse_metrics(answer.text if answer else "")
        if GATEWAYS_OWN not in found:
            break
    return found


def counted(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return what changed between two readings; empty if a counter fell, because the engine was restarted."""
    changes = {name: after[name] - before.get(name, 0.0) for name in after}
    figures: dict[str, float] = {}
    for figure, names in counter_names()["means"].items():
        name = next((name for name in names if changes.get(f"{name}_count", 0) > 0), None)
        if name is not None and f"{name}_sum" in changes:
            figures[figure] = changes[f"{name}_sum"] / changes[f"{name}_count"]
    for figure, names in counter_names()["totals"].items():
        name = next((name for name in names if name in changes), None)
        if name is not None:
            figures[figure] = changes[name]
    return {} if any(value < 0 for value in figures.values()) else figures
