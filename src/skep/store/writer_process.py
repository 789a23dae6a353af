"""Which process writes a run, and whether it still lives.

A process id alone is not enough: ids are reused, so its start time and the machine's boot come with it. Where
there is no /proc (macOS), the id must do. A writer in another PID namespace looks gone.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from sqlite3 import Connection, Row
from typing import Annotated

from skep.errors import StoreError
from skep.store.rows import StoredAs, read

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class WriterProcess:
    pid: Annotated[int, StoredAs("writer_pid")]
    start_ticks: Annotated[int | None, StoredAs("writer_start_ticks")]  # since boot; None: the system does not tell
    boot_id: str | None


def this_process(proc: Path = PROC) -> WriterProcess:
    pid = os.getpid()
    return WriterProcess(pid, _start_ticks(pid, proc), _boot_id(proc))


def is_alive(writer: WriterProcess, proc: Path = PROC) -> bool:
    if writer.boot_id != _boot_id(proc):
        return False
    if writer.start_ticks is None:
        return _pid_exists(writer.pid)
    return _start_ticks(writer.pid, proc) == writer.start_ticks


def writes_on(row: Row) -> bool:
    """Return whether the writer that a row names still lives."""
    (writer,) = read([row], WriterProcess)
    return is_alive(writer)


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


def _pid_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


ID_ATTEMPTS = 20

_TAKEN = """
SELECT 1 FROM runs WHERE id = ?1 UNION ALL SELECT 1 FROM swarm_runs WHERE id = ?1
UNION ALL SELECT 1 FROM tunings WHERE id = ?1
"""


def new_suffix() -> str:
    return secrets.token_hex(3)


def free_id(connection: Connection, created_at: float, suffix: Callable[[], str] = new_suffix) -> str:
    """Inside the transaction that takes it."""
    stamp = datetime.fromtimestamp(created_at, UTC).strftime("%Y%m%d-%H%M%S")
    for _ in range(ID_ATTEMPTS):
        name = f"{stamp}-{suffix()}"
        if connection.execute(_TAKEN, (name,)).fetchone() is None:
            return name
    raise StoreError(f"no free id for `{stamp}` in {ID_ATTEMPTS} attempts")
