"""Rows that people name: by id, by the beginning of it, or as the last. Found, listed and deleted the same way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from sqlite3 import Connection, Row
from typing import Protocol

from skep.errors import UserError
from skep.store.rows import storable


class OpenStore(Protocol):
    """What this needs of a store."""

    def read(self, sql: str, *values: object) -> list[Row]: ...
    def transaction(self) -> AbstractContextManager[Connection]: ...


@dataclass(frozen=True, slots=True)
class NamedRows:
    """The rows of `table` as `select` has them. `parts`: further tables with rows of each, by their column `key`."""

    table: str
    select: str
    what: str  # "run"
    lists: str = ""  # hint: how to see them all
    makes: str = ""  # hint: how to make one
    parts: tuple[str, ...] = ()  # those that point at others come first: they are deleted in this order
    key: str = "run_id"
    newest_first: str = "created_at DESC, {0}.rowid DESC"

    @property
    def tables(self) -> tuple[tuple[str, str], ...]:
        """The tables and their columns with the id, in the order in which rows are deleted."""
        return *((part, self.key) for part in self.parts), (self.table, "id")

    def newest(self, store: OpenStore, limit: int | None = None) -> list[Row]:
        order = self.newest_first.format(self.table)
        return store.read(f"{self.select} ORDER BY {order} LIMIT ?", -1 if limit is None else limit)

    def find(self, store: OpenStore, name: str) -> Row:
        """Return the row of an id, of the beginning of one, of "last", or of "last~1" for the one before it."""
        back = re.fullmatch(r"last(?:~(\d{1,6}))?", name)
        if back is not None:
            return self._last(store, name, int(back[1] or 0))
        by_prefix = f"{self.select} WHERE substr({self.table}.id, 1, length(?1)) = ?1 ORDER BY {self.table}.id LIMIT 6"
        matches = store.read(by_prefix, storable(name)) if name else []
        found = [row for row in matches if row["id"] == name] or matches
        if len(found) == 1:
            return found[0]
        if found:
            candidates = " or ".join(f"`{row['id']}`" for row in found)
            raise UserError(f"{self.what} `{name}` could be {candidates}", hint=self.lists)
        newest = ", ".join(f"`{row['id']}`" for row in self.newest(store, 3))
        known = f"the newest are {newest}" if newest else "there are none yet"
        raise UserError(f"there is no {self.what} `{name}`; {known}", hint=self.lists)

    def delete(self, store: OpenStore, ids: Iterable[str], check: Callable[[Row], None]) -> int:
        """Return how many there were to delete. `check` raises for one that must stay, and the others stay with it."""
        with store.transaction() as connection:
            connection.executemany("INSERT INTO deleting VALUES (?)", [(name,) for name in sorted(set(ids))])
            doomed = connection.execute(f"{self.select} JOIN deleting ON deleting.run_id = {self.table}.id").fetchall()
            for row in doomed:
                check(row)
            for table, key in self.tables:
                connection.execute(f"DELETE FROM {table} WHERE {key} IN (SELECT run_id FROM deleting)")  # noqa: S608
            connection.execute("DELETE FROM deleting")
        return len(doomed)

    def _last(self, store: OpenStore, name: str, back: int) -> Row:
        newest = self.newest(store, back + 1)
        if not newest:
            raise UserError(f"there are no {self.what}s yet", hint=self.makes)
        if len(newest) <= back:
            oldest = f"the oldest is `last~{len(newest) - 1}`: {newest[-1]['id']}"
            raise UserError(f"there is no {self.what} `{name}`", hint=oldest)
        return newest[back]
