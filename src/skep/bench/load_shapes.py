"""Shapes of load: who sends when, and whether this client keeps up with it.

Each shape runs one level once and hands every row on as it ends.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.bench.summary import CPU_LIMIT, LAG_LIMIT_MS, LATE_LIMIT_MS
from skep.bench.tasks import BenchTask, EncodedRequest, Repetition, Sender, TrafficStream
from skep.stats.percentiles import percentile
from skep.store.records import Request
from skep.workload.filling import capped_exponential
from skep.workload.prompts import ConversationScript

SAMPLE_EVERY_S = 0.02
FEW_SAMPLES = 200
RARELY = (200_000, 50, 1000)
OnRow = Callable[[Request], None]
Load = Callable[[Sender, OnRow], Awaitable[None]]
Conversation = tuple[BenchTask, ConversationScript]  # the task of its first turn, without messages


@asynccontextmanager
async def _kept(sender: Sender) -> AsyncIterator[None]:
    """Every answer that ended becomes a row, also when the load is broken off."""
    try:
        yield
        await sender.settle()
    except BaseException:
        sender.flush_rows()
        raise


async def steady(
    sender: Sender, on_row: OnRow, tasks: Iterable[BenchTask], width: int, *, until_s: float | None = None,
    pause: Callable[[], Awaitable[None]] | None = None,
) -> None:  # fmt: skip
    """`width` in flight until all tasks are done, or `until_s` on the run's clock; each agent makes one at least."""
    requests: Iterator[EncodedRequest] = map(sender.encode, tasks)
    if isinstance(tasks, Sequence):  # written beforehand: nothing but sending is left to do when a place is free
        requests = iter([*requests])

    async def work() -> None:
        for request in requests:
            await sender.send(request, on_row)
            if until_s is not None and sender.now() >= until_s:
                return
            if pause is not None:
                await pause()

    async with _kept(sender), asyncio.TaskGroup() as workers:
        for _ in range(width):
            workers.create_task(work())


async def scheduled(
    sender: Sender, on_row: OnRow, tasks: Iterable[tuple[float, BenchTask]], *, began: float | None = None
) -> None:
    """Each task at its offset from `began` on the run's clock. A late client sends at once; the row says when due."""
    began = sender.now() if began is None else began

    async with _kept(sender), asyncio.TaskGroup() as group:
        for offset, task in tasks:
            due = began + offset
            ahead = due - sender.now()
            if ahead > 0:
                await asyncio.sleep(ahead)
            group.create_task(sender.send(sender.encode(replace(task, scheduled_s=due)), on_row))


async def run_conversations(
    sender: Sender, on_row: OnRow, them: Iterator[Conversation], width: int, *, until_s: float | None
) -> None:
    """`width` agents in conversation, each with the next one when theirs is over. A failed turn ends a conversation."""

    async def talk(first: BenchTask, script: ConversationScript) -> None:
        answers: list[str] = []
        for turn in range(len(script.turns)):
            if turn:
                await asyncio.sleep(script.think_s[turn - 1] if turn <= len(script.think_s) else 0.0)
            said = script.messages(turn, answers)
            row, answer = await sender.ask(replace(first, messages=said, turn=turn, index=first.index + turn))
            on_row(row)
            if not row.ok:
                return
            answers.append(answer)

    async def agent() -> None:
        for first, script in them:
            if until_s is not None and sender.now() >= until_s:
                return
            await talk(first, script)

    async with asyncio.TaskGroup() as agents:
        for _ in range(width):
            agents.create_task(agent())


class TimeWindow(msgspec.Struct, frozen=True):
    """Time window on the run's clock. Nothing begins after `until_s`, or `for_s` after the beginning."""

    begin_s: float | None = None  # None: at once; offsets count from here
    until_s: float | None = None
    for_s: float | None = None

    def end_s(self, begin_s: float) -> float | None:
        ends = [self.until_s, None if self.for_s is None else begin_s + self.for_s]
        return min((end for end in ends if end is not None), default=None)


def repetition_of(tasks: Sequence[BenchTask]) -> Repetition:
    """Return how tasks repeat: if all share one system message, the question changes instead."""
    alike = len(tasks) > 1 and len({task.messages[0]["content"] for task in tasks}) == 1
    return Repetition(len(tasks), -1 if alike else 0)


