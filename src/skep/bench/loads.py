"""Shapes of load: who sends when. Each runs one level once and hands every row on as it ends.

*burst* sends all at once and waits for all; *steady* keeps a number in flight; *open* follows a schedule, whatever the
server does; *talks* are agents in conversation, whose context grows by the answers they got.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from skep.bench.request import Letter, Sender, Task
from skep.store.records import Request

OnRow = Callable[[Request], None]
Load = Callable[[Sender, OnRow], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Talk:
    """One conversation: `messages(answers)` gives what is sent for the turn after those answers; None ends it."""

    first: Task
    messages: Callable[[Sequence[str]], list[dict[str, str]] | None]
    think_s: Sequence[float] = ()  # before each further turn


@asynccontextmanager
async def _kept(sender: Sender) -> AsyncIterator[None]:
    """Every answer that ended becomes a row, also when the load is broken off."""
    try:
        yield
        await sender.settle()
    except BaseException:
        sender.clear_desk()
        raise


async def burst(sender: Sender, on_row: OnRow, tasks: Sequence[Task]) -> None:
    """All at once; ends with the last."""
    await steady(sender, on_row, tasks, len(tasks))


async def steady(
    sender: Sender,
    on_row: OnRow,
    tasks: Iterable[Task],
    width: int,
    *,
    until_s: float | None = None,
    pause: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """`width` in flight until the tasks are all done, or until no more are begun at `until_s` on the run's clock; each
    agent makes one request at least.

    `pause`: what an agent does between an answer and its next request.
    """
    letters: Iterator[Letter] = map(sender.letter, tasks)
    if isinstance(tasks, Sequence):  # written beforehand: nothing but sending is left to do when a place is free
        letters = iter([*letters])

    async def work() -> None:
        for letter in letters:
            await sender.send(letter, on_row)
            if until_s is not None and sender.now() >= until_s:
                return
            if pause is not None:
                await pause()

    async with _kept(sender), asyncio.TaskGroup() as workers:
        for _ in range(width):
            workers.create_task(work())


async def scheduled(
    sender: Sender, on_row: OnRow, tasks: Iterable[tuple[float, Task]], *, began: float | None = None
) -> None:
    """Each task at its offset from now, or from when it began on the run's clock. A late client sends at once, and the
    row knows when it was due.
    """
    began = sender.now() if began is None else began

    async with _kept(sender), asyncio.TaskGroup() as group:
        for offset, task in tasks:
            due = began + offset
            ahead = due - sender.now()
            if ahead > 0:
                await asyncio.sleep(ahead)
            group.create_task(sender.send(sender.letter(replace(task, scheduled_s=due)), on_row))


async def talks(sender: Sender, on_row: OnRow, them: Iterator[Talk], width: int, *, until_s: float | None) -> None:
    """`width` agents in conversation, each with the next one when theirs is over. A failed turn ends a conversation."""

    async def agent() -> None:
        for talk in them:
            if until_s is not None and sender.now() >= until_s:
                return
            await _talk(sender, on_row, talk)

    async with asyncio.TaskGroup() as agents:
        for _ in range(width):
            agents.create_task(agent())


async def _talk(sender: Sender, on_row: OnRow, talk: Talk) -> None:
    answers: list[str] = []
    while (messages := talk.messages(answers)) is not None:
        turn = len(answers)
        if turn:
            await asyncio.sleep(talk.think_s[turn - 1] if turn <= len(talk.think_s) else 0.0)
        index = talk.first.index + turn
        task = replace(talk.first, messages=messages, turn=turn, index=index)
        row, answer = await sender.ask(sender.letter(task))
        on_row(row)
        if not row.ok:
            return
        answers.append(answer)


async def together(sender: Sender, on_row: OnRow, loads: Sequence[Load]) -> None:
    """Several kinds of traffic at the same time."""
    async with asyncio.TaskGroup() as group:
        for load in loads:
            coroutine: Any = load(sender, on_row)
            group.create_task(coroutine)
