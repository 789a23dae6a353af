"""A user's own bank: JSON lines, one item each, checked with line numbers before anything is asked.

    {"prompt": "What is 7 * 8?", "checker": {"kind": "number", "answer": 56}}

The values that each kind of checker has and needs are said here, for task files too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from skep.catalog.names import did_you_mean, similar_names, squeeze
from skep.errors import UserError
from skep.workload.items import EXECUTED, READ, Checker, Item
from skep.workload.reading_checks import value_of

KINDS = (*READ, *EXECUTED)
LONGEST_PATTERN = 2_000
Demand = tuple[str, Callable[[Any], bool]]  # what is wanted, in words, and whether a value is it


def like(name: str, known: Sequence[str]) -> str:
    """Return which known name may be meant, or all of them."""
    otherwise = f"known: {', '.join(f'`{one}`' for one in known)}"
    return did_you_mean(get_close_matches(name, known, n=1, cutoff=0.6), otherwise)


def is_text(value: Any) -> bool:
    """Return whether it is text that is not blank and has no half of a character in it."""
    return isinstance(value, str) and bool(value.strip()) and not re.search("[\\ud800-\\udfff]", value)


def short(value: Any) -> str:
    """Return a value in a few printable characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = "".join(one if one.isprintable() else " " for one in text[:61])
    return f"{text[:60]}…" if len(text) > 60 else text


def _is_options(value: Any) -> bool:
    return _is_texts(value) and len({one.casefold() for one in value}) == len(value) > 1


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(is_text, value))


def _is_calls(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, list | dict) for one in value)


def _is_cases(value: Any) -> bool:
    pairs = isinstance(value, list) and all(isinstance(one, list) and len(one) == 2 for one in value)
    return pairs and _is_calls([one[0] for one in value])


def _is_answer(value: Any) -> bool:
    return is_text(value) or type(value) in (int, float)


def _is_number(value: Any, least: float = -math.inf) -> bool:
    number = value_of(value)
    return number is not None and number.is_finite() and number >= least


def _is_pattern(value: Any) -> bool:
    try:
        re.compile(value, re.MULTILINE)
    except (re.error, TypeError, RecursionError, OverflowError):
        return False
    return is_text(value) and len(value) <= LONGEST_PATTERN


_TEXT: Demand = ("a text", is_text)
_NAME: Demand = ("the name of a function", lambda value: isinstance(value, str) and value.isidentifier())
_YES_NO: Demand = ("true or false", lambda value: isinstance(value, bool))
_CASES = "a list such as [[[1, 2], 3]]: arguments, then the result"

_NEEDED: Mapping[str, Mapping[str, Demand]] = {
    "exact": {"answer": ("a text or a number", _is_answer)},
    "choice": {"answer": ("a text", _is_answer), "options": ("a list of two or more different texts", _is_options)},
    "number": {"answer": ("a number, or a text that is one, such as 1/3", _is_number)},
    "contains": {"all": ("a list of texts", _is_texts)},
    "regex": {"pattern": (f"a regular expression of at most {LONGEST_PATTERN} characters", _is_pattern)},
    "python": {"tests": _TEXT},
    "completion": {"prompt": _TEXT, "entry_point": _NAME, "tests": _TEXT},
    "cases": {"entry_point": _NAME},
}
_ALLOWED: Mapping[str, Mapping[str, Demand]] = {
    "exact": {"ignore_case": _YES_NO},
    "contains": {"ignore_case": _YES_NO},
    "number": {"tolerance": ("a number from 0 on", lambda value: _is_number(value, 0))},
    "python": {"entry_point": _NAME},
    "cases": {"cases": (_CASES, _is_cases), "raises": ("a list of arguments, such as [[1, 0]]", _is_calls)},
}


def checker_faults(checker: Any) -> Iterator[str]:
    """Yield what is wrong with it, each in a line; none: it is sound."""
    if not isinstance(checker, Mapping):
        yield f'`checker` must be an object such as {{"kind": "contains", "all": ["x"]}}, not `{short(checker)}`'
        return
    kind = checker.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        said = "has no `kind`" if kind is None else f"has the unknown kind `{short(kind)}`"
        yield f"`checker` {said}; {like(str(kind or ''), KINDS)}"
        return
    needed, allowed = _NEEDED[kind], _ALLOWED.get(kind, {})
    for name, (wanted, is_it) in {**needed, **allowed}.items():
        if name in checker and not is_it(checker[name]):
            yield f"`checker.{name}` must be {wanted}, not `{short(checker[name])}`"
        elif name in needed and name not in checker:
            yield f"`checker` of kind `{kind}` lacks `{name}`: {wanted}"
    known = {"kind", *needed, *allowed}
    for name in checker:
        if name not in known:
            yield f"`checker` of kind `{kind}` has no `{short(name)}`; {like(name, sorted(known))}"
    options, answer = checker.get("options"), checker.get("answer")
    if kind == "choice" and _is_options(options) and answer is not None:
        if str(answer).casefold() not in {one.casefold() for one in options or ()}:
            yield "`checker.answer` is not one of its options"
    elif kind == "cases" and not checker.get("cases") and not checker.get("raises"):
        yield "`checker` of kind `cases` has neither `cases` nor `raises`"


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
        try:
            item = _item(_object(text), number)
        except UserError as error:
            raise UserError(f"line {number} of `{name}`{error.message}", hint=error.hint) from None
        if (earlier := numbers.setdefault(item.id, number)) != number:
            raise UserError(f"line {number} of `{name}` has the id `{short(item.id)}` of line {earlier}")
        items.append(item)
    if not items:
        raise UserError(f"the bank `{name}` holds no items", hint=f"one JSON object a line, such as {_LOOKS}")
    return items


