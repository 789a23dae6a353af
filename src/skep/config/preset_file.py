"""A preset written as the TOML file that `skep.config.presets` reads back as the same preset.

What stands where it stands by itself is left out, so that the file is what a person would have written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any

from skep.catalog.options import EngineOptions
from skep.catalog.presets import Container, Preset

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WIDE = 100  # characters; a longer list gets a line for each
_ELSEWHERE = ("name", "origin", "options", "env", "container", "needs", "published")
_CALLED = {"context_tokens": "context"}


def preset_toml(preset: Preset) -> str:
    """Return all of it but its name and its origin, which are the file's."""
    told = {name: value for name, value in _told(preset).items() if name not in _ELSEWHERE}
    if preset.served_as == preset.model:
        del told["served_as"]
    parts = [_table("", {_CALLED.get(name, name): value for name, value in told.items()})]
    for head, values in (("[options]", options_table(preset.options)), ("[env]", dict(preset.env))):
        parts += [_table(head, values)] if values else []
    if preset.container is not None:
        parts.append(_table("[container]", _container(preset.container)))
    parts += [_table("[[need]]", _told(need)) for need in preset.needs]
    parts += [_table("[[published]]", _told(figure)) for figure in preset.published]
    return "\n".join(parts)


def options_table(options: EngineOptions) -> dict[str, Any]:
    """As `[options]` has them: a draft is `speculation`, and `draft_model` where it has one."""
    told = options.given
    draft = told.pop("draft", None)
    if draft is not None:
        told["speculation"] = str(draft)
        told |= {"draft_model": draft.model} if draft.model is not None else {}
    return told


def _container(container: Container) -> dict[str, Any]:
    return {
        **_told(container),
        **({"mounts": [_told(mount) for mount in container.mounts]} if container.mounts else {}),
    }


def _told(value: Any) -> dict[str, Any]:
    """What was said: a value that its field has by itself needs no line."""
    return {
        field.name: getattr(value, field.name)
        for field in fields(value)
        if getattr(value, field.name) != (None if field.default is MISSING else field.default)
    }


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
