"""Values between processes as JSON, and whether two are the same.

Cases are written as JSON, so lists and tuples are alike; a number written as a key is its text; True is not 1; floats
may differ in the last digits. What JSON cannot hold is told by its type and looks, and is like nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_DEEPEST = 40
_TOLERANCE = 1e-9


class UnsupportedValue:
    """A value of a type that a case cannot name."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def encoded(value: Any, depth: int = 0) -> Any:
    if depth > _DEEPEST:
        return {"foreign": "a value nested too deep"}
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value) if abs(value) < 1 << 62 else {"int": hex(value)}
    if isinstance(value, float):
        return {"float": float(value).hex()}
    if isinstance(value, (list, tuple)):
        return {"list": [encoded(one, depth + 1) for one in value]}
    if isinstance(value, Mapping):
        return {"dict": [[encoded(key, depth + 1), encoded(one, depth + 1)] for key, one in value.items()]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    try:
        looks = repr(value)
    except Exception:
        looks = "?"
    return {"foreign": f"{type(value).__name__} {looks}"[:200]}


def decoded(value: Any) -> Any:
    """Return the value that `encoded` wrote; anything else is unsupported."""
    if not isinstance(value, dict):
        return value if not isinstance(value, list) else UnsupportedValue("?")
    try:
        ((kind, held),) = value.items()
        match kind:
            case "int":
                return int(held, 16)
            case "float":
                return float.fromhex(held)
            case "list":
                return [decoded(one) for one in held]
            case "dict":
                return {_key(decoded(key)): decoded(one) for key, one in held}
            case "bytes":
                return bytes.fromhex(held)
    except (ValueError, TypeError):
        return UnsupportedValue("?")
    return UnsupportedValue(str(value.get("foreign", "?")))


def alike(want: Any, have: Any) -> bool:
    if isinstance(want, bool) or isinstance(have, bool):
        return want is have
    if isinstance(want, (int, float)) and isinstance(have, (int, float)):
        return want == have or abs(want - have) <= _TOLERANCE * max(abs(want), abs(have))
    if isinstance(want, (list, tuple)) and isinstance(have, list):
        return len(want) == len(have) and all(map(alike, want, have))
    if isinstance(want, dict) and isinstance(have, dict):
        keys = {_key(key): value for key, value in want.items()}
        return keys.keys() == have.keys() and all(alike(keys[key], have[key]) for key in keys)
    return type(want) is type(have) and bool(want == have)


def shown(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python writes no number of more than 4300 digits
        text = "a value too large to be shown"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _key(key: Any) -> str:
    if isinstance(key, (str, UnsupportedValue)):
        return str(key)
    return {True: "true", False: "false", None: "null"}.get(key, str(key)) if isinstance(key, bool | None) else str(key)
