"""The mixed workload against a fake engine: what is sent when, what is kept,
and how it may end.
"""

import asyncio
import json
from itertools import pairwise

import pytest
from answers.sample_judge import sample

from skep.bench.endpoint import find_endpoint
from skep.host.facts import NvidiaReport, read_host
from skep.quality.mixed_figures import PRIMARY, SIDE
from skep.quality.mixed_run import MixedPlan, run_mixed
from skep.sandbox.bubblewrap import ScriptEnding, ScriptResult
from skep.sandbox.runner import open_sandbox
from skep.store.records import RunState
from skep.store.verdicts import VerdictOutcome
from skep.testing.process import FakeEngine

HOST = read_host(NvidiaReport())

POST_USERS = sample("fastapi1/passed-plain").strip()
RULES = sample("fastapi2/passed-whole-validators").strip()
GET_USERS = sample("fastapi3/passed-whole").strip()
WORDS = "one two three four five six seven eight nine ten"


class Idle:
    """A sandbox that runs nothing and reports nothing: every answer with code is broken."""

    name = "idle"

    async def run(self, _script, _limits=None):
        return ScriptResult(ScriptEnding.EXITED, 0, None, b"", b"", 0.0)


def asked(item):
    return item.messages[-1]["content"]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Right ones to the conversation, longest conversation first;
    a few words to the side tasks.
    """
    path = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    messages = [
        *zip(PRIMARY[::-1], (GET_USERS, RULES, POST_USERS), strict=True),
        *((item, WORDS) for item in SIDE),
    ]
    path.write_text(
        "\n".join(json.dumps({"prompt": asked(item), "answer": text}) for item, text in messages)
    )
    return path


@pytest.fixture(scope="module")
def engine(answers):
    with FakeEngine(slots=8, token_ms=0.4, answers=answers) as started:
        yield started


def mixed(engine, store, show=lambda _: None, sandbox=None, memory=lambda: None, **plan):
    async def run():
        endpoint = await find_endpoint(engine.url, None)
        return await run_mixed(
            MixedPlan(**plan), endpoint, store, HOST, sandbox or Idle(), show, memory=memory
        )

    summary = asyncio.run(run())
    return summary, [row for row in store.requests(summary.run_id) if row.level]


def first_line(row):
    return row.prompt.partition("\n")[0]


# What is sent


def test_repeats_go_up_and_down_in_turns():
    assert MixedPlan(levels=(5, 1, 3), repeats=3).course() == [
        (1, 0),
        (3, 0),
        (5, 0),
        (5, 1),
        (3, 1),
        (1, 1),
        (1, 2),
        (3, 2),
        (5, 2),
    ]


def test_published_side_tasks_are_sent_once_with_the_first_turn(engine, store):
    _, rows = mixed(engine, store, repeats=1, levels=(5,))
    turns = [row for row in rows if row.traffic == "primary"]
    sides = [row for row in rows if row.traffic == "side"]
    assert len(sides) == 4
    assert all(turns[0].started_s <= row.started_s < turns[0].first_token_s for row in sides)
    assert all(before.ended_s <= after.started_s for before, after in pairwise(turns))


# What a prompt holds


def test_answers_are_part_of_the_next_turn_and_reasoning_is_not(answers, store):
    with FakeEngine(slots=8, token_ms=0.2, answers=answers, reasoning="hmm, bees?") as thoughtful:
        _, rows = mixed(thoughtful, store, repeats=1, levels=(1,))
    assert rows[0].reasoning.strip() == "hmm, bees?"
    assert rows[0].answer.strip() == POST_USERS
    assert POST_USERS in rows[1].prompt
    assert RULES in rows[2].prompt
    assert not any("bees" in row.prompt for row in rows)


def test_thoughts_inside_an_answer_are_not_sent_back_and_first_lines_follow_the_seed(
    tmp_path, store
):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"prompt": "e", "answer": "<think> of bees </think> done"}))
    with FakeEngine(slots=8, token_ms=0.2, answers=path) as thoughtful:
        first, again, other_seed = (
            mixed(thoughtful, store, repeats=1, levels=(1,), seed=seed)[1] for seed in (1, 1, 2)
        )
    assert "bees" in first[0].answer
    assert "done" in first[2].prompt
    assert "bees" not in first[2].prompt
    assert first_line(first[0]) == first_line(again[0]) != first_line(other_seed[0])


@pytest.mark.slow
def test_no_prompt_begins_like_one_of_another_conversation_or_round(engine, store):
    """A prompt cache must not make later levels quick; inside a conversation it may work as it
    does in life.
    """
    _, rows = mixed(engine, store, repeats=2, levels=(1, 3))
    talks = {}
    for row in rows:
        place = (row.level, row.repeat, "talk" if row.traffic == "primary" else row.index)
        talks.setdefault(place, set()).add(first_line(row))
    assert all(len(lines) == 1 for lines in talks.values())
    assert len(set.union(*talks.values())) == len(talks)
    assert all(line.startswith("Session ") for lines in talks.values() for line in lines)


# What is kept


def test_items_verdicts_and_how_it_was_run_are_stored_with_the_run(engine, store):
    summary, rows = mixed(engine, store, repeats=1, levels=(1, 2), seed=5)
    run = store.run(summary.run_id)
    assert (run.kind, run.state) == ("mixed", RunState.DONE)
    stored = {
        name: run.config[name] for name in ("repeats", "seed", "temperature", "sandbox", "levels")
    }
    settings = {"repeats": 1, "seed": 5, "temperature": 0.2}
    assert stored == {**settings, "sandbox": "idle", "levels": ["P1", "P1+S1"]}
    assert [item.id for item in store.items(run.id)] == ["P1.1", "P1.2", "P1.3", "S1"]
    verdicts = store.verdicts(run.id)
    assert [(verdict.level, verdict.index, verdict.item) for verdict in verdicts] == [
        (row.level, row.index, row.kind) for row in rows
    ]
    assert {verdict.outcome for verdict in verdicts if verdict.item.startswith("P")} == {
        VerdictOutcome.BROKEN
    }
    assert summary.advice.concurrency is None


def test_gpu_memory_is_read_after_all_levels_and_stored_with_the_run(engine, store):
    reads = []

    def read():
        reads.append(1)
        return {"used_bytes": 14, "total_bytes": 24, "gpus": 1, "source": "nvidia-smi"}

    summary, _ = mixed(engine, store, memory=read, repeats=1, levels=(1, 2))
    assert len(reads) == 1
    assert (summary.memory.used_bytes, summary.memory.total_bytes) == (14, 24)
    assert [fact.name for fact in store.level_facts(summary.run_id) if fact.name == "memory"] == [
        "memory"
    ]
    assert summary.axes[5].shown == "14 B of 24 B in use"


@pytest.mark.needs("bwrap")
@pytest.mark.slow
def test_a_right_conversation_passes_in_the_real_sandbox(engine, store):
    sandbox = open_sandbox()
    try:
        summary, _ = mixed(engine, store, sandbox=sandbox, repeats=1, levels=(1,))
    finally:
        asyncio.run(sandbox.close())
    details = [
        (verdict.item, verdict.outcome, verdict.detail)
        for verdict in store.verdicts(summary.run_id)
    ]
    assert [outcome for _, outcome, _ in details] == [VerdictOutcome.PASSED] * 3, details
    assert summary.levels[0].seconds_per_task == pytest.approx(summary.levels[0].wall_s / 3)
    assert summary.advice.concurrency == 1


# How it may go wrong


def test_a_failed_turn_ends_its_conversation_and_the_run_goes_on(engine, store):
    struck = []

    def show(progress):
        if progress.level == 1 and not struck:
            struck.append(engine.fault(kind="500", times=1))

    summary, rows = mixed(engine, store, show, repeats=2, levels=(1,))
    assert [(row.repeat, row.turn, row.ok) for row in rows] == [
        (0, 0, False),
        *((1, turn, True) for turn in range(3)),
    ]
    level = summary.levels[0]
    assert dict(level.outcomes) == {"broken": 3, "failed": 1, "not asked": 2}
    assert [turn.judged for turn in level.turns] == [2, 2, 2]


async def test_a_run_that_is_cut_short_keeps_its_rows_and_what_was_asked(engine, store):
    """So that it can be judged later."""
    begun = asyncio.Event()

    def show(progress):
        if progress.level == 2:
            begun.set()

    endpoint = await find_endpoint(engine.url, None)
    work = asyncio.create_task(
        run_mixed(MixedPlan(levels=(1, 2)), endpoint, store, HOST, Idle(), show)
    )
    await begun.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    last = store.run("last")
    assert (last.state, last.error) == (RunState.INTERRUPTED, None)
    assert len([row for row in store.requests(last.id) if row.level]) == 3
    assert len(store.items(last.id)) == 4
    assert store.verdicts(last.id) == []
