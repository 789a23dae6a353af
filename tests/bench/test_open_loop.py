"""Requests at a rate, conversations, and a run being written: what is stored, however it ends."""

import asyncio
import gc
import sqlite3
import statistics
import threading
import time
from itertools import accumulate, islice, pairwise
from random import Random

import pytest
from msgspec.structs import replace
from sample_rows import HOST, tasks

from skep.bench.endpoint import Endpoint, find_endpoint
from skep.bench.load_shapes import RARE_GC_THRESHOLDS, garbage_kept, watch_client
from skep.bench.open_loop import ARRIVALS, OpenPlan, arrivals_of, run_open, tasks_of
from skep.bench.session import Identity, LoadGenerator, Recording
from skep.bench.sweep import SweepPlan, run_sweep
from skep.bench.tasks import TaskMaker, Workload
from skep.errors import StoreError
from skep.store.database import Store, open_store
from skep.store.records import Request, RunState
from skep.wire.heads import parse_url

MAKER = TaskMaker(Workload(max_tokens=3, seed=1))


def plan_of(*rates, arrivals="constant", for_s=0.2, seed=1):
    return OpenPlan(rates, arrivals, for_s, workload=Workload(max_tokens=3, seed=seed))


def opened(engine, store, plan, maker=MAKER, show=lambda _: None):
    async def run():
        return await run_open(
            plan, await find_endpoint(engine.url, None), store, HOST, maker, show
        )

    summary = asyncio.run(run())
    return summary, [row for row in store.requests(summary.run_id) if row.level]


async def swept(engine, store, **fields):
    plan = SweepPlan(
        **{"quick_warm_up": True, "runs": 1, "workload": Workload(max_tokens=4), **fields}
    )
    return await run_sweep(plan, await find_endpoint(engine.url, None), store, HOST)


# At a rate


def test_arrivals_at_a_rate_are_all_sent_and_know_when_they_were_due(engine, store):
    """A request at the other rate is not due in time: its level has no figures."""
    summary, rows = opened(engine, store, plan_of(100.0, 0.001, 50.0, arrivals="constant"))
    slow = [row for row in rows if row.level == 2]
    fast = [row for row in rows if row.level == 1]
    assert [row.scheduled_s - fast[0].scheduled_s for row in fast] == pytest.approx(
        [n / 100 for n in range(20)]
    )
    assert all(row.due_s <= row.started_s for row in rows)
    assert [row.started_s for row in fast] == sorted(row.started_s for row in fast)
    assert [(level.concurrency, level.requests, level.failed) for level in summary.levels] == [
        (1, 20, 0),
        (2, 1, 0),
        (3, 10, 0),
    ]
    assert (len(slow), store.run(summary.run_id).kind) == (1, "open")
    summary, rows = opened(engine, store, plan_of(0.001, arrivals="poisson", for_s=0.1))
    assert (rows, summary.levels) == ([], ())


class Watched(TaskMaker):
    """A task maker that counts its prompts."""

    made = 0

    def _task(self, *args):
        self.made += 1
        return super()._task(*args)


def test_nothing_is_made_up_while_it_is_measured(engine, store):
    """A loop that composes a prompt does not see bytes arrive: TTFT p95 of 2000-token prompts was
    74 ms, not 54.
    """
    maker = Watched(Workload(max_tokens=2, seed=1))
    prompts = []

    def show(progress):
        if progress.level:
            prompts.append(maker.made)

    opened(engine, store, plan_of(100.0, for_s=0.4), maker, show)
    assert set(prompts[1:]) == {42}  # with those of the warm-up


def test_prompts_that_come_again_begin_with_another_line():
    whole = [*islice(tasks_of(MAKER, 1, 0, 2), 5)]
    assert [task.index for task in whole] == [0, 1, 2, 3, 4]
    assert whole[2].messages[0]["content"] == f"1. {whole[0].messages[0]['content']}"
    assert whole[2].messages[1:] == whole[0].messages[1:]
    assert [*tasks_of(MAKER, 1, 0, 0)] == []


