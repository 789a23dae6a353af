"""A trial against the fake engine: what is asked and stored, where the walk stops, how it ends."""

import asyncio
import json
from dataclasses import dataclass

import pytest

from skep.bench.endpoint import find_endpoint
from skep.bench.session import SessionProgress
from skep.errors import EndpointError
from skep.host.facts import NvidiaReport, read_host
from skep.quality.judging import Judge
from skep.quality.trial import QualityTrial, TrialPlan
from skep.quality.trial_figures import LevelQuality, QualitySummary, summary_of_run
from skep.stats.noninferiority import Claim
from skep.store.database import open_store
from skep.store.records import RunState, StoredRun
from skep.testing.process import FakeEngine
from skep.workload.items import Checker, Item

HOST = read_host(NvidiaReport())


@dataclass(frozen=True)
class Bank:
    items: tuple[Item, ...]
    name: str = "numbers"


def numbers(count):
    questions = [({"role": "user", "content": f"say number {n}."},) for n in range(count)]
    return Bank(
        tuple(
            Item(f"n{n}", questions[n], Checker("number", {"answer": n}), 8) for n in range(count)
        )
    )


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    path = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    lines = [
        {"prompt": f"say number {n}.", "answer": f"It is {n}", "wrong": "It is -1"}
        for n in range(300)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def engine(answers):
    with FakeEngine(slots=8, token_ms=0.2, answers=answers) as started:
        yield started


def trial(engine, store, plan, bank, **how):
    async def run():
        endpoint = await find_endpoint(engine.url, None)
        return await QualityTrial(plan, bank, endpoint, store, HOST, Judge(None), **how).run()

    return asyncio.run(run())


@dataclass(frozen=True)
class HeldTrial:
    """A trial whose answers are as good under load, with all that it reported."""

    summary: QualitySummary
    run: StoredRun
    levels: list[LevelQuality]
    progress: list[SessionProgress]


@pytest.fixture(scope="module")
def held(engine, tmp_path_factory):
    levels = []
    progress = []
    with open_store(tmp_path_factory.mktemp("trial") / "s.sqlite3") as store:
        summary = trial(
            engine,
            store,
            TrialPlan((1, 2, 4), delta=0.1, seed=1),
            numbers(70),
            on_level=lambda so_far: levels.append(so_far.levels[-1]),
            on_progress=progress.append,
        )
        return HeldTrial(summary, store.run(summary.run_id), levels, progress)


def test_answers_as_good_under_load_hold_at_every_level(held):
    summary = held.summary
    assert [level.claim for level in summary.levels] == [Claim.HOLDS, Claim.HOLDS]
    assert (summary.holds_up_to, summary.skipped, summary.incomplete) == (4, (), "")


def test_a_trial_reports_every_level_and_its_progress(held):
    assert [level.concurrency for level in held.levels] == [2, 4]
    assert {"asking", "judging"} <= {progress.stage for progress in held.progress}
    assert {progress.failed for progress in held.progress} == {0}


def test_the_noise_is_of_the_pass_made_for_it_and_the_base_passes_of_both_levels(held):
    assert held.summary.noise.pairs == 140
    assert held.summary.noise_texts_changed == 0.0


def test_a_trial_is_stored_as_a_run_with_its_bank_and_levels(held):
    assert (held.run.kind, held.run.state) == ("quality", RunState.DONE)
    assert (held.run.config["bank"], held.run.config["concurrency"]) == ("numbers", [1, 2, 4])


@pytest.mark.slow
def test_everything_can_be_had_again_from_the_store(engine, store):
    summary = trial(engine, store, TrialPlan((4,), seed=2, repeats=2), numbers(20))
    run = store.run(summary.run_id)
    rows = [row for row in store.requests(run.id) if row.level]
    passes = {(row.level, row.repeat): row.traffic for row in rows}
    assert passes == {
        (1, 0): "base",
        (1, 1): "again",
        (1, 2): "base",
        (1, 3): "again",
        (4, 0): "load",
        (4, 1): "load",
    }
    assert all(
        sorted(row.index for row in rows if (row.level, row.repeat) == key) == [*range(20)]
        for key in passes
    )
    items = store.items(run.id)
    assert all(row.kind == items[row.index].id for row in rows)
    assert [item.id for item in items] != [f"n{n}" for n in range(20)]  # in an order of chance
    stored = summary_of_run(run, rows, store.verdicts(run.id), store.level_facts(run.id), items)
    assert stored == summary
    assert summary.levels[0].difference.pairs == 40


def test_the_load_is_held_and_the_base_is_one_at_a_time(engine, store):
    summary = trial(engine, store, TrialPlan((4,), seed=3), numbers(30))
    rows = [row for row in store.requests(summary.run_id) if row.level]
    for level in (1, 4):
        level_rows = [row for row in rows if row.level == level]
        max_in_flight = max(
            sum(started.started_s <= row.started_s < started.ended_s for started in level_rows)
            for row in level_rows
        )
        assert max_in_flight == level


def test_errors_under_load_are_failures_with_a_name(answers, store):
    with FakeEngine(slots=8, token_ms=1, answers=answers, error_above="1:0.5", seed=1) as engine:
        summary = trial(engine, store, TrialPlan((4,), seed=1), numbers(50))
    (level,) = summary.levels
    assert level.claim is Claim.LOST
    assert dict(level.load.outcomes)["failed"] == level.difference.lost
    assert dict(level.base.outcomes) == {"passed": 50}


async def test_a_trial_that_is_broken_off_keeps_its_rows_and_claims_nothing(answers, store):
    """Ctrl-C: what was asked is stored, what was not judged is not counted."""
    some_answered = asyncio.Event()

    def show(progress):
        if progress.level and progress.done >= 5:
            some_answered.set()

    with FakeEngine(slots=8, token_ms=25, answers=answers) as engine:
        endpoint = await find_endpoint(engine.url, None)
        plan = TrialPlan((2,), seed=1)
        task = asyncio.create_task(
            QualityTrial(plan, numbers(100), endpoint, store, HOST, Judge(None), show).run()
        )
        await some_answered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    (run,) = store.runs()
    assert (run.state, run.error) == (RunState.INTERRUPTED, None)
    rows = store.requests(run.id)
    assert len([row for row in rows if row.level]) >= 5
    assert len(store.items(run.id)) == 100
    summary = summary_of_run(
        run, rows, store.verdicts(run.id), store.level_facts(run.id), store.items(run.id)
    )
    assert (summary.levels, summary.holds_up_to, summary.incomplete) == (
        (),
        None,
        "the run is interrupted",
    )


def test_a_server_that_stops_answering_is_no_loss_of_quality(answers, store):
    """Were it taken for one, a crash would be reported as worse answers."""
    with FakeEngine(slots=4, answers=answers) as engine:

        def stop(progress):
            if progress.stage == "asking":
                engine.fault(kind="500", times=None)

        with pytest.raises(EndpointError, match="answers nothing at C=1"):
            trial(engine, store, TrialPlan((2,), seed=4), numbers(10), on_progress=stop)
