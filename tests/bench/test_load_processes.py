"""Several load processes that share a level: nothing twice, nothing lost, nobody left behind."""

import asyncio
import contextlib
import json
import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from skep.bench.client_health import ClientHealth
from skep.bench.endpoint import Endpoint, find_endpoint
from skep.bench.load_generator import LoadGenerator, LoadProcess, LoadProcesses
from skep.bench.load_process import SEND_EVERY_S, LoadJob, LoadUpdate, decode_news, framed
from skep.bench.load_shapes import TimeWindow, TrafficStream, split_tasks
from skep.bench.recording import Identity, Recording
from skep.bench.request import BenchTask
from skep.errors import SkepError
from skep.host.facts import read_host
from skep.host.nvidia import NvidiaReport
from skep.store.database import open_store
from skep.store.records import Request
from skep.wire.heads import parse_url

HOST = read_host(NvidiaReport())


def tasks(number, tokens=2, **fields):
    return [
        BenchTask(4, 0, n, "fix", [{"role": "user", "content": f"{n} hello"}], tokens, **fields) for n in range(number)
    ]


async def job(engine, some, width, *, offsets=None, until_s=None):
    endpoint = await find_endpoint(engine.url, None)
    how = {"origin_s": time.monotonic(), "timeout_s": 60.0, "keep_text": True, "span": TimeWindow(until_s=until_s)}
    return LoadJob(endpoint=endpoint, strands=[TrafficStream(some, width, offsets)], **how)


def is_running(pid):
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


async def close_all(load):
    pids = [process.pid for process in load.processes]
    await load.close()
    assert not any(map(is_running, pids))


# Frames


def test_rows_and_jobs_come_through_as_they_were():
    row = Request(4, 1, 2, "fix", 0.5, 1.5, arrivals_s=(0.7, 0.7, 1.2), answer="日本", scheduled_s=0.25)
    news = LoadUpdate([row], 1.0, 2.0, 0.5, made=1, last=True)
    frame = framed(news)
    assert decode_news(frame[4:]) == news
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4


async def answer_in_halves(reader, writer):
    """An emoji in two halves; the last answer comes when rows before it were handed on once."""
    half = 'data: {"choices":[{"delta":{"content":"\\u%s"},"finish_reason":%s}],"usage":{"completion_tokens":2}}\n\n'
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while head := await reader.readuntil(b"\r\n\r\n"):
            body = await reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))
            if b"3 hello" in body:
                await asyncio.sleep(2 * SEND_EVERY_S)
            data = (half % ("d83d", "null") + half % ("de00", '"stop"')).encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(data)
            )
            writer.write(data)
    writer.close()


