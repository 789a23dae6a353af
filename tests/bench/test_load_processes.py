"""Several load processes that share a level: nothing twice, nothing lost, nobody left behind, one beginning for all."""

import asyncio
import contextlib
import gc
import os
import re
import signal
import time
from itertools import accumulate
from pathlib import Path

import pytest
from msgspec.structs import replace
from sample_rows import HOST, task, tasks

from skep.bench.endpoint import Endpoint, find_endpoint
from skep.bench.load_process import LEAD_S, SEND_EVERY_S, Begin, LoadJob, LoadProcess, LoadProcesses, carry_out, encode
from skep.bench.load_shapes import RARELY, ClientHealth, TimeWindow, garbage_kept, split_tasks, watch_client
from skep.bench.session import Identity, LoadGenerator, Recording
from skep.bench.summary import LATE_LIMIT_MS
from skep.bench.tasks import TrafficStream
from skep.errors import SkepError
from skep.store.database import open_store
from skep.wire.heads import parse_url


async def job(engine, some, width, *, offsets=None, until_s=None):
    endpoint = await find_endpoint(engine.url, None)
    how = {"origin_s": time.monotonic(), "timeout_s": 60.0, "keep_text": True, "span": TimeWindow(until_s=until_s)}
    return LoadJob(endpoint=endpoint, streams=[TrafficStream(some, width, offsets)], **how)


def is_running(pid):
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


@contextlib.asynccontextmanager
async def served(answer):
    """An endpoint whose connections are answered by `answer(reader, writer)`."""
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        origin, _ = parse_url(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        yield Endpoint(origin, "/v1", "m")


@contextlib.asynccontextmanager
async def processes():
    """Load processes and the rows they made; none is left behind."""
    load = LoadProcesses()
    try:
        yield load, []
    finally:
        pids = [process.pid for process in load.processes]
        await load.close()
        assert not any(map(is_running, pids))


async def answer_in_halves(reader, writer):
    """An emoji in two halves; the last answer comes when rows before it were handed on once."""
    half = 'data: {"choices":[{"delta":{"content":"\\u%s"},"finish_reason":%s}],"usage":{"completion_tokens":2}}\n\n'
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while head := await reader.readuntil(b"\r\n\r\n"):
            body = await reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))
            if b"3 hello" in body:
                await asyncio.sleep(2 * SEND_EVERY_S)
            data = (half % ("d83d", "null") + half % ("de00", '"stop"')).encode()
            kind = b"content-type: text/event-stream\r\ncontent-length: %d" % len(data)
            writer.write(b"HTTP/1.1 200 OK\r\n" + kind + b"\r\n\r\n" + data)
    writer.close()


async def test_rows_with_an_emoji_in_halves_are_not_lost():
    """Three of four were, and the level ended well."""
    async with served(answer_in_halves) as endpoint, processes() as (load, rows):
        work = LoadJob(endpoint, [TrafficStream(tasks(4), 1)], time.monotonic(), 20.0, keep_text=True)
        with contextlib.suppress(SkepError):
            await load.run([work], rows.append)
    assert sorted(row.index for row in rows) == [0, 1, 2, 3]


# Sharing


async def test_every_task_is_made_once_by_one_of_the_processes(engine):
    async with processes() as (load, rows):
        jobs = [await job(engine, some, places) for places, some in split_tasks(4, tasks(11), 2)]
        first = await load.run(jobs, rows.append)
        again = await load.run(jobs[:1], rows.append)
    assert sorted(row.index for row in rows) == sorted([*range(11), *range(0, 11, 2)])
    assert all(row.ok and row.answer and row.prompt for row in rows)
    assert first.cpu_share > 0
    assert again.lag_max_ms >= again.lag_p99_ms >= 0


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 11])
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_every_place_and_every_task_has_one_process_and_who_has_more_places_gets_more_tasks(width, workers):
    """Else the last one works on alone: at C=3 with two processes a third of the level had one in flight."""
    for number in (1, 4, 13, 12 * width):
        parts = split_tasks(width, range(number), workers)
        assert sorted(task for _, some in parts for task in some) == list(range(number))
        assert all(places > 0 and some for places, some in parts)
        assert sum(places for places, _ in parts) == width
    rounds = [len(some) / places for places, some in parts]
    assert max(rounds) / min(rounds) < 1.1


class Forgetful(LoadProcess):
    """Tells of one request less than it made."""

    async def _heard(self):
        news = await super()._heard()
        return replace(news, made=news.made + news.last)


async def test_a_process_that_tells_of_less_than_it_made_is_an_error(engine):
    async with processes() as (load, rows):
        load.processes = [await Forgetful.start()]
        await load.processes[0].ready()
        with pytest.raises(SkepError, match="reported 3 of 4 requests"):
            await load.run([await job(engine, tasks(3), 1)], rows.append)


