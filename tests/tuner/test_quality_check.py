"""The quality guard: what two answer sheets allow to say, and sheets had from engines that answer right or wrong."""

import asyncio
import json
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from skep.host.facts import NvidiaReport, read_host
from skep.quality.banks import Bank
from skep.quality.judging import Judge
from skep.store.records import RunState
from skep.store.verdicts import VerdictOutcome
from skep.testing.process import FakeEngine
from skep.tuner.quality_check import ITEMS, ROOM_TOKENS, GuardPlan, Mark, QualityGuard, Sheet, compared, open_guard
from skep.tuner.records import KnobConfig
from skep.workload.drills import drills
from skep.workload.items import Checker, Item

HOST = read_host(NvidiaReport())
PLAIN, NARROW = KnobConfig.of({"kv": "f16"}), KnobConfig.of({"kv": "q4_0"})
RIGHT, WRONG = Mark(VerdictOutcome.PASSED, "yes"), Mark(VerdictOutcome.WRONG, "no")


def sheet(right, of=ITEMS, *, first=0, bank="drills", **how):
    """`right` items are right, from the `first` on."""
    marks = {str(n): RIGHT if first <= n < first + right else WRONG for n in range(of)}
    return Sheet(bank, marks, **how)


EQUAL = "80 of 96 right against 80 of 96 (drills): not worse by more than 5 points; 96 of 96 texts are the same"
HALF = Sheet("drills", {str(n): RIGHT if n < 48 else Mark(VerdictOutcome.TIMED_OUT) for n in range(96)})


@pytest.mark.parametrize(
    ("before", "after", "ok", "skipped", "words"),
    [
        (sheet(80), sheet(80), True, False, EQUAL),
        (sheet(80), sheet(79), True, False, "not worse by more than 5 points"),
        (sheet(80), sheet(50), False, False, "50 of 96 right against 80 of 96 (drills): worse by at least 23"),
        (sheet(40, 48), sheet(38, 48), True, False, "not shown to be no worse by 5 points; with 48 items a loss"),
        (sheet(40, 48), sheet(37, 48), False, False, "6.2 points fewer, and with 48 items"),
        (sheet(4), sheet(0), True, True, "too hard for this model, so they show nothing"),
        (HALF, sheet(48), False, False, ""),
        (sheet(80), sheet(48, 48), True, False, "48 of 48 right against 48 of 48"),
        (sheet(80), sheet(10, bank="humaneval"), True, True, ""),
    ],
    ids=[
        *("equal", "one lost", "a clear loss", "little lost, not shown", "more lost, not shown", "too hard for both"),
        *("no answer before hides no loss", "only what both were asked", "different banks"),
    ],
)
def test_what_two_sheets_allow_to_say(before, after, ok, skipped, words):
    """Three lost of 48 are six points, which chance alone may do; two are four."""
    found = compared(before, after, 0.05)
    assert (found.ok, found.skipped) == (ok, skipped)
    assert words in found.words


def test_a_side_that_answers_nothing_is_no_matter_of_quality():
    silent = Sheet("drills", {str(n): Mark(VerdictOutcome.FAILED, why="HTTP 500") for n in range(4)})
    dead = Sheet("drills", trouble="cannot connect")
    assert compared(silent, sheet(80), 0.05).skipped
    for one, why in ((silent, "HTTP 500"), (dead, "cannot connect")):
        found = compared(sheet(80), one, 0.05)
        assert (found.ok, found.words) == (False, f"none of its requests was answered: {why}")


@dataclass(frozen=True)
class At:
    url: str
    model: str = "fake-model"


