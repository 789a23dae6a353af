"""Records as rows and back, by the names and types of their fields. Each type's statement and
reader is made once.

A field is the column of its name. An enum is stored as its value, what is no plain value as JSON,
and a record inside another one as columns that begin with the field's name. `StoredAs` tells where
a field differs.

Also rows that people name, by id, by the beginning of it, or as the last; and whether the process
that writes them still lives. A process id alone does not tell: ids are reused, so its start time
and the machine's boot are stored with it. Where there is no /proc (macOS), the id must do. A
writer in another PID namespace seems to be gone."""

from __future__ import annotations

import json
import math
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from enum import Enum
from functools import cache, partial
from importlib.resources import files
from operator import attrgetter
from pathlib import Path
from sqlite3 import Connection, Cursor, Row
from types import NoneType
from typing import Annotated, Any, Literal, Protocol, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import replace

from skep.errors import StoreError, UserError

T = TypeVar("T")
Convert = Callable[[Any], Any]

_LARGEST = 2**63 - 1


class StoredAs(msgspec.Struct, frozen=True):
    """How a field is stored, where its name or type does not tell:
    `index: Annotated[int, StoredAs("idx")]`.
    """

    name: str | None = None
    write: Convert | None = None
    read: Convert | None = None
    # Read from another table, or made of several columns: not written with the record.
    joined: bool = False
    inner: type | None = None  # another record, as columns of its own


class _UnreadableJsonError(Exception):
    pass


