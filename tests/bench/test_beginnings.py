"""When load that is spread begins: with everybody ready, at one moment for all; and what sending costs from then on."""

import asyncio
import contextlib
import gc
import os
import re
import signal
import time
from itertools import accumulate

import pytest

from skep.bench.client_health import LATE_LIMIT_MS, ClientHealth, garbage_kept, watch_client
from skep.bench.crowd import LEAD_S
from skep.bench.driver import Driver
from skep.bench.endpoint import Endpoint, find_endpoint
from skep.bench.local_crowd import LoadProcess, LocalCrowd
from skep.bench.recording import Identity, Recording
from skep.bench.request import Task
from skep.bench.strands import Span, Strand
from skep.host.facts import read_host
from skep.host.nvidia import NvidiaReport
from skep.store.database import open_store
from skep.testing.process import FakeEngine
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


async def crowd_with(sleeper):
    crowd = LocalCrowd()
    crowd.processes = [await LoadProcess.start(), sleeper]
    for process in crowd.processes:
        await process.ready()
    return crowd


async def driven(endpoint, path, crowd, offsets, runs=1):
    """By two workers: for each run its rows, whether the client was the limit, and what is stored of it."""
    said = [[{"role": "user", "content": f"{n} hello"}] for n in range(len(offsets))]
    found = []
    with open_store(path) as store:
        async with Recording(store, endpoint, HOST, Identity("open", "f", {})) as recording:
            how = {"timeout_s": 30.0, "keep_text": False, "most_connections": 64, "processes": 2, "crowd": crowd}
            driver = Driver(endpoint, recording, **how)
            try:
                for run in range(runs):
                    tasks = [Task(1, run, n, "fix", words, 2) for n, words in enumerate(said)]
                    strands = [Strand(tasks, 1, offsets)]
                    rows, limited = await driver.run_strands(1, run, strands, lambda _: None, Span())
                    due = [recording.origin_s + row.scheduled_s for row in rows]
                    found.append((rows, min(due), limited, recording.samples[-1].client_limited))
            finally:
                await driver.close()
                await crowd.close()
    return found


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(slots=64) as started:
        yield started


def test_all_begin_when_all_are_ready_and_who_is_late_then_marks_the_run(engine, tmp_path):
    """A trace of 385 MB took longer to its processes than the half second they were given: what stood in the store as
    the server's latency was the way there.
    """

    async def run():
        sleeper = await OftenStopped.start()
        crowd = await crowd_with(sleeper)
        endpoint = await find_endpoint(engine.url, None)
        found = await driven(endpoint, tmp_path / "s.sqlite3", crowd, [0.01 * n for n in range(8)], runs=2)
        return found, sleeper.woken_s

    ((slow, slow_s, _, _), (late, late_s, *marks)), (prepared_s, begun_s) = asyncio.run(run())
    assert sorted(row.index for row in slow) == sorted(row.index for row in late) == list(range(8))
    assert prepared_s <= slow_s
    assert slow_s < late_s < begun_s
    assert marks == [True, True]


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
            return await driven(Endpoint(origin, "/v1", "m"), tmp_path / "s.sqlite3", LocalCrowd(), arrivals)

    ((rows, *_),) = asyncio.run(run())
    assert all(row.ok for row in rows)
    widths = [most_in_flight([row for row in rows if row.index % 2 == place]) for place in (0, 1)]
    assert counted.used <= sum(widths) + 2
