"""Load that two processes make: every request of it, its schedule, and that it is the load that one would make."""

import asyncio
import json
from dataclasses import asdict
from itertools import accumulate, islice

import pytest

from skep.bench.endpoint import find_endpoint
from skep.bench.load_shapes import split_between_workers
from skep.bench.open_loop import TimedPlan, classes_part, open_part, replay_part, run_timed
from skep.bench.sweep import SweepPlan, run_sweep
from skep.bench.tasks import TaskMaker, Workload
from skep.host.facts import read_host
from skep.host.nvidia import NvidiaReport
from skep.workload.calibration import TokenCalibration
from skep.workload.mix import TrafficClass
from skep.workload.traces import read_trace

HOST = read_host(NvidiaReport())


def test_a_rate_and_a_trace_are_dealt_to_the_processes(engine, store):
    maker = TaskMaker(Workload(max_tokens=2, seed=1))
    items = [{"timestamp": n, "input_length": 8, "output_length": 2, "hash_ids": [n]} for n in range(5)]
    lines = [json.dumps(item) for item in items]
    parts = [
        open_part(maker, 2, 0, rate=100.0, arrivals="constant", for_s=0.2),
        replay_part(read_trace(lines, speed=1.0, limit=None), TokenCalibration(), seed=1, default_tokens=2),
    ]

    async def run():
        endpoint = await find_endpoint(engine.url, None)
        return await run_timed(TimedPlan("open", {}, "f", processes=2), parts, endpoint, store, HOST, maker)

    run_id = asyncio.run(run()).run_id
    rows = [row for row in store.requests(run_id) if row.level]
    assert {sample.processes for sample in store.client_samples(run_id)} == {2}
    assert sorted(row.index for row in rows if row.kind != "replay") == list(range(20))
    assert sorted(row.index for row in rows if row.kind == "replay") == list(range(5))
    assert all(row.scheduled_s is not None and row.ok for row in rows)


def talked(engine, store, processes):
    load = Workload(shape="conversation", turns=3, think_s=0.02, max_tokens=2, seed=1)
    plan = SweepPlan(concurrency=(4,), runs=1, tasks=21, workload=load, quick_warm_up=True, processes=processes)

    async def run():
        return await run_sweep(plan, await find_endpoint(engine.url, None), store, HOST)

    summary = asyncio.run(run())
    return summary, {row.index: row for row in store.requests(summary.run_id) if row.level}


def test_conversations_stay_whole_and_are_those_of_one_process(engine, store):
    """Turn after turn with the think times between them, the same words; and a summary of the same form."""
    spread, rows = talked(engine, store, 2)
    here, alone = talked(engine, store, 1)
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
    assert flat(asdict(spread.levels[0])) == flat(asdict(here.levels[0]))
    assert asdict(spread).keys() == asdict(here).keys()


def flat(document):
    """Which keys hold a value, without the values; whether agents who think were ever all at work is chance."""
    return {key: value is not None for key, value in document.items() if key != "plateau_tok_s"}


MIX = (
    TrafficClass("agents", "steady", agents=3, prompt_tokens=40, max_tokens=2, think_s=0.02, priority="batch"),
    TrafficClass("chat", "conversation", agents=2, prompt_tokens=40, max_tokens=2, turns=3, think_s=0.01),
    TrafficClass("cron", "open", rate=60.0, prompt_tokens=40, max_tokens=2, priority="interactive"),
)


def mixed(engine, store, part, processes):
    async def run():
        endpoint, plan = await find_endpoint(engine.url, None), TimedPlan("classes", {}, "f", processes=processes)
        return await run_timed(plan, [part], endpoint, store, HOST, TaskMaker(Workload(seed=1)))

    summary = asyncio.run(run())
    return summary, [row for row in store.requests(summary.run_id) if row.level]


def test_classes_keep_their_shares_and_arrivals_over_processes(engine, store):
    part = classes_part(MIX, TokenCalibration(), 0, seed=1, for_s=0.4)
    spread, rows = mixed(engine, store, part, 2)
    here, alone = mixed(engine, store, part, 1)
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
    for strand in [strand for hand in split_between_workers(part.strands, 2) for strand in hand]:
        one = next(one for one in MIX if one.name == strand.tasks[0].traffic)
        assert {task.priority for task in strand.tasks} == {one.priority}
    assert [flat(asdict(one)) for one in spread.classes] == [flat(asdict(one)) for one in here.classes]
