"""The results file: one JSON line for each result, in the order in which they came.

It is made of the journal and never the other way round: a line is appended after its row was committed, and whoever
resumes makes the file whole again. A line that was cut by a kill, or that the journal knows nothing of, is dropped.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from skep.errors import StoreError, UserError
from skep.store.swarm import SwarmStore
from skep.tasks import Ending, Result, Task


def result_line(task: Task, result: Result) -> str:
    """Without its line end."""
    document: dict[str, Any] = {"id": result.task, "ok": result.ending is Ending.DONE, "answer": result.answer}
    if task.schema is not None:
        document["value"] = result.value
    if result.ending is not Ending.DONE:
        document["error"] = {"kind": result.error_kind, "message": result.error}
    document["tries"] = result.tries
    document["prompt_tokens"] = result.prompt_tokens
    document["output_tokens"] = result.output_tokens
    document["seconds"] = round(result.ended_at - result.started_at, 3)
    document["finish_reason"] = result.finish_reason
    document["replica"] = result.replica
    return json.dumps(document, ensure_ascii=False)


def complete_output(swarm: SwarmStore, run_id: str, path: Path) -> int:
    """Make the file what the journal says; how many lines were missing."""
    tasks = {task.id: task for task in swarm.tasks(run_id)}
    file = ResultsFile(path)
    try:
        return file.complete(tasks, swarm.results(run_id))
    finally:
        file.close()


class ResultsFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def __repr__(self) -> str:
        return f"<ResultsFile {self.path}>"

    def check(self, *, is_new: bool) -> None:
        """UserError where it could not be written. `is_new`: no result was recorded yet, so no line can be ours."""
        folder = self.path.parent
        if not folder.is_dir():
            raise UserError(f"the folder `{folder}` of the results file is not there", hint="make it, then go on")
        if self.path.is_dir():
            raise UserError(f"the results file `{self.path}` is a folder", hint="name a file in it")
        where = self.path if self.path.exists() else folder
        if not os.access(where, os.W_OK):
            raise UserError(f"`{where}` cannot be written", hint="check its owner and mode, or name another file")
        if is_new and self._is_plain() and self.path.stat().st_size:
            hint = "move it away, or name another file with -o"
            raise UserError(f"the results file `{self.path}` holds something already", hint=hint)

    def complete(self, tasks: Mapping[str, Task], results: Sequence[Result]) -> int:
        """Drop what is not ours or not whole, append what is missing; how many were."""
        known = {result.task for result in results}
        try:
            kept = self._mend(known) if self._is_plain() else set() if not self.path.exists() else known
        except OSError as error:
            raise self._fault(error) from error
        missing = [result for result in results if result.task not in kept]
        self.append(result_line(tasks[result.task], result) for result in missing)
        return len(missing)

    def append(self, lines: Iterable[str]) -> None:
        data = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
        try:
            descriptor = self._open()
            while data:
                data = data[os.write(descriptor, data) :]
        except OSError as error:
            raise self._fault(error) from error

    @property
    def moved(self) -> bool:
        """Whether it was deleted or replaced since it was opened."""
        if self._descriptor is None:
            return False
        mine = os.fstat(self._descriptor)
        try:
            there = self.path.stat()
        except OSError:
            return True
        return (mine.st_dev, mine.st_ino) != (there.st_dev, there.st_ino)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _open(self) -> int:
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = os.open(self.path, flags, 0o666)
        return self._descriptor

    def _is_plain(self) -> bool:
        """A file that can be read again, and not a pipe or a terminal."""
        try:
            return stat.S_ISREG(self.path.stat().st_mode)
        except OSError:
            return False

    def _mend(self, known: set[str]) -> set[str]:
        """The ids whose line is there and whole, once the rest is gone."""
        kept: set[str] = set()
        sound = True
        with self.path.open("rb") as file:
            for line in file:
                name = _id_of(line)
                if name is None or name not in known or name in kept:
                    sound = False
                else:
                    kept.add(name)
        if not sound:
            self._rewrite(known)
        return kept

    def _rewrite(self, known: set[str]) -> None:
        """Beside it first, then in its place: whoever is killed meanwhile leaves the old one."""
        self.close()
        target = Path(os.path.realpath(self.path))
        beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        seen: set[str] = set()
        try:
            with target.open("rb") as old, beside.open("wb") as new:
                for line in old:
                    name = _id_of(line)
                    if name is not None and name in known and name not in seen:
                        seen.add(name)
                        new.write(line)
                new.flush()
                os.fsync(new.fileno())
            beside.chmod(stat.S_IMODE(target.stat().st_mode))
            beside.replace(target)
        finally:
            with suppress(OSError):
                beside.unlink(missing_ok=True)

    def _fault(self, error: OSError) -> StoreError:
        hint = "the journal has every result: `skep swarm resume` completes the file once it can be written"
        return StoreError(f"the results file `{self.path}` cannot be written: {error.strerror or error}", hint=hint)


def _id_of(line: bytes) -> str | None:
    """None: no whole line of ours."""
    if not line.endswith(b"\n"):
        return None
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    name = document.get("id") if isinstance(document, dict) else None
    return name if isinstance(name, str) else None
