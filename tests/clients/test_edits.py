"""Whatever a file holds, a value that is set and removed leaves the others as they were."""

import json
import tomllib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skep.clients.edits import ABSENT, FORMATS, edited, value_at
from skep.errors import UserError

KEYS = st.text(alphabet="abc d\"'#.[\\é", min_size=1, max_size=3)
SCALARS = st.one_of(
    st.integers(-9, 99), st.booleans(), st.text(alphabet="ab#\"'\\\n é[=,:", max_size=6)
)
TABLES = st.recursive(
    SCALARS, lambda inner: st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
PATHS = st.lists(KEYS, min_size=1, max_size=3).map(tuple)


def as_toml(table, path=()):
    """Return a table as people write it: values first, then a head for each table in it."""
    lines = [
        f"{json.dumps(key)} = {json.dumps(value)}"
        for key, value in table.items()
        if not isinstance(value, dict)
    ]
    for key, value in table.items():
        if isinstance(value, dict):
            inner = (*path, key)
            lines += [
                "",
                f"[{'.'.join(json.dumps(part) for part in inner)}]  # a table",
                *as_toml(value, inner),
            ]
    return lines


def changed_and_back(text, kind, path, value):
    """Set a value and take it back; what stood there before comes back."""
    before = FORMATS[kind].parse(text)
    try:
        new = edited(text, kind, "x", {path: value})
    except UserError:
        outer = [value_at(before, path[:depth]) for depth in range(1, len(path))]
        is_blocked = any(part is not ABSENT and not isinstance(part, dict) for part in outer)
        assert is_blocked or (kind == "toml" and isinstance(value_at(before, path), dict))
        return
    assert value_at(FORMATS[kind].parse(new), path) == value
    old = edited(new, kind, "x", {path: value_at(before, path)})
    assert without_empty(FORMATS[kind].parse(old)) == without_empty(before)


def without_empty(values):
    """Return a table without those in it that hold nothing."""
    if not isinstance(values, dict):
        return values
    inner = {key: without_empty(value) for key, value in values.items()}
    return {key: value for key, value in inner.items() if value != {}}


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(KEYS, TABLES, max_size=4), PATHS, SCALARS, st.sampled_from([None, 0, 2, "\t"])
)
def test_json(table, path, value, indent):
    changed_and_back(json.dumps(table, indent=indent), "json", path, value)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(KEYS, TABLES, max_size=4), PATHS, SCALARS)
@example({"[": {}}, ("[", "a", "b"), 1)
def test_toml(table, path, value):
    text = "\n".join(as_toml(table))
    assert tomllib.loads(text) == table
    changed_and_back(text, "toml", path, value)


COMMENTED = """{
  // the first
  "a": 1, /* behind it */
  "b": { "c": "//no", },
  "d": [1, 2,], // a list
}
"""


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        (("a",), 2, '  "a": 2, /* behind it */'),
        (("b", "x"), True, '  "b": { "c": "//no", "x": true, },'),
        (("b", "c"), "y", '  "b": { "c": "y", },'),
        (("e", "f"), 3, '    "f": 3'),
    ],
)
def test_comments_and_commas_stay(path, value, line):
    new = edited(COMMENTED, "json", "x", {path: value})
    assert line in new.splitlines()
    assert [splitline for splitline in COMMENTED.splitlines() if splitline in new.splitlines()][
        :2
    ] == [
        "{",
        "  // the first",
    ]
    assert (
        edited(new, "json", "x", {path: value_at(FORMATS["json"].parse(COMMENTED), path)})
        == COMMENTED
    )


@pytest.mark.parametrize("text", ["", "\n", "{}", "{\n}", "\ufeff{}", "{ // nothing\n}"])
def test_a_file_with_nothing_in_it_takes_values(text):
    assert FORMATS["json"].parse(edited(text, "json", "x", {("a", "b"): 1})) == {"a": {"b": 1}}


@pytest.mark.parametrize(
    "text",
    ["{", "[", '{"a"', '{"a":}', '{"a":1,,}', '{"a" 1}', "{}{}", "/* {}", '{"a": "b', "nul"],
)
def test_broken_json_names_its_file(text):
    with pytest.raises(UserError, match="`x` "):
        edited(text, "json", "x", {("a",): 1})
