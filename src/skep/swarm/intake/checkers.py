"""Checkers as a task has them: {"kind": "contains", "all": ["x"]}. Told wrong before anything runs, not by an answer.

The kinds and what they mean are `skep.workload.items`'; how each is carried out is `skep.swarm.checking.answers`'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from skep.swarm.intake.naming import like
from skep.workload.items import EXECUTED, READ
from skep.workload.numbers_said import value_of

KINDS = (*READ, *EXECUTED)
Demand = tuple[str, Callable[[Any], bool]]  # what is wanted, in words, and whether a value is it


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) and one for one in value)


def _is_calls(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, list) for one in value)


def _is_cases(value: Any) -> bool:
    return _is_calls(value) and all(len(one) == 2 and isinstance(one[0], list) for one in value)


def _is_answer(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool) and value != ""


def _is_number(value: Any) -> bool:
    number = value_of(value)
    return number is not None and number.is_finite()


def _is_tolerance(value: Any) -> bool:
    number = value_of(value)
    return number is not None and number.is_finite() and number >= 0


def _is_pattern(value: Any) -> bool:
    try:
        re.compile(value)
    except (re.error, TypeError, RecursionError, OverflowError):
        return False
    return True


_TEXT: Demand = ("a text", _is_text)
_NAME: Demand = ("a name", lambda value: isinstance(value, str) and value.isidentifier())
_YES_NO: Demand = ("true or false", lambda value: isinstance(value, bool))

_NEEDED: Mapping[str, Mapping[str, Demand]] = {
    "exact": {"answer": ("a text or a number", _is_answer)},
    "choice": {"answer": ("a text", _is_answer), "options": ("a list of texts", _is_texts)},
    "number": {"answer": ("a number", _is_number)},
    "contains": {"all": ("a list of texts", _is_texts)},
    "regex": {"pattern": ("a regular expression", _is_pattern)},
    "python": {"tests": _TEXT},
    "completion": {"prompt": _TEXT, "entry_point": _NAME, "tests": _TEXT},
    "cases": {"entry_point": _NAME},
}
_ALLOWED: Mapping[str, Mapping[str, Demand]] = {
    "exact": {"ignore_case": _YES_NO},
    "contains": {"ignore_case": _YES_NO},
    "number": {"tolerance": ("a number from 0 on", _is_tolerance)},
    "python": {"entry_point": _NAME},
    "cases": {"cases": ("a list of [[arguments], result]", _is_cases), "raises": ("a list of [arguments]", _is_calls)},
}


def checker_faults(checker: Any) -> Iterator[str]:
    """What is wrong with it, each in a line; none: it is sound."""
    if not isinstance(checker, Mapping):
        yield '`checker` must be an object such as {"kind": "contains", "all": ["x"]}'
        return
    kind = checker.get("kind")
    if kind not in KINDS:
        said = "has no `kind`" if kind is None else f"has the unknown kind `{str(kind)[:40]}`"
        yield f"`checker` {said}; {like(str(kind or ''), KINDS)}"
        return
    needed, allowed = _NEEDED[kind], _ALLOWED.get(kind, {})
    for name, (wanted, is_it) in needed.items():
        if name not in checker:
            yield f"`checker` of kind `{kind}` lacks `{name}`: {wanted}"
        elif not is_it(checker[name]):
            yield f"`checker.{name}` must be {wanted}"
    for name, (wanted, is_it) in allowed.items():
        if name in checker and not is_it(checker[name]):
            yield f"`checker.{name}` must be {wanted}"
    known = {"kind", *needed, *allowed}
    for name in checker:
        if name not in known:
            yield f"`checker` of kind `{kind}` has no `{name[:40]}`; {like(name, sorted(known))}"
    yield from _together(kind, checker)


def _together(kind: str, checker: Mapping[str, Any]) -> Iterator[str]:
    """What single values cannot show."""
    options, answer = checker.get("options"), checker.get("answer")
    given = {one.casefold() for one in options or ()} if kind == "choice" and _is_texts(options) else None
    if given is not None and answer is not None and str(answer).casefold() not in given:
        yield "`checker.answer` is none of its options"
    if kind == "cases" and not checker.get("cases") and not checker.get("raises"):
        yield "`checker` of kind `cases` has neither `cases` nor `raises`"
