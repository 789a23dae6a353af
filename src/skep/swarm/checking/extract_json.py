"""JSON out of a model's text: the whole of it, a fenced block, or a value amid prose. Knows nothing of schemas."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, Never

from skep.workload.extraction import code_blocks

LONGEST = 2_000_000  # characters of an answer that are looked at
MOST_STARTS = 64  # places where a value may begin: each costs a look at all that follows
MOST_VALUES = 8
DEEPEST = 64  # levels of nesting: more is no answer, and trips whoever walks through it
_START = re.compile(r"[{\[]")
_OPENING = re.compile(r"[\s`]*(?:json)?\s*[{\[\"]", re.IGNORECASE)


class NotJson(ValueError):
    """In words that a model can be given back."""


def parse(text: str, *, once: bool = False) -> Any:
    """Strictly: no NaN, nothing endless, no half characters; else NotJson. `once`: a key twice is a fault too."""
    try:
        value = (_ONCE if once else _DECODER).decode(text)
    except json.JSONDecodeError as error:
        raise NotJson(f"{error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise NotJson("it is nested too deeply") from None
    except ValueError as error:
        raise NotJson(str(error)) from None
    return _sound(value, text)


def values_in(text: str) -> list[Any]:
    """The whole text; else fenced blocks; else what begins with a brace or bracket and is whole. None: `why_none`."""
    text = text[:LONGEST].strip()
    with suppress(NotJson):
        return [parse(text)]
    fenced = []
    for block in code_blocks(text)[-MOST_VALUES:]:
        with suppress(NotJson):
            fenced.append(parse(block.code.strip()))
    return (fenced + list(_amid(text)))[:MOST_VALUES]


def why_none(text: str) -> str:
    """Return why there is no JSON in it, for the model that wrote it."""
    text = text[:LONGEST].strip()
    if not _OPENING.match(text):
        return "the answer holds no JSON"
    start = _START.search(text)
    body = text[start.start() :] if start else text
    try:
        _DECODER.raw_decode(body)
    except json.JSONDecodeError as error:
        if not body[error.pos :].strip() or error.msg.startswith("Unterminated"):
            return "the JSON is cut off: it ends before it is closed"
        return f"the JSON is broken: {error.msg} at line {error.lineno} column {error.colno}"
    except RecursionError:
        return "the JSON is nested too deeply"
    except ValueError as error:
        return f"the JSON is broken: {error}"
    return "the JSON is broken"


def _amid(text: str) -> Iterator[Any]:
    """Values that begin somewhere in the text; what lies inside of one that was found is part of it."""
    at = 0
    for _ in range(MOST_STARTS):
        start = _START.search(text, at)
        if start is None:
            return
        try:
            value, end = _DECODER.raw_decode(text, start.start())
            yield _sound(value, text[start.start() : end])
            at = end
        except (ValueError, RecursionError):
            at = start.end()


def _sound(value: Any, text: str) -> Any:
    if "\\u" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise NotJson("a text in it holds half of a surrogate pair") from None
        except RecursionError:
            raise NotJson("it is nested too deeply") from None
    if text.count("{") + text.count("[") > DEEPEST:
        level = [value]
        for _ in range(DEEPEST + 1):  # without recursion, so that nothing that was nested on purpose can hurt
            insides = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
            level = list(chain.from_iterable(insides))
        if level:
            raise NotJson(f"it is nested more than {DEEPEST} levels deep")
    return value


def _no_constant(name: str) -> Never:
    raise ValueError(f"`{name}` is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"`{text[:40]}` is too large a number")
    return value


def _no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"`{twice[:40]}` is given twice")
    return made


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)
_ONCE = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_no_twice)
