"""When load that is spread begins: with everybody ready, at one moment for all; and what sending costs from then on."""

import asyncio
import contextlib
import gc
import os
import re
import signal
import time
from itertools import accumulate

from skep.bench.client_health import LATE_LIMIT_MS, RARELY, ClientHealth, garbage_kept, watch_client
from skep.bench.endpoint import Endpoint, find_endpoint
from skep.bench.load_generator import LEAD_S, LoadGenerator, LoadProcess, LoadProcesses
from skep.bench.load_process import Begin, LoadJob, carry_out, encode
from skep.bench.load_shapes import TimeWindow, TrafficStream
from skep.bench.recording import Identity, Recording
from skep.bench.request import BenchTask
from skep.host.facts import read_host
from skep.host.nvidia import NvidiaReport
from skep.store.database import open_store
from skep.wire.heads import parse_url

HOST = read_host(NvidiaReport())


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

    async def work(self, begin):
        if self.jobs == 2:
            self.stand_still()
        async for frame in super().work(begin):
            yield frame

    def stand_still(self):
        os.kill(self.pid, signal.SIGSTOP)
        asyncio.get_running_loop().call_later(LEAD_S + 0.15, self.wake)

    def wake(self):
        self.woken_s.append(time.monotonic())
        os.kill(self.pid, signal.SIGCONT)


async def load_processes_with(sleeper):
    load = LoadProcesses()
    load.processes = [await LoadProcess.start(), sleeper]
    for process in load.processes:
        await process.ready()
    return load


class Stopwatch:
    """A meter: from when to when what is drawn was counted, and what held when that began."""

    def __init__(self, look=lambda: None):
        self.look, self.seen, self.spans = look, [], []

    def begin(self):
        self.seen.append(self.look())
        self.began_s = time.monotonic()

    def end(self):
        self.spans.append((self.began_s, time.monotonic()))


async def driven(endpoint, path, load, offsets, runs=1, meter=None):
    """By two workers: for each run its rows, when the first was due, whether the client was the limit, and what is
    stored of that: the mark, and by how much it was late.
    """
    said = [[{"role": "user", "content": f"{n} hello"}] for n in range(len(offsets))]
    found = []
    with open_store(path) as store:
        async with Recording(store, endpoint, HOST, Identity("open", "f", {})) as recording:
            how = {"timeout_s": 30.0, "keep_text": False, "most_connections": 64, "processes": 2}
            driver = LoadGenerator(endpoint, recording, **how, meter=meter, load_processes=load)
            try:
                for run in range(runs):
                    tasks = [BenchTask(1, run, n, "fix", words, 2) for n, words in enumerate(said)]
                    strands = [TrafficStream(tasks, 1, offsets)]
                    rows, limited = await driver.run_streams_at_level(1, run, strands, lambda _: None, TimeWindow())
                    due = [recording.origin_s + row.scheduled_s for row in rows]
                    late = [one.fact["late_ms"] for one in recording.facts if (one.name, one.repeat) == ("late", run)]
                    found.append((rows, min(due), limited, recording.samples[-1].client_limited, late))
            finally:
                await driver.close()
    return found


def test_all_begin_when_all_are_ready_and_who_is_late_then_marks_the_run(engine, tmp_path):
    """A trace of 385 MB took longer to its processes than the half second they were given: what stood in the store as
    the server's latency was the way there. What the GPUs drew on that way is no request's either.
    """
    meter = Stopwatch()

    async def run():
        sleeper = await OftenStopped.start()
        load = await load_processes_with(sleeper)
        endpoint = await find_endpoint(engine.url, None)
        found = await driven(endpoint, tmp_path / "s.sqlite3", load, [0.01 * n for n in range(8)], runs=2, meter=meter)
        return found, sleeper.woken_s

    ((slow, slow_s, _, _, in_time), (late, late_s, *marks, late_ms)), (prepared_s, begun_s) = asyncio.run(run())
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


