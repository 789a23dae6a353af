"""Answers in several blocks, as chats have them: the program is judged, and what only stands beside it is left out."""

import pytest
from answers.sample_judge import FOLDER, expected, sample, samples_judged, texts_judged
from answers.sample_tasks import ITEMS, PAGES

from skep.quality.harness.sources import free_names
from skep.quality.judging import needs_sandbox
from skep.sandbox.bubblewrap import SandboxLimits
from skep.store.verdicts import VerdictOutcome
from skep.workload.items import Checker, Item

RIGHT = "def page_count(total, size):\n    return -(-total // size)"
WRONG = "def page_count(total, size):\n    return total // size"
CUT = "def page_count(total, size):\n    return -(-total // size"
BESIDE = {
    "a quoted line": ["pages = total // size", RIGHT],
    "old and new line": [RIGHT, "pages = total // size", "pages = -(-total // size)"],
    "an example with names of its own": [RIGHT, "print(page_count(len(articles), 10))"],
    "an example that asks": [RIGHT, "n = int(input('n: '))\nprint(page_count(n, 10))"],
    "an example that leaves": [RIGHT, "import sys\nsys.exit(page_count(1, 1))"],
    "an example that ends its process": [RIGHT, "import os\nos._exit(0)"],
    "an example that fails": [RIGHT, "assert page_count(10, 3) == 99"],
    "a client that is not installed": [RIGHT, "import not_here\nnot_here.post('http://localhost:8000/pages')"],
    "a shell's line": ["pip install pages", RIGHT, "python main.py --size 3"],
    "await at the top": [RIGHT, "pages = await page_count(1, 2)"],
    "tests of its own": [RIGHT, "import unittest\nclass T(unittest.TestCase):\n    pass\nunittest.main()"],
    "an alternative with gaps": [RIGHT, "def page_count(total, size):\n    ...\n    return math.ceil(total / size)"],
    "its signature": [RIGHT, "def page_count(total: int, size: int) -> int: ..."],
    "an old constant": ["ONE = 1\ndef page_count(total, size):\n    return (total + size - ONE) // size", "ONE = 0"],
}
PARTS = {
    "an import of its own": ["import math", "def page_count(total, size):\n    return math.ceil(total / size)"],
    "an import that follows": ["def page_count(total, size):\n    return math.ceil(total / size)", "import math"],
    "old, then new": [WRONG, RIGHT],
    "files in any order": [
        "from rounding import up\nONE = up(1, 2)\ndef page_count(total, size):\n    return up(total, size) * ONE",
        "def up(a, b):\n    return -(-a // b)",
    ],
}
FAULTY = {
    "new is wrong": ([RIGHT, WRONG], VerdictOutcome.WRONG),
    "it is not there": (["x = 1", "y = undefined"], VerdictOutcome.BROKEN),
    "new does not parse": ([RIGHT, CUT], VerdictOutcome.BROKEN),
    "it raises itself": ([f"{RIGHT}\nprint(page_count(a, b))", "x = 1"], VerdictOutcome.BROKEN),
}


def chat(codes):
    return "\n\nAnd:\n\n".join(f"```python\n{code}\n```" for code in codes)


def outcomes(item, answers):
    verdicts = texts_judged(item, [chat(codes) for codes in answers.values()])
    return {name: (verdict.outcome, verdict.detail) for name, verdict in zip(answers, verdicts, strict=True)}


def item(kind, **values):
    return Item("x", ({"role": "user", "content": "q"},), Checker(kind, values))


def test_what_stands_beside_the_program_does_not_spoil_it_and_what_belongs_to_it_is_kept():
    """A fault of the program itself is never left out."""
    faulty = {name: codes for name, (codes, _) in FAULTY.items()}
    found = outcomes(PAGES, BESIDE | PARTS | faulty)
    expected = dict.fromkeys((*BESIDE, *PARTS), VerdictOutcome.PASSED) | {
        name: end for name, (_, end) in FAULTY.items()
    }
    assert {name: told for name, told in found.items() if told[0] is not expected[name]} == {}
    assert {found[name][1] for name in PARTS} == {""}
    assert found["a quoted line"][1] == "left out: a block that raised NameError: name 'total' is not defined"
    assert found["a shell's line"][1] == "left out: 2 blocks, the first of which is not Python"
    assert found["an example that ends its process"][1] == "left out: a block that ended its process"
    assert found["an old constant"][1] == "left out: a block that overwrites names of the program"