@cache
def queries(package: str) -> dict[str, str]:
    """Return the statements of a package's `queries.sql`, by the names before them:
    `-- probes: ...`.
    """
    text = files(package).joinpath("queries.sql").read_text("utf-8")
    _, *parts = re.split(r"^-- (\w+): .*\n", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def insert(
    connection: Connection,
    table: str,
    record: object = None,
    clash: str = "",
    /,
    **extra_columns: object,
) -> Cursor:
    """Insert one row.

    `extra_columns` win over the record's columns of the same name. `clash`: what follows the
    values, such as `ON CONFLICT DO NOTHING`.
    """
    kind: Any = type(record)
    sql, values = _statement(table, kind, tuple(extra_columns), clash)
    return connection.execute(sql, [*values(record), *map(_any_value, extra_columns.values())])


def insert_all(
    connection: Connection,
    table: str,
    records: Iterable[object],
    clash: str = "",
    /,
    **extra_columns: object,
) -> int:
    """Insert records of one type, and return how many rows that made."""
    rows = list(records)
    if not rows:
        return 0
    kind: Any = type(rows[0])
    sql, values = _statement(table, kind, tuple(extra_columns), clash)
    shared = [_any_value(value) for value in extra_columns.values()]
    return connection.executemany(sql, [values(row) + shared for row in rows]).rowcount


def read(
    rows: Sequence[Row], kind: type[T], noun: str = "row", /, **derived: Callable[[Row], Any]
) -> list[T]:
    """Return the records of rows.

    A field without a column is `derived` from its row. `noun` is what errors call a row.
    """
    if not rows:
        return []
    make = _reader(kind, tuple(rows[0].keys()))  # type: ignore[arg-type]
    records: list[T] = []
    for row in rows:
        try:
            records.append(make(row, **{name: of(row) for name, of in derived.items()}))
        except _UnreadableJsonError as error:
            raise StoreError(
                f"{noun} `{row[0]}` has unreadable JSON in {error}"
            ) from error.__cause__
    return records


def as_stored(record: T) -> T:
    """Return the record as `read` gives it back."""
    kind: Any = type(record)
    stored: T = _reader(kind, columns(kind))(_values_of(kind, ())(record))
    return stored


@cache
def columns(kind: type) -> tuple[str, ...]:
    """Return the names of a type's columns, in the order of its fields."""
    return tuple(column for _, column, _ in _flat(kind))


def json_text(value: Any, *, sort_keys: bool = True) -> str:
    """Return JSON in ASCII.

    Infinity and NaN become null, and a value that is nested too deeply becomes null as a whole: no
    row is lost.
    """
    dumps = partial(json.dumps, allow_nan=False, sort_keys=sort_keys, default=msgspec.to_builtins)
    try:
        return dumps(value)
    except ValueError:
        return dumps(finite(value))
    except RecursionError:
        return "null"


def document_text(value: Any) -> str:
    """Return JSON with its keys in their own order: that of a schema is what is written first."""
    return json_text(value, sort_keys=False)


def finite(value: Any) -> Any:
    """Return the value with None for infinity and NaN, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return value


def storable(text: str | None) -> str | None:
    """Return text that SQLite can store.

    Halves of a surrogate pair, which engines send in two chunks, are joined; a lone half becomes
    U+FFFD.
    """
    if text is None or text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _count(value: int | None) -> int | None:
    if value is None or abs(value) <= _LARGEST:
        return value
    return None


# As an endpoint says it: a number too large for a column counts as not known.
Count = Annotated[int | None, StoredAs(write=_count)]
Figure = Annotated[float | None, StoredAs(write=finite)]
JOINED = StoredAs(joined=True)
OwnOrder = Annotated[Mapping[str, Any], StoredAs(write=document_text)]


@cache
def _statement(
    table: str, kind: type, extra_columns: tuple[str, ...], clash: str
) -> tuple[str, Callable[[Any], list[Any]]]:
    if kind is NoneType:
        record_columns: tuple[str, ...] = ()
    else:
        record_columns = tuple(name for name in columns(kind) if name not in extra_columns)
    names = (*record_columns, *extra_columns)
    listed = ", ".join(names)
    marks = ", ".join("?" * len(names))
    sql = f"INSERT INTO {table} ({listed}) VALUES ({marks}) {clash}"  # noqa: S608
    return sql, _values_of(kind, extra_columns) if record_columns else lambda _: []


@cache
def _values_of(kind: type, left_out: tuple[str, ...]) -> Callable[[Any], list[Any]]:
    stored = [(path, write) for path, column, write in _flat(kind) if column not in left_out]
    get = attrgetter(*(path for path, _ in stored))
    written = [(place, write) for place, (_, write) in enumerate(stored) if write is not None]

    def values(record: Any) -> list[Any]:
        values = list(get(record))
        for place, write in written:
            values[place] = write(values[place])
        return values

    return values


@cache
def _reader(
    kind: type[msgspec.Struct], names: tuple[str, ...], prefix: str = ""
) -> Callable[..., Any]:
    # Of two columns with one name the second counts.
    places = {name: place for place, name in enumerate(names)}
    fields = [(name, prefix + column, how) for name, column, how in _stored_fields(kind)]
    plain = [(name, places[column], how.read) for name, column, how in fields if column in places]
    inner = [
        (name, _reader(how.inner, names, f"{column}_"))
        for name, column, how in fields
        if how.inner is not None
    ]

    def make(row: Any, **derived: Any) -> Any:
        values = {name: row[place] if of is None else of(row[place]) for name, place, of in plain}
        for name, of_row in inner:
            if name not in derived:
                values[name] = of_row(row)
        return kind(**values | derived)

    return make


@cache
def _flat(kind: type[msgspec.Struct]) -> tuple[tuple[str, str, Convert | None], ...]:
    """Return where each value stands in a record, its column, and how it is written."""
    fields: list[tuple[str, str, Convert | None]] = []
    for name, column, how in _stored_fields(kind):
        if how.inner is not None and not how.joined:
            fields += [
                (f"{name}.{path}", f"{column}_{inner}", write)
                for path, inner, write in _flat(how.inner)
            ]
        elif not how.joined:
            fields.append((name, column, how.write))
    return tuple(fields)


@cache
def _stored_fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, str, StoredAs], ...]:
    """Return the name of each field, its column, and how it is stored."""
    fields = []
    hints = get_type_hints(kind, include_extras=True)
    for name in kind.__struct_fields__:
        hint = hints[name]
        stored_as = StoredAs()
        if get_origin(hint) is Annotated:
            hint, *_, stored_as = get_args(hint)
        column = stored_as.name or name
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            fields.append((name, column, replace(stored_as, inner=hint)))
        else:
            write, read_as = _converters(hint, column)
            fields.append(
                (
                    name,
                    column,
                    replace(
                        stored_as, write=stored_as.write or write, read=stored_as.read or read_as
                    ),
                )
            )
    return tuple(fields)


def _converters(hint: Any, column: str) -> tuple[Convert | None, Convert | None]:
    """Return how a value of this type is written and read."""
    if NoneType in get_args(hint):
        kinds = [kind_ for kind_ in get_args(hint) if kind_ is not NoneType]
    else:
        kinds = [hint]
    kind = kinds[0]
    if kind is str:
        return storable, None
    if kind in (int, float, bytes) or get_origin(kind) is Literal:
        return None, None
    write: Convert | None = None
    of: Convert = bool
    if isinstance(kind, type) and issubclass(kind, Enum):
        write = attrgetter("value")
        of = kind
    elif kind is not bool:
        write = document_text if kind is Any else json_text
        of = partial(_from_json, column, hint)
    if kind is hint and kind is not Any:
        return write, of
    return write and partial(_unless_none, write), partial(_unless_none, of)


def _unless_none(convert: Convert, value: Any) -> Any:
    return None if value is None else convert(value)


def _from_json(column: str, hint: Any, text: str) -> Any:
    try:
        value = json.loads(text)
        if get_origin(hint) is Mapping:
            return value
        return msgspec.convert(value, hint)
    except (ValueError, msgspec.ValidationError) as error:
        raise _UnreadableJsonError(f"its column `{column}`: {error}") from error


def _any_value(value: Any) -> Any:
    """Return the value as it is stored in a column that no record's field describes."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, Mapping):
        return json_text(value)
    return value


class OpenStore(Protocol):
    """The part of a store that `NamedRows` needs."""

    def read(self, sql: str, *values: object) -> list[Row]: ...
    def transaction(self) -> AbstractContextManager[Connection]: ...


class NamedRows(msgspec.Struct, frozen=True):
    """The rows of `table` as `select` has them.

    `parts`: further tables with rows of each, by their column `key`.
    """

    table: str
    select: str
    noun: str  # "run"
    lists: str = ""  # hint: how to see them all
    makes: str = ""  # hint: how to make one
    # Deleted in this order, so tables that point at others come first.
    parts: tuple[str, ...] = ()
    key: str = "run_id"
    newest_first: str = "created_at DESC, {0}.rowid DESC"

    def newest(self, store: OpenStore, limit: int | None = None) -> list[Row]:
        order = self.newest_first.format(self.table)
        return store.read(
            f"{self.select} ORDER BY {order} LIMIT ?", -1 if limit is None else limit
        )

    def find(self, store: OpenStore, name: str) -> Row:
        """Return the row of an id, of the beginning of one, of "last", or of "last~1" for the one
        before it.
        """
        if (last := re.fullmatch(r"last(?:~(\d{1,6}))?", name)) is not None:
            back = int(last[1] or 0)
            newest = self.newest(store, back + 1)
            if not newest:
                raise UserError(f"there are no {self.noun}s yet", hint=self.makes)
            if len(newest) <= back:
                oldest = f"the oldest is `last~{len(newest) - 1}`: {newest[-1]['id']}"
                raise UserError(f"there is no {self.noun} `{name}`", hint=oldest)
            return newest[back]
        by_prefix = (
            f"{self.select} WHERE substr({self.table}.id, 1, length(?1)) = ?1 ORDER BY "
            f"{self.table}.id LIMIT 6"
        )
        if name:
            matches = store.read(by_prefix, storable(name))
        else:
            matches = []
        meant = [row for row in matches if row["id"] == name] or matches
        if len(meant) == 1:
            return meant[0]
        if meant:
            candidates = " or ".join(f"`{row['id']}`" for row in meant)
            raise UserError(f"{self.noun} `{name}` could be {candidates}", hint=self.lists)
        newest_ids = ", ".join(f"`{row['id']}`" for row in self.newest(store, 3))
        if newest_ids:
            overview = f"the newest are {newest_ids}"
        else:
            overview = "there are none yet"
        raise UserError(f"there is no {self.noun} `{name}`; {overview}", hint=self.lists)

    def delete(self, store: OpenStore, ids: Iterable[str], check: Callable[[Row], None]) -> int:
        """Delete rows by their ids; return how many there were.

        `check` raises for a row that must stay; then none is deleted.
        """
        with store.transaction() as connection:
            connection.executemany(
                "INSERT INTO deleting VALUES (?)", [(name,) for name in sorted(set(ids))]
            )
            rows = connection.execute(
                f"{self.select} JOIN deleting ON deleting.run_id = {self.table}.id"
            ).fetchall()
            for row in rows:
                check(row)
            keys = [*((part, self.key) for part in self.parts), (self.table, "id")]
            deleting = "SELECT run_id FROM deleting"
            for table, key in keys:
                sql = f"DELETE FROM {table} WHERE {key} IN ({deleting})"  # noqa: S608
                connection.execute(sql)
            connection.execute("DELETE FROM deleting")
        return len(rows)


PROC = Path("/proc")


class WriterProcess(msgspec.Struct, frozen=True):
    pid: Annotated[int, StoredAs("writer_pid")]
    # Since boot; None: the system does not tell.
    start_ticks: Annotated[int | None, StoredAs("writer_start_ticks")]
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
    except PermissionError:  # it lives, as another user's process
        pass
    return True


def writes_on(row: Row) -> bool:
    """Return whether the process that a row names as its writer still lives."""
    return is_alive(read([row], WriterProcess)[0])


def _start_ticks(pid: int, proc: Path) -> int | None:
    """Return when a process started, in ticks since boot.

    None for a process that is gone, or dead and not yet collected by its parent.
    """
    try:
        stat = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        fields = stat.rpartition(")")[2].split()  # the name in parentheses may hold anything
        if fields[0] in "ZX":
            return None
        return int(fields[19])
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


def free_id(
    connection: Connection, created_at: float, suffix: Callable[[], str] = new_suffix
) -> str:
    """Return an id that is not taken. Call it inside the transaction that stores it."""
    stamp = datetime.fromtimestamp(created_at, UTC).strftime("%Y%m%d-%H%M%S")
    for _ in range(ID_ATTEMPTS):
        name = f"{stamp}-{suffix()}"
        if connection.execute(queries("skep.store")["taken"], (name,)).fetchone() is None:
            return name
    raise StoreError(f"no free id for `{stamp}` in {ID_ATTEMPTS} attempts")