def test_what_one_process_draws_before_its_first_request_is_not_counted(engine, tmp_path):
    """Connections and the collection of garbage: 0.15 s of a GPU that had nothing to do."""
    with open_store(tmp_path / "s.sqlite3") as store:

        async def run():
            endpoint = await find_endpoint(engine.url, None)
            async with Recording(store, endpoint, HOST, Identity("sweep", "f", {})) as recording:
                meter = Stopwatch(lambda: (gc.get_threshold(), repr(driver.pool).rpartition(", ")[2]))
                how = {"timeout_s": 30.0, "keep_text": False, "most_connections": 64, "meter": meter}
                driver = LoadGenerator(endpoint, recording, **how)
                tasks = [BenchTask(3, 0, n, "fix", [{"role": "user", "content": f"{n}"}], 2) for n in range(4)]
                rows, _ = await driver.run_tasks(3, 0, tasks, 3, lambda _: None)
                await driver.close()
                return meter, [(recording.origin_s + row.started_s, recording.origin_s + row.ended_s) for row in rows]

        meter, times = asyncio.run(run())
    assert meter.seen == [(RARELY, "3 idle>")]
    ((began_s, ended_s),) = meter.spans
    assert began_s <= min(started_s for started_s, _ in times)
    assert max(last_s for _, last_s in times) <= ended_s


def test_a_late_beginning_is_the_clients_limit_and_a_hair_is_not():
    health = ClientHealth()
    health.add_worst(0.0, 0.0, 0.0, LATE_LIMIT_MS - 1)
    assert not health.limited
    health.add_worst(0.0, 0.0, 0.0, LATE_LIMIT_MS + 1)
    health.add_worst(0.0, 0.0, 0.0)
    assert health.late_ms == LATE_LIMIT_MS + 1
    assert health.limited


def test_garbage_is_collected_before_the_beginning_and_not_at_it():
    """The first requests of every spread schedule were late by a collection."""
    seen = []

    def note(phase, info):
        seen.append(info["generation"])

    async def run():
        async with watch_client():
            pass

    gc.callbacks.append(note)
    try:
        with garbage_kept():
            before = seen.count(2)
            asyncio.run(run())
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


def test_who_waits_for_others_keeps_its_connections_fresh_before_it_is_told_to_begin():
    """It opened them anew when the beginning was fixed: where that took over half a second, every run was late."""

    async def run():
        opened = asyncio.Queue()

        async def answer(reader, writer):
            opened.put_nowait(writer)
            await counted.answer(reader, writer)

        counted, orders, outbox = Counted(), asyncio.Queue(), Told()
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server, asyncio.timeout(10):
            origin, _ = parse_url(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            strands = [TrafficStream([BenchTask(1, 0, 0, "fix", [{"role": "user", "content": "hello"}], 2)], 1)]
            job = LoadJob(Endpoint(origin, "/v1", "m"), strands, time.monotonic(), 20.0, keep_text=False)
            work = asyncio.create_task(carry_out(job, orders, outbox, fresh_s=0.05))
            first = await opened.get()
            await opened.get()
            await first.wait_closed()
            waited = (outbox.greetings, counted.used)
            orders.put_nowait(encode(Begin()))
            await work
            return waited, counted.used, outbox.rows

    waited, used, rows = asyncio.run(run())
    assert (waited, used) == ((1, 0), 1)
    assert [row.ok for row in rows] == [True]


class Told:
    def __init__(self):
        self.greetings, self.rows = 0, []

    def send_ready(self):
        self.greetings += 1

    def took(self, row):
        self.rows.append(row)


def most_in_flight(rows):
    moments = sorted([(row.started_s, 1) for row in rows] + [(row.ended_s, -1) for row in rows])
    return max(accumulate(step for _, step in moments))


def test_arrivals_dealt_to_processes_use_a_connection_again(tmp_path):
    """A worker kept one idle connection of an open class, and opened one for most requests: that was in their TTFT."""
    counted = Counted()

    async def run():
        async with await asyncio.start_server(counted.answer, "127.0.0.1", 0) as server:
            origin, _ = parse_url(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            arrivals = [0.12 * (n // 10) for n in range(40)]
            return await driven(Endpoint(origin, "/v1", "m"), tmp_path / "s.sqlite3", LoadProcesses(), arrivals)

    ((rows, *_),) = asyncio.run(run())
    assert all(row.ok for row in rows)
    widths = [most_in_flight([row for row in rows if row.index % 2 == place]) for place in (0, 1)]
    assert counted.used <= sum(widths) + 2
