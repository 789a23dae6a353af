"""Load made outside this process: the port, how a level is shared, and what is read of a worker. Knows no transport."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from skep.bench.client_health import ClientHealth
from skep.bench.loads import OnRow
from skep.bench.worker import Job, News, decode_news
from skep.errors import SkepError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fared:
    """How a run went for those who made it. `workers`: what is kept of them with the level; None: nothing."""

    health: ClientHealth
    workers: Mapping[str, Any] | None = None


class Crowd(Protocol):
    """`run` hands each worker its job at the same moment. `close` ends them; so does a run that breaks off."""

    @property
    def few(self) -> int:
        """Workers to begin with."""

    @property
    def most(self) -> int: ...
    async def run(self, jobs: Sequence[Job], on_row: OnRow) -> Fared: ...
    async def close(self) -> None: ...


def shared(width: int, tasks: Sequence[T], workers: int) -> list[tuple[int, list[T]]]:
    """For each worker its places and its tasks: as many more tasks as it has places, and some of every kind."""
    parts = max(1, min(workers, width, len(tasks)))
    places = [len(range(part, width, parts)) for part in range(parts)]
    return [
        (places[part], [task for number, task in enumerate(tasks) if number % width % parts == part])
        for part in range(parts)
    ]


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
