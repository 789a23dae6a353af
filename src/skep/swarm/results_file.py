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
    """Return the line of a result, without its line end.

    `result` as the store gives it back, so that the line is always the same.
    """
    is_done = result.ending is TaskEnding.DONE
    document: dict[str, Any] = {"id": result.task, "ok": is_done, "answer": result.answer}
    if task.schema is not None:
        document["value"] = result.value
    if not is_done:
        document["error"] = {"kind": result.error_kind, "message": result.error}
    document |= {
        "tries": result.tries,
        "prompt_tokens": result.prompt_tokens,
        "output_tokens": result.output_tokens,
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
        """Drop a last line that was cut, append missing lines, and return how many were missing.

        UserError, and nothing is changed, where a line is not the journal's own: ids alone do not
        tell two runs apart. The file is changed in place: a process that is killed here leaves
        whole lines, and no second file is needed."""
        missing = dict.fromkeys(
            _encoded(result_line(tasks[result.task], result)) for result in results
        )
        own_bytes = 0
        with self._translated_errors():
            descriptor = self._open()
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return 0  # a terminal or a device: what was printed there cannot be read again
            with open(descriptor, "rb", closefd=False) as file:
                file.seek(0)
                for number, line in enumerate(file, 1):
                    if line in missing:
                        del missing[line]
                        own_bytes += len(line)
                    elif not _is_cut_line(line, missing):
                        raise self._foreign_line(number)
            os.ftruncate(descriptor, own_bytes)
        self._write(b"".join(missing))
        return len(missing)

    def _foreign_line(self, number: int) -> UserError:
        run = self._run_id
        lines = f"`{self.path}` holds lines that are not results of run `{run}`"
        hint = (
            f"move it away: `skep swarm resume {run}` then writes the file anew, with all results"
        )
        return UserError(f"{lines}; line {number} is the first", hint=hint)

    def append(self, lines: Iterable[str]) -> None:
        self._write(b"".join(map(_encoded, lines)))

    def _write(self, data: bytes) -> None:
        with self._translated_errors():
            descriptor = self._open()
            while data:
                data = data[os.write(descriptor, data) :]

    def clear(self) -> None:
        with self._translated_errors():
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
    def _translated_errors(self) -> Iterator[None]:
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


def _is_cut_line(line: bytes, expected_lines: Iterable[bytes]) -> bool:
    """Return whether a line is the beginning of one that is expected, or nothing."""
    if line.endswith(b"\n"):
        return False
    # A crash of the machine may leave zeros where nothing was written yet.
    written = line.rstrip(b"\0")
    return any(expected.startswith(written) for expected in expected_lines) or not written


def _encoded(line: str) -> bytes:
    return f"{line}\n".encode("utf-8", "replace")


T = TypeVar("T")
Fact = tuple[str, float, Mapping[str, Any]]  # name, time and what
BUSY_S = 60.0  # another process may hold the store for so long
PAUSE_S = 0.2


@dataclass(eq=False)
class ResultsWriter:
    """Writes results in the background: `put` and `fact` return at once.

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
        """Wait until everything is on the disk; raise what went wrong."""
        await self._queue.join()
        if self.fault is not None:
            raise self.fault

    async def close(self) -> None:
        """Wait until everything is on the disk, and take nothing more.

        A cancellation meanwhile is raised after that.
        """
        self._queue.put_nowait(None)
        is_cancelled = False
        while not self._task.done():
            try:
                await asyncio.shield(self._task)
            except asyncio.CancelledError:
                is_cancelled = True
        if is_cancelled:
            raise asyncio.CancelledError

    async def _write(self) -> None:
        """Write all entries that have queued up at once; None is the end."""
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
        """Write rows and facts to the store, in a thread."""
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
