"""A prompt with places to fill in: `Summarise {title}: {text}`. Literal braces are doubled.

Nothing but names: a template cannot reach into an object, and what is filled in is never looked at for places again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any

from skep.errors import UserError
from skep.units import shortened

MOST_NAMED = 12  # columns in a message


@dataclass(frozen=True, slots=True)
class Template:
    """`parts`: a piece of text and the name of what follows it; None: nothing does."""

    parts: tuple[tuple[str, str | None], ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for _, name in self.parts if name is not None))

    def fill(self, values: Mapping[str, Any]) -> str:
        """KeyError where a value is missing. Numbers, lists and objects are written as JSON."""
        return "".join(text + ("" if name is None else _written(values[name])) for text, name in self.parts)

    def missing(self, known: Iterable[str]) -> str | None:
        """Return what it asks for and is not among these, in words; None: all of it is."""
        given = list(known)
        absent = [name for name in self.names if name not in given]
        if not absent:
            return None
        wanted = ", ".join(f"`{{{name}}}`" for name in absent)
        return f"the template asks for {wanted}; there is {_listed(given)}"


def parse_template(text: str) -> Template:
    """UserError for what is no template."""
    try:
        found = list(Formatter().parse(text))
    except ValueError as error:
        hint = "literal braces are doubled: `{{` and `}}`"
        raise UserError(f"`{shortened(text, 60)}` is no template: {error}", hint=hint) from None
    parts: list[tuple[str, str | None]] = []
    for literal, name, form, conversion in found:
        if form or conversion or (name and any(sign in name for sign in ".[]!")):
            hint = "a place is a name in braces; literal braces are doubled: `{{` and `}}`"
            raise UserError(f"`{{{shortened(name or '', 60)}}}` in the template is more than a name", hint=hint)
        parts.append((literal, name))
    template = Template(tuple(parts))
    if not template.names:
        hint = "name a column or a field in braces: `Summarise {text}`"
        raise UserError(f"the template `{shortened(text, 60)}` has no place to fill in", hint=hint)
    return template


def _written(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float | dict | list | tuple):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _listed(names: list[str]) -> str:
    shown = ", ".join(f"`{shortened(name, 60)}`" for name in names[:MOST_NAMED] if name)
    more = len([name for name in names if name]) - MOST_NAMED
    return (shown or "nothing") + (f" and {more} more" if more > 0 else "")
