"""Records as rows and back, by the names and types of their fields. Each type's statement and reader is made once.

A field is the column of its name. An enum is stored as its value, what is no plain value as JSON, and a record inside
another one as columns that begin with the field's name. `StoredAs` tells where a field differs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import cache, partial
from importlib.resources import files
from operator import attrgetter
from sqlite3 import Connection, Cursor, Row
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import replace

from skep.errors import StoreError

T = TypeVar("T")
Convert = Callable[[Any], Any]

_LARGEST = 2**63 - 1


class StoredAs(msgspec.Struct, frozen=True):
    """How a field is stored, where its name or type does not tell: `index: Annotated[int, StoredAs("idx")]`."""

    name: str | None = None
    write: Convert | None = None
    read: Convert | None = None
    joined: bool = False  # read from another table, or made of several columns: not written with the record
    inner: type | None = None  # another record, as columns of its own


class _UnreadableJsonError(Exception):
    pass


@cache
def queries(package: str) -> dict[str, str]:
    """Return the statements of a package's `queries.sql`, by the names before them: `-- probes: ...`."""
    text = files(package).joinpath("queries.sql").read_text("utf-8")
    _, *parts = re.split(r"^-- (\w+): .*\n", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def insert(connection: Connection, table: str, record: object = None, clash: str = "", /, **more: object) -> Cursor:
    """Insert one row. `more`: further columns, which win over the record's. `clash`: `ON CONFLICT DO NOTHING`."""
    kind: Any = type(record)
    sql, values = _statement(table, kind, tuple(more), clash)
    return connection.execute(sql, [*values(record), *map(_any_value, more.values())])


def insert_all(
    connection: Connection, table: str, records: Iterable[object], clash: str = "", /, **more: object
) -> int:
    """Insert records of one type, and return how many rows that made."""
    rows = list(records)
    if not rows:
        return 0
    kind: Any = type(rows[0])
    sql, values = _statement(table, kind, tuple(more), clash)
    shared = [_any_value(value) for value in more.values()]
    return connection.executemany(sql, [values(row) + shared for row in rows]).rowcount


def read(rows: Sequence[Row], kind: type[T], what: str = "row", /, **derived: Callable[[Row], Any]) -> list[T]:
    """Return the records of rows. A field without a column is `derived` from its row. `what` names a row in errors."""
    if not rows:
        return []
    make = _reader(kind, tuple(rows[0].keys()))  # type: ignore[arg-type]
    found: list[T] = []
    for row in rows:
        try:
            found.append(make(row, **{name: of(row) for name, of in derived.items()}))
        except _UnreadableJsonError as error:
            raise StoreError(f"{what} `{row[0]}` has unreadable JSON in {error}") from error.__cause__
    return found


def as_stored(record: T) -> T:
    """Return the record as `read` gives it back."""
    kind: Any = type(record)
    made: T = _reader(kind, columns(kind))(_values_of(kind, ())(record))
    return made


@cache
def columns(kind: type) -> tuple[str, ...]:
    """Return the names of a type's columns, in the order of its fields."""
    return tuple(column for _, column, _ in _flat(kind))


def json_text(value: Any, *, sort_keys: bool = True) -> str:
    """Return JSON in ASCII. What is no number becomes null, what is nested too deeply is left out: no row is lost."""
    try:
        return json.dumps(value, allow_nan=False, sort_keys=sort_keys, default=msgspec.to_builtins)
    except ValueError:
        return json.dumps(finite(value), allow_nan=False, sort_keys=sort_keys, default=msgspec.to_builtins)
    except RecursionError:
        return "null"


def document_text(value: Any) -> str:
    """Return JSON in its own order: a schema's says what is written first."""
    return json_text(value, sort_keys=False)


def finite(value: Any) -> Any:
    """Return the value with None for each number that is none: JSON has no word for infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: finite(one) for name, one in value.items()}
    return [finite(one) for one in value] if isinstance(value, list | tuple) else value


def storable(text: str | None) -> str | None:
    """Halves of a surrogate pair, which engines send in two chunks, are joined; a lone half becomes U+FFFD."""
    if text is None or text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _count(value: int | None) -> int | None:
    return value if value is None or abs(value) <= _LARGEST else None


# As an endpoint says it: what has no place in a column is not known.
Count = Annotated[int | None, StoredAs(write=_count)]
Figure = Annotated[float | None, StoredAs(write=finite)]
JOINED = StoredAs(joined=True)
OwnOrder = Annotated[Mapping[str, Any], StoredAs(write=document_text)]


@cache
def _statement(table: str, kind: type, more: tuple[str, ...], clash: str) -> tuple[str, Callable[[Any], list[Any]]]:
    own = () if kind is NoneType else tuple(name for name in columns(kind) if name not in more)
    names = (*own, *more)
    sql = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))}) {clash}"  # noqa: S608
    return sql, _values_of(kind, more) if own else lambda _: []


@cache
def _values_of(kind: type, left_out: tuple[str, ...]) -> Callable[[Any], list[Any]]:
    stored = [(path, write) for path, column, write in _flat(kind) if column not in left_out]
    get = attrgetter(*(path for path, _ in stored))
    written = [(place, write) for place, (_, write) in enumerate(stored) if write is not None]

    def values(record: Any) -> list[Any]:
        found = list(get(record))
        for place, write in written:
            found[place] = write(found[place])
        return found

    return values


@cache
def _reader(kind: type[msgspec.Struct], names: tuple[str, ...], prefix: str = "") -> Callable[..., Any]:
    places = {name: place for place, name in enumerate(names)}  # of two columns with one name the second counts
    fields = [(name, prefix + column, how) for name, column, how in _stored_fields(kind)]
    plain = [(name, places[column], how.read) for name, column, how in fields if column in places]
    inner = [(name, _reader(how.inner, names, f"{column}_")) for name, column, how in fields if how.inner is not None]

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
    found: list[tuple[str, str, Convert | None]] = []
    for name, column, how in _stored_fields(kind):
        if how.inner is not None and not how.joined:
            found += [(f"{name}.{path}", f"{column}_{inner}", write) for path, inner, write in _flat(how.inner)]
        elif not how.joined:
            found.append((name, column, how.write))
    return tuple(found)


@cache
def _stored_fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, str, StoredAs], ...]:
    """Return the name of each field, its column, and how it is stored."""
    found = []
    hints = get_type_hints(kind, include_extras=True)
    for name in kind.__struct_fields__:
        hint, own = hints[name], StoredAs()
        if get_origin(hint) is Annotated:
            hint, *_, own = get_args(hint)
        column = own.name or name
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            found.append((name, column, replace(own, inner=hint)))
        else:
            write, read_as = _converters(hint, column)
            found.append((name, column, replace(own, write=own.write or write, read=own.read or read_as)))
    return tuple(found)


def _converters(hint: Any, column: str) -> tuple[Convert | None, Convert | None]:
    """Return how a value of this type is written and read."""
    kinds = [one for one in get_args(hint) if one is not NoneType] if NoneType in get_args(hint) else [hint]
    kind = kinds[0]
    if kind is str:
        return storable, None
    if kind in (int, float, bytes) or get_origin(kind) is Literal:
        return None, None
    write: Convert | None = None
    of: Convert = bool
    if isinstance(kind, type) and issubclass(kind, Enum):
        write, of = attrgetter("value"), kind
    elif kind is not bool:
        write, of = document_text if kind is Any else json_text, partial(_from_json, column, hint)
    if kind is hint and kind is not Any:
        return write, of
    return write and partial(_unless_none, write), partial(_unless_none, of)


def _unless_none(convert: Convert, value: Any) -> Any:
    return None if value is None else convert(value)


def _from_json(column: str, hint: Any, text: str) -> Any:
    try:
        value = json.loads(text)
        return value if get_origin(hint) is Mapping else msgspec.convert(value, hint)
    except (ValueError, msgspec.ValidationError) as error:
        raise _UnreadableJsonError(f"its column `{column}`: {error}") from error


def _any_value(value: Any) -> Any:
    """Of a column that is named where it is written."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return storable(value)
    return json_text(value) if isinstance(value, Mapping) else value
