"""Takes checked values out of a Hugging Face config.json. Knows which values are possible, not what a model is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skep.errors import UserError

_HINT = "take the config.json that lies beside the model's weights"
_MAX_CHARACTERS = 4 << 20
_SPOKEN = {type(None): "null", list: "a list", str: "a text", bool: "true or false"}
_INNER = ("text_config", "llm_config", "language_config", "thinker_config")


def parsed(text_or_mapping: str | bytes | Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if isinstance(text_or_mapping, Mapping):
        return text_or_mapping
    if len(text_or_mapping) > _MAX_CHARACTERS:
        raise UserError(f"`{name}` has {len(text_or_mapping)} characters: that is no config.json", hint=_HINT)
    try:
        document = json.loads(text_or_mapping)
    except (ValueError, RecursionError) as error:
        what = error.msg + f" in line {error.lineno}" if isinstance(error, json.JSONDecodeError) else "damaged text"
        raise UserError(f"`{name}` is not JSON: {what}", hint=_HINT) from None
    if not isinstance(document, dict):
        what = _SPOKEN.get(type(document), "a number")
        raise UserError(f"`{name}` holds {what}, not an object of settings", hint=_HINT)
    return document


@dataclass(frozen=True, slots=True)
class Settings:
    """The text model's settings, and those around them: a key is looked for inside first. `null` is absent."""

    name: str
    inner: Mapping[str, Any]
    outer: Mapping[str, Any]

    @classmethod
    def of(cls, document: Mapping[str, Any], name: str) -> Settings:
        inner = document
        for _ in range(2):  # Qwen Omni: thinker_config.text_config
            inner = next((inner[key] for key in _INNER if isinstance(inner.get(key), Mapping)), inner)
        return cls(name, inner, document)

    def get(self, *keys: str) -> Any:
        """The first of these keys that has a value."""
        for settings in (self.inner, self.outer):
            for key in keys:
                if settings.get(key) is not None:
                    return settings[key]
        return None

    def whole(self, *keys: str, low: int = 1, high: int, default: int | None = None) -> int:
        """A whole number within bounds. With no default, the first key must be there."""
        found = next((key for key in keys if self.get(key) is not None), None)
        if found is None:
            if default is None:
                raise UserError(f"`{self.name}` has no `{keys[0]}`", hint=_HINT)
            return default
        value = self.get(found)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(found, value, f"a whole number from {low} to {high}")
        return value

    def number(self, key: str, *, low: float, high: float) -> float | None:
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.wrong(key, value, f"a number from {low:g} to {high:g}")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def text(self, key: str) -> str:
        value = self.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.wrong(key, value, "a text")
        return value

    def list_of(self, key: str, length: int | None = None) -> Sequence[Any] | None:
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or (length is not None and len(value) != length):
            raise self.wrong(key, value, "a list" if length is None else f"a list of {length}, one for each layer")
        return value

    def table(self, key: str) -> Mapping[str, Any] | None:
        value = self.get(key)
        return value if isinstance(value, Mapping) else None

    def wrong(self, key: str, value: Any, wanted: str) -> UserError:
        shown = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a huge number"
        shown = shown if len(shown) <= 40 else f"{shown[:37]}..."
        return UserError(f"`{self.name}`: `{key}` is {shown}, not {wanted}", hint=_HINT)
