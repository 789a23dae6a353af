"""The settings of a model as its config.json or GGUF file states them, each checked when it is
asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from skep.errors import UserError
from skep.units import one_line

CONFIG_HINT = "take the config.json that lies beside the model's weights"
# Tables with the settings of the text model.
_INNER = ("text_config", "llm_config", "language_config", "thinker_config")
MAX_WIDTH = 1 << 20
_LONGEST_PREFIX = 64
_SHOWN_ENTRIES = 64  # of a list or a text: errors show fewer characters


def parsed(text_or_mapping: str | bytes | Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if isinstance(text_or_mapping, Mapping):
        return text_or_mapping
    try:
        document = json.loads(text_or_mapping)
    except (ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError):
            position = f" in line {error.lineno}: {error.msg}"
        else:
            position = ""
        raise UserError(f"`{name}` is not JSON{position}", hint=CONFIG_HINT) from None
    if not isinstance(document, dict):
        raise UserError(f"`{name}` holds no object of settings", hint=CONFIG_HINT)
    return document


class ModelConfig(msgspec.Struct, frozen=True):
    """The text model's settings, and those around them: a key is looked for inside first.

    A key with the value `null` counts as absent.
    """

    name: str  # what errors call the file
    inner: Mapping[str, Any]
    outer: Mapping[str, Any]
    prefix: str = ""  # of its keys, in errors
    hint: str = CONFIG_HINT

    @classmethod
    def of(cls, document: Mapping[str, Any], name: str) -> ModelConfig:
        inner = document
        for _ in range(2):  # Qwen Omni: thinker_config.text_config
            inner = next(
                (inner[key] for key in _INNER if isinstance(inner.get(key), Mapping)), inner
            )
        return cls(f"`{name}`", inner, document)

    def get(self, *keys: str) -> Any:
        """Return the first of these keys that has a value. A key with dots lies in a table."""
        for settings in (self.inner, self.outer):
            for key in keys:
                value = settings.get(key)
                if value is None and "." in key:
                    table, _, name = key.partition(".")
                    if isinstance(settings.get(table), Mapping):
                        value = settings[table].get(name)
                    else:
                        value = None
                if value is not None:
                    return value
        return None

    def whole(
        self, *keys: str, low: int = 1, high: int = MAX_WIDTH, default: int | None = None
    ) -> int:
        """Return a whole number within bounds. With no default, the first key must be there."""
        key = next((key for key in keys if self.get(key) is not None), None)
        if key is None:
            if default is None:
                raise self.missing(keys[0])
            return default
        value = self.get(key)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(key, value, f"a whole number from {low} to {high}")
        return value

    def typed(self, key: str, kind: Any, expected: str) -> Any:
        """Return a value of this type; None where there is none."""
        value = self.get(key)
        if value is not None and not isinstance(value, kind):
            raise self.wrong(key, value, expected)
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.typed(key, bool, "true or false")
        if value is None:
            return default
        return bool(value)

    def text(self, key: str) -> str:
        return self.typed(key, str, "a text") or ""

    def list_of(self, key: str, length: int | None = None) -> Sequence[Any] | None:
        if length is None:
            expected = "a list"
        else:
            expected = f"a list of {length}, one for each layer"
        value: list[Any] | None = self.typed(key, list, expected)
        if value is not None and length is not None and len(value) != length:
            raise self.wrong(key, value, expected)
        return value

    def table(self, key: str) -> Mapping[str, Any] | None:
        value = self.get(key)
        if isinstance(value, Mapping):
            return value
        return None

    def wrong(self, key: str, value: Any, expected: str) -> UserError:
        if not isinstance(value, int) or abs(value) < 10**30:
            value_words = _shown(value)
        else:
            value_words = "a huge number"
        value_words = value_words if len(value_words) <= 40 else f"{value_words[:37]}..."
        return UserError(
            f"{self.name}: `{self._called(key)}` is {value_words}, not {expected}", hint=self.hint
        )

    def missing(self, key: str) -> UserError:
        return UserError(f"{self.name} has no `{self._called(key)}`", hint=self.hint)

    def _called(self, key: str) -> str:
        """Return the key as errors show it, with its prefix, which the file may make long."""
        return f"{one_line(self.prefix, _LONGEST_PREFIX)}{key}"


def _shown(value: Any) -> str:
    """Return the beginning of a value: a list may have a million entries."""
    if isinstance(value, str | list | tuple):
        return repr(value[:_SHOWN_ENTRIES])
    return repr(value)
