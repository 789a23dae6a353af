"""JSON schemas: whether one is sound, and where a value is not as it says.

Nothing is ever fetched: a reference must be found in the schema itself or among JSON Schema's own ones.

Also a program, for schemas whose check may never end: Python's regular expressions backtrack, `^(a+)+$` takes for ever
on thirty characters, and while they do nothing else of the process runs: a thread would stop the runner as well. So
such a schema is checked in a child that the kernel ends after so many seconds of computing, whether its parent still
lives or not. No sandbox is needed: the schema is the user's, and the answer is data; what is bounded is time.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from skep.errors import UserError

MOST_FAULTS = 50  # of a value that are looked at
MOST_TOLD = 3
LONGEST = 300  # characters of a complaint
DRAFT = "https://json-schema.org/draft/2020-12/schema"
# Keywords whose cost is not in proportion to the value: a regular expression may take for ever on a short text, a
# reference to itself may double the work with each level, and unique items are compared each with each.
SLOW = frozenset({"pattern", "patternProperties", "$ref", "$dynamicRef", "$recursiveRef", "uniqueItems"})


def check_schema(schema: Mapping[str, Any]) -> None:
    """UserError for what is no JSON schema of its draft (2020-12 unless told), or refers to what is not there."""
    if (fault := schema_fault(schema)) is not None:
        raise UserError(f"not a JSON schema: {fault}", hint="see https://json-schema.org/understanding-json-schema")


def schema_fault(schema: Any) -> str | None:
    """In one line; None: it is sound."""
    from jsonschema.exceptions import SchemaError

    if not isinstance(schema, Mapping):
        return f"a schema is an object, not {_shown(schema)}"
    told = schema.get("$schema")
    validator = _validator_class({} if told is None else {"$schema": str(told)})
    if told is not None and str(told).rstrip("#") != str(validator.META_SCHEMA["$schema"]).rstrip("#"):
        return f"`$schema` is {_shown(told)}, which is not a draft of JSON Schema; leave it out for {DRAFT}"
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
    """Where the value is not as the schema says, in one line; None: it is. May take for ever: see `may_be_slow`."""
    from jsonschema.exceptions import best_match
    from referencing import Registry

    checker = _validator_class(schema)(schema, registry=Registry())
    try:
        found = list(islice(checker.iter_errors(value), MOST_FAULTS))
    except RecursionError:
        return "the value or its schema refers to itself without end"
    except Exception as error:  # of the library: a schema that was sound by itself and is not with this value
        return one_line(f"the schema cannot be applied to it: {type(error).__name__}: {error}")
    told = []
    for fault in found[:MOST_TOLD]:
        best = best_match([fault])
        told.append(one_line(f"{best.json_path}: {best.message}", LONGEST // min(len(found), MOST_TOLD)))
    more = len(found) - len(told)
    if more > 0:
        told.append(f"and {more} more" if len(found) < MOST_FAULTS else "and many more")
    return "; ".join(dict.fromkeys(told)) or None


def may_be_slow(schema: Mapping[str, Any]) -> bool:
    """Return whether the time a check takes is not in proportion to the value."""
    text = json.dumps(schema)
    return any(f'"{word}":' in text for word in SLOW)


def one_line(text: str, longest: int = LONGEST) -> str:
    """Long ones lose their middle: what is wrong is said at the end, where it is at the beginning."""
    shown = "".join(one if one.isprintable() else " " for one in (text if len(text) < 10_000 else _cut(text, 10_000)))
    return _cut(" ".join(shown.split()), longest)


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
    """Return a reference that leads nowhere, or out of the schema: it would be found out by the first answer only."""
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import specification_with

    specification = specification_with(str(_validator_class(schema).META_SCHEMA["$schema"]))
    root = specification.create_resource(schema)
    name = root.id() or ""
    registry = REGISTRY.with_resource(name, root).crawl()
    for resource, resolver in _parts(root, registry.resolver(base_uri=name)):
        contents = resource.contents if isinstance(resource.contents, Mapping) else {}
        for word in ("$ref", "$dynamicRef"):
            try:
                if isinstance(target := contents.get(word), str):
                    resolver.lookup(target)
            except Unresolvable:
                why = "nothing is there" if str(target).startswith("#") else "not in the schema, and nothing is fetched"
                return f"`{word}` to {_shown(target)}: {why}"
    return None


def _parts(resource: Any, resolver: Any) -> Iterator[tuple[Any, Any]]:
    yield resource, resolver
    for inner in resource.subresources():
        yield from _parts(inner, resolver.in_subresource(inner))


def _shown(value: Any) -> str:
    return f"`{one_line(str(value), 80)}`"


def main() -> None:
    """A line in: {"schema": ..., "value": ...}; a line out: {"fault": null or a text}. Ends with its input."""
    compute_s = float(sys.argv[1])
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the kernel's own: ends the process in the middle of a match
    for line in sys.stdin.buffer:
        job = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, compute_s)
        fault = value_faults(job["schema"], job["value"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(json.dumps({"fault": fault}).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