def _object(text: str) -> dict[str, Any]:
    if len(text) > LONGEST_LINE:
        raise UserError(f" has {len(text)} characters", hint=f"at most {LONGEST_LINE}; is this a file of JSON lines?")
    if "\0" in text:
        raise UserError(" holds a NUL", hint="a bank is text: is this the right file?")
    try:
        given = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise UserError(" is nested too deep", hint=f"such as {_LOOKS}") from None
    except ValueError as error:
        raise UserError(f" is not JSON: {str(error)[:100]}", hint=f"one JSON object a line, such as {_LOOKS}") from None
    if not isinstance(given, dict):
        raise UserError(f" is not a JSON object: `{short(given)}`", hint=f"such as {_LOOKS}")
    return given


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a number in JSON")


def _item(given: Mapping[str, Any], number: int) -> Item:
    _check_known(given, FIELDS, "")
    name = number if given.get("id") is None else given["id"]
    name = str(name) if type(name) is int else name
    tokens = USUAL_TOKENS if given.get("max_tokens") is None else given["max_tokens"]
    if not isinstance(name, str) or not name.strip() or len(name) > 200 or not name.isprintable():
        raise _wrong("id", name, "a text of at most 200 characters, on one line")
    if type(tokens) is not int or not 1 <= tokens <= MOST_TOKENS:
        raise _wrong("max_tokens", tokens, f"a whole number from 1 to {MOST_TOKENS}")
    keywords = given.get("keywords", [])
    if not isinstance(keywords, list):
        raise _wrong("keywords", keywords, "a list of texts")
    messages, checker = _messages(given), _checker(given.get("checker"))
    words = tuple(_text(f"keywords[{place}]", one) for place, one in enumerate(keywords))
    family = _text("family", given["family"], longest=100) if "family" in given else ""
    return Item(name, messages, checker, tokens, words, family)


def _messages(given: Mapping[str, Any]) -> tuple[dict[str, str], ...]:
    prompt, messages = given.get("prompt"), given.get("messages")
    if (prompt is None) == (messages is None):
        both = "has both `prompt` and `messages`" if prompt is not None else "has neither `prompt` nor `messages`"
        raise UserError(f" {both}", hint=f"give one of them, such as {_LOOKS}")
    if messages is None:
        return ({"role": "user", "content": _text("prompt", prompt)},)
    if not isinstance(messages, list) or not messages:
        raise _wrong("messages", messages, 'a list such as [{"role": "user", "content": "..."}]')
    for place, one in enumerate(messages):
        where = f"messages[{place}]"
        if not isinstance(one, dict):
            raise _wrong(where, one, 'an object such as {"role": "user", "content": "..."}')
        _check_known(one, ("role", "content"), f"{where}.")
        if one.get("role") not in ROLES:
            raise _wrong(f"{where}.role", one.get("role"), f"one of {', '.join(ROLES)}")
        _text(f"{where}.content", one.get("content"))
    if messages[-1]["role"] != "user":
        raise _wrong(f"{where}.role", messages[-1]["role"], "`user`: the last message is the question")
    return tuple(messages)


def _checker(given: Any) -> Checker:
    if (fault := next(checker_faults(given), None)) is not None:
        raise UserError(f": {fault}", hint="docs/quality.md describes each kind of checker")
    values = {name: value for name, value in given.items() if name != "kind"}
    if given["kind"] in ("exact", "choice"):
        values["answer"] = str(values["answer"])  # a number stands for its digits
    return Checker(given["kind"], values)


def _text(field: str, value: Any, *, longest: int = LONGEST_LINE) -> str:
    if not is_text(value) or len(value) > longest:
        shown = ascii(value) if isinstance(value, str) and value.strip() else value
        raise _wrong(field, shown, f"a text of at most {longest} characters that is not blank")
    return str(value)


def _check_known(given: Iterable[str], known: Sequence[str], what: str) -> None:
    for one in given:
        if one not in known:
            close = similar_names(one[:100], {squeeze(field): field for field in known}, count=1)
            hint = did_you_mean(close, f"known: {', '.join(known)}")
            raise UserError(f": {what}`{short(one)}` is not known", hint=hint)


def _wrong(field: str, value: Any, wanted: str) -> UserError:
    shown = "missing" if value is None else f"`{short(value)}`"
    return UserError(f": `{field}` is {shown}", hint=f"it must be {wanted}")
