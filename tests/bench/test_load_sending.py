"""Shapes of load against a fake engine: who sends when, which rows come of it, and what an end by
force leaves.
"""

import asyncio
import time
from contextlib import asynccontextmanager
from itertools import count

import pytest
from sample_rows import task, tasks

from skep.bench.endpoint import find_endpoint
from skep.bench.load_shapes import run_conversations, scheduled, steady
from skep.bench.tasks import Sender, body_of
from skep.testing.process import FakeEngine
from skep.wire.client import Pool
from skep.workload.prompts import ConversationScript


@asynccontextmanager
async def sending(engine, *, timeout_s=20.0, ready=0):
    endpoint = await find_endpoint(engine.url, None)
    pool = Pool(endpoint.origin, max_idle=256)
    await pool.prepare(ready)
    try:
        yield Sender(endpoint, pool, time.monotonic(), timeout_s=timeout_s, keep_text=True)
    finally:
        await pool.close()


def run(engine, load, **how):
    """Return the rows of `load(sender, on_row)`, in the order in which they were made."""
    rows = []

    async def inner():
        async with sending(engine, **how) as sender:
            await load(sender, rows.append)
            assert not sender.in_flight

    asyncio.run(inner())
    return rows


def indexes(rows):
    return sorted(row.index for row in rows)


# Burst and steady


@pytest.mark.parametrize(("number", "width"), [(24, 24), (20, 3)], ids=["a burst", "steady"])
def test_a_load_has_as_many_in_flight_as_asked_for_and_never_more(number, width):
    with FakeEngine(slots=24, ttft_ms=500 if number == width else 5) as engine:
        rows = run(engine, lambda sender, on_row: steady(sender, on_row, tasks(number), width))
        assert engine.state()["max_inside"] == width
    assert indexes(rows) == list(range(number))
    assert all(row.ok and row.output_tokens == 2 for row in rows)


def test_no_more_is_begun_when_the_time_is_over_and_what_is_under_way_is_waited_for():
    """Tasks of an endless stream are made one by one."""
    taken = []
    with FakeEngine(slots=2, ttft_ms=20) as engine:
        endless = (taken.append(index) or task(index) for index in count())
        rows = run(
            engine,
            lambda sender, on_row: steady(sender, on_row, endless, 2, until_s=sender.now() + 0.2),
        )
    assert 2 <= len(rows) < 200
    assert len(rows) <= len(taken) <= len(rows) + 2
    assert all(row.ok for row in rows)
    assert indexes(rows) == list(range(len(rows)))


# A schedule


def test_a_schedule_does_not_wait_for_answers():
    """One slot, 60 ms each, all due within 20 ms: the last waits inside the engine, and its
    latency shows it.
    """
    with FakeEngine(slots=1, ttft_ms=60) as engine:
        offsets = [0.0, 0.01, 0.02]
        rows = run(
            engine,
            lambda sender, on_row: scheduled(sender, on_row, zip(offsets, tasks(3), strict=True)),
        )
        assert engine.state()["max_inside"] == 3
    assert max(row.first_token_s - row.due_s for row in rows) >= 0.15


def test_a_late_client_is_seen_in_the_latency_and_not_forgiven(engine):
    """The loop stands still for 0.2 s while requests are due."""

    async def load(sender, on_row):
        asyncio.get_running_loop().call_later(0.02, time.sleep, 0.2)
        await scheduled(sender, on_row, zip([0.0, 0.05, 0.06], tasks(3), strict=True))

    rows = sorted(run(engine, load), key=lambda row: row.index)
    late = rows[1]
    assert late.started_s - late.scheduled_s >= 0.1
    assert late.due_s == late.scheduled_s
    assert [row.index for row in sorted(rows, key=lambda row: row.started_s)] == [0, 1, 2]


# Conversations


def talk(first, turns, *, think_s=()):
    return task(first, session=first), ConversationScript(
        "fix", "Be brief.", ("go on",) * turns, think_s
    )