def test_a_seed_has_its_times_of_arrival_and_a_salt_makes_other_conversations():
    def times(seed):
        return [
            arrivals_of(plan_of(50.0, arrivals="poisson", for_s=4.0, seed=seed), 1, n)
            for n in range(3)
        ]

    assert times(1) == times(1) != times(2)
    first, second = (next(TaskMaker(Workload(), salt=salt).scripts(1, 0)).system for salt in "ab")
    assert first != second
    talks = TaskMaker(Workload(shape="conversation", turns=4)).conversations(8, 0, 2)
    assert len(talks) == 8, "there is a conversation for every agent"


def test_poisson_gaps_are_exponential_and_constant_ones_do_not_drift():
    """Poisson gaps have a deviation equal to their mean, and 1 - 1/e of them are below it; of
    constant arrivals the hundred thousandth is where it belongs.
    """
    moments = [0.0, *islice(ARRIVALS["poisson"](8.0, Random(2)), 20_000)]
    gaps = [after - before for before, after in pairwise(moments)]
    assert statistics.mean(gaps) == pytest.approx(1 / 8, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(1 / 8, rel=0.03)
    assert sum(gap < 1 / 8 for gap in gaps) / len(gaps) == pytest.approx(0.632, abs=0.015)
    assert next(islice(ARRIVALS["constant"](3.0, Random(2)), 90_000, None)) == 30_000.0


# More agents than tasks; no time at all


@pytest.mark.parametrize("how", [{}, {"kind": "ab"}], ids=str)
def test_a_level_is_never_measured_with_fewer_in_flight_than_it_says(how):
    """`ab` did so: the curve is flat from there on, and a knee is found."""
    assert SweepPlan(concurrency=(1, 8), tasks=3, **how).tasks_at(8) >= 8


async def test_a_budget_that_the_warm_up_has_spent_still_gives_a_figure(engine, store):
    assert (await swept(engine, store, concurrency=(1, 2), runs=None, budget_s=0.001)).levels


# A run being written


def recording(store):
    endpoint = Endpoint(parse_url("http://127.0.0.1:9")[0], "/v1", "m")
    return Recording(store, endpoint, HOST, Identity("sweep", "f", {}))


def row(index, **fields):
    return Request(
        1, 0, index, "fix", 0.0, 1.0, arrivals_s=tuple(n / 100 for n in range(100)), **fields
    )


def stored(store):
    run = store.run("last")
    return run.state, run.error, run.requests


async def test_a_run_that_raises_keeps_its_rows_and_the_reason(store):
    """The same row twice is refused, and not counted twice."""
    with pytest.raises(ExceptionGroup):  # noqa: PT012 - the run itself raises
        async with recording(store) as writing:
            writing.add_row(row(0))
            raise ExceptionGroup("several", [ValueError("the first"), ValueError("the second")])
    assert stored(store) == (RunState.FAILED, "the first", 1)
    # The run itself raises.
    with pytest.raises(StoreError, match="does not take this row"):  # noqa: PT012
        async with recording(store) as writing:
            writing.add_row(row(0))
            writing.add_row(row(0))
    assert stored(store)[0] is RunState.FAILED


class SlowStore(Store):
    """A store whose rows take a while to be written, as thousands do; it says when it begins."""

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
    slow.begun = threading.Event()
    slow.go_on = threading.Event()
    async with recording(slow) as writing:
        writing.add_row(row(0))
        await asyncio.to_thread(slow.begun.wait, 10.0)
        writing.add_row(row(1))
        asyncio.get_running_loop().call_later(0.05, slow.go_on.set)
    assert stored(slow) == (RunState.DONE, None, 2)


def locked(path):
    """Open the transaction of another process; it ends with `close`."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN IMMEDIATE")
    return connection


async def test_a_store_that_stays_locked_ends_the_run_with_one_clear_error(store):
    store._connection.execute("PRAGMA busy_timeout = 20")
    with pytest.raises(StoreError, match="locked"):  # noqa: PT012 - the run itself raises
        async with recording(store) as writing:
            writing.add_row(row(0))
            connection = locked(store.path)
    connection.close()
    assert stored(store)[0] in (RunState.FAILED, RunState.INCOMPLETE, RunState.RUNNING)


async def test_rows_refused_by_a_lock_are_written_when_it_is_gone(store):
    store._connection.execute("PRAGMA busy_timeout = 20")
    with pytest.raises(StoreError, match="locked"):  # noqa: PT012 - the run itself raises
        async with recording(store) as writing:
            connection = locked(store.path)
            writing.add_row(row(0))
            while writing.broken is None:
                await asyncio.sleep(0.01)
            connection.close()
            writing.add_row(row(1))
    assert stored(store)[2] == 2


def test_a_run_ends_with_a_message_when_the_store_takes_no_more_rows(engine, tmp_path):
    """The store is closed while the run writes, which fails like a full disk."""
    store = open_store(tmp_path / "s.sqlite3")

    def show(progress):
        if progress.level and not progress.done:
            store.close()

    with pytest.raises(Exception, match=r"closed|refused"):
        opened(engine, store, plan_of(20.0), show=show)
    with open_store(tmp_path / "s.sqlite3") as again:
        assert again.run("last").state is not RunState.DONE


async def test_conversations_go_turn_after_turn_with_their_think_times(engine, store):
    load = Workload(shape="conversation", turns=3, think_s=0.02, max_tokens=2, seed=1)
    summary = await swept(engine, store, concurrency=(4,), tasks=21, workload=load)
    rows = {row.index: row for row in store.requests(summary.run_id) if row.level}
    assert rows.keys() == set(range(21))
    assert all((row.session, row.turn) == divmod(index, 3) for index, row in rows.items())
    scripts = [
        *islice(
            TaskMaker(Workload(shape="conversation", turns=3, think_s=0.02, seed=1)).scripts(4, 0),
            7,
        )
    ]
    for row in rows.values():
        if row.turn:
            pause = row.started_s - rows[row.index - 1].ended_s
            assert pause >= scripts[row.session].think_s[row.turn - 1] - 0.002
    moments = sorted(
        [(row.started_s, 1) for row in rows.values()]
        + [(row.ended_s, -1) for row in rows.values()]
    )
    assert max(accumulate(step for _, step in moments)) <= 4


# What is measured of this machine


class Stopwatch:
    """A meter that notes when it counted, and the state of the load when it began."""

    def __init__(self, look):
        self.look = look

    def begin(self):
        self.seen = self.look()
        self.began_s = time.monotonic()

    def end(self):
        self.ended_s = time.monotonic()


async def test_what_is_drawn_before_the_first_request_is_not_counted(engine, store):
    """Connections and the collection of garbage: 0.15 s of a GPU that had nothing to do."""
    endpoint = await find_endpoint(engine.url, None)
    async with Recording(store, endpoint, HOST, Identity("sweep", "f", {})) as writing:
        meter = Stopwatch(lambda: (gc.get_threshold(), repr(driver.pool).rpartition(", ")[2]))
        driver = LoadGenerator(
            endpoint, writing, timeout_s=30.0, keep_text=False, most_connections=64, meter=meter
        )
        rows, _ = await driver.run_tasks(
            3, 0, [replace(task, level=3) for task in tasks(4)], 3, lambda _: None
        )
        await driver.close()
    assert meter.seen == (RARE_GC_THRESHOLDS, "3 idle>")
    assert meter.began_s <= writing.origin_s + min(row.started_s for row in rows)
    assert writing.origin_s + max(row.ended_s for row in rows) <= meter.ended_s


async def test_garbage_is_collected_before_the_beginning_and_not_at_it():
    """The first requests of every spread schedule were late by a collection."""
    generations = []

    def note(phase, info):
        generations.append(info["generation"])

    gc.callbacks.append(note)
    try:
        with garbage_kept():
            before = generations.count(2)
            async with watch_client():
                pass
            assert (before, generations.count(2)) == (2, 2)  # its start and its stop
    finally:
        gc.callbacks.remove(note)
