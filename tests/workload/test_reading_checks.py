"""Answers judged by reading: tolerant of form, not of content."""

import re
import time

import pytest

from skep.workload.items import Checker
from skep.workload.reading_checks import read_check


def check(kind, text, **values):
    return read_check(Checker(kind, values), text)[0]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (12, "12"),
        (12, "The answer is **12**."),
        (12, "First 3, then 4; in all 12."),
        (12, "12 m2"),
        (12, "12 m²"),
        (1234.5, "about 1,234.50 euros"),
        (1_000_000, "1_000_000"),
        (1234, "1\u202f234"),
        (12, "١٢"),
        (0.5, ".5"),
        (-3, "x = \u22123"),
        (-3, "(-3)"),
        (3, "5-3"),
        (4, "GPT-4"),
        (2024, "on 12/05/2024"),
        (1000, "1.0e3."),
        (0.5, "1/2"),
        (-0.5, "-1/2"),
        ("1/3", "1/3 of it"),
        (0.5, r"\boxed{\frac{1}{2}}, in 3 steps"),
        (1000, "1e3"),
        (12, r"so \(x = \boxed{12}\)"),
        (50, "50%"),
        (0.5, "50 %"),
        (10**30 + 1, f"{10**30 + 1}"),
    ],
)
def test_the_last_number_counts_however_it_is_written(answer, text):
    """Separators, signs, fractions, powers, percent and emphasis."""
    assert check("number", text, answer=answer)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (12, "13"),
        (12, "twelve"),
        (12, ""),
        (12, "12 or 13"),
        (-3, "3"),
        (10**30, f"{10**30 + 1}"),
        (1, "1/0"),
        (2, "x2"),
    ],
)
def test_another_number_or_none_is_wrong_and_a_tolerance_is_kept_to(answer, text):
    assert not check("number", text, answer=answer)
    assert [
        check("number", answer, answer=3.14159, tolerance=0.01) for answer in ("3.14", "3.12")
    ] == [True, False]


@pytest.mark.parametrize(
    "text",
    [
        "B",
        "b",
        "(B)",
        "b)",
        "B.",
        "**B**",
        "B) Paris",
        "The answer is (B)",
        "The correct answer is **B**.",
        "Answer: B",
        r"\boxed{B}",
        "A dog would say B",
        "The answer is A. No, wait: the answer is B.",
        "Let me see.\n\nB",
        "Both look right, but the answer is B, since C is older.",
    ],
)
def test_a_choice_is_found_in_what_surrounds_it(text):
    assert check("choice", text, answer="B", options=["A", "B", "C", "D"])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A",
        "A or B",
        "The answer is A or B",
        "A) Paris\nB) London",
        "It is a mystery",
        "B and C",
        "The answer is a dog",
    ],
)
def test_a_choice_that_settles_on_nothing_is_wrong(text):
    """Two options are as wrong as none, even if one of them is right."""
    assert not check("choice", text, answer="B", options=["A", "B", "C", "D"])


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("Yes", True),
        ("yes.", True),
        ("Yes, because no other will do", True),
        ("The answer is yes, there is no doubt", True),
        ("No", False),
        ("yes or no", False),
        ("yesterday", False),
    ],
)
def test_options_are_found_as_whole_words_and_the_longer_one_where_two_fit(text, right):
    assert check("choice", text, answer="yes", options=["yes", "no"]) is right
    for answer in ("dark red", "red"):
        assert check("choice", "It is dark red", answer=answer, options=["red", "dark red"]) is (
            answer == "dark red"
        )


@pytest.mark.parametrize(
    "text",
    [
        "foo bar",
        " Foo  bar. ",
        "'foo bar'",
        "**foo bar**",
        "`foo bar`",
        "Answer: foo bar",
        "The answer is “foo bar”.",
        "Let me think.\nfoo bar",
        "```\nfoo bar\n```",
        "A: foo bar",
    ],
)
def test_an_exact_answer_may_be_dressed_up(text):
    assert check("exact", text, answer="foo bar")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(
            (text, {"answer": "foo bar"})
            for text in ("", "foo", "foo bars", "foo bar baz", "foo bar\nor not")
        ),
        ("foo", {"answer": "FOO", "ignore_case": False}),
        ("**", {"answer": "..."}),
    ],
)
def test_an_exact_answer_is_all_there_is_and_its_case_counts_where_the_item_says_so(
    text, expected
):
    assert not check("exact", text, **expected)
    assert check("exact", expected["answer"], **expected)


def test_all_texts_must_occur_and_those_that_are_missing_are_named():
    assert check("contains", "One and TWO", all=["one", "two"])
    assert not check("contains", "foo", all=["FOO"], ignore_case=False)
    assert read_check(Checker("contains", {"all": ["one", "three"]}), "one") == (
        False,
        "not there: `three`",
    )


def test_a_regular_expression_is_not_matched_in_this_process():
    """Some never end: they are for the sandbox."""
    assert Checker("regex", {"pattern": "a"}).is_executed
    with pytest.raises(KeyError):
        check("regex", "a", pattern="a")


@pytest.mark.parametrize(
    "unit",
    [
        "1",
        "1,",
        "1/",
        "1/1",
        "1,234",
        "answer ",
        "answer is A or ",
        "A or ",
        " ",
        "-",
        "\\boxed{",
        "*",
        "\x00\ufffd",
        "\n",
        "```\n",
    ],
)
def test_long_answers_take_no_time(unit):
    """100 KB of anything, in well under a second."""
    text = unit * (100_000 // len(unit))
    began = time.process_time()
    check("number", text, answer=7)
    check("choice", text, answer="B", options=["A", "B"])
    check("exact", text, answer="seven")
    check("contains", text, all=["seven"])
    assert time.process_time() - began < 1.5


def test_what_is_said_of_an_answer_is_one_short_line():
    for text in ("word " * 1000, "1" * 5000, "\n\n"):
        for kind, values in (
            ("number", {"answer": 1}),
            ("exact", {"answer": "a"}),
            ("choice", {"answer": "a", "options": ["a", "b"]}),
        ):
            reason = read_check(Checker(kind, values), text)[1]
            assert len(reason) < 200
            assert not re.search(r"[\n\r]", reason)
