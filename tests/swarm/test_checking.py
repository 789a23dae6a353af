"""Whether an answer counts, and what the model is told of one that does not."""

import asyncio
import json
import os
import threading
import time
from pathlib import Path

import pytest

from loop_turns import longest_turn
from skep.swarm import answer_check
from skep.swarm.answer_check import AnswerChecker
from skep.swarm.records import Task
from skep.swarm.schemas import LONGEST_COMPLAINT, NotJson, parse, values_in, why_none
from skep.workload.extraction import split_answer

ORDER = {
    "type": "object",
    "properties": {
        "items": {"type": "array", "items": {"properties": {"price": {"type": "number"}}}}
    },
    "required": ["items"],
}
ENDLESS = {"type": "string", "pattern": "^(a+)+$"}
NO_MATCH = answer_check.WrittenValue("a" * 40 + "!", json.dumps("a" * 40 + "!"))


def task(**fields):
    return Task("t", ({"role": "user", "content": "x"},), **fields)


def check(text, **fields):
    async def checking():
        async with AnswerChecker() as checks:
            return await checks.check(task(**fields), text)

    return asyncio.run(checking())


@pytest.mark.parametrize(
    "text",
    [
        '{"items": []}',
        ' \n{"items": []}\n',
        '```json\n{"items": []}\n```',
        'Here it is:\n```\n{"items": []}\n```\nAnything else?',
        'As source [1] says, it is {"items": []}.',
        '<think>maybe {"items": 5}</think>{"items": []}',
        '{"note": "not this one"} but {"items": []}',
    ],
)
def test_json_is_found_in_what_a_model_writes(text):
    checked = check(text, schema=ORDER)
    assert (checked.ok, checked.value, checked.complaint) == (True, {"items": []}, None)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"items": [{}, {}, {"price": "x"}]}', "$.items[2].price: 'x' is not of type 'number'"),
        ("{}", "$: 'items' is a required property"),
        ('{"items": [', "the JSON is cut off"),
        ('{"items": [1 2]}', "the JSON is broken: Expecting ',' delimiter: line 1 column 14"),
        ('{"items": NaN}', "`NaN` is not JSON"),
        ('{"items": ["\\ud800"]}', "the JSON is broken"),
        ("[" * 5000, "the JSON is nested too deeply"),
        ("I cannot do that.", "the answer holds no JSON"),
        ("", "the answer is empty"),
        ("<think>so, the items", "nothing but thinking, no answer"),
    ],
)
def test_a_complaint_is_one_line_with_the_place(text, complaint):
    checked = check(text, schema=ORDER)
    assert not checked.ok
    assert complaint in checked.complaint
    assert checked.value is None


def test_a_complaint_is_bounded_and_a_hundred_thousand_brackets_take_no_time():
    wide = check(json.dumps({"items": [{"price": "x" * 5000}] * 200}), schema=ORDER)
    assert len(wide.complaint) < LONGEST_COMPLAINT + 40
    assert "\n" not in wide.complaint
    assert wide.complaint.endswith("and more")
    began = time.process_time()
    for text in ("[" * 100_000, '{"a":' * 50_000, "{" * 100_000, "[{" * 50_000, '["' * 50_000):
        values_in(text)
    assert time.process_time() - began < 2


def test_a_plain_task_takes_any_answer_but_none_and_a_checker_holds_beside_a_schema():
    assert check("hello").ok
    assert check("<think>hm</think> hello").text == "hello"
    assert not check("  \n").ok
    missing = check("no", checker={"kind": "contains", "all": ["Summary:"]})
    assert missing.complaint == "does not pass its check (contains): not there: `Summary:`"
    fields = {"schema": ORDER, "checker": {"kind": "contains", "all": ["apple"]}}
    assert check('{"items": [{"name": "Apple"}]}', **fields).value == {
        "items": [{"name": "Apple"}]
    }
    assert "apple" in check('{"items": []}', **fields).complaint


