"""A user's own bank: JSON lines, one item each, checked with line numbers before anything is asked.

    {"prompt": "What is 7 * 8?", "checker": {"kind": "number", "answer": 56}}

Reads no file: lines are handed in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from skep.catalog.names import did_you_mean, similar_names, squeeze
from skep.errors import UserError
from skep.workload.checkers import checker_faults, is_text, short
from skep.workload.items import Checker, Item

LONGEST_LINE = 1_000_000  # characters
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
            raise UserError(f"line {number} of `{name}` has the id `{short(item.id)}` of line {earlier}")
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
        shown = "missing" if value is None else f"`{short(value)}`"
        return self.wrong(f": `{field}` is {shown}", hint=f"it must be {wanted}")

    def known(self, given: Mapping[str, Any], fields: Iterable[str], what: str) -> None:
        known = tuple(fields)
        for one in given:
            if one not in known:
                close = similar_names(one[:100], {squeeze(field): field for field in known}, count=1)
                hint = did_you_mean(close, f"known are: {', '.join(known)}")
                raise self.wrong(f": {what}`{short(one)}` is not known", hint)


def _item(line: _BankLine, text: str) -> Item:
    given = _object(line, text)
    line.known(given, FIELDS, "")
    return Item(
        id=_id(line, given.get("id")),
        messages=_messages(line, given),
        checker=_checker(line, given.get("checker")),
        max_tokens=_tokens(line, given.get("max_tokens")),
        keywords=tuple(_texts(line, "keywords", given["keywords"])) if "keywords" in given else (),
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
        raise line.wrong(f" is not a JSON object: `{short(given)}`", f"such as {_LOOKS}")
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
    if (fault := next(checker_faults(given), None)) is not None:
        raise line.wrong(f": {fault}", "docs/quality.md describes each kind of checker")
    values = {name: value for name, value in given.items() if name != "kind"}
    if given["kind"] in ("exact", "choice"):
        values["answer"] = str(values["answer"])  # a number stands for its digits
    return Checker(given["kind"], values)


def _text(line: _BankLine, field: str, value: Any, *, longest: int = LONGEST_LINE) -> str:
    if not is_text(value) or len(value) > longest:
        shown = ascii(value) if isinstance(value, str) and value.strip() else value
        raise line.field(field, shown, f"a text of at most {longest} characters that is not blank")
    return str(value)


def _texts(line: _BankLine, field: str, value: Any) -> list[str]:
    if not isinstance(value, list):
        raise line.field(field, value, "a list of texts")
    return [_text(line, f"{field}[{place}]", one) for place, one in enumerate(value)]


def _tokens(line: _BankLine, value: Any) -> int:
    if value is None:
        return USUAL_TOKENS
    if type(value) is not int or not 1 <= value <= MOST_TOKENS:
        raise line.field("max_tokens", value, f"a whole number from 1 to {MOST_TOKENS}")
    return value
