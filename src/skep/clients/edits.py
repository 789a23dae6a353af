"""Changes of single values in a text of JSON, TOML or YAML that leave the rest of the text as it
was.

Whatever was done to the text, the result is read again: where it does not hold exactly what was
asked for, the text is refused instead of written."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import msgspec

from skep.clients.catalog import toml_value
from skep.clients.json_text import parse_json, remove_member, set_member
from skep.errors import UserError

Path = tuple[str, ...]
ABSENT = object()  # no such value


class Format(msgspec.Struct, frozen=True):
    """How a kind of text is read, and how one of its values is set and removed."""

    title: str
    parse: Callable[[str], Any]
    set: Callable[[str, Path, Any], str]
    remove: Callable[[str, Path], str]


def parsed(text: str, kind: str, where: str) -> dict[str, Any]:
    """Return what a text holds. Raise UserError where it is broken, or is no table."""
    form = FORMATS[kind]
    try:
        values = form.parse(text) if text.strip() else {}
    except Exception as error:  # a reader of YAML raises errors of its own
        why = " ".join(str(error).split())[:200]
        raise UserError(
            f"`{where}` is not {form.title}: {why}", hint="it is unchanged; mend it first"
        ) from None
    if not isinstance(values, dict):
        raise UserError(f"`{where}` holds no table", hint="it is unchanged; mend it first")
    return values


def edited(text: str, kind: str, where: str, changes: Mapping[Path, Any]) -> str:
    """Return the text with other values; ABSENT removes a value, and the tables that are empty
    then.

    Such a table may stay where its text has a line of its own, as `[table]` has in TOML.
    """
    has_dos_line_ends = 0 < text.count("\n") == text.count("\r\n")
    if has_dos_line_ends:
        unix_text = text.replace("\r\n", "\n")
        return edited(unix_text, kind, where, changes).replace("\n", "\r\n")
    form = FORMATS[kind]
    changed = deepcopy(parsed(text, kind, where))
    removed = [path for path, value in changes.items() if value is ABSENT]
    try:
        for path, value in changes.items():
            text = _with_change(form, text, changed, path, value)
        result = form.parse(text) if text.strip() else {}
        for path in removed:
            _remove_empty_tables(result, path)
            _remove_empty_tables(changed, path)
        is_exact = result == changed
    except Exception:  # as in `parsed`
        is_exact = False
    if not is_exact:
        hint = "it is unchanged; `--print` shows what to set by hand"
        raise UserError(f"`{where}` is written in a way that cannot be changed safely", hint=hint)
    return text


def _with_change(form: Format, text: str, changed: dict[str, Any], path: Path, value: Any) -> str:
    """Return the text with one change, which is made in the values `changed`, too."""
    present = value_at(changed, path)
    is_same = type(present) is type(value) and present == value  # 0 is not false
    if is_same:
        return text
    if value is ABSENT:
        del value_at(changed, path[:-1])[path[-1]]
        return form.remove(text, path)
    _put_value(changed, path, value)
    return form.set(text, path, value)


def value_at(values: Any, path: Path) -> Any:
    """Return the value at a path, or ABSENT."""
    for key in path:
        if not isinstance(values, dict) or key not in values:
            return ABSENT
        values = values[key]
    return values


def _put_value(values: dict[str, Any], path: Path, value: Any) -> None:
    for key in path[:-1]:
        values = values.setdefault(key, {})
    values[path[-1]] = value


def _remove_empty_tables(values: dict[str, Any], path: Path) -> None:
    """Remove the tables above a path that hold nothing, from the innermost on."""
    for depth in range(len(path) - 1, 0, -1):
        table = path[:depth]
        if value_at(values, table) == {}:
            outer = value_at(values, table[:-1])
            del outer[table[-1]]


def _set_toml(text: str, path: Path, value: Any) -> str:
    lines = text.splitlines()
    start, end = _toml_table(lines, path[:-1])
    line = f"{_toml_key(path[-1:])} = {toml_value(value)}"
    if start is None:
        if lines and lines[-1].strip():
            lines.append("")
        table = _toml_key(path[:-1])
        lines.append(f"[{table}]")
        lines.append(line)
        return _joined(lines)
    place = _toml_line(lines, start, end, path[-1])
    if place is not None:
        lines[place] = line + _toml_comment(lines[place])
    else:
        while end > start and not lines[end - 1].strip():
            end -= 1
        lines.insert(end, line)
    return _joined(lines)


def _remove_toml(text: str, path: Path) -> str:
    lines = text.splitlines()
    start, end = _toml_table(lines, path[:-1])
    if start is None:
        return text
    place = _toml_line(lines, start, end, path[-1])
    if place is None:
        return text
    del lines[place]
    is_table_empty = start > 0 and not "".join(lines[start : end - 1]).strip()
    if is_table_empty:
        head = start - 1
        if head > 0 and not lines[head - 1].strip():  # the blank line before it goes too
            head -= 1
        del lines[head : end - 1]
    return _joined(lines)


def _joined(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _toml_table(lines: Sequence[str], table: Path) -> tuple[int | None, int]:
    """Return where the lines of a table begin and end, without its head; None: there is no table.

    The empty name stands for the values before any head.
    """
    start = 0 if not table else None
    for place, line in enumerate(lines):
        if not line.lstrip().startswith("["):
            continue
        if start is not None:
            return start, place
        if _toml_head(line) == table:
            start = place + 1
    return start, len(lines)


def _toml_head(line: str) -> Path | None:
    """Return the name of the table that begins with this line; None: none does."""
    try:
        values: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None
    path: list[str] = []
    while isinstance(values, dict) and values:
        ((key, values),) = values.items()
        path.append(key)
    if values != {}:
        return None
    return tuple(path)


def _toml_line(lines: Sequence[str], start: int, end: int, key: str) -> int | None:
    """Return the line that sets a key; None: no line does so alone."""
    for place in range(start, end):
        try:
            values = tomllib.loads(lines[place])
        except tomllib.TOMLDecodeError:
            continue
        if [*values] == [key]:
            return place
    return None


def _toml_comment(line: str) -> str:
    """Return the comment at the end of a line with a value, and the blanks before it."""
    values = tomllib.loads(line)
    for place, character in enumerate(line):
        if character != "#":
            continue
        before = line[:place]
        try:
            if tomllib.loads(before) == values:
                return line[len(before.rstrip()) :]
        except tomllib.TOMLDecodeError:  # the sign stands in a string
            pass
    return ""


def _toml_key(path: Path) -> str:
    def is_bare(key: str) -> bool:
        return bool(key) and key.isascii() and key.replace("-", "").replace("_", "").isalnum()

    return ".".join(key if is_bare(key) else toml_value(key) for key in path)


def _parse_yaml(text: str) -> Any:
    import yaml  # type: ignore[import-untyped]

    return yaml.safe_load(text)


def _set_yaml(text: str, path: Path, value: Any) -> str:
    """Set a value of the outermost table."""
    lines = text.splitlines()
    line = f"{path[0]}: {json.dumps(value)}"
    place = next(
        (place for place, line in enumerate(lines) if line.startswith(f"{path[0]}:")), None
    )
    if place is None:
        if path[0] in (_parse_yaml(text) or {}):
            # Goose refuses a second line with the same key.
            raise ValueError("the key is written in another way")
        lines.append(line)
    else:
        lines[place] = line
    return _joined(lines)


def _remove_yaml(text: str, path: Path) -> str:
    beginning = f"{path[0]}:"
    lines = text.splitlines()
    return _joined([line for line in lines if not line.startswith(beginning)])


FORMATS = {
    "json": Format("JSON", parse_json, set_member, remove_member),
    "toml": Format("TOML", tomllib.loads, _set_toml, _remove_toml),
    "yaml": Format("YAML", _parse_yaml, _set_yaml, _remove_yaml),
}
