"""A preset written as the TOML file that `skep.config.presets` reads back as the same preset.

What stands where it stands by itself is left out, so that the file is what a person would have written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from skep.catalog.options import Draft
from skep.catalog.presets import Preset
from skep.config.load import rules_of

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WIDE = 100  # characters; a longer list gets a line for each


def preset_toml(preset: Preset) -> str:
    """Return all of it but its name and its origin, which are the file's."""
    told = _told(preset)
    if preset.served_as == preset.model:
        del told["served_as"]
    inner = {key: told.pop(key) for key in ("options", "env", "container") if key in told}
    several = {key: told.pop(key) for key in ("need", "published") if key in told}
    parts = [_table("", told), *(_table(f"[{key}]", table) for key, table in inner.items() if table)]
    parts += [_table(f"[[{key}]]", table) for key, tables in several.items() for table in tables]
    return "\n".join(parts)


def _told(value: Any) -> dict[str, Any]:
    """Return what was said, under its keys: a value that its field has by itself needs no line."""
    found: dict[str, Any] = {}
    kind: type = type(value)
    rules = rules_of(kind)
    for field in fields(value):
        rule, inner = rules[field.name], getattr(value, field.name)
        if "hidden" in rule or inner == (None if field.default is MISSING else field.default):
            continue
        if isinstance(inner, Draft):  # two texts: how it stands in a file
            found |= {"speculation": str(inner)} | ({"draft_model": inner.model} if inner.model is not None else {})
        elif is_dataclass(inner):
            found[rule.get("key", field.name)] = _told(inner)
        elif field.name == "env":
            found["env"] = dict(inner)
        else:
            several = isinstance(inner, tuple) and bool(inner) and is_dataclass(inner[0])
            found[rule.get("key", field.name)] = [_told(one) for one in inner] if several else inner
    return found


def _table(head: str, values: Mapping[str, Any]) -> str:
    return "".join(f"{line}\n" for line in (*([head] if head else ()), *_lines(values)))


def _lines(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        short = f"{_key(name)} = {_value(value)}"
        if isinstance(value, tuple | list) and len(short) > _WIDE:
            yield f"{_key(name)} = ["
            yield from (f"    {_value(one)}," for one in value)
            yield "]"
        else:
            yield short


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(name)} = {_value(one)}" for name, one in value.items()) + " }"
    return _text(str(value))


def _text(text: str) -> str:
    """A string of JSON is one of TOML, but for the DEL that only TOML forbids."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
