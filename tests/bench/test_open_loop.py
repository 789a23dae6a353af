"""Loads that follow a clock, by one process or two, and a run being written: what is stored, however it ends."""

import asyncio
import sqlite3
import threading
from itertools import accumulate, islice

import pytest
from msgspec import to_builtins
from sample_rows import HOST

from skep.bench.endpoint import Endpoint, find_endpoint
from skep.bench.load_shapes import TimeWindow, run_streams, split_between_workers
from skep.bench.open_loop import CLASS_STEP, TimedPlan, classes_part, open_part, replay_part, run_timed
from skep.bench.session import Identity, Recording
from skep.bench.sweep import SweepPlan, run_sweep
from skep.bench.tasks import Sender, TaskMaker, Workload
from skep.errors import StoreError
from skep.store.database import Store, open_store
from skep.store.records import Request, RunState
from skep.wire.client import Pool
from skep.wire.heads import parse_url
from skep.workload.prompts import TokenCalibration
from skep.workload.traffic import TrafficClass, read_trace

PLAN = TimedPlan("open", {"seed": 1}, "f")
MAKER = TaskMaker(Workload(max_tokens=3, seed=1))


def timed(engine, store, *parts, plan=PLAN, maker=MAKER, show=lambda _: None):
    async def run():
        return await run_timed(plan, parts, await find_endpoint(engine.url, None), store, HOST, maker, show)

    summary = asyncio.run(run())
    return summary, [row for row in store.requests(summary.run_id) if row.level]


async def swept(engine, store, **fields):
    plan = SweepPlan(**{"quick_warm_up": True, "runs": 1, "workload": Workload(max_tokens=4), **fields})
    return await run_sweep(plan, await find_endpoint(engine.url, None), store, HOST)


# At a rate


def test_arrivals_at_a_rate_are_all_sent_and_know_when_they_were_due(engine, store):
    part = open_part(MAKER, 1, 0, rate=100.0, arrivals="constant", for_s=0.2)
    assert part.total == 20
    summary, rows = timed(engine, store, part)
    first = rows[0].scheduled_s
    assert [row.scheduled_s - first for row in rows] == pytest.approx([n / 100 for n in range(20)])
    assert all(row.due_s <= row.started_s for row in rows)
    assert [row.started_s for row in rows] == sorted(row.started_s for row in rows)
    assert (summary.levels[0].requests, summary.levels[0].failed) == (20, 0)
    assert store.run(summary.run_id).kind == "open"
    nothing = open_part(MAKER, 1, 0, rate=0.001, arrivals="poisson", for_s=0.1)
    summary, rows = timed(engine, store, nothing)
    assert (rows, summary.levels) == ([], ())


class Watched(TaskMaker):
    """Counts the prompts it has made."""

    made = 0

    def _task(self, *args):
        self.made += 1
        return super()._task(*args)


async def test_nothing_is_made_up_while_it_is_measured(engine):
    """A loop that composes a prompt does not see bytes arrive: TTFT p95 of 2000-token prompts was 74 ms, not 54."""
    maker = Watched(Workload(max_tokens=2, seed=1))
    part = open_part(maker, 1, 0, rate=100.0, arrivals="constant", for_s=0.2)
    endpoint = await find_endpoint(engine.url, None)
    pool, made = Pool(endpoint.origin), []
    sender = Sender(endpoint, pool, 0.0, timeout_s=20.0)
    await run_streams(sender, lambda _: made.append(maker.made), part.streams, TimeWindow())
    await pool.close()
    assert made == [20] * 20


def test_the_same_seed_arrives_at_the_same_times_and_a_salt_makes_other_conversations():
    def totals(seed):
        maker = TaskMaker(Workload(seed=seed))
        return [open_part(maker, 1, n, rate=50.0, arrivals="gamma:2", for_s=4.0).total for n in range(3)]

    assert totals(1) == totals(1) != totals(2)
    first, second = (next(TaskMaker(Workload(), salt=salt).scripts(1, 0)).system for salt in "ab")
    assert first != second
    stream = TaskMaker(Workload(shape="conversation", turns=4)).conversation_stream(8, 0, 2)
    assert (stream.width, len(stream.scripts)) == (8, 8), "there is a conversation for every agent"


# A trace