async def test_no_more_is_begun_in_another_process_when_the_time_is_over(engine):
    async with processes() as (load, rows):
        await load.run([await job(engine, tasks(40), 2, until_s=0.0)], rows.append)
    assert sorted(row.index for row in rows) == [0, 1]


# Ends


@pytest.mark.parametrize("end", ["killed", "cancelled"])
async def test_a_killed_process_or_a_cancelled_run_leaves_no_process_and_no_request_behind(engine, end):
    """A kill is one clear error with a hint."""
    async with processes() as (load, rows):
        slow = [await job(engine, tasks(1, tokens=100_000), 1) for _ in range(2)]
        work = asyncio.create_task(load.run(slow, rows.append))
        await asyncio.to_thread(engine.wait_for, running=2)
        pids = [process.pid for process in load.processes]
        os.kill(pids[0], signal.SIGKILL) if end == "killed" else work.cancel()
        with pytest.raises((SkepError, asyncio.CancelledError)) as caught:
            await work
        if end == "killed":
            assert "ended by itself" in caught.value.message
            assert caught.value.hint
        assert not any(map(is_running, pids))
    engine.wait_for(running=0)


async def test_rows_of_a_killed_process_that_came_before_are_kept(engine):
    some = [*tasks(3), task(3, tokens=100_000)]
    async with processes() as (load, rows):
        work = asyncio.create_task(load.run([await job(engine, some, 1)], rows.append))
        while len(rows) < 3:
            await asyncio.sleep(0.01)
        os.kill(load.processes[0].pid, signal.SIGKILL)
        with pytest.raises(SkepError):
            await work
    assert [row.index for row in rows] == [0, 1, 2]
    engine.wait_for(running=0)


# When it begins


class OftenStopped(LoadProcess):
    """Stands still for longer than a beginning is ahead: with its first job before it prepares it, with its second one
    when it is told to begin.
    """

    def __init__(self, process):
        super().__init__(process)
        self.jobs, self.woken_s = 0, []

    async def prepare(self, job):
        self.jobs += 1
        if self.jobs == 1:
            self.stand_still()
        await super().prepare(job)

    async def work(self, begin, on_row, health):
        if self.jobs == 2:
            self.stand_still()
        await super().work(begin, on_row, health)

    def stand_still(self):
        os.kill(self.pid, signal.SIGSTOP)
        asyncio.get_running_loop().call_later(LEAD_S + 0.15, self.wake)

    def wake(self):
        self.woken_s.append(time.monotonic())
        os.kill(self.pid, signal.SIGCONT)


class Stopwatch:
    """A meter: from when to when what is drawn was counted, and what held when that began."""

    def __init__(self, look=lambda: None):
        self.look, self.seen, self.spans = look, [], []

    def begin(self):
        self.seen.append(self.look())
        self.began_s = time.monotonic()

    def end(self):
        self.spans.append((self.began_s, time.monotonic()))


async def timed_runs(endpoint, path, load, offsets, runs=1, meter=None):
    """By two workers: for each run its rows, when the first was due, whether the client was the limit, and what is
    stored of that: the mark, and by how much it was late.
    """
    found = []
    with open_store(path) as store:
        async with Recording(store, endpoint, HOST, Identity("open", "f", {})) as recording:
            how = {"timeout_s": 30.0, "keep_text": False, "most_connections": 64, "processes": 2}
            driver = LoadGenerator(endpoint, recording, **how, meter=meter, load_processes=load)
            try:
                for run in range(runs):
                    streams = [TrafficStream([replace(one, repeat=run) for one in tasks(len(offsets))], 1, offsets)]
                    rows, limited = await driver.run_streams_at_level(1, run, streams, lambda _: None, TimeWindow())
                    due = [recording.origin_s + row.scheduled_s for row in rows]
                    late = [one.fact["late_ms"] for one in recording.facts if (one.name, one.repeat) == ("late", run)]
                    found.append((rows, min(due), limited, recording.samples[-1].client_limited, late))
            finally:
                await driver.close()
    return found


async def test_all_begin_when_all_are_ready_and_who_is_late_then_marks_the_run(engine, tmp_path):
    """A trace of 385 MB took longer to its processes than the half second they were given: what stood in the store as
    the server's latency was the way there. What the GPUs drew on that way is no request's either.
    """
    meter, load = Stopwatch(), LoadProcesses()
    load.processes = [await LoadProcess.start(), sleeper := await OftenStopped.start()]
    for process in load.processes:
        await process.ready()
    endpoint, offsets = await find_endpoint(engine.url, None), [0.01 * n for n in range(8)]
    found = await timed_runs(endpoint, tmp_path / "s.sqlite3", load, offsets, runs=2, meter=meter)
    ((slow, slow_s, _, _, in_time), (late, late_s, *marks, late_ms)), (prepared_s, begun_s) = found, sleeper.woken_s
    assert sorted(row.index for row in slow) == sorted(row.index for row in late) == list(range(8))
    assert prepared_s <= slow_s
    assert slow_s < late_s < begun_s
    assert marks == [True, True]
    assert all(one > LATE_LIMIT_MS for one in in_time)  # a busy machine may be late by itself
    assert [one >= 1000 * (begun_s - late_s) for one in late_ms] == [True]
    (began_s, ended_s), _ = meter.spans
    took_s = max(row.ended_s for row in slow) - min(row.scheduled_s for row in slow)
    assert slow_s - 0.02 <= began_s
    assert slow_s + took_s <= ended_s