def test_a_pattern_that_never_ends_does_not_stop_the_runner():
    """Python's matcher holds the whole process while it backtracks, so it runs in another one."""

    async def checking():
        async with AnswerChecker() as checks:
            ticks = 0

            async def tick():
                nonlocal ticks
                while True:
                    await asyncio.sleep(0.02)
                    ticks += 1

            ticking = asyncio.create_task(tick())
            hung = await answer_check.schema_check(ENDLESS, NO_MATCH, compute_s=0.2)
            ticking.cancel()
            return hung, ticks, await checks.check(task(schema=ENDLESS), '"aaa"')

    hung, ticks, right = asyncio.run(checking())
    assert hung == answer_check.TOO_LONG
    assert ticks > 0.2 / 0.02 / 4
    assert right.ok


def children():
    return Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()


def test_a_schema_may_refer_to_itself_and_a_check_that_is_broken_off_leaves_nothing():
    tree = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}
    assert check('{"next": {"next": {}}}', schema=tree).value == {"next": {"next": {}}}
    assert check('{"next": {"last": {}}}', schema=tree).complaint.startswith(
        "$.next: Additional properties"
    )

    async def checking():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await answer_check.schema_check(ENDLESS, NO_MATCH, compute_s=60)
        return children()

    before = children()
    assert asyncio.run(checking()) == before


def test_values_meet_a_further_demand_and_a_checker_that_only_reads_opens_no_sandbox():
    async def checking():
        async with AnswerChecker(
            lambda value: "$: too few" if not value["items"] else None
        ) as checks:
            await checks.prepare([task(checker={"kind": "number", "answer": 1}), task()])
            assert checks._sandbox is None
            answers = ('{"items": []}', '{"items": [{}]}')
            return [await checks.check(task(schema=ORDER), text) for text in answers]

    few, enough = asyncio.run(checking())
    assert (few.complaint, enough.ok) == ("$: too few", True)


@pytest.mark.parametrize(
    ("checker", "right", "wrong"),
    [
        ({"kind": "number", "answer": 12}, "It is 12.", "It is 13."),
        ({"kind": "exact", "answer": "Paris"}, "Paris.", "Rome"),
        ({"kind": "choice", "answer": "B", "options": ["A", "B"]}, "B", "A"),
    ],
)
def test_the_right_answer_is_not_given_away(checker, right, wrong):
    """The complaint goes back to the model, and the next try must still be its own."""
    assert check(right, checker=checker).ok
    checked = check(wrong, checker=checker)
    answer = str(checker["answer"])
    assert not checked.ok
    assert answer not in checked.complaint


@pytest.mark.needs("bwrap")
def test_code_is_run_in_one_sandbox_which_is_closed():
    doubles = task(checker={"kind": "python", "entry_point": "f", "tests": "assert f(2) == 4"})
    answers = [f"```python\ndef f(x):\n    return x * {factor}\n```" for factor in (2, 3)]

    async def checking():
        async with AnswerChecker() as checks:
            await checks.prepare([doubles])
            sandbox = checks._sandbox
            checked = await asyncio.gather(*(checks.check(doubles, text) for text in answers))
            assert checks._sandbox is sandbox
        return sandbox, checked

    sandbox, (right, wrong) = asyncio.run(checking())
    assert right.ok
    assert "AssertionError at `assert f(2) == 4`" in wrong.complaint
    assert sandbox._launcher is None


@pytest.mark.parametrize("look", [why_none, values_in])
@pytest.mark.parametrize("text", ["```{}```", "```json{}", "{}x", "`{}`"])
def test_an_answer_of_line_ends_takes_time_in_proportion_to_them(look, text):
    """An empty code fence with 20,000 line ends stopped a swarm for 4 to 7 s."""

    def spent(count):
        answer = text.format("\n" * count)
        began = time.thread_time()
        look(answer)
        return time.thread_time() - began

    assert min(spent(40_000) for _ in range(3)) < 10 * min(spent(10_000) for _ in range(3))


