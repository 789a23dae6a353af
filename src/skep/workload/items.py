"""An item: what is asked, and how its answer is judged. Both are data, stored with the run that
asked it.

Objects that users write, such as items and classes of traffic, are checked field by field against
tables of `Demand`s."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from math import inf
from typing import Any, cast

import msgspec

from skep.catalog.names import did_you_mean

# Judged by looking at the text: nothing is run.
READING_CHECKS = ("exact", "choice", "number", "contains")
# Judged in the sandbox; a regular expression too, as some take for ever.
EXECUTED_CHECKS = ("regex", "python", "completion")


class Checker(msgspec.Struct, frozen=True):
    """How an answer is checked. `values` by kind, with defaults:

    exact      answer; ignore_case (true): the answer's last line or its whole text, white space
               apart
    choice     answer; options: the one option that the answer settles on
    number     answer; tolerance (0): the last number in the text
    contains   all: list of texts; ignore_case (true)
    regex      pattern: searched for, multi-line
    python     tests: code run after the answer's; entry_point (None); before: code run first;
               packages: what the answer may import, which must be installed
    completion prompt; entry_point; tests: HumanEval's form, a body or the whole function again"""

    kind: str
    values: Mapping[str, Any] = {}

    @property
    def is_executed(self) -> bool:
        return self.kind in EXECUTED_CHECKS


class Item(msgspec.Struct, frozen=True):
    id: str
    messages: tuple[Mapping[str, str], ...]  # of a later turn: its own message only
    checker: Checker
    max_tokens: int = 512
    family: str = ""  # which generator, or which part of a bank
    difficulty: int | None = None


def item_json(item: Item) -> dict[str, Any]:
    return cast(dict[str, Any], msgspec.to_builtins(item, enc_hook=dict))


def item_from_json(document: Mapping[str, Any]) -> Item:
    return msgspec.convert(document, Item)


Demand = tuple[str, Callable[[Any], bool]]  # what is wanted, in words, and whether a value is it


def is_text(value: Any) -> bool:
    """Return whether it is text that is not blank and has no half of a character in it."""
    if not isinstance(value, str) or not value.strip():
        return False
    return re.search("[\\ud800-\\udfff]", value) is None


def whole_number(minimum: int, maximum: float = inf) -> Demand:
    up = "up" if maximum == inf else f"to {maximum}"
    return (
        f"a whole number from {minimum} {up}",
        lambda value: type(value) is int and minimum <= value <= maximum,
    )


def real_number(minimum: float, maximum: float) -> Demand:
    return (
        f"a number from {minimum:g} to {maximum:g}",
        lambda value: type(value) in (int, float) and minimum <= value <= maximum,
    )


def one_of(choices: Sequence[str]) -> Demand:
    return (
        f"one of {', '.join(f'`{choice}`' for choice in choices)}",
        lambda value: isinstance(value, str) and value in choices,
    )


def field_faults(
    given: Mapping[str, Any],
    needed: Mapping[str, Demand],
    allowed: Mapping[str, Demand],
    *,
    place: str = "",
) -> Iterator[str]:
    """Yield what is wrong with the fields of an object, each in a line.

    `place`: before their names, `checker.`.
    """
    demands = {**needed, **allowed}
    for name in given:
        if name not in demands:
            yield f"`{place}{short(name)}` is not known; {like(str(name), sorted(demands))}"
    for name, (expected, is_met) in demands.items():
        if name in given and not is_met(given[name]):
            yield f"`{place}{name}` must be {expected}, not `{short(given[name])}`"
        elif name in needed and name not in given:
            yield f"`{place}{name}` is missing: {expected}"


def like(name: str, names: Sequence[str]) -> str:
    """Return which known name may be meant, or all of them."""
    known_names = ", ".join(f"`{known_name}`" for known_name in names)
    matches = get_close_matches(name[:100], names, n=1, cutoff=0.6)
    return did_you_mean(matches, f"known: {known_names}")


def short(value: Any) -> str:
    """Return a value in a few printable characters."""
    if isinstance(value, str):
        text = value
    else:
        text = json.dumps(value, ensure_ascii=False, default=str)
    printable = [character if character.isprintable() else " " for character in text[:61]]
    if len(printable) > 60:
        return f"{''.join(printable[:60])}…"
    return "".join(printable)