async def test_what_one_process_draws_before_its_first_request_is_not_counted(engine, store):
    """Connections and the collection of garbage: 0.15 s of a GPU that had nothing to do."""
    endpoint = await find_endpoint(engine.url, None)
    async with Recording(store, endpoint, HOST, Identity("sweep", "f", {})) as recording:
        meter = Stopwatch(lambda: (gc.get_threshold(), repr(driver.pool).rpartition(", ")[2]))
        how = {"timeout_s": 30.0, "keep_text": False, "most_connections": 64, "meter": meter}
        driver = LoadGenerator(endpoint, recording, **how)
        rows, _ = await driver.run_tasks(3, 0, [replace(one, level=3) for one in tasks(4)], 3, lambda _: None)
        await driver.close()
    assert meter.seen == [(RARELY, "3 idle>")]
    ((began_s, ended_s),) = meter.spans
    assert began_s <= recording.origin_s + min(row.started_s for row in rows)
    assert recording.origin_s + max(row.ended_s for row in rows) <= ended_s


def test_a_late_beginning_is_the_clients_limit_and_a_hair_is_not():
    """Nor is one moment of one process late by 80 ms the p99 of all."""
    health = ClientHealth()
    for latest in (80.0, 2.0):
        health.add_worst(1.0, latest, 0.1, LATE_LIMIT_MS - 1)
    assert (health.lag_max_ms, health.limited) == (80.0, False)
    health.add_worst(0.0, 0.0, 0.0, LATE_LIMIT_MS + 1)
    health.add_worst(0.0, 0.0, 0.0)
    assert (health.late_ms, health.limited) == (LATE_LIMIT_MS + 1, True)


async def test_garbage_is_collected_before_the_beginning_and_not_at_it():
    """The first requests of every spread schedule were late by a collection."""
    seen = []

    def note(phase, info):
        seen.append(info["generation"])

    gc.callbacks.append(note)
    try:
        with garbage_kept():
            before = seen.count(2)
            async with watch_client():
                pass
            assert (before, seen.count(2)) == (2, 2)  # its start and its stop
    finally:
        gc.callbacks.remove(note)


# Connections


EVENT = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}],"usage":{"completion_tokens":1}}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(EVENT)


class Counted:
    """Answers after a moment; counts the connections that requests came over."""

    def __init__(self):
        self.used = 0

    async def answer(self, reader, writer):
        is_used = False
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                if head.startswith(b"GET"):
                    writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                    continue
                self.used += not is_used
                is_used = True
                await reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))
                await asyncio.sleep(0.05)
                writer.write(HEAD + EVENT)
        writer.close()


class Told:
    def __init__(self):
        self.greetings, self.rows = 0, []
        self.took = self.rows.append

    def send_ready(self):
        self.greetings += 1


async def test_who_waits_for_others_keeps_its_connections_fresh_before_it_is_told_to_begin():
    """It opened them anew when the beginning was fixed: where that took over half a second, every run was late."""
    opened, counted, orders, outbox = asyncio.Queue(), Counted(), asyncio.Queue(), Told()

    async def answer(reader, writer):
        opened.put_nowait(writer)
        await counted.answer(reader, writer)

    async with served(answer) as endpoint, asyncio.timeout(10):
        one = LoadJob(endpoint, [TrafficStream(tasks(1), 1)], time.monotonic(), 20.0, keep_text=False)
        work = asyncio.create_task(carry_out(one, orders, outbox, fresh_s=0.05))
        first = await opened.get()
        await opened.get()
        await first.wait_closed()
        assert (outbox.greetings, counted.used) == (1, 0)
        orders.put_nowait(encode(Begin()))
        await work
    assert counted.used == 1
    assert [row.ok for row in outbox.rows] == [True]


def most_in_flight(rows):
    moments = sorted([(row.started_s, 1) for row in rows] + [(row.ended_s, -1) for row in rows])
    return max(accumulate(step for _, step in moments))


async def test_arrivals_dealt_to_processes_use_a_connection_again(tmp_path):
    """A worker kept one idle connection of an open class, and opened one for most requests: that was in their TTFT."""
    counted, arrivals = Counted(), [0.12 * (n // 10) for n in range(40)]
    async with served(counted.answer) as endpoint:
        ((rows, *_),) = await timed_runs(endpoint, tmp_path / "s.sqlite3", LoadProcesses(), arrivals)
    assert all(row.ok for row in rows)
    widths = [most_in_flight([row for row in rows if row.index % 2 == place]) for place in (0, 1)]
    assert counted.used <= sum(widths) + 2
