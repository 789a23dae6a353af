"""Whole runs against engines that refuse, drop, cut, vanish and come back, in one process."""

import asyncio
import json
from contextlib import closing, suppress
from pathlib import Path

import pytest

from skep.errors import EndpointError, StoreError, UserError
from skep.paths import user_paths
from skep.store.database import open_store
from skep.swarm.answer_check import AnswerChecker
from skep.swarm.attempt import ChatWorker
from skep.swarm.records import (
    AttemptOutcome,
    AttemptResult,
    SwarmRunOptions,
    SwarmRunState,
    Task,
    TaskEnding,
    TaskResult,
    Why,
)
from skep.swarm.results_file import ResultsFile
from skep.swarm.runner import carry_out
from skep.swarm.store import Recorded, SwarmStore, create_run, lock_path
from skep.testing.process import FakeEngine

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def some(number, tokens=5, **fields):
    return [
        Task(f"t{n}", ({"role": "user", "content": f"task {n}"},), max_tokens=tokens, **fields)
        for n in range(number)
    ]


class Runs:
    """Runs in an installation of their own."""

    def __init__(self, env, folder):
        self.paths = user_paths(env)
        self.output = folder / "results.jsonl"

    def create(self, url, tasks, **order):
        with open_store(self.paths.store) as store:
            how = SwarmRunOptions(**{"output": str(self.output), **order})
            return create_run(store, tasks, how, url=url, model=None)

    def carry_out(self, run_id, **fields):
        return asyncio.run(carry_out(self.paths, run_id, **fields))

    def read(self, name, run_id, *values):
        with open_store(self.paths.store) as store:
            return getattr(SwarmStore(store), name)(run_id, *values)

    def lines(self):
        return [json.loads(line) for line in self.output.read_text("utf-8").splitlines()]


@pytest.fixture
def runs(env, tmp_path):
    return Runs(env, tmp_path)


@pytest.fixture(scope="module")
def engine_of_all(tmp_path_factory):
    answers = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    endings = [
        {"prompt": "not accepted", "answer": '{"n": 7}'},
        {"prompt": "seven", "answer": "it is seven"},
    ]
    answers.write_text("\n".join(map(json.dumps, endings)))
    with FakeEngine(slots=4, token_ms=1, answers=str(answers)) as engine:
        yield engine


@pytest.fixture
def quick(engine_of_all):
    """An engine without faults, but for those that a test gives it."""
    yield engine_of_all
    engine_of_all.fault(kind="none")


def all_done(runs, run_id, number):
    results = runs.read("results", run_id)
    assert [result.task for result in results] == [f"t{n}" for n in range(number)]
    assert {result.ending for result in results} == {TaskEnding.DONE}
    assert sorted(line["id"] for line in runs.lines()) == sorted(result.task for result in results)
    return results


def test_every_task_has_its_result_and_its_line(runs, quick):
    run_id = runs.create(quick.url, some(30))
    assert runs.carry_out(run_id) is SwarmRunState.DONE
    all_done(runs, run_id, 30)
    line = runs.lines()[0]
    assert (line["ok"], line["tries"], line["output_tokens"]) == (True, 1, 5)
    assert line["finish_reason"] == "length"


def test_a_run_reports_its_progress_and_closes_its_session(runs, quick):
    progress = []
    run_id = runs.create(quick.url, some(30))
    assert runs.carry_out(run_id, watch=progress.append) is SwarmRunState.DONE
    assert (progress[-1].done, progress[-1].in_flight, progress[-1].output_tokens) == (30, 0, 150)
    assert progress[-1].limit == 6
    (session,) = runs.read("session_rows", run_id)
    assert (session.outcome, session.endpoint["model"]) == ("done", "fake-model")
    assert not lock_path(runs.paths, run_id).exists()


def test_a_finished_run_sends_nothing_more_and_writes_its_file_again(runs, quick):
    run_id = runs.create(quick.url, some(30))
    runs.carry_out(run_id)
    request_count = quick.state()["requests"]
    runs.output.unlink()
    assert runs.carry_out(run_id) is SwarmRunState.DONE
    assert quick.state()["requests"] == request_count, "a finished run asks for nothing more"
    all_done(runs, run_id, 30)


def test_the_live_speed_counts_tokens_where_an_event_carries_several(runs):
    """With speculation an event carries two or three tokens, and the live view said a third of the
    speed.
    """
    progress = []
    with FakeEngine(slots=2, token_ms=4, chunk_tokens=5) as engine:
        run_id = runs.create(engine.url, some(10, tokens=100))
        runs.carry_out(run_id, watch=progress.append)
    streaming = [progress for progress in progress if progress.lanes and progress.tok_s]
    assert streaming[0].tok_s_is_floor
    last = streaming[-1]
    assert not last.tok_s_is_floor
    assert last.tok_s > 0.6 * last.output_tokens / last.elapsed_s


