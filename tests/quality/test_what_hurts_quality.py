"""Answers, banks and arms that led to a wrong figure or ended a run. Each was found by trying to break it."""

import asyncio
import time
from dataclasses import replace

import pytest
from answers.sample_judge import judged, request, sample
from answers.sample_tasks import ITEMS

from skep.errors import SkepError, UserError
from skep.quality.judging import AnsweredItem, Judge
from skep.quality.trial_figures import PAIRED_WITH, WHOLE_BLOCK, quality_summary
from skep.sandbox.script import ScriptEnding, ScriptResult
from skep.stats.noninferiority import Claim
from skep.store.records import LevelFact
from skep.store.verdicts import Verdict, VerdictOutcome
from skep.workload.banks import parse_bank
from skep.workload.extraction import python_blocks
from skep.workload.items import Checker, Item

MENDED = """\
```python
def paginate(items, page, per_page):
    if per_page < 1:
        raise ValueError("per_page must be at least 1")
    total_pages = (len(items) + per_page - 1) // per_page
    if page < 1 or page > total_pages:
        return {"items": [], "page": page, "total_pages": total_pages, "has_next": False}
    start = (page - 1) * per_page
    found = items[start : start + per_page]
    return {"items": found, "page": page, "total_pages": total_pages, "has_next": page < total_pages}
```
"""
OLD_LINE = "```python\ntotal_pages = len(items) // per_page\n```\n"
NEW_LINE = "```python\ntotal_pages = (len(items) + per_page - 1) // per_page\n```\n"
OWN_TEST = """\
```python
def add(a, b):
    return a - b


def test_add():
    assert add(3, 1) == 2
```
"""
FORGED = """\
```python
import os
import sys

frame = sys._getframe()
while "say" not in frame.f_locals:
    frame = frame.f_back
say = frame.f_locals["say"]
say(passed=True)
os._exit(0)
```
"""
TRY_IT = "Try it:\n\n```python\nimport requests\n\nrequests.post('http://localhost:8000/users', json={})\n```\n"


def item(kind, **values):
    return Item("x", ({"role": "user", "content": "?"},), Checker(kind, values))


ADD = item("python", tests="def test_add():\n    assert add(1, 2) == 3\n", entry_point="add")
# name → (item, answer, what it should be judged)
CASES = {
    "a regex finds its text": (item("regex", pattern=r"\b42\b"), "It is 42", "passed"),
    "a regex finds code": (item("regex", pattern=r"def \w+"), "```python\ndef f(): pass\n```", "passed"),
    "its own test has the name of ours": (ADD, OWN_TEST, "wrong"),
    "it reports a pass by itself": (ADD, FORGED, "broken"),
    "the faulty line is quoted first": (ITEMS["bug"], f"This line is wrong:\n\n{OLD_LINE}\n{MENDED}", "passed"),
    "old and new line come after": (ITEMS["bug"], f"{MENDED}\nIt was\n\n{OLD_LINE}\nand is\n\n{NEW_LINE}", "passed"),
    "a call with a name that is not there": (
        ITEMS["bug"],
        f"{MENDED}\nExample:\n\n```python\nresult = paginate(articles, 3, 10)\nprint(result)\n```\n",
        "passed",
    ),
    "how a client calls it": (ITEMS["fastapi1"], sample("fastapi1/passed-plain") + TRY_IT, "passed"),
    "how it is awaited": (
        ITEMS["reader"],
        sample("reader/passed-aiofiles") + "\nCall it so:\n\n```python\nnotes = await read_notes(path)\n```\n",
        "passed",
    ),
    "how it is run": (
        ITEMS["reader"],
        sample("reader/passed-aiofiles") + "\n```python\nimport asyncio\n\nasyncio.run(read_notes('my.txt'))\n```\n",
        "passed",
    ),
}
WRONGLY_JUDGED = {
    "it reports a pass by itself": "the process that runs the answer tells whether it passed",
}


@pytest.fixture(scope="module")
def verdicts():
    found = judged([AnsweredItem(request(answer), asked) for asked, answer, _ in CASES.values()])
    return dict(zip(CASES, found, strict=True))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.xfail(strict=True, reason=WRONGLY_JUDGED[name]))
        if name in WRONGLY_JUDGED
        else name
        for name in CASES
    ],
)
def test_an_answer_is_judged_by_what_was_asked(verdicts, name):
    assert verdicts[name].outcome.value == CASES[name][2], verdicts[name].detail


def test_nothing_over_nothing_is_a_wrong_number_and_no_error():
    """An answer of `0/0` ended the run, and the verdicts of its level were lost."""
    answered = AnsweredItem(request("It is 0/0"), item("number", answer=12))
    (verdict,) = asyncio.run(Judge(None).judge([answered]))
    assert verdict.outcome is VerdictOutcome.WRONG


def test_a_bank_cannot_ask_for_nothing_over_nothing():
    with pytest.raises(UserError):
        parse_bank(['{"prompt": "?", "checker": {"kind": "number", "answer": "0/0"}}'], "bank")


def test_many_small_blocks_are_read_in_time_proportional_to_their_number():
    """150 KB of them took half a minute, during which nothing else in skep went on."""
    text = "".join(f"```python\nx{number} = 1\n```\n" for number in range(2000))
    began = time.process_time()
    python_blocks(text)
    assert time.process_time() - began < 0.4


def test_failures_at_one_at_a_time_are_no_proof_that_load_does_no_harm():
    """60 of 200 requests met a server that restarted, in the base arm. Under load every fifth answer is wrong."""
    count = 200
    items = [replace(item("number", answer=1), id=f"i{number}") for number in range(count)]
    facts = [LevelFact(4, 0, PAIRED_WITH, {"level": 1, "repeat": 0})]
    facts += [LevelFact(level, 0, WHOLE_BLOCK, {"begin": 0, "end": count}) for level in (1, 4)]
    rows, verdicts = [], []
    for number in range(count):
        base = VerdictOutcome.FAILED if number < 60 else VerdictOutcome.PASSED
        load = VerdictOutcome.WRONG if number % 5 == 0 else VerdictOutcome.PASSED
        for level, arm, outcome in ((1, "base", base), (4, "load", load)):
            rows.append(request("1", level=level, repeat=0, index=number, kind=f"i{number}", traffic=arm))
            verdicts.append(Verdict(level, 0, number, f"i{number}", outcome))
    summary = quality_summary("run", rows, verdicts, facts, items, bank="numbers", delta=0.03, levels=(1, 4))
    assert summary.levels[0].claim is not Claim.HOLDS


class FailsOnce:
    """A sandbox of which one run is lost, as by a machine out of memory."""

    name = "bubblewrap"

    def __init__(self):
        self.runs = 0

    async def run(self, script, limits=None):
        del script, limits
        self.runs += 1
        if self.runs == 2:
            raise SkepError("the sandbox failed: its supervising process was killed")
        return ScriptResult(ScriptEnding.EXITED, 0, None, b"", b"", 0.1)

    async def close(self):
        pass


def test_one_lost_run_of_the_sandbox_does_not_lose_the_other_verdicts():
    answered = [AnsweredItem(request(MENDED), ITEMS["bug"])] * 5
    assert len(asyncio.run(Judge(FailsOnce(), parallel=1).judge(answered))) == 5
