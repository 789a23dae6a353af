"""A made-up sweep of four levels and two repeats,
with the failures and gaps that a real one has.
"""

import pytest
from msgspec.structs import replace

from skep.bench.metrics import (
    Clock,
    Disagreement,
    Energy,
    LevelSummary,
    RepeatSummary,
    Speedup,
    SweepSummary,
)
from skep.report.sweep import sweep_page
from skep.stats.percentiles import Percentiles
from skep.stats.turning import Turning
from skep.store.records import Request, RunState, StoredRun
from skep.units import Interval

TASKS = 24


def _level(c, spread, task, contention, ttft, *, failed=0, limited=False, truncated=0):
    low, high = spread
    tpot = 1000 / task
    tokens = TASKS * 180
    walls = (tokens / high, tokens / low)
    return LevelSummary(
        concurrency=c,
        requests=2 * TASKS,
        failed=failed,
        output_tokens=2 * tokens,
        wall_s=sum(walls),
        effective_tok_s=2 * tokens / sum(walls),
        effective_low=low,
        effective_high=high,
        task_tok_s=task,
        contention_pct=contention,
        ttft_ms=Percentiles(p50=ttft[0], p95=ttft[1], p99=ttft[1] * 1.2, mean=ttft[0] * 1.1),
        tpot_ms=Percentiles(p50=tpot, p95=tpot * 1.3, p99=tpot * 1.6, mean=tpot * 1.05),
        engine_tok_s=task * 1.02,
        cached_prompt_share=0.31 if c > 1 else 0.0,
        truncated=truncated,
        client_limited=limited,
        repeats=tuple(
            RepeatSummary(i, wall, tokens, tokens / wall) for i, wall in enumerate(walls)
        ),
    )


@pytest.fixture(scope="session")
def levels():
    return (
        _level(1, (40.9, 42.6), 44.1, 0.0, (92.0, 131.0)),
        _level(4, (121.4, 133.0), 36.2, 17.9, (148.0, 305.0)),
        _level(8, (188.1, 201.7), 28.0, 36.5, (236.0, 610.0), failed=3, truncated=3),
        _level(16, (219.5, 243.9), 17.3, 60.8, (498.0, 1480.0), limited=True, truncated=2),
    )


@pytest.fixture(scope="session")
def summary(levels):
    serial = levels[0].wall_s
    swarm = levels[-1].wall_s
    speedup = Speedup(24, 16, serial, swarm, serial / swarm, 4.9, 1, 0, 9100, 8700)
    return SweepSummary("01JCR8Z7", levels, client_limited=True, speedups=speedup)


@pytest.fixture(scope="session")
def run():
    config = {
        "concurrency": [1, 4, 8, 16],
        "tasks": TASKS,
        "runs": 2,
        "max_tokens": 256,
        "seed": 7,
        "temperature": 0.0,
    }
    gpus = [
        {"index": i, "name": "NVIDIA GeForce RTX 3090", "memory_bytes": 24 * 1024**3}
        for i in (0, 1)
    ]
    host = {
        "os": "Linux 6.8.0-48-generic",
        "python": "3.12.7",
        "cpu_cores": 16,
        "cpu_features": ["avx2", "fma"],
        "memory_bytes": 64 * 1024**3,
        "gpus": gpus,
        "links": [[0, 1, "PHB"]],
        "open_files_soft": None,
    }
    return StoredRun(
        id="01JCR8Z7",
        kind="sweep",
        state=RunState.DONE,
        created_at=1_763_175_600.0,
        ended_at=1_763_176_300.0,
        model="Qwen/Qwen3-30B-A3B-Instruct-AWQ",
        url="http://127.0.0.1:8000/v1",
        fingerprint="9c1d4f7ab2e0",
        config=config,
        host=host,
        engine={"name": "vllm", "version": "0.11.0", "slots": 16, "replicas": 2},
        simulated=False,
        skep_version="0.1.0",
        requests=8 * TASKS,
    )


@pytest.fixture(scope="session")
def rows():
    late = ("timeout", "no byte for 60 s")
    full = ("http_503", "the engine said: queue is full")
    return tuple(
        Request(
            level=8,
            repeat=0,
            index=i,
            kind="fix",
            started_s=1.0,
            ended_s=4.0,
            error_kind=kind,
            error=error,
        )
        for i, (kind, error) in enumerate([late, late, full, (None, None)])
    )


def _completed(level):
    """The level with everything that newer runs know."""
    value = level.effective_tok_s
    return replace(
        level,
        effective_interval=Interval(0.96 * value, value, 1.04 * value),
        plateau_tok_s=1.08 * value,
        gap_ms=level.tpot_ms,
        total_ms=Percentiles(4100.0, 5200.0, 6000.0, 4300.0),
        queued_ms=Percentiles(3.0, 9.0, 12.0, 4.0),
        prompt_tokens=1024.0,
        output_tokens_each=180.0,
        delivered=0.99,
        finish_reasons=(("stop", 45), ("length", 3)),
        errors=(("timeout", 3),) if level.failed else (),
        cached_prompt_share=0.03,
        energy=Energy(9000.0, 60.0, 1.52, 312.4, 349.0, ("power cap",), "NVML energy counter"),
    )


@pytest.fixture(scope="session")
def complete(summary):
    """A sweep of which everything is known: turning points, speedups, energy, drift and clocks."""
    levels = [_completed(level) for level in summary.levels]
    late = Disagreement(Clock.FIRST_TOKEN, 498.0, 210.0, "260 ms of it in the gateway's queue")
    levels[3] = replace(levels[3], clocks=(late,))
    return replace(
        summary,
        levels=tuple(levels),
        turning=Turning(8, (4, 8), 8, (8, 16), 12.0, sure=True),
        speedups=Speedup(24, 16, 218.3, 39.5, 5.53, 4.9, 1, 0, 9100, 8700),
        drift=Interval(0.96, 0.98, 1.01),
    )


@pytest.fixture(scope="session")
def page(run, summary, rows):
    return sweep_page(run, summary, rows)
