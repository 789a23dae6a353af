"""Copying a live database into one plain file beside others."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from pathlib import Path

from skep.errors import StoreError, UserError
from skep.store.faults import primary_code, store_error, translated

_FAULTS_OF_THE_SOURCE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_BUSY)


def copy_database(source: sqlite3.Connection, source_path: Path, to: Path, *, overwrite: bool) -> None:
    """Written beside `to` and moved into place, so that `to` is whole or untouched; readable by its owner alone."""
    with translated(to):
        _check_target(source_path, to, overwrite=overwrite)
        handle, name = tempfile.mkstemp(prefix=f".{to.name}.", dir=to.parent)
        os.close(handle)
        draft = Path(name)
        try:
            _fill(source, source_path, draft)
            draft.replace(to)
        finally:
            draft.unlink(missing_ok=True)
        _sync_folder(to.parent)


def _check_target(source_path: Path, to: Path, *, overwrite: bool) -> None:
    if to.exists() and to.samefile(source_path):
        raise UserError(f"`{to}` is the database itself", hint="name another file")
    if to.exists() and not overwrite:
        raise UserError(f"`{to}` exists", hint="name another file, or add --overwrite")
    if Path(f"{to}-wal").exists():  # SQLite would replay it over the copy
        raise StoreError(f"`{to}` is in use, or was not closed: `{to}-wal` is there", hint="name another file")


def _fill(source: sqlite3.Connection, source_path: Path, draft: Path) -> None:
    target = sqlite3.connect(draft)
    try:
        try:
            source.backup(target)
        except sqlite3.DatabaseError as error:
            if primary_code(error) in _FAULTS_OF_THE_SOURCE:
                raise store_error(error, source_path) from error
            raise
        target.execute("PRAGMA journal_mode = DELETE")  # one file, without WAL beside it
    finally:
        target.close()
    with draft.open("rb") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
