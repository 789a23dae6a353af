"""Shapes of load: who sends when, and whether this client keeps up with it.

Each shape runs one level once and hands every row on as it ends.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import count

from msgspec.structs import replace

from skep.bench.summary import CPU_LIMIT, LAG_LIMIT_MS
from skep.bench.tasks import BenchTask, EncodedRequest, Sender
from skep.stats.percentiles import percentile
from skep.store.records import Request
from skep.workload.prompts import ConversationScript

SAMPLE_EVERY_S = 0.02
FEW_SAMPLES = 200
RARE_GC_THRESHOLDS = (200_000, 50, 1000)
OnRow = Callable[[Request], None]
Load = Callable[[Sender, OnRow], Awaitable[None]]
Conversation = tuple[BenchTask, ConversationScript]  # the task of its first turn, without messages


@asynccontextmanager
async def _keep_rows(sender: Sender) -> AsyncIterator[None]:
    """Make a row of every answer that ended, also when the load is broken off."""
    try:
        yield
        await sender.settle()
    except BaseException:
        sender.flush_rows()
        raise


async def steady(
    sender: Sender,
    on_row: OnRow,
    tasks: Iterable[BenchTask],
    width: int,
    *,
    until_s: float | None = None,
) -> None:
    """Keep `width` requests in flight until all tasks are done, or until `until_s` on the run's
    clock. Each agent sends one at least.
    """
    requests: Iterator[EncodedRequest] = map(sender.encode, tasks)
    if isinstance(tasks, Sequence):
        # Encoded beforehand, so that only sending is left to do when a place is free.
        requests = iter([*requests])

    async def work() -> None:
        for request in requests:
            await sender.send(request, on_row)
            if until_s is not None and sender.now() >= until_s:
                return

    async with _keep_rows(sender), asyncio.TaskGroup() as workers:
        for _ in range(width):
            workers.create_task(work())


async def scheduled(
    sender: Sender, on_row: OnRow, tasks: Iterable[tuple[float, BenchTask]]
) -> None:
    """Send each task at its offset from now.

    A client that is late sends at once; the row says when the task was due.
    """
    began = sender.now()

    async with _keep_rows(sender), asyncio.TaskGroup() as group:
        for offset, task in tasks:
            due = began + offset
            ahead = due - sender.now()
            if ahead > 0:
                await asyncio.sleep(ahead)
            group.create_task(sender.send(sender.encode(replace(task, scheduled_s=due)), on_row))


def endless_tasks(tasks: Sequence[BenchTask]) -> Iterator[BenchTask]:
    """Yield the tasks again and again, each time behind another first line, without composing a
    prompt anew.
    """
    yield from tasks
    for number in count(1) if tasks else ():
        for task in tasks:
            first, *others = task.messages
            messages = [{**first, "content": f"{number}. {first['content']}"}, *others]
            yield replace(task, messages=messages, index=task.index + number * len(tasks))


async def run_conversations(
    sender: Sender, on_row: OnRow, conversations: Iterable[Conversation], width: int
) -> None:
    """Keep `width` agents in conversation; each takes the next conversation when its own is over.

    A failed turn ends a conversation.
    """
    remaining = iter(conversations)

    async def talk(first: BenchTask, script: ConversationScript) -> None:
        answers: list[str] = []
        for turn in range(len(script.turns)):
            if turn:
                think_s = script.think_s[turn - 1] if turn <= len(script.think_s) else 0.0
                await asyncio.sleep(think_s)
            messages = script.messages(turn, answers)
            row, answer = await sender.ask(
                replace(first, messages=messages, turn=turn, index=first.index + turn)
            )
            on_row(row)
            if not row.ok:
                return
            answers.append(answer)

    async def agent() -> None:
        for first, script in remaining:
            await talk(first, script)

    async with asyncio.TaskGroup() as agents:
        for _ in range(width):
            agents.create_task(agent())


@dataclass(slots=True)
class ClientHealth:
    """Whether this client kept up with the load: event loop lag and its share of a core."""

    lags_ms: list[float] = field(default_factory=list)
    cpu_share: float = 0.0

    @property
    def lag_p99_ms(self) -> float:
        """Return the p99 of the lag; a short run counts without its two worst moments."""
        lags_ms = self.lags_ms
        if len(lags_ms) < FEW_SAMPLES:
            lags_ms = sorted(lags_ms)[:-2]
        if lags_ms:
            return percentile(lags_ms, 99)
        return 0.0

    @property
    def lag_max_ms(self) -> float:
        return max(self.lags_ms, default=0.0)

    @property
    def limited(self) -> bool:
        return self.lag_p99_ms > LAG_LIMIT_MS or self.cpu_share > CPU_LIMIT


@contextmanager
def garbage_kept() -> Iterator[None]:
    """Collect once before the block, and hardly ever while it runs.

    A heap that was frozen before stays frozen.
    """
    before = gc.get_threshold()
    was_frozen = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    # A collection over a million times and texts takes tens of milliseconds.
    gc.set_threshold(*RARE_GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not was_frozen:
            gc.unfreeze()


@asynccontextmanager
async def watch_client() -> AsyncIterator[ClientHealth]:
    """Sample the event loop's lag while the block runs; `cpu_share` is known after it."""
    health = ClientHealth()
    cpu = time.process_time()
    wall = time.monotonic()

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
