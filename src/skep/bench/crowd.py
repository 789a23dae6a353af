"""Load made outside this process: the port, when its workers begin, what is read of one. Knows no transport.

A run has two steps. Each worker gets its job, prepares it and says so; when all have, they are told when to begin. So
nothing of a job's way to a worker falls into a measurement, however large the job is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from skep.bench.client_health import ClientHealth
from skep.bench.loads import OnRow
from skep.bench.worker import Begin, Job, News, decode_news
from skep.errors import SkepError

LEAD_S = 0.5  # for the word to arrive that they begin


@dataclass(frozen=True, slots=True)
class Fared:
    """How a run went for those who made it. `workers`: what is kept of them with the level; None: nothing."""

    health: ClientHealth
    workers: Mapping[str, Any] | None = None


class Witness:
    """Told when the workers of a run begin, and when its last request has ended, unless it breaks off. Does nothing."""

    def began(self) -> None: ...
    def ended(self) -> None: ...


NOBODY = Witness()


class Crowd(Protocol):
    """`run` lets all workers begin when each has prepared its job. `close` ends them; so does a run that breaks off."""

    @property
    def few(self) -> int:
        """Workers to begin with."""

    @property
    def most(self) -> int: ...
    async def run(self, jobs: Sequence[Job], on_row: OnRow, witness: Witness = NOBODY) -> Fared: ...
    async def close(self) -> None: ...


def beginnings(jobs: Sequence[Job], now_s: float) -> list[Begin]:
    """Those that follow a clock, on several workers: all count from one moment, which is yet to come."""
    together = len(jobs) > 1
    return [Begin(now_s + LEAD_S - job.origin_s if together and job.follows_clock else None) for job in jobs]


async def at_beginning(begins: Sequence[Begin], witness: Witness) -> None:
    """Says so when the first of them begins: at once, unless all wait for the moment that is yet to come."""
    if all(one.at_s is not None for one in begins):
        await asyncio.sleep(LEAD_S)
    witness.began()


async def told(frames: AsyncIterator[bytes], on_row: OnRow) -> News | None:
    """Hands rows on as they come; returns the last news, or None where the worker ended before it told them."""
    got = 0
    async for frame in frames:
        news = decode_news(frame)
        for row in news.rows:
            on_row(row)
        got += len(news.rows)
        if news.last:
            if got != news.made:
                raise SkepError(f"a load process told of {got} of {news.made} requests", hint="please report it")
            return news
    return None
