"""Answers in several blocks, as chats have them: the program is judged, and what only stands
beside it is left out.
"""

import math

import pytest
from answers.sample_judge import FOLDER, expected, samples_judged, texts_judged
from answers.sample_tasks import PAGES

from skep.quality.harness import completed, free_names
from skep.quality.judging import needs_sandbox
from skep.sandbox.bubblewrap import SandboxLimits
from skep.store.verdicts import VerdictOutcome
from skep.workload.items import Checker, Item

RIGHT = "def page_count(total, size):\n    return -(-total // size)"
WRONG = "def page_count(total, size):\n    return total // size"
CUT = "def page_count(total, size):\n    return -(-total // size"
BESIDE = {
    "a quoted line": ["pages = total // size", RIGHT],
    "an example with names of its own": [RIGHT, "print(page_count(len(articles), 10))"],
    "an example that asks": [RIGHT, "n = int(input('n: '))\nprint(page_count(n, 10))"],
    "an example that ends its process": [RIGHT, "import os\nos._exit(0)"],
    "an example that never ends": [RIGHT, "while True: pass"],
    "a client that is not installed": [
        RIGHT,
        "import not_here\nnot_here.post('http://localhost:8000/pages')",
    ],
    "a shell's line": ["pip install pages", RIGHT, "python main.py --size 3"],
    "tests of its own": [
        RIGHT,
        "import unittest\nclass T(unittest.TestCase):\n    pass\nunittest.main()",
    ],
    "an import of its own": [
        "import math",
        "def page_count(total, size):\n    return math.ceil(total / size)",
    ],
    "an import that follows": [
        "def page_count(total, size):\n    return math.ceil(total / size)",
        "import math",
    ],
    "old, then new": [WRONG, RIGHT],
    "two files": [
        "def up(a, b):\n    return -(-a // b)",
        (
            "from rounding import up\nONE = up(1, 2)\ndef page_count(total, size):\n    return "
            "up(total, size) * ONE"
        ),
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
    return {
        name: (verdict.outcome, verdict.detail)
        for name, verdict in zip(answers, verdicts, strict=True)
    }


def item(kind, **values):
    return Item("x", ({"role": "user", "content": "q"},), Checker(kind, values))


@pytest.mark.needs("bwrap")
def test_text_beside_the_program_does_not_spoil_it_and_its_own_parts_are_kept():
    """A fault of the program itself is never left out."""
    verdicts = outcomes(PAGES, BESIDE | {name: codes for name, (codes, _) in FAULTY.items()})
    expected = dict.fromkeys(BESIDE, VerdictOutcome.PASSED) | {
        name: end for name, (_, end) in FAULTY.items()
    }
    assert {
        name: verdict for name, verdict in verdicts.items() if verdict[0] is not expected[name]
    } == {}


@pytest.mark.needs("bwrap")
def test_a_function_or_a_body_may_have_an_example_beside_it():
    prompt = 'def twice(x: int) -> int:\n    """Double it."""\n'
    double = item(
        "completion",
        prompt=prompt,
        entry_point="twice",
        tests="def check(f):\n    assert f(2) == 4\n",
    )
    whole = [f"{prompt}    return 2 * x", "print(twice(y))"]
    verdicts = outcomes(double, {"whole": whole, "body": ["    return 2 * x"]})
    assert {outcome for outcome, _ in verdicts.values()} == {VerdictOutcome.PASSED}, verdicts


@pytest.mark.needs("bwrap")
def test_without_an_entry_point_the_tests_say_what_is_asked_for():
    """The item's own test is run even if the answer has one of that name."""
    stack = item("python", tests="s = Stack()\ns.push(1)\nassert s.pop() == 1\n")
    right = "class Stack(list):\n    push = list.append"
    verdicts = outcomes(
        stack,
        {"usage": [right, "s = Stack(size)"], "broken": ["x = 1", right.replace("list", "List")]},
    )
    assert [outcome for outcome, _ in verdicts.values()] == [
        VerdictOutcome.PASSED,
        VerdictOutcome.BROKEN,
    ]
    assert free_names("import os\nfor a in f(b):\n    def g(c): return c + os.x + len(d)\n") == {
        "f",
        "b",
        "d",
    }
    stack = item("python", tests="def test_add():\n    assert add(1, 2) == 3\n", entry_point="add")
    with_tests = ["def add(a, b):\n    return a - b\n\ndef test_add():\n    assert add(3, 1) == 2"]
    failure = (VerdictOutcome.WRONG, "AssertionError at `assert add(1, 2) == 3`")
    assert outcomes(stack, {"own": with_tests}) == {"own": failure}


@pytest.mark.needs("bwrap")
def test_a_pattern_is_searched_for_in_the_sandbox_and_an_endless_search_is_ended():
    pattern = item("regex", pattern=r"^b\d+$")
    assert needs_sandbox([pattern])
    verdicts = texts_judged(pattern, ["a\nb12\nc", "ab12", "```python\nb12\n```"])
    assert [verdict.passed for verdict in verdicts] == [True, False, True]
    assert verdicts[1].detail == "`^b\\d+$` is not there"
    (verdict,) = texts_judged(
        item("regex", pattern="(a|aa)+$"), ["a" * 60 + "b"], limits=SandboxLimits(seconds=1)
    )
    assert verdict.outcome is VerdictOutcome.EXCEEDED


ALL = sorted(str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.glob("*/*.md"))
LIGHT = [name for name in ALL if name.startswith(("bug/", "docstring/"))]


def surprises(verdicts):
    outcomes_by_name = {
        name: (verdict.outcome.value, verdict.detail) for name, verdict in verdicts.items()
    }
    return {name: words for name, words in outcomes_by_name.items() if words[0] != expected(name)}


@pytest.mark.needs("bwrap")
def test_answers_with_functions_and_docstrings_are_judged_as_they_should_be():
    assert surprises(samples_judged(LIGHT)) == {}
    kinds = {name.partition("/")[0] for name in ALL}
    assert all(
        {"passed", "wrong"} <= {expected(n) for n in ALL if n.startswith(f"{kind}/")}
        for kind in kinds
    )


@pytest.mark.needs("bwrap")
@pytest.mark.slow
def test_every_sample_answer_is_judged_as_it_should_be():
    verdicts = samples_judged(ALL)
    assert surprises(verdicts) == {}
    assert (
        "a blank name is refused: answered 201, not 422"
        in verdicts["fastapi2/wrong-lets-blank-names-in"].detail
    )
    assert "event loop" in verdicts["reader/wrong-blocks-the-loop"].detail
    assert (
        "NameError: name 'uuid4' is not defined"
        in verdicts["fastapi1/wrong-forgets-an-import"].detail
    )


PROMPT = (
    'import math\n\n\ndef helper(x):\n    return x\n\n\ndef area(r: float) -> float:\n    """Of '
    'a circle."""\n'
)


def run(parts):
    names = {}
    for text in parts:
        exec(compile(text, "x.py", "exec"), names)
    return names


@pytest.mark.parametrize(
    "code",
    [
        "def area(r):\n    return math.pi * helper(r) ** 2",
        "    def area(r):\n        return math.pi * helper(r) ** 2",
        (
            "from __future__ import annotations\nimport math\ndef area(r: float):\n    return "
            "math.pi * r**2"
        ),
        "    return math.pi * r ** 2",
        "return math.pi * r ** 2",
        "        square = r ** 2\n        return math.pi * square",
        "if r > 0:\n        return math.pi * r ** 2\n    return 0",
        "square = r ** 2\n    return math.pi * square",
    ],
)
def test_a_function_or_its_body_completes_the_prompt(code):
    assert run(completed(PROMPT, "area", code))["area"](2) == pytest.approx(4 * math.pi)
    nested = f"def other(r):\n    def area(x):\n        {code!r}\n    return area(r)"
    # A nested one of that name is another.
    assert run(completed(PROMPT, "area", nested))["area"](2) is None
