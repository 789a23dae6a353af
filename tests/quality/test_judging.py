"""The rules of a verdict, before and around what the checks find."""

import asyncio

import pytest
from answers.sample_judge import judged, request
from answers.sample_tasks import ITEMS, PAGES

from loop_turns import longest_turn
from skep.errors import SkepError, UserError
from skep.quality.judging import AnsweredItem, Judge, check_packages, finding_of, needs_sandbox
from skep.sandbox.bubblewrap import ScriptEnding, ScriptResult
from skep.store.verdicts import VerdictOutcome
from skep.workload.banks import parse_bank
from skep.workload.items import Checker, Item

NUMBER = Item("sum", ({"role": "user", "content": "6 + 6?"},), Checker("number", {"answer": 12}))
REPORT = b'{"outcome": "passed", "detail": ""}'
RIGHT = "```python\ndef page_count(total, size):\n    return -(-total // size)\n```"


def read(row, item=NUMBER):
    """Judged without a sandbox."""
    (verdict,) = asyncio.run(Judge(None).judge([AnsweredItem(row, item)]))
    return verdict


def test_a_read_answer_needs_no_sandbox():
    verdict = read(request("It is 12."))
    assert (verdict.outcome, verdict.sandbox, verdict.checker) == (
        VerdictOutcome.PASSED,
        None,
        "number/3",
    )
    assert (verdict.level, verdict.repeat, verdict.index, verdict.item) == (4, 1, 7, "sum")
    assert read(request("It is 13.")).outcome is VerdictOutcome.WRONG
    assert needs_sandbox([NUMBER]) is False
    assert needs_sandbox([NUMBER, PAGES]) is True
    with pytest.raises(UserError, match="no sandbox"):
        read(request(RIGHT), PAGES)
    check_packages(ITEMS.values())  # what answers may import is installed here


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("timeout", VerdictOutcome.TIMED_OUT),
        ("refused", VerdictOutcome.FAILED),
        ("broken", VerdictOutcome.FAILED),
    ],
)
def test_a_failed_request_is_told_by_its_kind(kind, outcome):
    verdict = read(request(None, error_kind=kind, error="no complete\nanswer", finish_reason=None))
    assert (verdict.outcome, verdict.detail) == (outcome, "no complete answer")


def test_a_cut_answer_is_truncated_even_if_the_checks_pass():
    """One that was cut before its limit met the end of its context: more tokens would not help."""
    verdict = read(request("12", finish_reason="length"))
    assert verdict.outcome is VerdictOutcome.TRUNCATED
    assert verdict.detail == "cut at the limit of 512 tokens; the checks pass all the same"
    assert "pass" not in read(request("it is 1", finish_reason="length")).detail
    early = read(request("12", finish_reason="length", output_tokens=77)).detail
    assert early.startswith("cut after 77 of 512 tokens: the context of its slot was full")


def test_reasoning_alone_is_no_answer():
    verdict = read(request("", reasoning="6 + 6 is 12"))
    assert (verdict.outcome, verdict.detail) == (
        VerdictOutcome.NO_ANSWER,
        "512 tokens of reasoning, no answer",
    )
    assert (
        read(request("<think>12</think>\n ", output_tokens=None)).detail
        == "nothing but reasoning, no answer"
    )
    assert read(request("")).detail == "an empty answer"
    assert read(request(None)).detail == "the answer was not stored"
    assert (
        read(request("", reasoning="12", finish_reason="length")).outcome
        is VerdictOutcome.TRUNCATED
    )


@pytest.mark.needs("bwrap")
def test_the_order_is_kept_progress_told_and_a_cut_program_run_all_the_same():
    answers = [f"```python\ndef page_count(total, size):\n    return {n}\n```" for n in range(4)]
    rows = [*map(request, ["nothing", *answers, RIGHT]), request(RIGHT, finish_reason="length")]
    none, *wrong, whole, cut = judged([AnsweredItem(row, PAGES) for row in rows])
    assert none.outcome is VerdictOutcome.NO_ANSWER
    assert {verdict.outcome for verdict in wrong} == {VerdictOutcome.WRONG}
    assert [verdict.detail.split(" at ")[0] for verdict in wrong[1:]] == [
        f"AssertionError: gave {n}, not 0" for n in range(1, 4)
    ]
    assert (cut.outcome, whole.outcome) == (VerdictOutcome.TRUNCATED, VerdictOutcome.PASSED)
    assert cut.detail.endswith("the checks pass all the same")
    assert whole.sandbox is not None
    heard = []
    asyncio.run(Judge(None).judge([AnsweredItem(request("12"), NUMBER)] * 3, heard.append))
    assert heard == [1, 2, 3]