def test_a_conversation_grows_by_the_answers_it_got(engine):
    conversation = talk(10, 3, think_s=(0.01, 0.02))
    rows = run(engine, lambda sender, on_row: run_conversations(sender, on_row, [conversation], 2))
    assert rows[2].prompt.split("\n") == [
        "Be brief.",
        "go on",
        rows[0].answer,
        "go on",
        rows[1].answer,
        "go on",
    ]
    assert [(row.turn, row.index, row.session) for row in rows] == [
        (0, 10, 10),
        (1, 11, 10),
        (2, 12, 10),
    ]
    assert [row.prompt_tokens for row in rows] == sorted({row.prompt_tokens for row in rows})
    assert rows[1].started_s >= rows[0].ended_s + 0.009


def test_a_failed_turn_ends_its_conversation_and_the_next_one_begins(engine):
    first = talk(0, 3)
    second = talk(100, 2)
    engine.fault(kind="close-mid", after_tokens=1)
    rows = run(
        engine, lambda sender, on_row: run_conversations(sender, on_row, [first, second], 1)
    )
    assert [(row.index, row.ok) for row in rows] == [(0, False), (100, True), (101, True)]


# Faults


def test_a_timeout_is_a_row_and_its_connection_is_given_up(engine):
    engine.fault(kind="hang-mid", after_tokens=1)
    rows = run(engine, lambda sender, on_row: steady(sender, on_row, tasks(2), 2), timeout_s=0.2)
    engine.wait_for(running=0)
    kinds = {row.error_kind for row in rows}
    assert kinds == {"timeout", None}
    slow = next(row for row in rows if not row.ok)
    assert slow.ended_s - slow.started_s >= 0.2
    assert slow.first_token_s is not None


def test_connections_that_the_server_closed_meanwhile_are_made_again_unseen():
    with FakeEngine(slots=8, idle_close_s=0.2, ttft_ms=20) as engine:

        async def load(sender, on_row):
            await asyncio.to_thread(engine.wait_for, connections_open=0)
            # It is closed there before that is seen here.
            while " 0 open" not in repr(sender.pool):
                await asyncio.sleep(0.001)
            await steady(sender, on_row, tasks(8), 8)

        rows = run(engine, load, ready=8)
        assert engine.state()["requests"] == 8
    assert all(row.ok and row.first_token_s - row.started_s >= 0.02 for row in rows)


def test_a_request_that_the_server_drops_is_a_failed_one_and_not_made_twice():
    """Prepared connections are fresh: one that is closed on a request is no stale one, and the
    engine fails visibly.
    """
    with FakeEngine(slots=8) as engine:
        engine.fault(kind="close-first", times=1)
        rows = run(engine, lambda sender, on_row: steady(sender, on_row, tasks(4), 4), ready=4)
        assert engine.state()["requests"] == 4
    assert [row.error_kind for row in rows].count("closed") == 1


# The end by force


def test_cancelling_a_load_gives_up_what_is_under_way():
    with FakeEngine(slots=4, ttft_ms=60_000) as engine:

        async def load(sender, on_row):
            work = asyncio.create_task(steady(sender, on_row, tasks(4), 4))
            await asyncio.to_thread(engine.wait_for, running=4)
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work

        assert run(engine, load) == []
        engine.wait_for(running=0)


def test_answers_that_had_ended_before_a_cancel_become_rows():
    """A hundred answers end at once; Ctrl-C comes with the first row.

    What was measured is kept.
    """
    with FakeEngine(slots=100, ttft_ms=100) as engine:

        async def load(sender, on_row):
            first = asyncio.Event()

            def keep_first(row):
                on_row(row)
                first.set()

            work = asyncio.create_task(steady(sender, keep_first, tasks(100), 100))
            await asyncio.to_thread(engine.wait_for, requests=100)
            # Blocks the loop: every answer lies in the kernel when it goes on.
            engine.wait_for(running=0)
            await first.wait()
            under_way = len(sender.in_flight)
            work.cancel()
            await asyncio.wait([work])
            ended.append(100 - under_way)

        ended = []
        rows = run(engine, load)
    assert len(rows) >= ended[0]  # one may have ended while the cancel was on its way


# What is sent


def test_more_fields_of_a_body_are_sent_as_they_are_even_half_a_surrogate_pair(
    engine,
):
    async def load(sender, on_row):
        assert (
            body_of(task(body={"cache_prompt": False}), sender.endpoint)["cache_prompt"] is False
        )
        assert body_of(task(fixed_output=True), sender.endpoint)["ignore_eos"] is True
        await steady(sender, on_row, [task(text="half \ud83d of it")], 1)

    (row,) = run(engine, load)
    assert row.ok
