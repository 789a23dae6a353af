"""JSON out of a model's text; JSON schemas: whether one is sound, and where a value is not as it
says.

Nothing is ever fetched: a reference must be found in the schema itself or among JSON Schema's own
ones.

Also a program, for schemas whose check may never end: Python's regular expressions backtrack,
`^(a+)+$` takes for ever on thirty characters, and while they do nothing else of the process runs:
a thread would stop the runner as well. So such a schema is checked in a child that the kernel ends
after so many seconds of computing, whether its parent still lives or not. No sandbox is needed:
the schema is the user's, and the answer is data; what is bounded is time."""

from __future__ import annotations

import json
import math
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Never

from skep.errors import UserError
from skep.workload.extraction import code_blocks

MOST_TOLD = 3  # faults of a value
LONGEST_COMPLAINT = 300  # characters of a complaint
SCHEMA_DRAFT = "https://json-schema.org/draft/2020-12/schema"
# Keywords whose cost is not in proportion to the value: a regular expression may take for ever on
# a short text, and unique items are compared each with each.
SLOW_KEYWORDS = ("pattern", "patternProperties", "uniqueItems")


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raise UserError for what is no JSON schema of its draft (2020-12 unless it names one), or
    refers to what is not there.
    """
    if (fault := schema_fault(schema)) is not None:
        raise UserError(
            f"not a JSON schema: {fault}",
            hint="see https://json-schema.org/understanding-json-schema",
        )


def schema_fault(schema: Any) -> str | None:
    """Return what is wrong with a schema, in one line; None: it is sound."""
    from jsonschema.exceptions import SchemaError

    if not isinstance(schema, Mapping):
        return f"a schema is an object, not {_shown(schema)}"
    named_draft = schema.get("$schema")
    validator = _validator_class({})
    if named_draft is not None:
        validator = _validator_class({"$schema": str(named_draft)})
    draft = str(validator.META_SCHEMA["$schema"])
    if named_draft is not None and str(named_draft).rstrip("#") != draft.rstrip("#"):
        fault = f"`$schema` is {_shown(named_draft)}, which is not a draft of JSON Schema"
        return f"{fault}; leave it out for {SCHEMA_DRAFT}"
    try:
        validator.check_schema(schema)
    except SchemaError as error:
        return one_line(f"{error.json_path}: {error.message}")
    except RecursionError:
        return "it is nested too deeply"
    try:
        return _dangling(schema)
    except Exception as error:  # of the library, about an `$id` or an anchor that nobody can read
        return one_line(f"its references cannot be followed: {error}")


def value_faults(schema: Mapping[str, Any], value: Any) -> str | None:
    """Return where the value is not as the schema says, in one line; None: it is.

    May take for ever: see `may_be_slow`.
    """
    from jsonschema.exceptions import best_match
    from referencing import Registry

    checker = _validator_class(schema)(schema, registry=Registry())
    try:
        errors = list(islice(checker.iter_errors(value), MOST_TOLD + 1))
    except RecursionError:
        return "the value or its schema refers to itself without end"
    except Exception as error:
        # Of the library: a schema that was sound by itself and is not with this value.
        return one_line(f"the schema cannot be applied to it: {type(error).__name__}: {error}")
    causes = [best_match([fault]) for fault in errors[:MOST_TOLD]]
    words = [
        one_line(f"{cause.json_path}: {cause.message}", LONGEST_COMPLAINT // len(causes))
        for cause in causes
    ]
    faults = [*dict.fromkeys(words)]
    if len(errors) > MOST_TOLD:
        faults.append("and more")
    return "; ".join(faults) or None


def may_be_slow(schema: Mapping[str, Any]) -> bool:
    """Return whether the time a check takes is not in proportion to the value."""
    text = json.dumps(schema)
    return any(f'"{word}":' in text for word in SLOW_KEYWORDS)


def one_line(text: str, longest: int = LONGEST_COMPLAINT) -> str:
    """Return a text in one line; a long one loses its middle, since where a fault is stands at the
    beginning and what is wrong at the end.
    """
    if len(text) >= 10_000:
        text = _cut(text, 10_000)
    printable = "".join(character if character.isprintable() else " " for character in text)
    return _cut(" ".join(printable.split()), longest)


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    end = longest // 2
    return f"{text[: longest - end - 1]}…{text[-end:]}"


def _validator_class(schema: Mapping[str, Any]) -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for

    return validator_for(schema, default=Draft202012Validator)


def _dangling(schema: Mapping[str, Any]) -> str | None:
    """Return a reference that leads nowhere, or out of the schema: it would be found out by the
    first answer only.
    """
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import specification_with

    root = specification_with(
        str(_validator_class(schema).META_SCHEMA["$schema"])
    ).create_resource(schema)
    name = root.id() or ""
    resolver = REGISTRY.with_resource(name, root).crawl().resolver(base_uri=name)
    for target in _references(schema):
        try:
            resolver.lookup(target)
        except Unresolvable:
            why = "not in the schema, and nothing is fetched"
            if target.startswith("#"):
                why = "nothing is there"
            return f"`$ref` to {_shown(target)}: {why}"
    return None


def _references(part: Any) -> Iterator[str]:
    inner_parts: Iterable[Any] = ()
    if isinstance(part, Mapping):
        for word in ("$ref", "$dynamicRef"):
            if isinstance(part.get(word), str):
                yield part[word]
        inner_parts = part.values()
    elif isinstance(part, list):
        inner_parts = part
    for inner in inner_parts:
        yield from _references(inner)


def _shown(value: Any) -> str:
    return f"`{one_line(str(value), 80)}`"


LONGEST_TEXT = 2_000_000  # characters of an answer that are looked at
MOST_STARTS = 64  # places where a value may begin
MOST_READ = 4 * LONGEST_TEXT  # characters that are read from these places, all together
MOST_VALUES = 8
_START = re.compile(r"[{\[]")
_OPENING = re.compile(r"[\s`]*+(?>(?:json)?)\s*+[{\[\"]", re.IGNORECASE)


class NotJson(ValueError):
    """Why a text is no JSON, in words that a model can be given back."""


def parse(text: str, *, once: bool = False) -> Any:
    """Return the value of a JSON text; NotJson for NaN, numbers without end and half characters
    too.

    `once`: a key twice is a fault too.
    """
    try:
        value = (_ONCE if once else _DECODER).decode(text)
    except json.JSONDecodeError as error:
        raise NotJson(f"{error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise NotJson("it is nested too deeply") from None
    except ValueError as error:
        raise NotJson(_fault_words(error)) from None
    return _sound(value, text)


def _fault_words(error: ValueError) -> str:
    """Return what is wrong with a text that is no JSON.

    Of a long number Python says how its limit is raised.
    """
    if "int_max_str_digits" in str(error):
        return "a number in it has too many digits"
    return str(error)


def values_in(text: str) -> list[Any]:
    """Return the JSON values of an answer: the whole text; else those of fenced blocks, then those
    that begin with a brace or bracket and are whole.

    If there are none, `why_none` says why.
    """
    text = text[:LONGEST_TEXT].strip()
    with suppress(NotJson):
        return [parse(text)]
    fenced = []
    for block in code_blocks(text)[-MOST_VALUES:]:
        with suppress(NotJson):
            fenced.append(parse(block.code.strip()))
    return (fenced + list(_amid(text)))[:MOST_VALUES]


def why_none(text: str) -> str:
    """Return why there is no JSON in it, for the model that wrote it."""
    text = text[:LONGEST_TEXT].strip()
    if not _OPENING.match(text):
        return "the answer holds no JSON"
    start = _START.search(text)
    body = text[start.start() :] if start else text
    try:
        _DECODER.raw_decode(body)
    except RecursionError:
        return "the JSON is nested too deeply"
    except ValueError as error:
        if isinstance(error, json.JSONDecodeError) and not body[error.pos :].strip():
            return "the JSON is cut off: it ends before it is closed"
        return f"the JSON is broken: {_fault_words(error)}"
    return "the JSON is broken"


def _amid(text: str) -> Iterator[Any]:
    """Yield values that begin somewhere in the text; what lies inside of one is a part of it."""
    at = read = 0
    for _ in range(MOST_STARTS):
        start = _START.search(text, at)
        if start is None or read > MOST_READ:
            return
        try:
            value, end = _DECODER.raw_decode(text, start.start())
            yield _sound(value, text[start.start() : end])
            at = end
        except (ValueError, RecursionError) as error:
            at = start.end()
            read += _fault_place(error, text) - start.start()


def _fault_place(error: ValueError | RecursionError, text: str) -> int:
    """Return how far the text was read before it was found to be no JSON; its end where that is
    not told.
    """
    if isinstance(error, json.JSONDecodeError) and not error.msg.startswith("Unterminated"):
        return error.pos
    return len(text)


def _sound(value: Any, text: str) -> Any:
    if "\\u" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise NotJson("a text in it holds half of a surrogate pair") from None
        except RecursionError:
            raise NotJson("it is nested too deeply") from None
    return value


def _no_constant(name: str) -> Never:
    raise ValueError(f"`{name}` is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"`{text[:40]}` is too large a number")
    return value


def _no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        twice = next(
            name for name, times in Counter(name for name, _ in pairs).items() if times > 1
        )
        raise ValueError(f"`{twice[:40]}` is given twice")
    return document


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)
_ONCE = json.JSONDecoder(
    parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_no_twice
)


def main() -> None:
    """Read {"schema": ..., "value": ...}, and write {"fault": null or a text}."""
    job = json.load(sys.stdin)
    value_faults({}, None)  # loads what it needs before the time counts
    # The kernel's own: ends the process in the middle of a match.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, float(sys.argv[1]))
    json.dump({"fault": value_faults(job["schema"], job["value"])}, sys.stdout)


if __name__ == "__main__":
    main()