def test_a_trace_with_times_is_followed_and_a_batch_file_is_sent_as_it_was(engine, store):
    lines = [
        f'{{"timestamp": {ms}, "input_length": 40, "output_length": 3, "hash_ids": [{place}]}}'
        for place, ms in enumerate((0, 40, 80))
    ]
    part = replay_part(read_trace(lines, speed=2.0), TokenCalibration(), seed=1, default_tokens=9)
    _, rows = timed(engine, store, part)
    assert [row.scheduled_s - rows[0].scheduled_s for row in rows] == pytest.approx([0.0, 0.02, 0.04])
    assert {(row.kind, row.output_tokens) for row in rows} == {("replay", 3)}
    body = '{"messages": [{"role": "user", "content": "hello \\ud83d"}], "max_tokens": %d, "top_p": 0.5}'
    lines = [f'{{"custom_id": "{n}", "body": {body % (n + 1)}}}' for n in range(20)]
    _, rows = timed(engine, store, replay_part(read_trace(lines), TokenCalibration(), seed=1, default_tokens=9))
    assert [row.output_tokens for row in rows] == list(range(1, 21))
    assert all(row.ok and row.scheduled_s is None for row in rows)


# More agents than tasks; no time at all


@pytest.mark.parametrize("how", [{}, {"to_saturation": True}, {"kind": "ab"}], ids=str)
def test_a_level_is_never_measured_with_fewer_in_flight_than_it_says(how):
    """A search with --tasks and `ab` do so: the curve is flat from there on, and a knee is found."""
    assert SweepPlan(concurrency=(1, 8), tasks=3, **how).tasks_at(8) >= 8


async def test_a_budget_that_the_warm_up_has_spent_still_gives_a_figure_and_a_search_keeps_to_it(engine, store):
    assert (await swept(engine, store, concurrency=(1, 2), runs=None, budget_s=0.001)).levels
    search = await swept(engine, store, to_saturation=True, max_concurrency=4, runs=2, budget_s=0.001)
    assert len(search.levels) <= 1


# A run being written


def recording(store):
    endpoint = Endpoint(parse_url("http://127.0.0.1:9")[0], "/v1", "m")
    return Recording(store, endpoint, HOST, Identity("sweep", "f", {}))


def row(index, **fields):
    return Request(1, 0, index, "fix", 0.0, 1.0, arrivals_s=tuple(n / 100 for n in range(100)), **fields)


def stored(store):
    run = store.run("last")
    return run.state, run.error, run.requests


async def test_a_run_that_raises_keeps_its_rows_and_the_reason(store):
    """The same row twice is refused, and not counted twice."""
    with pytest.raises(ExceptionGroup):  # noqa: PT012 - the run itself raises
        async with recording(store) as writing:
            writing.took(row(0))
            raise ExceptionGroup("several", [ValueError("the first"), ValueError("the second")])
    assert stored(store) == (RunState.FAILED, "the first", 1)
    with pytest.raises(StoreError, match="does not take this row"):  # noqa: PT012 - the run itself raises
        async with recording(store) as writing:
            writing.took(row(0))
            writing.took(row(0))
    assert stored(store)[0] is RunState.FAILED


class SlowStore(Store):
    """Its rows take a while to be put into words, as thousands do. Knows when it has begun."""

    begun: threading.Event
    go_on: threading.Event

    def append_requests(self, run_id, rows):
        rows = list(rows)
        if rows and threading.current_thread() is not threading.main_thread():
            self.begun.set()
            self.go_on.wait(5.0)
        super().append_requests(run_id, rows)


async def test_rows_that_are_being_written_when_the_run_ends_are_not_lost(store):
    """After its end a run takes no rows: who ends it waits for the thread that writes."""
    slow = SlowStore(store._connection, store.path)
    slow.begun, slow.go_on = threading.Event(), threading.Event()
    async with recording(slow) as writing:
        writing.took(row(0))
        await asyncio.to_thread(slow.begun.wait, 10.0)
        writing.took(row(1))
        asyncio.get_running_loop().call_later(0.05, slow.go_on.set)
    assert stored(slow) == (RunState.DONE, None, 2)


def locked(path):
    """Somebody else's transaction; ends with `close`."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    return other


async def test_a_store_that_stays_locked_ends_the_run_with_one_clear_error(store):
    store._connection.execute("PRAGMA busy_timeout = 20")
    with pytest.raises(StoreError, match="locked"):  # noqa: PT012 - the run itself raises
        async with recording(store) as writing:
            writing.took(row(0))
            other = locked(store.path)
    other.close()
    assert stored(store)[0] in (RunState.FAILED, RunState.INCOMPLETE, RunState.RUNNING)


async def test_rows_refused_by_a_lock_are_written_when_it_is_gone(store):
    store._connection.execute("PRAGMA busy_timeout = 20")
    with pytest.raises(StoreError, match="locked"):  # noqa: PT012 - the run itself raises
        async with recording(store) as writing:
            other = locked(store.path)
            writing.took(row(0))
            while writing.broken is None:
                await asyncio.sleep(0.01)
            other.close()
            writing.took(row(1))
    assert stored(store)[2] == 2


def test_a_store_that_takes_nothing_more_is_told_and_the_run_does_not_go_on_unrecorded(engine, tmp_path):
    """As a full disk: closed under the run's hands."""
    store = open_store(tmp_path / "s.sqlite3")

    def show(progress):
        if progress.level and not progress.done:
            store.close()

    with pytest.raises(Exception, match=r"closed|refused"):
        timed(engine, store, open_part(MAKER, 1, 0, rate=20.0, arrivals="constant", for_s=0.2), show=show)
    with open_store(tmp_path / "s.sqlite3") as again:
        assert again.run("last").state is not RunState.DONE


