"""A user's own bank: what it may hold, and what is said of lines that are wrong."""

import json

import pytest

from skep.errors import UserError
from skep.workload.banks import LONGEST_LINE, parse_bank
from skep.workload.items import Checker, item_from_json, item_json

GOOD = {"prompt": "What is 7 * 8?", "checker": {"kind": "number", "answer": 56}}


def parsed(*lines):
    return parse_bank(
        [line if isinstance(line, str) else json.dumps(line) for line in lines], "mine.jsonl"
    )


def test_a_line_is_an_item():
    """Its number is its name unless it has one; blank lines and a byte order mark are nothing."""
    first, second = parsed(
        "\ufeff" + json.dumps(GOOD),
        "",
        {
            "id": "two",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Yes?"},
            ],
            "checker": {"kind": "choice", "answer": "yes", "options": ["yes", "no"]},
            "max_tokens": 8,
            "family": "polite",
        },
    )
    assert (first.id, first.max_tokens, first.family, first.difficulty) == ("1", 512, "", None)
    assert first.messages == ({"role": "user", "content": "What is 7 * 8?"},)
    assert first.checker == Checker("number", {"answer": 56})
    assert (second.id, second.max_tokens, second.family) == ("two", 8, "polite")
    assert [message["role"] for message in second.messages] == ["system", "user"]
    assert item_from_json(json.loads(json.dumps(item_json(second)))) == second


@pytest.mark.parametrize(
    "checker",
    [
        {"kind": "exact", "answer": "yes", "ignore_case": False},
        {"kind": "exact", "answer": 12},
        {"kind": "number", "answer": "1/3", "tolerance": 0.01},
        {"kind": "contains", "all": ["a", "b"]},
        {"kind": "regex", "pattern": "^a+$"},
        {"kind": "python", "tests": "assert f(1) == 2", "entry_point": "f"},
    ],
    ids=lambda checker: checker["kind"],
)
def test_every_kind_for_users_is_taken(checker):
    (item,) = parsed({"prompt": "Do.", "checker": checker})
    assert item.checker.kind == checker["kind"]
    assert set(item.checker.values) == set(checker) - {"kind"}


def with_checker(**values):
    return {"prompt": "Do.", "checker": values}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "line 2 of `mine.jsonl`: it is not JSON"),
        ('{"a": NaN}', "line 2 .* is not JSON: NaN"),
        ("\0", "holds a NUL"),
        ("[" * 100_000, "line 2 .* (is not JSON|nested too deep)"),
        ({**GOOD, "promt": "x"}, "`promt` is not known; did you mean `prompt`"),
        ({**GOOD, "id": "1"}, "has the id `1` of line 1"),
        ({**GOOD, "id": 1}, "has the id `1` of line 1"),
        ({**GOOD, "id": "a\nb"}, "`id` must be .*, not `a b`"),
        ({"checker": GOOD["checker"]}, "has neither `prompt` nor `messages`"),
        ({**GOOD, "messages": []}, "has both"),
        ({**GOOD, "prompt": 7}, "`prompt` must be a text .*, not `7`"),
        ({**GOOD, "prompt": "\ud800"}, "`prompt` must be"),
        (
            {"messages": [], "checker": GOOD["checker"]},
            "`messages` must be a list .*, not `\\[\\]`",
        ),
        (
            {"messages": ["Hi"], "checker": GOOD["checker"]},
            "`messages\\[0\\]` must be an object .*, not `Hi`",
        ),
        (
            {"messages": [{"role": "boss", "content": "Hi"}], "checker": {}},
            "`messages.0..role` must be one of .* not `boss`",
        ),
        ({"messages": [{"role": "user"}], "checker": {}}, "`messages\\[0\\].content` is missing"),
        (
            {"messages": [{"role": "system", "content": "Hi"}], "checker": {}},
            "the last of `messages` .* `user`",
        ),
        ({"prompt": "Do."}, "`checker` must be an object .* not `null`"),
        ({"prompt": "Do.", "checker": {"answer": 1}}, "has no `kind`"),
        (with_checker(kind="mutants"), "has the unknown kind `mutants`"),
        (with_checker(kind="number"), "`checker.answer` is missing: a number"),
        (
            with_checker(kind="number", answer="many"),
            "`checker.answer` must be a number.* not `many`",
        ),
        (
            with_checker(kind="number", answer=1, tolerance=-1),
            "`checker.tolerance` must be .* not `-1`",
        ),
        (with_checker(kind="number", answer=1, pattern="x"), "`checker.pattern` is not known"),
        (
            with_checker(kind="exact", answer="a", ignore_case="no"),
            "`checker.ignore_case` must be true or false, not `no`",
        ),
        (
            with_checker(kind="choice", answer="c", options=["a", "b"]),
            "`checker.answer` is not one of its options",
        ),
        (with_checker(kind="choice", answer="a", options=["a", "A"]), "`checker.options`"),
        (with_checker(kind="contains", all="a"), "`checker.all` must be .* not `a`"),
        (with_checker(kind="regex", pattern="("), "`checker.pattern` must be .* not `\\(`"),
        (with_checker(kind="regex", pattern="a{99999999999999999999}"), "`checker.pattern`"),
        (with_checker(kind="regex", pattern="(" * 1900), "`checker.pattern`"),
        (with_checker(kind="nummber", answer=1), "did you mean `number`?"),
        (
            with_checker(kind=1),
            "known: `exact`, `choice`, `number`, `contains`, `regex`, `python`",
        ),
        (with_checker(kind="python"), "`checker.tests` is missing"),
        (
            with_checker(kind="python", tests="1", entry_point="a b"),
            "`checker.entry_point` must be .* not `a b`",
        ),
        ({**GOOD, "max_tokens": 0}, "`max_tokens` must be a whole number from 1 .*, not `0`"),
        ({**GOOD, "family": 3}, "`family` must be .*, not `3`"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_wrong_lines_are_named(line, problem):
    """The line, the field, the value, in one line of words."""
    with pytest.raises(UserError, match=problem) as caught:
        parsed(GOOD, line)
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 300


def test_a_line_of_10_mb_is_refused_without_being_read():
    with pytest.raises(UserError, match=r"line 1 of `mine\.jsonl`: it has 10000000 characters"):
        parsed("x" * 10 * LONGEST_LINE)


@pytest.mark.parametrize("lines", [[], ["", " \n"], ["\ufeff"]], ids=["none", "blank", "mark"])
def test_an_empty_bank_is_refused(lines):
    with pytest.raises(UserError, match="holds no items"):
        parse_bank(lines, "mine.jsonl")
