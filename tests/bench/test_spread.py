"""Load that others make: every request of it, its schedule, and what is kept and said of those who made it."""

import asyncio
import json
import socket
from contextlib import nullcontext
from dataclasses import asdict, replace
from itertools import accumulate, islice
from types import SimpleNamespace

import pytest

from skep.bench.crowd import Fared
from skep.bench.endpoint import find_endpoint
from skep.bench.loaded import load_run
from skep.bench.local_crowd import LocalCrowd
from skep.bench.strands import dealt
from skep.bench.sweep import SweepPlan, run_sweep
from skep.bench.tasks import TaskMaker, Workload
from skep.bench.timed import TimedPlan, classes_part, open_part, replay_part, run_timed
from skep.bench.workers import WorkerFact, workers_fact
from skep.cli.summaries import remarks
from skep.cluster.load import Worker, _check_reaches, check_reachable_from
from skep.cluster.load_hand import LoadHand
from skep.errors import EndpointError, UserError
from skep.host.facts import read_host
from skep.host.nvidia import NvidiaReport
from skep.report.checks import workers_sentence
from skep.store.database import open_store
from skep.testing.process import FakeEngine
from skep.wire.heads import parse_url
from skep.workload.calibration import Calibration
from skep.workload.mix import TrafficClass
from skep.workload.traces import read_trace

HOST = read_host(NvidiaReport())
WORKER = WorkerFact("10.0.0.7", "a1", 3, 0.1, 0.5, 2.0, 499.5, 0.25, 40.0, 4.0)


class CrowdNextDoor:
    """A crowd as other machines would be: two workers, who tell where they are and how well their clocks are known."""

    few, most = 2, 2

    def __init__(self, *workers):
        self.inner, self.jobs = LocalCrowd(), []
        self.workers = workers

    async def run(self, jobs, on_row, witness):
        self.jobs.append(len(jobs))
        fared = await self.inner.run(jobs, on_row, witness)
        return Fared(fared.health, workers_fact(self.workers))

    async def close(self):
        await self.inner.close()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.close()


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(slots=64) as started:
        yield started


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "s.sqlite3") as opened:
        yield opened


def test_a_crowd_makes_every_request_of_a_sweep_and_is_known_afterwards(engine, store):
    """Be it one alone: C=1 and C=4 are to come over the same way."""
    crowd = CrowdNextDoor(WORKER, replace(WORKER, node="10.0.0.8", clock_error_ms=0.5, drift_ppm=3.0))
    plan = SweepPlan(concurrency=(1, 4), runs=1, tasks=8, workload=Workload(max_tokens=2, seed=1), quick_warm_up=True)

    async def run():
        endpoint = await find_endpoint(engine.url, None)
        async with crowd:
            return await run_sweep(plan, endpoint, store, HOST, crowd=crowd)

    summary = asyncio.run(run())
    assert crowd.jobs == [1, 2, 1, 2]  # warm-up, and the two levels
    rows = store.requests(summary.run_id)
    assert sorted((row.level, row.index) for row in rows if row.level) == [(c, n) for c in (1, 4) for n in range(8)]
    for level in summary.levels:
        assert (level.workers.number, level.workers.nodes) == (2, ("10.0.0.7", "10.0.0.8"))
        assert level.workers.clock_error_ms == 0.75  # from one's first start to the other's last end
        assert level.workers.drift_ppm == 40.0  # the other's 3 ppm are less than it is known by
        assert level.workers.clock_error_share == pytest.approx(0.75e-3 / level.wall_s)
    assert load_run(store, summary.run_id)[1] == summary


def test_a_rate_and_a_trace_are_dealt_to_the_crowd(engine, store):
    maker = TaskMaker(Workload(max_tokens=2, seed=1))
    items = [{"timestamp": n, "input_length": 8, "output_length": 2, "hash_ids": [n]} for n in range(5)]
    lines = [json.dumps(item) for item in items]
    parts = [
        open_part(maker, 2, 0, rate=100.0, arrivals="constant", for_s=0.2),
        replay_part(read_trace(lines, speed=1.0, limit=None), Calibration(), seed=1, default_tokens=2),
    ]
    crowd = CrowdNextDoor(WORKER)

    async def run():
        endpoint = await find_endpoint(engine.url, None)
        async with crowd:
            return await run_timed(TimedPlan("open", {}, "f"), parts, endpoint, store, HOST, maker, crowd=crowd)

    rows = [row for row in store.requests(asyncio.run(run()).run_id) if row.level]
    assert crowd.jobs == [1, 2, 2]
    assert sorted(row.index for row in rows if row.kind != "replay") == list(range(20))
    assert sorted(row.index for row in rows if row.kind == "replay") == list(range(5))
    assert all(row.scheduled_s is not None and row.ok for row in rows)


def talked(engine, store, crowd):
    load = Workload(shape="conversation", turns=3, think_s=0.02, max_tokens=2, seed=1)
    plan = SweepPlan(concurrency=(4,), runs=1, tasks=21, workload=load, quick_warm_up=True)

    async def run():
        async with crowd or nullcontext():
            return await run_sweep(plan, await find_endpoint(engine.url, None), store, HOST, crowd=crowd)

    summary = asyncio.run(run())
    return summary, {row.index: row for row in store.requests(summary.run_id) if row.level}


