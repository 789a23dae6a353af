"""Load that others make: every request of it, its schedule, and what is kept and said of those who made it."""

import asyncio
import json
from dataclasses import asdict, replace

import pytest

from skep.bench.crowd import Fared
from skep.bench.endpoint import find_endpoint
from skep.bench.loaded import load_run
from skep.bench.local_crowd import LocalCrowd
from skep.bench.sweep import SweepPlan, run_sweep
from skep.bench.tasks import TaskMaker, Workload
from skep.bench.timed import TimedPlan, open_part, replay_part, run_timed
from skep.bench.workers import WorkerFact, workers_fact
from skep.cli.summaries import remarks
from skep.cluster.load import check_reachable_from
from skep.errors import UserError
from skep.host.facts import read_host
from skep.host.nvidia import NvidiaReport
from skep.report.checks import workers_sentence
from skep.store.database import open_store
from skep.testing.process import FakeEngine
from skep.wire.heads import parse_url
from skep.workload.calibration import Calibration
from skep.workload.traces import read_trace

HOST = read_host(NvidiaReport())
WORKER = WorkerFact("10.0.0.7", "a1", 3, 0.1, 0.5, 2.0, 499.5, 0.25, 40.0, 4.0)


class CrowdNextDoor:
    """A crowd as other machines would be: two workers, who tell where they are and how well their clocks are known."""

    few, most = 2, 2

    def __init__(self, *workers):
        self.inner, self.jobs, self.closed = LocalCrowd(), [], False
        self.workers = workers

    async def run(self, jobs, on_row):
        self.jobs.append(len(jobs))
        fared = await self.inner.run(jobs, on_row)
        return Fared(fared.health, workers_fact(self.workers))

    async def close(self):
        self.closed = True
        await self.inner.close()


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
        return await run_sweep(plan, endpoint, store, HOST, crowd=crowd)

    summary = asyncio.run(run())
    assert crowd.closed
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
        return await run_timed(TimedPlan("open", {}, "f"), parts, endpoint, store, HOST, maker, crowd=crowd)

    rows = [row for row in store.requests(asyncio.run(run()).run_id) if row.level]
    assert crowd.jobs == [1, 2, 2]
    assert sorted(row.index for row in rows if row.kind != "replay") == list(range(20))
    assert sorted(row.index for row in rows if row.kind == "replay") == list(range(5))
    assert all(row.scheduled_s is not None and row.ok for row in rows)


def test_clocks_that_are_known_badly_are_said_with_a_warning(engine, store):
    plan = SweepPlan(concurrency=(2,), runs=1, tasks=4, workload=Workload(max_tokens=2, seed=1), quick_warm_up=True)

    async def run(worker):
        endpoint = await find_endpoint(engine.url, None)
        return await run_sweep(plan, endpoint, store, HOST, crowd=CrowdNextDoor(worker))

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
