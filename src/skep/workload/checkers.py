"""How an answer may be judged, as banks and task files say it: the values that each kind of checker has and needs.

Says what is wrong with a checker in sentences; where it stands is the reader's to say. Pure.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from skep.workload.items import EXECUTED, READ
from skep.workload.reading_checks import value_of

KINDS = (*READ, *EXECUTED)
LONGEST_PATTERN = 2_000
Demand = tuple[str, Callable[[Any], bool]]  # what is wanted, in words, and whether a value is it


def like(name: str, known: Sequence[str]) -> str:
    """Return which known name may be meant, or all of them."""
    near = get_close_matches(name, known, n=1, cutoff=0.6)
    if near:
        return f"did you mean `{near[0]}`?"
    return f"there is {', '.join(f'`{one}`' for one in known)}"


def is_text(value: Any) -> bool:
    """Return whether it is text that is not blank and has no half of a character in it."""
    return isinstance(value, str) and bool(value.strip()) and not re.search("[\\ud800-\\udfff]", value)


def short(value: Any) -> str:
    """Return a value in a few printable characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = "".join(one if one.isprintable() else " " for one in text[:61])
    return f"{text[:60]}…" if len(text) > 60 else text


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(is_text, value))


def _is_options(value: Any) -> bool:
    return _is_texts(value) and len({one.casefold() for one in value}) == len(value) > 1


def _is_calls(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, list | dict) for one in value)


def _is_cases(value: Any) -> bool:
    pairs = isinstance(value, list) and all(isinstance(one, list) and len(one) == 2 for one in value)
    return pairs and _is_calls([one[0] for one in value])


def _is_answer(value: Any) -> bool:
    return is_text(value) or (isinstance(value, int | float) and not isinstance(value, bool))


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
    yield from _together(kind, checker)


def _together(kind: str, checker: Mapping[str, Any]) -> Iterator[str]:
    """Yield what single values cannot show."""
    options, answer = checker.get("options"), checker.get("answer")
    given = {one.casefold() for one in options or ()} if kind == "choice" and _is_options(options) else None
    if given is not None and answer is not None and str(answer).casefold() not in given:
        yield "`checker.answer` is none of its options"
    if kind == "cases" and not checker.get("cases") and not checker.get("raises"):
        yield "`checker` of kind `cases` has neither `cases` nor `raises`"
