"""The results file: one JSON line for each result, in the order in which they came.

It is made of the journal and never the other way round: a line is appended after its row was
committed, and whoever resumes makes the file whole again. A last line that was cut by a kill is
written anew. No other line is ever removed or changed: where the file holds one that is not the
journal's own, it belongs to somebody else and nothing is written."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from skep.errors import StoreError, UserError
from skep.store.database import is_busy
from skep.swarm.records import Recorded, Task, TaskEnding, TaskResult
from skep.swarm.store import SwarmStore


def result_line(task: Task, result: TaskResult) -> str:
    """Without its line end.

    `result` as the store gives it back, so that the line is always the same.
    """
    is_done = result.ending is TaskEnding.DONE
    document = {
        "id": result.task,
        "ok": is_done,
        "answer": result.answer,
        **({} if task.schema is None else {"value": result.value}),
        **({} if is_done else {"error": {"kind": result.error_kind, "message": result.error}}),
        **{name: getattr(result, name) for name in ("tries", "prompt_tokens", "output_tokens")},
        "seconds": round(result.ended_at - result.started_at, 3),
        "finish_reason": result.finish_reason,
        "replica": result.replica,
    }
    return json.dumps(document, ensure_ascii=False)


class ResultsFile:
    """The file of one run.

    While it is open nobody else writes to it, as a lock of the kernel says.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self.path = path
        self._run_id = run_id
        self._descriptor: int | None = None

    def complete(self, tasks: Mapping[str, Task], results: Sequence[TaskResult]) -> int:
        """Drop a last line that was cut, append what is missing; how many lines were.

        UserError, and nothing is changed, where a line is not the journal's own: ids alone do not
        tell two runs apart. In place: whoever is killed here leaves whole lines, and no second
        file is needed."""
        missing = dict.fromkeys(
            _encoded(result_line(tasks[result.task], result)) for result in results
        )
        own_bytes = 0
        with self._told_faults():
            descriptor = self._open()
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return 0  # a terminal or a device: what was printed there cannot be read again
            with open(descriptor, "rb", closefd=False) as file:
                file.seek(0)
                for number, line in enumerate(file, 1):
                    # A crash of the machine may leave zeros where nothing was written yet.
                    cut = line.rstrip(b"\0")
                    if line in missing:
                        del missing[line]
                        own_bytes += len(line)
                    elif line.endswith(b"\n") or not (
                        not cut or any(expected.startswith(cut) for expected in missing)
                    ):
                        run = self._run_id
                        path = self.path
                        message = (
                            f"`{path}` holds lines that are not results of run `{run}`; line "
                            f"{number} is the first"
                        )
                        hint = (
                            f"move it away: `skep swarm resume {run}` then writes the file "
                            "anew, with all results"
                        )
                        raise UserError(message, hint=hint)
            os.ftruncate(descriptor, own_bytes)
        self._write(b"".join(missing))
        return len(missing)

    def append(self, lines: Iterable[str]) -> None:
        self._write(b"".join(map(_encoded, lines)))

    def _write(self, data: bytes) -> None:
        with self._told_faults():
            descriptor = self._open()
            while data:
                data = data[os.write(descriptor, data) :]

    def clear(self) -> None:
        with self._told_faults():
            os.ftruncate(self._open(), 0)

    def close(self) -> None:
        descriptor = self._descriptor
        self._descriptor = None
        if descriptor is not None:
            os.close(descriptor)

    def _open(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.open(
                self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666
            )
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.close()
                hint = f"wait for it; `skep swarm resume {self._run_id}` then goes on"
                raise UserError(
                    f"another run is writing to `{self.path}` at this moment", hint=hint
                ) from None
            except OSError:
                pass  # a file system without locks
        return self._descriptor

    @contextlib.contextmanager
    def _told_faults(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            hint = (
                "the journal has every result: `skep swarm resume` completes the file once it "
                "can be written"
            )
            message = (
                f"the results file `{self.path}` cannot be written: {error.strerror or error}"
            )
            raise StoreError(message, hint=hint) from error


def _encoded(line: str) -> bytes:
    return f"{line}\n".encode("utf-8", "replace")


T = TypeVar("T")
Fact = tuple[str, float, Mapping[str, Any]]  # name, time and what
BUSY_S = 60.0  # another process may hold the store for so long
PAUSE_S = 0.2


@dataclass(eq=False)
class ResultsWriter:
    """`put` and `fact` return at once.

    After a fault nothing more is written: `fault` says what it was.
    """

    swarm: SwarmStore
    run_id: str
    session: int
    tasks: Mapping[str, Task]  # may grow meanwhile
    output: ResultsFile | None
    fault: Exception | None = None

    def __post_init__(self) -> None:
        self._queue: asyncio.Queue[Recorded | Fact | None] = asyncio.Queue()
        self._task = asyncio.get_running_loop().create_task(self._write())

    def put(self, row: Recorded) -> None:
        self._queue.put_nowait(row)

    def fact(self, name: str, fact: Mapping[str, Any]) -> None:
        self._queue.put_nowait((name, time.time(), fact))

    async def drain(self) -> None:
        """Until everything is on the disk; raises what went wrong."""
        await self._queue.join()
        if self.fault is not None:
            raise self.fault

    async def close(self) -> None:
        """The same, and nothing more is taken.

        Not to be hurried: a second cancellation comes after it.
        """
        self._queue.put_nowait(None)
        hurried = False
        while not self._task.done():
            try:
                await asyncio.shield(self._task)
            except asyncio.CancelledError:
                hurried = True
        if hurried:
            raise asyncio.CancelledError

    async def _write(self) -> None:
        """Write all that has come meanwhile at once; a None is the end."""
        entries: list[Recorded | Fact | None] = []
        while None not in entries:
            entries = [await self._queue.get()]
            while not self._queue.empty():
                entries.append(self._queue.get_nowait())
            rows = [entry for entry in entries if isinstance(entry, Recorded)]
            facts = [entry for entry in entries if isinstance(entry, tuple)]
            if (rows or facts) and self.fault is None:
                try:
                    await asyncio.to_thread(self._commit, rows, facts)
                except Exception as error:  # the disk or the store: both end the run
                    self.fault = error
            for _ in entries:
                self._queue.task_done()

    def _commit(self, rows: Sequence[Recorded], facts: Sequence[Fact]) -> None:
        """In a thread."""
        fresh = _patiently(lambda: self.swarm.record(self.run_id, rows))
        if self.output is not None and fresh:
            self.output.append(result_line(self.tasks[result.task], result) for result in fresh)
        for name, at, fact in facts:
            _patiently(partial(self.swarm.append_fact, self.run_id, self.session, name, at, fact))


def _patiently(write: Callable[[], T]) -> T:
    until = time.monotonic() + BUSY_S
    while True:
        try:
            return write()
        except StoreError as error:
            if not is_busy(error) or time.monotonic() >= until:
                raise
            time.sleep(PAUSE_S)