def test_conversations_stay_whole_and_are_those_of_a_local_run(engine, store):
    """Turn after turn with the think times between them, the same words; and a summary of the same form."""
    crowd = CrowdNextDoor(WORKER)
    spread, rows = talked(engine, store, crowd)
    here, alone = talked(engine, store, None)
    assert crowd.jobs[-1] == 2
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
    assert flat(asdict(replace(spread.levels[0], workers=None))) == flat(asdict(here.levels[0]))
    assert asdict(spread).keys() == asdict(here).keys()


def flat(document):
    """Which keys hold a value, without the values; whether agents who think were ever all at work is chance."""
    return {key: value is not None for key, value in document.items() if key != "plateau_tok_s"}


MIX = (
    TrafficClass("agents", "steady", agents=3, prompt_tokens=40, max_tokens=2, think_s=0.02, priority="batch"),
    TrafficClass("chat", "conversation", agents=2, prompt_tokens=40, max_tokens=2, turns=3, think_s=0.01),
    TrafficClass("cron", "open", rate=60.0, prompt_tokens=40, max_tokens=2, priority="interactive"),
)


def mixed(engine, store, part, crowd):
    async def run():
        endpoint, plan = await find_endpoint(engine.url, None), TimedPlan("classes", {}, "f")
        async with crowd or nullcontext():
            return await run_timed(plan, [part], endpoint, store, HOST, TaskMaker(Workload(seed=1)), crowd=crowd)

    summary = asyncio.run(run())
    return summary, [row for row in store.requests(summary.run_id) if row.level]


def test_classes_keep_their_shares_and_arrivals_over_workers(engine, store):
    crowd, part = CrowdNextDoor(WORKER), classes_part(MIX, Calibration(), 0, seed=1, for_s=0.4)
    spread, rows = mixed(engine, store, part, crowd)
    here, alone = mixed(engine, store, part, None)
    assert crowd.jobs == [1, 2]
    assert all(row.ok for row in rows)
    cron = sorted((row for row in rows if row.traffic == "cron"), key=lambda row: row.index)
    due = [row.scheduled_s for row in cron]
    begin = due[0] - part.strands[2].offsets[0]
    assert due == pytest.approx([begin + offset for offset in part.strands[2].offsets], abs=1e-6)
    late = [row for row in rows if row.traffic == "agents" and row.started_s > begin + 0.4]
    assert len(late) <= 3  # each agent comes back from its pause once
    chat = {row.index: row for row in rows if row.traffic == "chat"}
    assert all(not row.turn or chat[row.index - 1].ended_s <= row.started_s for row in chat.values())
    words = {(row.traffic, row.index): row.prompt for row in alone if not row.turn}
    both = [row for row in rows if (row.traffic, row.index) in words]
    assert {row.traffic for row in both} == {"agents", "chat", "cron"}
    assert all(words[row.traffic, row.index] == row.prompt for row in both)
    assert [level.traffic for level in spread.classes] == [level.traffic for level in here.classes]
    for strand in [strand for hand in dealt(part.strands, 2) for strand in hand]:
        one = next(one for one in MIX if one.name == strand.tasks[0].traffic)
        assert {task.priority for task in strand.tasks} == {one.priority}
    assert [flat(asdict(one)) for one in spread.classes] == [flat(asdict(one)) for one in here.classes]


def test_clocks_that_are_known_badly_are_said_with_a_warning(engine, store):
    plan = SweepPlan(concurrency=(2,), runs=1, tasks=4, workload=Workload(max_tokens=2, seed=1), quick_warm_up=True)

    async def run(worker):
        endpoint = await find_endpoint(engine.url, None)
        async with CrowdNextDoor(worker) as crowd:
            return await run_sweep(plan, endpoint, store, HOST, crowd=crowd)

    bad = asyncio.run(run(replace(WORKER, clock_error_ms=5000.0)))
    (line,) = [line for line in remarks(bad) if "made the load" in line]
    assert "1 worker on 10.0.0.7 made the load" in line
    assert "warning: their clocks leave up to 5000.0 ms open" in line
    good = replace(bad.levels[0], workers=replace(bad.levels[0].workers, clock_error_ms=0.5, clock_error_share=0.002))
    assert "warning" not in workers_sentence([good])
    assert "0.5 ms open, 0.20 % of a run's wall time" in workers_sentence([good])
    assert workers_sentence([replace(good, workers=None)]) is None
    assert asdict(good)["workers"]["nodes"] == ("10.0.0.7",)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_loopback_address_is_refused_where_workers_are_on_other_machines(host):
    origin, _ = parse_url(f"http://{host}:8400")
    check_reachable_from(origin, ["10.0.0.5", "127.0.0.1"], "10.0.0.5")
    with pytest.raises(UserError, match=r"is this machine only, and workers are on 10\.0\.0\.6, 10\.0\.0\.7") as caught:
        check_reachable_from(origin, ["10.0.0.7", "10.0.0.5", "10.0.0.6"], "10.0.0.5")
    assert "--url" in caught.value.hint
    check_reachable_from(parse_url("http://10.0.0.5:8400")[0], ["10.0.0.7"], "10.0.0.5")


def test_a_node_that_does_not_reach_the_endpoint_is_named_with_the_reason(engine):
    """An actor as Ray would hand it out, on this machine."""
    hand = LoadHand()
    worker = Worker(SimpleNamespace(why_not=SimpleNamespace(remote=hand.why_not)), "10.0.0.7", "a1", ())
    asyncio.run(_check_reaches(worker, parse_url(engine.url)[0]))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(EndpointError, match=rf"10\.0\.0\.7 does not reach {nobody}: .*refused") as caught:
            asyncio.run(_check_reaches(worker, parse_url(nobody)[0]))
    assert "firewall" in caught.value.hint
