"""Values as YAML for people to read and change: blocks, not braces. Pure text; no value ends its own line.

Only what JSON has, and `Literal`: nothing here knows anchors, tags or dates. PyYAML is no dependency of skep.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from skep.engines.export.words import escaped

# Begins like a word and cannot be taken for a number, a date, a boolean of YAML 1.1 or the key of a mapping.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*(?::[A-Za-z_][A-Za-z0-9_./-]*)?")
_TAKEN = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n"))


@dataclass(frozen=True, slots=True)
class Literal:
    """Text that stands inside as it is, line by line (`|`)."""

    text: str


def yaml_text(value: Mapping[str, Any]) -> str:
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Any) -> list[str]:
    """Of a mapping or a list that is not empty."""
    if isinstance(value, Mapping):
        return [line for key, below in value.items() for line in _entry(f"{_scalar(str(key))}:", below)]
    return [line for below in value for line in _item(below)]


def _entry(key: str, below: Any) -> list[str]:
    if isinstance(below, Literal):
        return [f"{key} |", *(f"  {line}".rstrip() for line in below.text.splitlines())]
    if isinstance(below, (Mapping, list, tuple)) and below:
        return [key, *(f"  {line}" for line in _lines(below))]
    return [f"{key} {_scalar(below)}"]


def _item(below: Any) -> list[str]:
    if isinstance(below, (Mapping, list, tuple)) and below:
        first, *rest = _lines(below)
        return [f"- {first}", *(f"  {line}" for line in rest)]
    return [f"- {_scalar(below)}"]


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.casefold() not in _TAKEN
        return value if plain else escaped(json.dumps(value, ensure_ascii=False))
    if isinstance(value, float):
        text = repr(value)
        return text if "e" not in text or "." in text else text.replace("e", ".0e")  # `1e-05` would be a word
    return json.dumps(value)  # null, true, 3, {} and []