def test_refusals_and_drops_and_cuts_lose_nothing(runs, quick):
    for kind in ("429", "close-first", "500", "503", "close-mid", "garbage"):
        quick.fault(kind=kind, times=3, after_tokens=2, retry_after_s=0)
    run_id = runs.create(quick.url, some(40))
    assert runs.carry_out(run_id) is SwarmRunState.DONE
    all_done(runs, run_id, 40)
    kinds = {
        attempt.error_kind
        for attempt in runs.read("attempts", run_id)
        if attempt.outcome is AttemptOutcome.FAILED
    }
    assert {"http_429", "http_500", "http_503", "closed"} <= kinds


def test_an_engine_that_dies_and_comes_back_is_waited_for(runs):
    engine = FakeEngine(slots=4, token_ms=3).start()
    again = FakeEngine(slots=4, token_ms=1, port=engine.port)
    progress = []

    async def go():
        run_id = runs.create(engine.url, some(40))
        work = asyncio.create_task(carry_out(runs.paths, run_id, watch=progress.append))
        await asyncio.to_thread(engine.wait_for, requests=12)
        await asyncio.to_thread(engine.kill)
        while not any(moment.down_s is not None for moment in progress):
            await asyncio.sleep(0.02)
        await asyncio.to_thread(again.start)
        return run_id, await work

    try:
        run_id, state = asyncio.run(go())
    finally:
        engine.close()
        again.close()
    assert state is SwarmRunState.DONE
    assert {task_result.tries for task_result in all_done(runs, run_id, 40)} == {1}, (
        "none of it was a task's fault"
    )
    assert [fact["up"] for _, _, _, fact in runs.read("facts", run_id, "endpoint")] == [
        False,
        True,
    ]


def test_a_refused_key_is_not_waited_for(runs):
    with (
        FakeEngine(key="right") as engine,
        pytest.raises(EndpointError, match="refuses the API key"),
    ):
        runs.carry_out(runs.create(engine.url, some(1)), key="wrong")


def test_a_task_that_is_no_request_is_set_aside_and_blocks_nobody(runs, quick):
    request_count = quick.state()["requests"]
    poison = Task("poison", ({"role": "user", "content": "word " * 9000},), max_tokens=5)
    run_id = runs.create(quick.url, [poison, *some(10)])
    assert runs.carry_out(run_id) is SwarmRunState.DONE
    assert quick.state()["requests"] - request_count == 11
    failed = runs.read("result", run_id, "poison")
    assert (failed.ending, failed.tries, failed.error_kind) == (TaskEnding.FAILED, 1, "http_400")
    line = next(line for line in runs.lines() if line["id"] == "poison")
    assert not line["ok"]
    assert "context" in line["error"]["message"]


def test_a_wrong_answer_is_asked_again_with_its_fault_and_set_aside_in_the_end(runs, quick):
    ask = Task("t0", ({"role": "user", "content": "seven"},), max_tokens=50, schema=SCHEMA)
    never = Task(
        "t1", ({"role": "user", "content": "task 1"},), max_tokens=5, schema={"type": "array"}
    )
    run_id = runs.create(quick.url, [ask, never], tries=2)
    assert runs.carry_out(run_id) is SwarmRunState.DONE
    result, failed = runs.read("results", run_id)
    assert (result.ending, result.value, result.tries) == (TaskEnding.DONE, {"n": 7}, 2)
    assert (failed.ending, failed.tries, failed.error_kind) == (TaskEnding.FAILED, 2, "rejected")
    assert failed.answer
    first, second = (attempt for attempt in runs.read("attempts", run_id) if attempt.task == "t0")
    assert (first.outcome, first.answer, second.why) == (
        AttemptOutcome.REJECTED,
        "it is seven",
        Why.RETRY,
    )
    assert {line["id"]: line.get("value") for line in runs.lines()} == {"t0": {"n": 7}, "t1": None}


def test_a_gateway_is_filled(runs, start_gateway, quick):
    gateway = start_gateway()
    progress = []
    gateway.serve_engines(quick, quick, slots=2)
    run_id = runs.create(gateway.url, some(30), priority="batch")
    assert runs.carry_out(run_id, watch=progress.append) is SwarmRunState.DONE
    all_done(runs, run_id, 30)
    assert progress[-1].limit == 6


def test_a_run_goes_on_at_an_endpoint_that_has_moved(runs, quick):
    run_id = runs.create("http://127.0.0.1:1", some(3), deadline_s=0.01)
    with pytest.raises(EndpointError):
        runs.carry_out(run_id)
    assert runs.carry_out(run_id, url=quick.url) is SwarmRunState.DONE


def complete(runs, run_id):
    """How many lines of results were missing in the file."""
    with closing(ResultsFile(runs.output, run_id)) as file:
        return file.complete(
            {task.id: task for task in runs.read("tasks", run_id)}, runs.read("results", run_id)
        )