def test_rows_with_an_emoji_in_halves_are_not_lost():
    """Three of four were, and the level ended well."""

    async def run():
        async with await asyncio.start_server(answer_in_halves, "127.0.0.1", 0) as server:
            origin, _ = parse_url(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            load, rows = LoadProcesses(), []
            strands = [TrafficStream(tasks(4), 1)]
            work = LoadJob(Endpoint(origin, "/v1", "m"), strands, time.monotonic(), 20.0, keep_text=True)
            with contextlib.suppress(SkepError):
                await load.run([work], rows.append)
            await close_all(load)
            return sorted(row.index for row in rows)

    assert asyncio.run(run()) == [0, 1, 2, 3]


# Sharing


def test_every_task_is_made_once_by_one_of_the_processes(engine):
    async def run():
        load, rows = LoadProcesses(), []
        jobs = [await job(engine, some, places) for places, some in split_tasks(4, tasks(11), 2)]
        first = await load.run(jobs, rows.append)
        again = await load.run(jobs[:1], rows.append)
        await close_all(load)
        return rows, first, again

    rows, first, again = asyncio.run(run())
    assert sorted(row.index for row in rows) == sorted([*range(11), *range(0, 11, 2)])
    assert all(row.ok and row.answer and row.prompt for row in rows)
    assert first.cpu_share > 0
    assert again.lag_max_ms >= again.lag_p99_ms >= 0


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("processes", [1, 2, 3, 4])
@pytest.mark.parametrize("number", [1, 4, 13])
def test_every_place_and_every_task_has_one_process_and_none_goes_without(width, processes, number):
    parts = split_tasks(width, range(number), processes)
    assert sorted(task for _, some in parts for task in some) == list(range(number))
    assert all(places > 0 and some for places, some in parts)
    assert sum(places for places, _ in parts) == width


@pytest.mark.parametrize(("width", "processes"), [(3, 2), (5, 2), (5, 4), (11, 2)])
def test_a_process_with_more_places_gets_more_tasks(width, processes):
    """Else the last one works on alone: at C=3 with two processes a third of the level had one in flight."""
    rounds = [len(some) / places for places, some in split_tasks(width, range(12 * width), processes)]
    assert max(rounds) / min(rounds) < 1.1


def test_one_late_moment_of_one_process_is_not_the_p99_of_all():
    """Two processes with a p99 of 1 ms, one of which was 80 ms late once."""
    health = ClientHealth()
    for latest in (80.0, 2.0):
        health.add_worst(1.0, latest, 0.1)
    assert health.lag_max_ms == 80.0
    assert not health.limited


class Forgetful(LoadProcess):
    """Tells of one request less than it made."""

    async def work(self, begin):
        async for news in super().work(begin):
            yield replace(news, made=news.made + news.last)


def test_a_process_that_tells_of_less_than_it_made_is_an_error(engine):
    async def run():
        load = LoadProcesses()
        load.processes = [await Forgetful.start()]
        await load.processes[0].ready()
        with pytest.raises(SkepError, match="reported 3 of 4 requests"):
            await load.run([await job(engine, tasks(3), 1)], lambda _: None)

    asyncio.run(run())


def test_no_more_is_begun_in_another_process_when_the_time_is_over(engine):
    async def run():
        load, rows = LoadProcesses(), []
        work = [await job(engine, tasks(40), 2, until_s=0.0)]
        await load.run(work, rows.append)
        await close_all(load)
        return rows

    assert sorted(row.index for row in asyncio.run(run())) == [0, 1]


# Ends


def test_a_killed_process_is_one_clear_error_and_takes_the_others_along(engine):
    async def run():
        load, rows = LoadProcesses(), []
        jobs = [await job(engine, tasks(1), 1) for _ in range(2)]
        await load.run(jobs, rows.append)
        pids = [process.pid for process in load.processes]
        slow = [await job(engine, tasks(1, tokens=100_000), 1) for _ in range(2)]
        work = asyncio.create_task(load.run(slow, rows.append))
        await asyncio.to_thread(engine.wait_for, running=2)
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(SkepError, match="ended by itself") as caught:
            await work
        assert caught.value.hint
        return pids

    pids = asyncio.run(run())
    assert not any(map(is_running, pids))
    engine.wait_for(running=0)


def test_a_cancelled_run_leaves_no_process_and_no_request_behind(engine):
    async def run():
        load = LoadProcesses()
        work = asyncio.create_task(load.run([await job(engine, tasks(2, tokens=100_000), 2)], lambda _: None))
        await asyncio.to_thread(engine.wait_for, running=2)
        pids = [process.pid for process in load.processes]
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        return pids

    assert not any(map(is_running, asyncio.run(run())))
    engine.wait_for(running=0)


def test_rows_of_a_killed_process_that_came_before_are_kept(engine):
    async def run():
        load, rows = LoadProcesses(), []
        some = [*tasks(3), BenchTask(4, 0, 3, "fix", [{"role": "user", "content": "long"}], 100_000)]
        came = asyncio.Event()

        def took(row):
            rows.append(row)
            if len(rows) == 3:
                came.set()

        work = asyncio.create_task(load.run([await job(engine, some, 1)], took))
        await came.wait()
        os.kill(load.processes[0].pid, signal.SIGKILL)
        with pytest.raises(SkepError):
            await work
        return rows

    assert [row.index for row in asyncio.run(run())] == [0, 1, 2]
    engine.wait_for(running=0)


# Through the driver


def driven(engine, path, number, width, *, processes, offsets=None):
    async def run():
        endpoint = await find_endpoint(engine.url, None)
        with open_store(path) as store:
            async with Recording(store, endpoint, HOST, Identity("sweep", "f", {})) as recording:
                how = {"timeout_s": 30.0, "keep_text": False, "most_connections": 16}
                driver = LoadGenerator(endpoint, recording, **how, processes=processes)
                try:
                    rows, _ = await driver.run_tasks(width, 0, tasks(number), width, lambda _: None, offsets)
                finally:
                    await driver.close()
            return rows, store.client_samples(recording.run_id), store.requests(recording.run_id)

    return asyncio.run(run())


def test_what_several_processes_made_is_stored_once(engine, tmp_path):
    rows, (sample,), stored = driven(engine, tmp_path / "s.sqlite3", 12, 4, processes=2)
    assert sorted(row.index for row in rows) == sorted(row.index for row in stored) == list(range(12))
    assert sample.processes == 2
    assert json.dumps(sample.delivered)


def test_a_schedule_shared_by_processes_is_not_taken_for_a_concurrency(engine, tmp_path):
    """Sparse arrivals are no lack of the client's."""
    offsets = [n / 20 for n in range(6)]
    _, (sample,), _ = driven(engine, tmp_path / "s.sqlite3", 6, 2, processes=2, offsets=offsets)
    assert sample.delivered is None