@pytest.mark.parametrize(
    ("stdout", "ending", "outcome"),
    [
        (b"MARK" + REPORT, ScriptEnding.EXITED, VerdictOutcome.PASSED),
        (REPORT, ScriptEnding.EXITED, VerdictOutcome.BROKEN),
        (b"MARK{", ScriptEnding.EXITED, VerdictOutcome.BROKEN),
        (b"MARK[]", ScriptEnding.EXITED, VerdictOutcome.BROKEN),
        (b"", ScriptEnding.OUT_OF_TIME, VerdictOutcome.EXCEEDED),
        (b"", ScriptEnding.OUT_OF_MEMORY, VerdictOutcome.EXCEEDED),
    ],
)
def test_only_a_marked_report_counts(stdout, ending, outcome):
    finding = finding_of(ScriptResult(ending, 0, None, stdout, b"Traceback\nOops: x", 0.1), "MARK")
    assert finding.outcome is outcome
    assert ending is not ScriptEnding.OUT_OF_MEMORY or finding.detail == "out of memory"
    assert stdout or ending is not ScriptEnding.EXITED or finding.detail.endswith("Oops: x")


def test_a_check_that_fails_itself_costs_one_answer_and_not_the_others():
    """An item that asks for something impossible is told with its answer; a bank of the user's may
    not ask for it.
    """
    impossible = Item(
        "x", ({"role": "user", "content": "?"},), Checker("number", {"answer": "0/0"})
    )
    answers = [("12", impossible), ("0/0", NUMBER), ("12", NUMBER)]
    verdicts = asyncio.run(
        Judge(None).judge([AnsweredItem(request(answer), item) for answer, item in answers])
    )
    expected = [VerdictOutcome.BROKEN, VerdictOutcome.WRONG, VerdictOutcome.PASSED]
    assert [verdict.outcome for verdict in verdicts] == expected
    assert verdicts[0].detail == "the check itself failed: ValueError: `0/0` is not a number"
    with pytest.raises(UserError):
        parse_bank(['{"prompt": "?", "checker": {"kind": "number", "answer": "0/0"}}'], "bank")


class Failing:
    """A sandbox whose first runs are lost to the machine."""

    name = "failing"

    def __init__(self, lost):
        self.lost = lost

    async def run(self, _script, _limits=None):
        self.lost -= 1
        if self.lost >= 0:
            raise SkepError("the sandbox could not be checked: Too many open files")
        return ScriptResult(ScriptEnding.EXITED, 1, None, b"", b"", 0.1)


def test_a_run_that_the_machine_lost_is_tried_again():
    """The verdict is not the model's; what goes on failing is an error of one line."""
    (verdict,) = asyncio.run(Judge(Failing(2)).judge([AnsweredItem(request(RIGHT), PAGES)]))
    assert verdict.detail == "ended with 1 before there was a report"
    with pytest.raises(SkepError, match="Too many open files"):
        asyncio.run(Judge(Failing(9)).judge([AnsweredItem(request(RIGHT), PAGES)]))


def test_code_is_looked_for_in_a_long_answer_beside_the_loop():
    """2 MB of `f(` took the loop 2 s of computing."""

    async def judging(text):
        return await longest_turn(Judge(Failing(0)).judge_text(PAGES, text))

    finding, longest_s, whole_s = asyncio.run(judging("f(\n" * 700_000))
    assert finding.detail == "ended with 1 before there was a report"
    assert longest_s < whole_s / 8


def test_code_is_looked_for_in_the_beginning_of_an_endless_answer():
    """An answer may have 64 MiB; no program that was asked for has more than half a million
    characters.
    """

    class Reading(Failing):
        async def run(self, script, _limits=None):
            self.given = script.stdin
            return await super().run(script)

    sandbox = Reading(0)
    text = f"{RIGHT}\n```" + "\n```python\nx = 1\n```" * 200_000
    asyncio.run(Judge(sandbox).judge_text(PAGES, text))
    assert b"def page_count" in sandbox.given
    assert len(sandbox.given) < 1_500_000


def test_a_long_stored_answer_is_looked_at_beside_the_loop():
    async def judging():
        answered = [
            AnsweredItem(request("<think>" + "so\n" * 500_000 + "</think>It is 12."), NUMBER)
        ]
        return await longest_turn(Judge(None).judge(answered))

    (verdict,), longest_s, whole_s = asyncio.run(judging())
    assert verdict.passed
    assert longest_s < whole_s / 8