@pytest.mark.parametrize(
    "added", ["{first}", '{{"id": "stranger"}}\n', "a note\n", "a note", '{{"id": "t1"}}\n']
)
def test_a_line_that_is_not_the_journals_own_stays_and_stops_the_resume(runs, quick, added):
    run_id = runs.create(quick.url, some(2))
    done = TaskResult("t0", TaskEnding.DONE, "mine", None, None, None, 1, 1.0, 2.0, 1, 1)
    with open_store(runs.paths.store) as store:
        SwarmStore(store).record(run_id, [Recorded(None, done)])
    complete(runs, run_id)
    first = runs.output.read_text()
    runs.output.write_text(before := first + added.format(first=first))
    with pytest.raises(UserError, match="line 2 is the first"):
        runs.carry_out(run_id)
    assert runs.output.read_text() == before


def test_a_file_that_another_run_is_writing_to_is_left_to_it(runs, quick):
    quick.fault(kind="hang-first", times=None)
    waiting = runs.create(quick.url, some(1))

    async def go():
        work = asyncio.create_task(carry_out(runs.paths, waiting))
        await asyncio.to_thread(quick.wait_for, running=1)
        assert runs.output.read_bytes() == b"", "no line tells whose it is yet"
        with pytest.raises(UserError, match="another run is writing"):
            await carry_out(runs.paths, runs.create(quick.url, some(1)))
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work

    asyncio.run(go())


@pytest.mark.parametrize("length", [0, 1, 20, -1, None], ids=str)
def test_a_line_that_was_cut_is_written_again(runs, quick, length):
    """None: a crash left zeros instead."""
    run_id = runs.create(quick.url, some(4))
    runs.carry_out(run_id)
    whole = runs.output.read_bytes()
    first, second, third, _ = whole.splitlines(keepends=True)
    runs.output.write_bytes(first + second + (bytes(100) if length is None else third[:length]))
    assert (complete(runs, run_id), complete(runs, run_id)) == (2, 0)
    all_done(runs, run_id, 4)
    assert runs.output.read_bytes().startswith(first + second)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_under_the_results_file_stops_it_and_loses_nothing(runs, quick):
    run_id = runs.create(quick.url, some(5), output="/dev/full")
    with pytest.raises(StoreError, match="No space left"):
        runs.carry_out(run_id)
    with open_store(runs.paths.store) as store:
        assert SwarmStore(store).run(run_id).state is SwarmRunState.STOPPED
    assert complete(runs, run_id) == len(runs.read("results", run_id)) > 0


def test_an_answer_that_never_ends_is_broken_off_and_set_aside(runs, quick, monkeypatch):
    """Before it fills the memory; nothing of it is kept, and the engine's slot is free again."""
    monkeypatch.setattr("skep.swarm.client.LARGEST_ANSWER_BYTES", 5000)
    run_id = runs.create(quick.url, some(1, tokens=1000), tries=2)
    assert runs.carry_out(run_id) is SwarmRunState.DONE
    (result,) = runs.read("results", run_id)
    assert (result.ending, result.tries, result.error_kind) == (TaskEnding.FAILED, 2, "too_long")
    assert result.error == "the answer has more than 5,000 bytes"
    assert [attempt.answer for attempt in runs.read("attempts", run_id)] == [None, None]
    quick.wait_for(running=0)


class KnownAnswers:
    """A client that has every answer ready."""

    def __init__(self, takes):
        self.takes = takes
        self.requests = []

    async def ask(self, _, *, fields, **__):
        self.requests.append(fields)
        name = (
            fields.get("response_format", {}).get("json_schema", {}).get("schema", {}).get("title")
        )
        if name is None or name in self.takes:
            return AttemptResult(answer='{"n": 1}', status=200, output_tokens=4)
        return AttemptResult(
            error_kind="http_400", error=f"cannot hold an answer to {name}", status=400
        )


@pytest.mark.parametrize(("takes", "request_count"), [(("a", "b"), 4), (("a",), 5), ((), 6)])
def test_a_server_that_cannot_hold_answers_to_a_schema_is_asked_without_it(takes, request_count):
    """And only once: what it does not take is remembered."""
    tasks = [
        Task(name, ({"role": "user", "content": name},), schema={**SCHEMA, "title": name})
        for name in "abab"
    ]

    async def go():
        client = KnownAnswers(takes)
        async with AnswerChecker() as checker:
            worker = ChatWorker(client, checker, SwarmRunOptions(max_tokens=9))
            return [await worker.attempt(task, 1, None) for task in tasks], client.requests

    results, sent = asyncio.run(go())
    assert [attempt_result.value for attempt_result in results] == [{"n": 1}] * 4
    assert len(sent) == request_count
    assert {fields["max_tokens"] for fields in sent} == {9}
