"""The quality guard: what two answer sheets allow to say, and sheets had from engines that answer
right or wrong.
"""

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
from skep.tuner.quality_check import (
    ITEMS,
    ROOM_TOKENS,
    GuardPlan,
    QualityGuard,
    Sheet,
    compared,
    open_guard,
)
from skep.tuner.records import KnobConfig
from skep.workload.items import Checker, Item

HOST = read_host(NvidiaReport())
PLAIN = KnobConfig.of({"kv": "f16"})
NARROW = KnobConfig.of({"kv": "q4_0"})
RIGHT = VerdictOutcome.PASSED
WRONG = VerdictOutcome.WRONG
LATE = VerdictOutcome.TIMED_OUT


def sheet(right, of=ITEMS, first=0):
    """`right` items are right, from the `first` on."""
    return Sheet({str(n): RIGHT if first <= n < first + right else WRONG for n in range(of)})


HALF = Sheet({str(n): RIGHT if n < 48 else LATE for n in range(96)})


@pytest.mark.parametrize(
    ("before", "after", "ok", "skipped", "words"),
    [
        (
            sheet(80),
            sheet(80),
            True,
            False,
            "80 of 96 right against 80: not worse by more than 5 points",
        ),
        (sheet(80), sheet(79), True, False, "not worse by more than 5 points"),
        (sheet(80), sheet(50), False, False, "50 of 96 right against 80: worse by at least 23"),
        (sheet(40, 48), sheet(38, 48), True, False, "with 48 items a loss of up to"),
        (sheet(40, 48), sheet(37, 48), False, False, "with 48 items a loss of up to"),
        (sheet(4), sheet(0), True, True, "too few to show anything"),
        (HALF, sheet(48), False, False, ""),
        (sheet(80), sheet(48, 48), True, False, "48 of 48 right against 48"),
        (
            Sheet(dict.fromkeys("ab", LATE), "HTTP 500"),
            sheet(80),
            True,
            True,
            "answered nothing: HTTP 500",
        ),
        (
            sheet(80),
            Sheet(dict.fromkeys("ab", LATE), "HTTP 500"),
            False,
            False,
            "was answered: HTTP 500",
        ),
        (sheet(80), Sheet(fault="cannot connect"), False, False, "was answered: cannot connect"),
    ],
    ids=[
        *(
            "equal",
            "one lost",
            "a clear loss",
            "little lost, not shown",
            "more lost, not shown",
            "too hard for both",
        ),
        *(
            "no answer before hides no loss",
            "only what both were asked",
            "silent before",
            "silent",
            "not there",
        ),
    ],
)
def test_what_two_sheets_allow_to_say(before, after, ok, skipped, words):
    """Three lost of 48 are six points, which chance alone may do; two are four."""
    found = compared(before, after, 0.05)
    assert (found.ok, found.skipped) == (ok, skipped)
    assert words in found.words


@dataclass(frozen=True)
class At:
    url: str
    model: str = "fake-model"


def numbers(count):
    asked = [({"role": "user", "content": f"say number {n}."},) for n in range(count)]
    items = [Item(f"n{n}", asked[n], Checker("number", {"answer": n}), 8) for n in range(count)]
    return Bank("numbers", tuple(items), count)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    path = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    lines = [
        {"prompt": f"say number {n}.", "answer": f"It is {n}", "wrong": "It is -1"}
        for n in range(24)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def sheets(engine, guard, *configs):
    """Of these configurations, of both where none is named."""

    async def ask():
        return [
            await guard.answers(At(engine.url), config) for config in configs or (PLAIN, NARROW)
        ]

    return asyncio.run(ask())


PLAN = GuardPlan(concurrency=4, items=24, delta=0.2, seed=7, tuning="t1")


def test_a_configuration_that_answers_worse_is_caught_and_each_is_asked_once(answers, store):
    """Both sides are asked the same at the goal's concurrency; what they said is stored and
    judged.
    """
    heard = []

    async def run(good, bad):
        guard = QualityGuard(numbers(24), PLAN, Judge(None), store, HOST)
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
    assert "right against 24: worse by at least" in worse.words
    assert [one.activity for one in heard] == ["judging"] * 48
    assert (heard[23].reading, heard[23].readings, heard[23].config) == (24, 24, PLAIN)
    newest, first = store.runs()
    assert (first.kind, first.state, first.config["tuning"]) == (
        "tune-quality",
        RunState.DONE,
        "t1",
    )
    assert first.config["configuration"] == {"kv": "f16"}
    assert first.fingerprint != newest.fingerprint
    rows = store.requests(first.id)
    verdicts = store.verdicts(first.id)
    assert len(rows) == len(verdicts) == len(store.items(first.id)) == 24
    assert all(verdict.passed for verdict in verdicts)
    assert max(sum(o.started_s <= r.started_s < o.ended_s for o in rows) for r in rows) == 4


def test_every_item_has_room_for_a_model_that_thinks_aloud(store, tmp_path):
    assert {item.max_tokens for item in open_guard(PLAN, store, HOST, tmp_path).bank.items} == {
        ROOM_TOKENS
    }


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


def test_a_slow_engine_is_asked_fewer(answers, store):
    with FakeEngine(slots=4, token_ms=0.1, answers=answers) as engine:
        guard = QualityGuard(numbers(24), replace(PLAN, most_s=0.0), Judge(None), store, HOST)
        [found] = sheets(engine, guard, PLAIN)
    assert len(found.outcomes) == 4  # one for each agent
