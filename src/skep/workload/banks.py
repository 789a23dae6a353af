"""A user's own bank: JSON lines, one item each, checked with line numbers before anything is asked.

    {"prompt": "What is 7 * 8?", "checker": {"kind": "number", "answer": 56}}

Reads no file: lines are handed in.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from skep.catalog.names import did_you_mean, similar_names, squeeze
from skep.errors import UserError
from skep.workload.items import Checker, Item
from skep.workload.reading_checks import value_of

LONGEST_LINE = 1_000_000  # characters
LONGEST_PATTERN = 2_000
USUAL_TOKENS = 512  # where an item does not say
MOST_TOKENS = 1_000_000
FIELDS = ("id", "prompt", "messages", "checker", "max_tokens", "keywords", "family")
ROLES = ("system", "developer", "user", "assistant")
_LOOKS = '{"prompt": "What is 7 * 8?", "checker": {"kind": "number", "answer": 56}}'


def parse_bank(lines: Iterable[str], name: str) -> list[Item]:
    """Parse a bank, in the order of the file. An item without an id gets the number of its line."""
    items: list[Item] = []
    numbers: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        text = line.removeprefix("\ufeff") if number == 1 else line
        if not text.strip():
            continue
        item = _item(_BankLine(name, number), text)
        if (earlier := numbers.setdefault(item.id, number)) != number:
            raise UserError(f"line {number} of `{name}` has the id `{_short(item.id)}` of line {earlier}")
        items.append(item)
    if not items:
        raise UserError(f"the bank `{name}` holds no items", hint=f"one JSON object a line, such as {_LOOKS}")
    return items


class _BankLine:
    """A line of a bank, for error messages."""

    def __init__(self, name: str, number: int) -> None:
        self._where = f"line {number} of `{name}`"
        self.number = number

    def wrong(self, what: str, hint: str | None = None) -> UserError:
        return UserError(f"{self._where}{what}", hint=hint)

    def field(self, field: str, value: Any, wanted: str) -> UserError:
        shown = "missing" if value is None else f"`{_short(value)}`"
        return self.wrong(f": `{field}` is {shown}", hint=f"it must be {wanted}")

    def known(self, given: Mapping[str, Any], fields: Iterable[str], what: str) -> None:
        known = tuple(fields)
        for one in given:
            if one not in known:
                close = similar_names(one[:100], {squeeze(field): field for field in known}, count=1)
                hint = did_you_mean(close, f"known are: {', '.join(known)}")
                raise self.wrong(f": {what}`{_short(one)}` is not known", hint)


def _item(line: _BankLine, text: str) -> Item:
    given = _object(line, text)
    line.known(given, FIELDS, "")
    return Item(
        id=_id(line, given.get("id")),
        messages=_messages(line, given),
        checker=_checker(line, given.get("checker")),
        max_tokens=_tokens(line, given.get("max_tokens")),
        keywords=tuple(_texts(line, "keywords", given["keywords"], fewest=0)) if "keywords" in given else (),
        family=_text(line, "family", given["family"], longest=100) if "family" in given else "",
    )


def _object(line: _BankLine, text: str) -> dict[str, Any]:
    if len(text) > LONGEST_LINE:
        raise line.wrong(f" has {len(text)} characters", f"at most {LONGEST_LINE}; is this a file of JSON lines?")
    if "\0" in text:
        raise line.wrong(" holds a NUL", "a bank is text: is this the right file?")
    try:
        given = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise line.wrong(" is nested too deep", f"such as {_LOOKS}") from None
    except ValueError as error:
        raise line.wrong(f" is not JSON: {str(error)[:100]}", f"one JSON object a line, such as {_LOOKS}") from None
    if not isinstance(given, dict):
        raise line.wrong(f" is not a JSON object: `{_short(given)}`", f"such as {_LOOKS}")
    return given


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a number in JSON")


def _id(line: _BankLine, value: Any) -> str:
    if value is None:
        return str(line.number)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip() or len(value) > 200 or not value.isprintable():
        raise line.field("id", value, "a text of at most 200 characters, on one line")
    return value


def _messages(line: _BankLine, given: Mapping[str, Any]) -> tuple[dict[str, str], ...]:
    prompt, messages = given.get("prompt"), given.get("messages")
    if (prompt is None) == (messages is None):
        both = "has both `prompt` and `messages`" if prompt is not None else "has neither `prompt` nor `messages`"
        raise line.wrong(f" {both}", f"give one of them, such as {_LOOKS}")
    if messages is None:
        return ({"role": "user", "content": _text(line, "prompt", prompt)},)
    if not isinstance(messages, list) or not messages:
        raise line.field("messages", messages, 'a list such as [{"role": "user", "content": "..."}]')
    found = tuple(_message(line, place, one) for place, one in enumerate(messages))
    if found[-1]["role"] != "user":
        raise line.field(
            f"messages[{len(found) - 1}].role", found[-1]["role"], "`user`: the last message is the question"
        )
    return found


def _message(line: _BankLine, place: int, given: Any) -> dict[str, str]:
    where = f"messages[{place}]"
    if not isinstance(given, dict):
        raise line.field(where, given, 'an object such as {"role": "user", "content": "..."}')
    line.known(given, ("role", "content"), f"{where}.")
    role = given.get("role")
    if role not in ROLES:
        raise line.field(f"{where}.role", role, f"one of {', '.join(ROLES)}")
    return {"role": role, "content": _text(line, f"{where}.content", given.get("content"))}


def _checker(line: _BankLine, given: Any) -> Checker:
    if not isinstance(given, dict):
        raise line.field("checker", given, 'an object such as {"kind": "number", "answer": 56}')
    kind = given.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        close = (
            similar_names(kind[:100], {squeeze(one): one for one in KINDS}, count=1) if isinstance(kind, str) else ()
        )
        shown = "missing" if kind is None else f"`{_short(kind)}`"
        raise line.wrong(f": `checker.kind` is {shown}", did_you_mean(close, f"known are: {', '.join(KINDS)}"))
    fields = KINDS[kind]
    line.known(given, ("kind", *fields), "checker.")
    values = {
        name: read(line, f"checker.{name}", given.get(name))
        for name, (read, needed) in fields.items()
        if needed or name in given
    }
    return _agreed(line, Checker(kind, values))


def _agreed(line: _BankLine, checker: Checker) -> Checker:
    """Values that must fit together."""
    values = checker.values
    if checker.kind == "choice":
        folded = [one.casefold() for one in values["options"]]
        if len(set(folded)) < len(folded):
            raise line.field("checker.options", values["options"], "a list of different texts")
        if str(values["answer"]).casefold() not in folded:
            raise line.field("checker.answer", values["answer"], f"one of the options {_short(values['options'])}")
    if checker.kind == "cases" and not values.get("cases") and not values.get("raises"):
        raise line.field("checker.cases", None, "a list such as [[[1, 2], 3]]: arguments, then the result")
    return checker


def _text(line: _BankLine, field: str, value: Any, *, longest: int = LONGEST_LINE) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > longest:
        raise line.field(field, value, f"a text of at most {longest} characters that is not blank")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise line.field(field, ascii(value), "text: it has half a character in it") from None
    return value


def _texts(line: _BankLine, field: str, value: Any, *, fewest: int = 1) -> list[str]:
    if not isinstance(value, list) or len(value) < fewest:
        raise line.field(field, value, f"a list of {fewest} or more texts")
    return [_text(line, f"{field}[{place}]", one) for place, one in enumerate(value)]


def _tokens(line: _BankLine, value: Any) -> int:
    if value is None:
        return USUAL_TOKENS
    if type(value) is not int or not 1 <= value <= MOST_TOKENS:
        raise line.field("max_tokens", value, f"a whole number from 1 to {MOST_TOKENS}")
    return value


def _said(line: _BankLine, field: str, value: Any) -> str:
    """Return a text, or a number that stands for its digits."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return _text(line, field, value)