def numbers(count, name="numbers", off=0):
    asked = [({"role": "user", "content": f"say number {n}."},) for n in range(count)]
    items = [Item(f"n{n}", asked[n], Checker("number", {"answer": n + off}), 8) for n in range(count)]
    return Bank(name, tuple(items), count)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Of the numbers, and of the easy drills that take their place."""
    path = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    lines = [{"prompt": f"say number {n}.", "answer": f"It is {n}", "wrong": "It is -1"} for n in range(24)]
    for item in drills(7, 24, 1):
        right = str(item.checker.values["answer"])
        lines.append({"prompt": item.messages[-1]["content"], "answer": right, "wrong": "-1"})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def sheets(engine, guard, *configs):
    """Of these configurations, of both where none is named."""

    async def ask():
        return [await guard.answers(At(engine.url), config) for config in configs or (PLAIN, NARROW)]

    return asyncio.run(ask())


PLAN = GuardPlan(concurrency=4, items=24, delta=0.2, seed=7, tuning="t1")


def test_a_configuration_that_answers_worse_is_caught_and_each_is_asked_once(answers, store):
    """Both sides are asked the same at the goal's concurrency; what they said is stored and judged."""
    heard = []

    async def run(good, bad):
        async with open_guard(numbers(24), PLAN, store, HOST) as guard:
            assert guard.known(PLAIN) is None
            before = await guard.answers(At(good.url), PLAIN, heard.append)
            after = await guard.answers(At(bad.url), NARROW, heard.append)
            assert guard.known(PLAIN) is before
            return guard.compare(before, after), guard.compare(before, before)

    with (
        FakeEngine(slots=4, token_ms=0.1, answers=answers) as good,
        FakeEngine(slots=4, token_ms=0.1, answers=answers, wrong_share="0.6") as bad,
    ):
        worse, same = asyncio.run(run(good, bad))
    assert (worse.ok, same.ok) == (False, True)
    assert "right against 24 of 24 (numbers): worse by at least" in worse.words
    assert [one.what for one in heard] == ["judging"] * 48
    assert (heard[23].reading, heard[23].readings, heard[23].config) == (24, 24, PLAIN)
    newest, first = store.runs()
    assert (first.kind, first.state, first.config["tuning"]) == ("tune-quality", RunState.DONE, "t1")
    assert first.config["configuration"] == {"kv": "f16"}
    assert first.fingerprint != newest.fingerprint
    rows, verdicts = store.requests(first.id), store.verdicts(first.id)
    assert len(rows) == len(verdicts) == len(store.items(first.id)) == 24
    assert all(verdict.passed for verdict in verdicts)
    assert max(sum(o.started_s <= r.started_s < o.ended_s for o in rows) for r in rows) == 4


def test_a_bank_that_is_too_hard_gives_way_to_an_easier_one(answers, store):
    """This model knows nothing of the hard items and all of the easy ones; the challenger is asked those too."""

    with FakeEngine(slots=4, token_ms=0.1, answers=answers) as engine:
        before, after = sheets(engine, QualityGuard(numbers(24, "drills:5", off=1000), PLAN, Judge(None), store, HOST))
    assert (before.bank, after.bank, before.right) == ("drills:1", "drills:1", 24)
    assert [run.config["bank"] for run in store.runs()] == ["drills:1", "drills:1", "drills:5"]


def test_a_model_that_thinks_aloud_gets_room_for_it(answers, store):
    """Most answers were cut at the items' own limit: the same items are asked again with a larger one."""

    thoughts = "let me think about this number for a while before I say it"
    with FakeEngine(slots=4, token_ms=0.01, answers=answers, reasoning=thoughts, truncate_above="0:1") as engine:
        guard = QualityGuard(numbers(6), replace(PLAN, items=6), Judge(None), store, HOST)
        [found] = sheets(engine, guard, PLAIN)
    asked = {run.config["bank"]: store.items(run.id)[0].max_tokens for run in reversed(store.runs())}
    assert asked["numbers"] == ROOM_TOKENS
    assert found.bank == "drills:1"  # that did not help either
    assert found.cut == 1.0
    assert "cut at the token limit" in compared(found, found, 0.05).words


def test_an_endpoint_that_is_gone_is_told_and_not_remembered(store):
    guard = QualityGuard(numbers(4), PLAN, Judge(None), store, HOST)
    [found] = sheets(At("http://127.0.0.1:1"), guard, PLAIN)
    assert found.is_silent
    assert "127.0.0.1:1" in found.fault
    assert (guard.known(PLAIN), store.runs()) == (None, [])


def test_asking_that_is_broken_off_leaves_no_sheet_and_a_run_that_says_so(answers, store):
    """Ctrl-C in the middle: half a sheet would be a sheet of the quick answers."""

    async def run(engine):
        guard = QualityGuard(numbers(24), PLAN, Judge(None), store, HOST)
        task = asyncio.create_task(guard.answers(At(engine.url), PLAIN))
        await asyncio.to_thread(engine.wait_for, requests=6)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return guard.known(PLAIN)

    with FakeEngine(slots=4, token_ms=5, answers=answers) as engine:
        assert asyncio.run(run(engine)) is None
    (found,) = store.runs()
    assert (found.state, found.error, store.verdicts(found.id)) == (RunState.INTERRUPTED, None, [])


def test_a_slow_engine_is_asked_fewer_and_so_are_those_after_it(answers, store):
    with FakeEngine(slots=4, token_ms=0.1, answers=answers) as engine:
        guard = QualityGuard(numbers(24), replace(PLAN, most_s=0.0), Judge(None), store, HOST)
        first, second = sheets(engine, guard)
    assert first.asked == 4  # one for each agent
    assert second.marks.keys() == first.marks.keys()
    assert [len(store.items(run.id)) for run in store.runs()] == [4, 24]