async def talked(engine, store, processes):
    load = Workload(shape="conversation", turns=3, think_s=0.02, max_tokens=2, seed=1)
    summary = await swept(engine, store, concurrency=(4,), tasks=21, workload=load, processes=processes)
    return summary, {row.index: row for row in store.requests(summary.run_id) if row.level}


async def test_conversations_stay_whole_and_are_those_of_one_process(engine, store):
    """Turn after turn with the think times between them, the same words; and a summary of the same form."""
    spread, rows = await talked(engine, store, 2)
    here, alone = await talked(engine, store, 1)
    assert rows.keys() == alone.keys() == set(range(21))
    assert all((row.session, row.turn) == divmod(index, 3) for index, row in rows.items())
    assert {index: row.prompt for index, row in rows.items()} == {index: row.prompt for index, row in alone.items()}
    scripts = [*islice(TaskMaker(Workload(shape="conversation", turns=3, think_s=0.02, seed=1)).scripts(4, 0), 7)]
    for row in rows.values():
        if row.turn:
            pause = row.started_s - rows[row.index - 1].ended_s
            assert pause >= scripts[row.session].think_s[row.turn - 1] - 0.002
    moments = sorted([(row.started_s, 1) for row in rows.values()] + [(row.ended_s, -1) for row in rows.values()])
    assert max(accumulate(step for _, step in moments)) <= 4
    assert flat(to_builtins(spread.levels[0])) == flat(to_builtins(here.levels[0]))
    assert to_builtins(spread).keys() == to_builtins(here).keys()


def flat(document):
    """Which keys hold a value, without the values; whether agents who think were ever all at work is chance, and so is
    a late beginning on a busy machine.
    """
    return {key: value is not None for key, value in document.items() if key not in ("plateau_tok_s", "late_ms")}


MIX = (
    TrafficClass("agents", "steady", agents=3, prompt_tokens=40, max_tokens=2, think_s=0.02, priority="batch"),
    TrafficClass("chat", "conversation", agents=2, prompt_tokens=40, max_tokens=2, turns=3, think_s=0.01),
    TrafficClass("cron", "open", rate=60.0, prompt_tokens=40, max_tokens=2, priority="interactive"),
)


def test_classes_keep_their_shares_and_arrivals_over_processes(engine, store):
    part = classes_part(MIX, TokenCalibration(), 0, seed=1, for_s=0.4)
    plans = [TimedPlan("classes", {}, "f", processes=processes) for processes in (2, 1)]
    (spread, rows), (here, alone) = (timed(engine, store, part, plan=plan) for plan in plans)
    assert all(row.ok for row in rows)
    cron = sorted((row for row in rows if row.traffic == "cron"), key=lambda row: row.index)
    due, cron_stream = [row.scheduled_s for row in cron], part.streams[2]
    begin = due[0] - cron_stream.offsets[0]
    assert due == pytest.approx([begin + offset for offset in cron_stream.offsets], abs=1e-6)
    late = [row for row in rows if row.traffic == "agents" and row.started_s > begin + 0.4]
    assert len(late) <= 3  # each agent comes back from its pause once
    assert all(row.index // CLASS_STEP == [one.name for one in MIX].index(row.traffic) for row in rows)
    assert len({row.index for row in rows}) == sum(level.requests for level in spread.classes) == len(rows)
    assert spread.turning is None
    chat = {row.index: row for row in rows if row.traffic == "chat"}
    assert all(row.index % CLASS_STEP == 3 * row.session + row.turn for row in chat.values())
    assert all(not row.turn or chat[row.index - 1].ended_s <= row.started_s for row in chat.values())
    words = {(row.traffic, row.index): row.prompt for row in alone if not row.turn}
    both = [row for row in rows if (row.traffic, row.index) in words]
    assert {row.traffic for row in both} == {"agents", "chat", "cron"}
    assert all(words[row.traffic, row.index] == row.prompt for row in both)
    assert [level.traffic for level in spread.classes] == [level.traffic for level in here.classes]
    for stream in [stream for streams in split_between_workers(part.streams, 2) for stream in streams]:
        one = next(one for one in MIX if one.name == stream.tasks[0].traffic)
        assert {task.priority for task in stream.tasks} == {one.priority}
    assert [flat(to_builtins(one)) for one in spread.classes] == [flat(to_builtins(one)) for one in here.classes]
