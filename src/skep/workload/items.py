"""An item: what is asked, and how its answer is judged. Both are data, stored with the run that asked it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

# Judged by looking at the text: nothing is run.
READ = ("exact", "choice", "number", "contains")
# Judged in the sandbox; a regular expression too, as some take for ever.
EXECUTED = ("regex", "python", "completion", "cases")


class Checker(msgspec.Struct, frozen=True):
    """`values` by kind:

    exact      answer; ignore_case (true)          the answer's last line or its whole text, white space apart
    choice     answer; options                     the one option that the answer settles on
    number     answer; tolerance (0)               the last number in the text
    contains   all: list of texts; ignore_case (true)
    regex      pattern                             searched for, multi-line
    python     tests: code run after the answer's; entry_point (None); before: code run first; packages: what the
               answer may import, which must be installed
    completion prompt, entry_point, tests          HumanEval's form: a body, or the whole function again
    cases      entry_point, cases: [[args, result], ...]; raises: [args, ...]
    """

    kind: str
    values: Mapping[str, Any] = {}

    @property
    def is_executed(self) -> bool:
        return self.kind in EXECUTED


class Item(msgspec.Struct, frozen=True):
    id: str
    messages: tuple[Mapping[str, str], ...]  # of a later turn: its own message only
    checker: Checker
    max_tokens: int = 512
    keywords: tuple[str, ...] = ()  # all of them, in any case; for comparison only
    family: str = ""  # which generator, or which part of a bank
    difficulty: int | None = None


def item_json(item: Item) -> dict[str, Any]:
    return cast(dict[str, Any], msgspec.to_builtins(item, enc_hook=dict))


def item_from_json(document: Mapping[str, Any]) -> Item:
    return msgspec.convert(document, Item)