def _number(line: _BankLine, field: str, value: Any) -> int | float | str:
    finite = not isinstance(value, float) or math.isfinite(value)
    meant = value_of(value) if isinstance(value, int | float | str) and finite else None
    if not isinstance(value, int | float | str) or meant is None or meant.is_nan():  # 0/0
        raise line.field(field, value, "a number, or a text that is one, such as 1/3")
    return value


def _pattern(line: _BankLine, field: str, value: Any) -> str:
    text = _text(line, field, value, longest=LONGEST_PATTERN)
    try:
        re.compile(text, re.MULTILINE)
    except (re.error, OverflowError, RecursionError) as error:
        why = "too deep" if isinstance(error, RecursionError) else str(error)
        raise line.field(field, text, f"a regular expression of Python: {why}") from None
    return text


def _cases(line: _BankLine, field: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or not all(isinstance(one, list) and len(one) == 2 for one in value):
        raise line.field(field, value, "a list such as [[[1, 2], 3]]: arguments, then the result")
    for place, one in enumerate(value):
        _arguments(line, f"{field}[{place}][0]", one[0])
    return value


def _calls(line: _BankLine, field: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise line.field(field, value, "a list of arguments, such as [[1, 0]]")
    for place, one in enumerate(value):
        _arguments(line, f"{field}[{place}]", one)
    return value


def _arguments(line: _BankLine, field: str, value: Any) -> None:
    if not isinstance(value, list | dict):
        raise line.field(field, value, "a list of arguments, or an object of them by name")


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = "".join(one if one.isprintable() else " " for one in text[:61])
    return f"{text[:60]}…" if len(text) > 60 else text


_Reader = Callable[[_BankLine, str, Any], Any]


def _good(is_good: Callable[[Any], bool], wanted: str) -> _Reader:
    """Return what reads a value that needs no more than to be good."""

    def read(line: _BankLine, field: str, value: Any) -> Any:
        if not is_good(value):
            raise line.field(field, value, wanted)
        return value

    return read


_flag = _good(lambda value: isinstance(value, bool), "true or false")
_name = _good(lambda value: isinstance(value, str) and value.isidentifier(), "the name of a function")
_tolerance = _good(
    lambda value: type(value) in (int, float) and math.isfinite(value) and value >= 0, "a number from 0 up"
)
_options = partial(_texts, fewest=2)
# Of each kind: its values, how each is read, and whether it must be there.
KINDS: dict[str, dict[str, tuple[_Reader, bool]]] = {
    "exact": {"answer": (_said, True), "ignore_case": (_flag, False)},
    "choice": {"answer": (_said, True), "options": (_options, True)},
    "number": {"answer": (_number, True), "tolerance": (_tolerance, False)},
    "contains": {"all": (_texts, True), "ignore_case": (_flag, False)},
    "regex": {"pattern": (_pattern, True)},
    "python": {"tests": (_text, True), "entry_point": (_name, False)},
    "cases": {"entry_point": (_name, True), "cases": (_cases, False), "raises": (_calls, False)},
}
