"""A user's own bank: JSON lines, one item each, checked with line numbers before anything is
asked.

    {"prompt": "What is 7 * 8?", "checker": {"kind": "number", "answer": 56}}

Which values each kind of checker has and needs stands here, for task files too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from skep.errors import UserError
from skep.workload.items import (
    EXECUTED_CHECKS,
    READING_CHECKS,
    Checker,
    Demand,
    Item,
    field_faults,
    is_text,
    like,
    one_of,
    short,
    whole_number,
)
from skep.workload.reading_checks import value_of

KINDS = (*READING_CHECKS, *EXECUTED_CHECKS)
LONGEST_PATTERN = 2_000
LONGEST_LINE = 1_000_000  # characters
ROLES = ("system", "developer", "user", "assistant")
_LOOKS = '{"prompt": "What is 7 * 8?", "checker": {"kind": "number", "answer": 56}}'
_MESSAGE_LOOKS = '{"role": "user", "content": "..."}'


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_text, value))


def _is_options(value: Any) -> bool:
    if not _is_texts(value) or len(value) < 2:
        return False
    return len({text.casefold() for text in value}) == len(value)


def _is_answer(value: Any) -> bool:
    return is_text(value) or type(value) in (int, float)


def _is_number(value: Any, minimum: float = -math.inf) -> bool:
    number = value_of(value)
    return number is not None and number.is_finite() and number >= minimum


def _is_pattern(value: Any) -> bool:
    try:
        re.compile(value, re.MULTILINE)
    except (re.error, TypeError, RecursionError, OverflowError):
        return False
    return is_text(value) and len(value) <= LONGEST_PATTERN


def _is_id(value: Any) -> bool:
    return type(value) is int or (is_text(value) and len(value) <= 200 and value.isprintable())


_TEXT: Demand = ("a text that is not blank", is_text)
_NAME: Demand = (
    "the name of a function",
    lambda value: isinstance(value, str) and value.isidentifier(),
)
_YES_NO: Demand = ("true or false", lambda value: isinstance(value, bool))

_ITEM: Mapping[str, Demand] = {
    "id": ("a text of at most 200 characters, on one line", _is_id),
    "prompt": _TEXT,
    "messages": (
        f"a list such as [{_MESSAGE_LOOKS}]",
        lambda value: isinstance(value, list) and bool(value),
    ),
    "max_tokens": whole_number(1, 1_000_000),
    "family": (
        "a text of at most 100 characters",
        lambda value: is_text(value) and len(value) <= 100,
    ),
}
_MESSAGE: Mapping[str, Demand] = {"role": one_of(ROLES), "content": _TEXT}
_NEEDED: Mapping[str, Mapping[str, Demand]] = {
    "exact": {"answer": ("a text or a number", _is_answer)},
    "choice": {
        "answer": ("a text", _is_answer),
        "options": ("a list of two or more different texts", _is_options),
    },
    "number": {"answer": ("a number, or a text that is one, such as 1/3", _is_number)},
    "contains": {"all": ("a list of texts", lambda value: _is_texts(value) and bool(value))},
    "regex": {
        "pattern": (f"a regular expression of at most {LONGEST_PATTERN} characters", _is_pattern)
    },
    "python": {"tests": _TEXT},
    "completion": {"prompt": _TEXT, "entry_point": _NAME, "tests": _TEXT},
}
_ALLOWED: Mapping[str, Mapping[str, Demand]] = {
    "exact": {"ignore_case": _YES_NO},
    "contains": {"ignore_case": _YES_NO},
    "number": {"tolerance": ("a number from 0 on", lambda value: _is_number(value, 0))},
    "python": {"entry_point": _NAME},
}


def checker_faults(checker: Any) -> Iterator[str]:
    """Yield what is wrong with it, each in a line; none: it is sound."""
    if not isinstance(checker, Mapping):
        yield (
            f'`checker` must be an object such as {{"kind": "contains", "all": ["x"]}}, not '
            f"`{short(checker)}`"
        )
        return
    kind = checker.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        fault = "has no `kind`" if kind is None else f"has the unknown kind `{short(kind)}`"
        yield f"`checker` {fault}; {like(str(kind or ''), KINDS)}"
        return
    values = {name: value for name, value in checker.items() if name != "kind"}
    yield from field_faults(values, _NEEDED[kind], _ALLOWED.get(kind, {}), place="checker.")
    options = checker.get("options")
    answer = checker.get("answer")
    if kind == "choice" and _is_options(options) and answer is not None:
        folded_options = {option.casefold() for option in options or ()}
        if str(answer).casefold() not in folded_options:
            yield "`checker.answer` is not one of its options"


def parse_bank(lines: Iterable[str], name: str) -> list[Item]:
    """Parse a bank, in the order of the file.

    An item without an id gets the number of its line.
    """
    items: list[Item] = []
    numbers: dict[str, int] = {}
    hint = (
        f"one JSON object a line, such as {_LOOKS}; docs/quality.md describes each kind of checker"
    )
    for number, line in enumerate(lines, start=1):
        text = line.removeprefix("\ufeff") if number == 1 else line
        if not text.strip():
            continue
        try:
            given = _object(text)
            if (fault := next(_item_faults(given), None)) is not None:
                raise ValueError(fault)
        except ValueError as error:
            raise UserError(f"line {number} of `{name}`: {error}", hint=hint) from None
        item = _item(given, number)
        if (earlier := numbers.setdefault(item.id, number)) != number:
            raise UserError(
                f"line {number} of `{name}` has the id `{short(item.id)}` of line {earlier}"
            )
        items.append(item)
    if not items:
        raise UserError(f"the bank `{name}` holds no items", hint=hint)
    return items


def _object(text: str) -> dict[str, Any]:
    """Return the object of a line; ValueError with what is wrong."""
    if len(text) > LONGEST_LINE:
        length = f"it has {len(text)} characters, at most {LONGEST_LINE} are read"
        raise ValueError(f"{length}; is this a file of JSON lines?")
    if "\0" in text:
        raise ValueError("it holds a NUL; a bank is text: is this the right file?")
    try:
        given = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON: {str(error)[:100]}") from None
    if not isinstance(given, dict):
        # What a user wrote is at fault, not a type of the program.
        raise ValueError(f"it is not a JSON object: `{short(given)}`")  # noqa: TRY004
    return {field: value for field, value in given.items() if value is not None}


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a number in JSON")


def _item_faults(given: Mapping[str, Any]) -> Iterator[str]:
    if "prompt" in given and "messages" in given:
        yield "it has both `prompt` and `messages`"
    if "prompt" not in given and "messages" not in given:
        yield "it has neither `prompt` nor `messages`"
    yield from field_faults(
        {name: value for name, value in given.items() if name != "checker"}, {}, _ITEM
    )
    for place, message in enumerate(given.get("messages", ())):
        if isinstance(message, dict):
            yield from field_faults(message, _MESSAGE, {}, place=f"messages[{place}].")
        else:
            yield (
                f"`messages[{place}]` must be an object such as {_MESSAGE_LOOKS}, not "
                f"`{short(message)}`"
            )
    if "messages" in given and given["messages"][-1]["role"] != "user":
        yield "the last of `messages` is the question: its `role` must be `user`"
    yield from checker_faults(given.get("checker"))


def _item(given: Mapping[str, Any], number: int) -> Item:
    """Return the item of a line that is sound."""
    kind = given["checker"]["kind"]
    values = {key: value for key, value in given["checker"].items() if key != "kind"}
    if kind in ("exact", "choice"):
        values["answer"] = str(values["answer"])  # a number stands for its digits
    return Item(
        str(given.get("id", number)),
        tuple(given.get("messages") or [{"role": "user", "content": given["prompt"]}]),
        Checker(kind, values),
        given.get("max_tokens", 512),  # where the item does not say
        given.get("family", ""),
    )
