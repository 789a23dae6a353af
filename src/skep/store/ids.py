"""Ids of what is begun: they sort by time, and are unlike those of all runs, swarm runs and tunings."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from sqlite3 import Connection

from skep.errors import StoreError

ID_ATTEMPTS = 20

_TAKEN = """
SELECT 1 FROM runs WHERE id = ?1 UNION ALL SELECT 1 FROM swarm_runs WHERE id = ?1
UNION ALL SELECT 1 FROM tunings WHERE id = ?1
"""


def new_suffix() -> str:
    return secrets.token_hex(3)


def time_stamp(created_at: float) -> str:
    return datetime.fromtimestamp(created_at, UTC).strftime("%Y%m%d-%H%M%S")


def free_id(connection: Connection, created_at: float, suffix: Callable[[], str] = new_suffix) -> str:
    """Inside the transaction that takes it."""
    stamp = time_stamp(created_at)
    for _ in range(ID_ATTEMPTS):
        name = f"{stamp}-{suffix()}"
        if connection.execute(_TAKEN, (name,)).fetchone() is None:
            return name
    raise StoreError(f"no free id for `{stamp}` in {ID_ATTEMPTS} attempts")
