"""What is written while a run goes on: rows into the journal, then lines into the results file.

Whatever has ended by the time the last commit is through goes into the next one together, in a thread, so that no
request waits for the disk.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from skep.errors import StoreError
from skep.store.faults import is_about_a_row, is_busy
from skep.store.swarm import Recorded, SwarmStore
from skep.swarm.output import ResultsFile, result_line
from skep.tasks import Ending, Result, Task

T = TypeVar("T")
BUSY_S = 60.0  # another process may hold the store for so long
PAUSE_S = 0.2


class Writer:
    """`put` and `fact` return at once. After a fault nothing more is written: `fault` says what it was."""

    def __init__(
        self,
        swarm: SwarmStore,
        run_id: str,
        session: int,
        *,
        tasks: Mapping[str, Task],
        output: ResultsFile | None = None,
        on_result: Callable[[Result], None] = lambda _: None,
    ) -> None:
        """`tasks` may grow meanwhile."""
        self.fault: Exception | None = None
        self._swarm = swarm
        self._run_id = run_id
        self._session = session
        self._tasks = tasks
        self._output = output
        self._on_result = on_result
        self._rows: list[Recorded] = []
        self._facts: list[tuple[str, float, Mapping[str, Any]]] = []
        self._wanted = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False
        self._task = asyncio.get_running_loop().create_task(self._write())

    def put(self, row: Recorded) -> None:
        self._rows.append(row)
        self._wake()

    def fact(self, name: str, fact: Mapping[str, Any]) -> None:
        self._facts.append((name, time.time(), fact))
        self._wake()

    async def drain(self) -> None:
        """Until everything is on the disk; raises what went wrong."""
        await self._idle.wait()
        if self.fault is not None:
            raise self.fault

    async def close(self) -> None:
        """The same, and nothing more is taken. Not to be hurried: a second cancellation comes after it."""
        self._closing = True
        self._wanted.set()
        hurried = False
        while not self._task.done():
            try:
                await asyncio.shield(self._task)
            except asyncio.CancelledError:
                hurried = True
        if hurried:
            raise asyncio.CancelledError

    def _wake(self) -> None:
        self._idle.clear()
        self._wanted.set()

    async def _write(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            rows, self._rows = self._rows, []
            facts, self._facts = self._facts, []
            if (rows or facts) and self.fault is None:
                try:
                    for result in await asyncio.to_thread(self._commit, rows, facts):
                        self._on_result(result)
                except Exception as error:  # the disk, the store, or who is told of results: all end the run
                    self.fault = error
            if not self._rows and not self._facts:
                self._idle.set()
                if self._closing:
                    return

    def _commit(self, rows: Sequence[Recorded], facts: Sequence[tuple[str, float, Mapping[str, Any]]]) -> list[Result]:
        """In a thread. The results that were written now."""
        fresh = _patiently(lambda: self._record(rows))
        if self._output is not None and fresh:
            self._output.append(result_line(self._tasks[result.task], result) for result in fresh)
        for name, at, fact in facts:
            _patiently(partial(self._swarm.append_fact, self._run_id, self._session, name, at, fact))
        return fresh

    def _record(self, rows: Sequence[Recorded]) -> list[Result]:
        try:
            return self._swarm.record(self._run_id, rows)
        except (StoreError, OverflowError) as error:
            if not is_about_a_row(error):
                raise
            if len(rows) > 1:
                return [result for row in rows for result in self._record([row])]
            result = rows[0].result
            if result is None:
                return []  # an attempt that cannot be told of is no reason to stop
            why = f"the answer cannot be stored: {error}"
            kept = replace(result, ending=Ending.FAILED, answer=None, value=None, error_kind="storage", error=why)
            return self._swarm.record(self._run_id, [Recorded(None, kept)])


def _patiently(write: Callable[[], T]) -> T:
    until = time.monotonic() + BUSY_S
    while True:
        try:
            return write()
        except StoreError as error:
            if not is_busy(error) or time.monotonic() >= until:
                raise
            time.sleep(PAUSE_S)
