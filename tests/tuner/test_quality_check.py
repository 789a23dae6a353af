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
from skep.store.database import open_store
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
from skep.tuner.records import BenchProgress, KnobConfig
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
    result = compared(before, after, 0.05)
    assert (result.ok, result.skipped) == (ok, skipped)
    assert words in result.words


@dataclass(frozen=True)
class At:
    url: str
    model: str = "fake-model"


def numbers(count):
    prompts = [({"role": "user", "content": f"say number {n}."},) for n in range(count)]
    items = [Item(f"n{n}", prompts[n], Checker("number", {"answer": n}), 8) for n in range(count)]
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


@dataclass(frozen=True)
class Comparison:
    """A good and a bad configuration that were asked the same."""

    guard: QualityGuard
    good: Sheet
    bad: Sheet
    events: list[BenchProgress]


@pytest.fixture(scope="module")
def comparison(answers, tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    events = []

    async def run(guard, good_engine, bad_engine):
        assert guard.known(PLAIN) is None
        good = await guard.answers(At(good_engine.url), PLAIN, events.append)
        bad = await guard.answers(At(bad_engine.url), NARROW, events.append)
        return Comparison(guard, good, bad, events)

    with (
        open_store(folder / "store.sqlite3") as store,
        FakeEngine(slots=4, token_ms=0.1, answers=answers) as good_engine,
        FakeEngine(slots=4, token_ms=0.1, answers=answers, wrong_share="0.6") as bad_engine,
    ):
        guard = QualityGuard(numbers(24), PLAN, Judge(None), store, HOST)
        yield asyncio.run(run(guard, good_engine, bad_engine))


def test_a_configuration_that_answers_worse_is_caught(comparison):
    worse = comparison.guard.compare(comparison.good, comparison.bad)
    same = comparison.guard.compare(comparison.good, comparison.good)
    assert (worse.ok, same.ok) == (False, True)
    assert "right against 24: worse by at least" in worse.words


def test_each_configuration_is_asked_once_and_its_sheet_is_kept(comparison):
    events = comparison.events
    assert comparison.guard.known(PLAIN) is comparison.good
    assert [event.activity for event in events] == ["judging"] * 48
    assert (events[23].reading, events[23].readings, events[23].config) == (24, 24, PLAIN)


def test_the_answers_of_a_configuration_are_a_stored_run(comparison):
    newest, first = comparison.guard.store.runs()
    assert (first.kind, first.state) == ("tune-quality", RunState.DONE)
    assert first.config["tuning"] == "t1"
    assert first.config["configuration"] == {"kv": "f16"}
    assert first.fingerprint != newest.fingerprint


def test_answers_are_asked_at_the_goals_concurrency_stored_and_judged(comparison):
    store = comparison.guard.store
    _, first = store.runs()
    rows = store.requests(first.id)
    verdicts = store.verdicts(first.id)
    assert len(rows) == len(verdicts) == len(store.items(first.id)) == 24
    assert all(verdict.passed for verdict in verdicts)
    at_once = [
        sum(beside.started_s <= row.started_s < beside.ended_s for beside in rows) for row in rows
    ]
    assert max(at_once) == 4


def test_every_item_has_room_for_a_model_that_thinks_aloud(store, tmp_path):
    assert {item.max_tokens for item in open_guard(PLAN, store, HOST, tmp_path).bank.items} == {
        ROOM_TOKENS
    }


def test_an_endpoint_that_is_gone_is_told_and_not_remembered(store):
    guard = QualityGuard(numbers(4), PLAN, Judge(None), store, HOST)
    [silent] = sheets(At("http://127.0.0.1:1"), guard, PLAIN)
    assert silent.is_silent
    assert "127.0.0.1:1" in silent.fault
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
    (stored_run,) = store.runs()
    assert (stored_run.state, stored_run.error, store.verdicts(stored_run.id)) == (
        RunState.INTERRUPTED,
        None,
        [],
    )


def test_a_slow_engine_is_asked_fewer(answers, store):
    with FakeEngine(slots=4, token_ms=0.1, answers=answers) as engine:
        guard = QualityGuard(numbers(24), replace(PLAN, most_s=0.0), Judge(None), store, HOST)
        [short] = sheets(engine, guard, PLAIN)
    assert len(short.outcomes) == 4  # one for each agent