async def wait_for_begin(sender: Sender, span: TimeWindow) -> float:
    """Wait for the beginning; return how many seconds late it is."""
    if span.begin_s is None:
        return 0.0
    await asyncio.sleep(max(0.0, span.begin_s - sender.now()))
    return max(0.0, sender.now() - span.begin_s)


async def run_streams(sender: Sender, on_row: OnRow, streams: Sequence[TrafficStream], span: TimeWindow) -> None:
    begin_s = sender.now() if span.begin_s is None else span.begin_s
    async with asyncio.TaskGroup() as group:
        for stream in streams:
            load: Any = _load(stream, begin_s, span.end_s(begin_s))(sender, on_row)
            group.create_task(load)


def split_tasks(width: int, tasks: Sequence[Any], workers: int) -> list[tuple[int, list[Any]]]:
    """For each worker its places and its tasks: as many more tasks as it has places, and some of every kind."""
    parts = max(1, min(workers, width, len(tasks)))
    places = [len(range(part, width, parts)) for part in range(parts)]
    shares = ([task for n, task in enumerate(tasks) if n % width % parts == part] for part in range(parts))
    return [*zip(places, shares, strict=True)]


def split_between_workers(streams: Sequence[TrafficStream], workers: int) -> list[list[TrafficStream]]:
    """Each worker's share of every stream; one that is too narrow for all begins where the one before it ended."""
    hands: list[list[TrafficStream]] = [[] for _ in range(workers)]
    begin = 0
    for stream in streams:
        for place, part in enumerate(_parted(stream, workers)):
            hands[(begin + place) % workers].append(part)
        begin += stream.width
    return [hand for hand in hands if hand]


def _parted(stream: TrafficStream, workers: int) -> Iterator[TrafficStream]:
    width = stream.width if stream.offsets is None else max(stream.width, min(workers, len(stream.tasks)))
    for number, (places, mine) in enumerate(split_tasks(width, range(len(stream.tasks)), workers)):
        own, due = frozenset(mine), None
        if stream.offsets is not None:
            due = [at for place, at in enumerate(stream.offsets) if place % len(stream.tasks) in own]
        if due or (stream.offsets is None and mine):
            tasks, seed = [stream.tasks[n] for n in mine], f"{stream.seed}/{number}" if number else stream.seed
            scripts = [stream.scripts[n] for n in mine] if stream.scripts else []
            yield replace(stream, tasks=tasks, width=places, offsets=due, scripts=scripts, seed=seed)


def _load(stream: TrafficStream, begin_s: float, until_s: float | None) -> Load:
    if stream.offsets is not None:
        return partial(scheduled, tasks=zip(stream.offsets, endless_tasks(stream), strict=False), began=begin_s)
    width = stream.width if stream.again else min(stream.width, len(stream.tasks))
    if stream.scripts:
        return partial(run_conversations, them=conversations(stream), width=width, until_s=until_s)
    rng = Random(stream.seed)

    async def pause() -> None:
        await asyncio.sleep(capped_exponential(rng, stream.think_s))

    tasks = endless_tasks(stream) if stream.again else stream.tasks
    return partial(steady, tasks=tasks, width=width, until_s=until_s, pause=pause if stream.think_s else None)


def endless_tasks(stream: TrafficStream) -> Iterator[BenchTask]:
    """Yield the tasks again and again, without making a prompt while something is measured."""
    yield from stream.tasks
    if stream.again is None or not stream.tasks:
        return
    again = stream.again
    for number in count(1):
        for task in stream.tasks:
            said = [dict(message) for message in task.messages]
            said[again.message]["content"] = f"{number}. {said[again.message]['content']}"
            yield replace(task, messages=said, index=task.index + number * again.tasks)


def conversations(stream: TrafficStream) -> Iterator[Conversation]:
    """Yield the conversations of a stream, again and again where they repeat: each behind another first line then."""
    yield from zip(stream.tasks, stream.scripts, strict=True)
    if stream.again is None:
        return
    for number in count(1):
        later = number * stream.again.tasks
        for first, script in zip(stream.tasks, stream.scripts, strict=True):
            index, session = first.index + later * len(script.turns), (first.session or 0) + later
            yield replace(first, index=index, session=session), replace(script, system=f"{number}. {script.system}")


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
