"""`skep` called in the process of the test: no start of Python for each command."""

import contextlib
import io
import json
from dataclasses import dataclass
from functools import cache

import jsonschema

from skep.cli.main import PART_OF, plain_words, run, tree_of
from skep.errors import SkepError
from skep.report.schemas import document_names, schema_of


@dataclass
class Called:
    out: str
    err: str
    error: SkepError | None
    code: int

    @property
    def json(self):
        return json.loads(self.out)


def closed(schema):
    """No key but those that are described, where the schema does not say that there are more."""
    if isinstance(schema, dict):
        schema = {key: closed(inner) for key, inner in schema.items()}
        if "properties" in schema:
            return {"additionalProperties": False, **schema}
        return schema
    if isinstance(schema, list):
        return [closed(inner) for inner in schema]
    return schema


@cache
def validator(name):
    return jsonschema.Draft202012Validator(closed(schema_of(name)))


def check_document(words, document):
    """What a command prints with `--json` is what `skep schema` says of it."""
    first, second = [*plain_words(words), ""][:2]
    default = getattr(tree_of([PART_OF[first]]).commands[first], "default", "")
    (name,) = {first, f"{first} {second}"} & {*document_names()} or {f"{first} {default}"}
    wrong = next(validator(name).iter_errors(document), None)
    assert wrong is None, f"skep schema {name}: {wrong.json_path}: {wrong.message}"


def call(*words, check=None):
    out = io.StringIO()
    err = io.StringIO()
    error = None
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = run([*map(str, words)])
        except SystemExit as ended:
            code = ended.code or 0
        except SkepError as raised:
            error = raised
            code = raised.exit_code
    called = Called(out.getvalue(), err.getvalue(), error, code)
    if "--json" in words and called.out:
        check_document([*map(str, words)], called.json)
    assert check is None or code == check, called
    return called


def refused(*words, code=2):
    """The one line and the hint of a command that ends with an error, and has printed nothing."""
    called = call(*words, check=code)
    assert called.error is not None, called
    assert called.out == "", called
    assert "\n" not in called.error.message
    return f"{called.error.message} | {called.error.hint}"
