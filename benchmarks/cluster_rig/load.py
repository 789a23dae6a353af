"""Levels of load on one door or several, and two or more ways to the same engines in turns."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster_rig.rig import Kind

from skep.bench.endpoint import Endpoint
from skep.bench.load_shapes import garbage_kept, steady, watch_client
from skep.bench.metrics import repeat_of, tpot_values, ttft_values
from skep.bench.tasks import BenchTask, Sender
from skep.store.records import Request
from skep.wire.client import Pool

TIMEOUT_S = 120.0
_WORDS = (
    "parser",
    "value",
    "list",
    "test",
    "empty",
    "index",
    "branch",
    "cache",
    "token",
    "field",
    "graph",
    "queue",
)


@dataclass(frozen=True)
class Level:
    """One run of it.

    Times are medians over its requests, `whole` from sending to the last byte.
    """

    tok_s: float
    ttft_ms: float
    tpot_ms: float
    whole_ms: float
    cpu_share: float  # of this process


@dataclass(frozen=True)
class Asked:
    """Streams, and how many requests they share."""

    streams: int
    requests: int


class Loader:
    """No two prompts of a run are alike, so that no cache knows them."""

    def __init__(self, kind: Kind, seed: str) -> None:
        self._kind = kind
        self._rng = random.Random(seed)

    async def level(self, ways: Sequence[Endpoint], asked: Asked) -> Level:
        """The streams divided among the ways. Every request is answered, or it is no level."""
        origin_s = time.monotonic()
        rows: list[Request] = []
        loads = []
        pools = [Pool(way.origin, max_idle=asked.streams) for way in ways]
        for number, (way, pool) in enumerate(zip(ways, pools, strict=True)):
            width = len(range(number, asked.streams, len(ways)))
            tasks = [
                self._task(asked.streams, index)
                for index in range(number, asked.requests, len(ways))
            ]
            await pool.prepare(width)
            loads.append(
                steady(Sender(way, pool, origin_s, timeout_s=TIMEOUT_S), rows.append, tasks, width)
            )
        with garbage_kept():
            async with watch_client() as health:
                await asyncio.gather(*loads)
        for pool in pools:
            await pool.close()
        failed = [row.error for row in rows if not row.ok]
        if failed or len(rows) != asked.requests:
            raise SystemExit(f"{len(failed)} of {asked.requests} requests failed: {failed[:3]}")
        return Level(
            tok_s=repeat_of(0, rows, asked.streams).effective_tok_s,
            ttft_ms=statistics.median(ttft_values(rows)),
            tpot_ms=statistics.median(tpot_values(rows)),
            whole_ms=statistics.median((row.ended_s - row.started_s) * 1000 for row in rows),
            cpu_share=health.cpu_share,
        )

    def _task(self, level: int, index: int) -> BenchTask:
        words = " ".join(self._rng.choice(_WORDS) for _ in range(self._kind.words))
        message = {"role": "user", "content": f"{self._rng.getrandbits(40):010x} {words}"}
        return BenchTask(level, 0, index, "implement", [message], self._kind.tokens, True)


async def in_turns(
    loader: Loader,
    ways: Mapping[str, Endpoint],
    levels: Sequence[Asked],
    rounds: int,
    budget_s: float,
    only_alone: str | None = None,
) -> dict[int, dict[str, list[Level]]]:
    """Each level through each way, one right after the other; the order turns round from round to
    round.

    The widest level comes first, once, to warm up. `only_alone`: a way that is asked by one stream
    only. Fewer rounds where the budget would end before them."""
    began = time.monotonic()
    number = 0
    found: dict[int, dict[str, list[Level]]] = {level.streams: {} for level in levels}
    for name in ways:
        if name != only_alone:
            await loader.level([ways[name]], levels[-1])
    while number < rounds and (
        not number or (time.monotonic() - began) * (number + 1) / number <= budget_s
    ):
        for level in levels:
            names = [name for name in ways if level.streams == 1 or name != only_alone]
            for name in turned(names, number):
                found[level.streams].setdefault(name, []).append(
                    await loader.level([ways[name]], level)
                )
        number += 1
    return found


def turned(names: Sequence[str], number: int) -> list[str]:
    """A B, B A, A B ...; of three, who is first changes too."""
    by = (number // 2) % len(names)
    if len(names) > 2:
        order = [*names[by:], *names[:by]]
    else:
        order = list(names)
    return order if number % 2 == 0 else order[::-1]