@pytest.mark.slow
def test_an_example_that_never_ends_is_left_out():
    for_ever = [f"import time\nwhile {number}:\n    time.sleep(1)" for number in (1, 2, 3)]
    verdicts = texts_judged(PAGES, [chat([RIGHT, for_ever[0]]), chat([RIGHT, *for_ever])])
    assert [verdict.outcome for verdict in verdicts] == [VerdictOutcome.PASSED] * 2
    assert verdicts[0].detail == "left out: a block that did not come to an end"


def test_a_function_or_a_body_may_have_an_example_beside_it():
    prompt = 'def twice(x: int) -> int:\n    """Double it."""\n'
    asked = item("completion", prompt=prompt, entry_point="twice", tests="def check(f):\n    assert f(2) == 4\n")
    whole = [f"{prompt}    return 2 * x", "print(twice(y))"]
    found = outcomes(asked, {"whole": whole, "body": ["    return 2 * x", "print(twice(y))"]})
    assert {outcome for outcome, _ in found.values()} == {VerdictOutcome.PASSED}, found


def test_without_an_entry_point_the_tests_say_what_is_asked_for():
    """The item's own test is run even if the answer has one of that name."""
    asked = item("python", tests="s = Stack()\ns.push(1)\nassert s.pop() == 1\n")
    right = "class Stack(list):\n    push = list.append"
    found = outcomes(asked, {"usage": [right, "s = Stack(size)"], "broken": ["x = 1", right.replace("list", "List")]})
    assert [outcome for outcome, _ in found.values()] == [VerdictOutcome.PASSED, VerdictOutcome.BROKEN]
    assert free_names("import os\nfor a in f(b):\n    def g(c): return c + os.x + len(d)\n") == {"f", "b", "d"}
    asked = item("python", tests="def test_add():\n    assert add(1, 2) == 3\n", entry_point="add")
    own = ["def add(a, b):\n    return a - b\n\ndef test_add():\n    assert add(3, 1) == 2"]
    told = (VerdictOutcome.WRONG, "AssertionError at `assert add(1, 2) == 3`")
    assert outcomes(asked, {"own": own}) == {"own": told}


def test_the_faulty_function_quoted_once_more_does_not_replace_the_mended_one():
    given = ITEMS["bug"].messages[-1]["content"].split("```")[1].removeprefix("python\n")
    (verdict,) = texts_judged(ITEMS["bug"], [f"{sample('bug/passed-ceil')}\nIt was:\n\n{chat([given])}"])
    assert verdict.passed, verdict.detail


def test_a_regular_expression_is_searched_for_in_the_sandbox_and_one_that_takes_for_ever_is_ended():
    asked = item("regex", pattern=r"^b\d+$")
    assert needs_sandbox([asked])
    verdicts = texts_judged(asked, ["a\nb12\nc", "ab12", "```python\nb12\n```"])
    assert [verdict.passed for verdict in verdicts] == [True, False, True]
    assert verdicts[1].detail == "it is not there"
    (verdict,) = texts_judged(item("regex", pattern="(a|aa)+$"), ["a" * 60 + "b"], limits=SandboxLimits(seconds=1))
    assert verdict.outcome is VerdictOutcome.EXCEEDED


ALL = sorted(str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.glob("*/*.md"))
LIGHT = [name for name in ALL if name.startswith(("bug/", "docstring/"))]


def surprises(verdicts):
    told = {name: (verdict.outcome.value, verdict.detail) for name, verdict in verdicts.items()}
    return {name: words for name, words in told.items() if words[0] != expected(name)}


def test_answers_with_functions_and_docstrings_are_judged_as_they_should_be():
    assert surprises(samples_judged(LIGHT)) == {}
    kinds = {name.partition("/")[0] for name in ALL}
    assert all({"passed", "wrong"} <= {expected(n) for n in ALL if n.startswith(f"{kind}/")} for kind in kinds)


@pytest.mark.slow
def test_every_sample_answer_is_judged_as_it_should_be():
    verdicts = samples_judged(ALL)
    assert surprises(verdicts) == {}
    assert "a blank name is refused: answered 201, not 422" in verdicts["fastapi2/wrong-lets-blank-names-in"].detail
    assert "event loop" in verdicts["reader/wrong-blocks-the-loop"].detail
    assert "NameError: name 'uuid4' is not defined" in verdicts["fastapi1/wrong-forgets-an-import"].detail