LONG = '{"items": [], "more": [' + "1," * 900_000 + "1]}"
CHOICE = {"kind": "choice", "answer": "B", "options": ["A", "B"]}
DOUBLED = "```python\ndef f(x):\n    return x * 2\n```"
PYTHON = {"kind": "python", "entry_point": "f", "tests": "assert f(2) == 4"}


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (LONG, {"schema": ORDER}),
        ("```\n" + "\n" * 1_000_000 + "```", {"schema": ORDER}),
        ("<think>" + "so\n" * 500_000 + '</think>{"items": []}', {"schema": ORDER}),
        ("[" * 2_000_000, {"schema": ORDER}),
        ("**A" * 300_000, {"checker": CHOICE}),
        pytest.param(
            "so\n" * 150_000 + DOUBLED, {"checker": PYTHON}, marks=pytest.mark.needs("bwrap")
        ),
    ],
    ids=["json", "line ends", "thoughts", "brackets", "choice", "python"],
)
def test_a_long_answer_is_looked_at_beside_the_loop(text, fields):
    """Other tasks of the run go on meanwhile: 2 MB of code took a swarm's loop 2 s of computing in
    one turn.
    """

    async def checking():
        async with AnswerChecker() as checks:
            await checks.prepare([task(**fields)])
            await checks.check(task(**fields), "{}")  # what the first check loads is not measured
            return await longest_turn(checks.check(task(**fields), text))

    _, longest_s, whole_s = asyncio.run(checking())
    assert longest_s < whole_s / 8


def test_thinking_is_looked_for_a_piece_at_a_time_so_that_other_threads_go_on():
    """A search of 64 MiB in one call held the interpreter for 2 to 10 s, from whatever thread it
    came.
    """

    async def longest_share():
        text = "a" * 8_000_000
        looking = asyncio.create_task(asyncio.to_thread(split_answer, text, None))
        began = before = time.perf_counter()
        longest_s = 0.0
        while not looking.done():
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            longest_s = max(longest_s, now - before)
            before = now
        return longest_s / (before - began)

    # A busy machine stops them now and then.
    assert any(asyncio.run(longest_share()) < 0.5 for _ in range(3))


def test_a_further_demand_on_a_long_value_is_made_beside_the_loop():
    threads = []

    async def checking():
        async with AnswerChecker(lambda _: threads.append(threading.current_thread())) as checks:
            for text in (LONG, '{"items": []}'):
                assert (await checks.check(task(schema=ORDER), text)).ok

    asyncio.run(checking())
    long, short = threads
    assert long is not threading.main_thread()
    assert short is threading.main_thread()


@pytest.mark.parametrize("opening", ["[", '{"a":', "[1 ["])
def test_an_answer_with_many_openings_is_read_a_few_times_and_not_from_each_of_them(opening):
    """64 brackets and 2 MB of numbers were read 64 times: 6 to 11 s of computing."""

    def spent(text):
        began = time.thread_time()
        assert values_in(text) == []
        return time.thread_time() - began

    once = "[" + "1," * 900_000
    assert min(spent(opening * 64 + once) for _ in range(2)) < 12 * min(
        spent(once) for _ in range(2)
    )


def test_a_value_behind_many_openings_is_still_found_in_an_answer_of_usual_length():
    value = {"items": [{"price": 1}] * 2000}
    for text in ("see [1 and {x: " * 30, "[" * 60):
        assert check(text + json.dumps(value), schema=ORDER).value == value


def test_a_key_that_is_given_twice_is_found_in_time_in_proportion_to_the_keys():
    def spent(count):
        text = "{" + ",".join(f'"{n}":1' for n in [*range(count), count - 1]) + "}"
        began = time.thread_time()
        with pytest.raises(NotJson, match=f"`{count - 1}` is given twice"):
            parse(text, once=True)
        return time.thread_time() - began

    assert min(spent(8000) for _ in range(3)) < 10 * min(spent(2000) for _ in range(3))
