"""Rows that people name, by id, by the beginning of it, or as the last, and that one process writes: is it still there?

A process id alone does not tell which process writes a run: ids are reused, so its start time and the machine's boot
come with it. Where there is no /proc (macOS), the id must do. A writer in another PID namespace looks gone.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from sqlite3 import Connection, Row
from typing import Annotated, Protocol

import msgspec

from skep.errors import StoreError, UserError
from skep.store.rows import StoredAs, queries, read, storable


class OpenStore(Protocol):
    """What this needs of a store."""

    def read(self, sql: str, *values: object) -> list[Row]: ...
    def transaction(self) -> AbstractContextManager[Connection]: ...


class NamedRows(msgspec.Struct, frozen=True):
    """The rows of `table` as `select` has them. `parts`: further tables with rows of each, by their column `key`."""

    table: str
    select: str
    what: str  # "run"
    lists: str = ""  # hint: how to see them all
    makes: str = ""  # hint: how to make one
    parts: tuple[str, ...] = ()  # those that point at others come first: they are deleted in this order
    key: str = "run_id"
    newest_first: str = "created_at DESC, {0}.rowid DESC"

    def newest(self, store: OpenStore, limit: int | None = None) -> list[Row]:
        order = self.newest_first.format(self.table)
        return store.read(f"{self.select} ORDER BY {order} LIMIT ?", -1 if limit is None else limit)

    def find(self, store: OpenStore, name: str) -> Row:
        """Return the row of an id, of the beginning of one, of "last", or of "last~1" for the one before it."""
        if (last := re.fullmatch(r"last(?:~(\d{1,6}))?", name)) is not None:
            back = int(last[1] or 0)
            newest = self.newest(store, back + 1)
            if not newest:
                raise UserError(f"there are no {self.what}s yet", hint=self.makes)
            if len(newest) <= back:
                oldest = f"the oldest is `last~{len(newest) - 1}`: {newest[-1]['id']}"
                raise UserError(f"there is no {self.what} `{name}`", hint=oldest)
            return newest[back]
        by_prefix = f"{self.select} WHERE substr({self.table}.id, 1, length(?1)) = ?1 ORDER BY {self.table}.id LIMIT 6"
        matches = store.read(by_prefix, storable(name)) if name else []
        found = [row for row in matches if row["id"] == name] or matches
        if len(found) == 1:
            return found[0]
        if found:
            candidates = " or ".join(f"`{row['id']}`" for row in found)
            raise UserError(f"{self.what} `{name}` could be {candidates}", hint=self.lists)
        three = ", ".join(f"`{row['id']}`" for row in self.newest(store, 3))
        known = f"the newest are {three}" if three else "there are none yet"
        raise UserError(f"there is no {self.what} `{name}`; {known}", hint=self.lists)

    def delete(self, store: OpenStore, ids: Iterable[str], check: Callable[[Row], None]) -> int:
        """Return how many there were to delete. `check` raises for one that must stay, and the others stay with it."""
        with store.transaction() as connection:
            connection.executemany("INSERT INTO deleting VALUES (?)", [(name,) for name in sorted(set(ids))])
            doomed = connection.execute(f"{self.select} JOIN deleting ON deleting.run_id = {self.table}.id").fetchall()
            for row in doomed:
                check(row)
            for table, key in (*((part, self.key) for part in self.parts), (self.table, "id")):
                connection.execute(f"DELETE FROM {table} WHERE {key} IN (SELECT run_id FROM deleting)")  # noqa: S608
            connection.execute("DELETE FROM deleting")
        return len(doomed)


PROC = Path("/proc")


class WriterProcess(msgspec.Struct, frozen=True):
    pid: Annotated[int, StoredAs("writer_pid")]
    start_ticks: Annotated[int | None, StoredAs("writer_start_ticks")]  # since boot; None: the system does not tell
    boot_id: str | None


def this_process(proc: Path = PROC) -> WriterProcess:
    pid = os.getpid()
    return WriterProcess(pid, _start_ticks(pid, proc), _boot_id(proc))


def is_alive(writer: WriterProcess, proc: Path = PROC) -> bool:
    if writer.boot_id != _boot_id(proc):
        return False
    if writer.start_ticks is not None:
        return _start_ticks(writer.pid, proc) == writer.start_ticks
    try:
        os.kill(writer.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        pass
    return True


def writes_on(row: Row) -> bool:
    """Return whether the writer that a row names still lives."""
    return is_alive(read([row], WriterProcess)[0])


def _start_ticks(pid: int, proc: Path) -> int | None:
    """None for a process that is gone, or dead and not yet collected by its parent."""
    try:
        stat = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        fields = stat.rpartition(")")[2].split()  # the name in parentheses may hold anything
        return None if fields[0] in "ZX" else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def _boot_id(proc: Path) -> str | None:
    try:
        return (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


ID_ATTEMPTS = 20


def new_suffix() -> str:
    return secrets.token_hex(3)


def free_id(connection: Connection, created_at: float, suffix: Callable[[], str] = new_suffix) -> str:
    """Inside the transaction that takes it."""
    stamp = datetime.fromtimestamp(created_at, UTC).strftime("%Y%m%d-%H%M%S")
    for _ in range(ID_ATTEMPTS):
        name = f"{stamp}-{suffix()}"
        if connection.execute(queries("skep.store")["taken"], (name,)).fetchone() is None:
            return name
    raise StoreError(f"no free id for `{stamp}` in {ID_ATTEMPTS} attempts")
