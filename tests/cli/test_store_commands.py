"""`skep store` and `skep gc` on what the gateway, the swarm and the tuner left in the store."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from in_process import call

from skep.store.database import open_store
from skep.swarm.records import Task
from skep.swarm.store import SwarmStore
from skep.tuner.records import KnobConfig, StageDecision, TuneGoal, TuneStage, Tuning
from skep.tuner.store import TuningStore

VERSION_1 = Path(__file__).parent.parent / "store" / "versions" / "1.sql"
DAY_S = 86400
BASELINE = KnobConfig.of({"slots": 1})
OLD = ("gc", "--older-than", "90d")


def told(*words):
    return call(*words, "--json", check=0).json


def request(name, age_s):
    return (
        name, time.time() - age_s, "/v1/models", None, "normal", None, None, 0, "refused", 503, "loading",
        False, None, None, 0.01, None, None, None, 0, 200,
    )  # fmt: skip


def test_old_gateway_requests_are_counted_told_and_deleted(paths):
    with open_store(paths.store) as store:
        store.append_gateway_values([request(name, age * DAY_S) for name, age in (("a", 100), ("b", 200), ("new", 1))])
    assert told("store", "info")["gateway_requests"] == 3
    assert "3 gateway requests" in call("store", "info", check=0).out
    assert told("gc", "--incomplete")["gateway_requests"] == 0  # no age: they are left alone
    assert "would delete 0 runs, 2 gateway requests and 0 old logs" in call(*OLD, "--dry-run", check=0).err
    assert told(*OLD, "--dry-run")["gateway_requests"] == 2
    done = told(*OLD)
    assert (done["gateway_requests"], done["runs"], done["dry_run"]) == (2, [], False)
    with open_store(paths.store, read_only=True) as store:
        assert [kept.id for kept in store.gateway_requests()] == ["new"]


def test_nothing_is_counted_where_there_is_no_store(paths):
    assert told("store", "info")["gateway_requests"] == 0
    assert told("gc", "--older-than", "0s")["gateway_requests"] == 0
    assert not paths.store.exists()


def test_commands_that_only_read_open_a_store_of_the_version_before(paths):
    """They come first after an upgrade, and told their users to run themselves."""
    paths.store.parent.mkdir(parents=True)
    with closing(sqlite3.connect(paths.store)) as database:
        database.executescript(VERSION_1.read_text())
    assert [run["id"] for run in told("runs")] == ["20261115-142233-a1b2c3"]
    assert told("store", "info")["runs"] == 1


def begin_swarm(swarm, age_days):
    tasks = [Task(name, ({"role": "user", "content": name},)) for name in ("a", "b")]
    about = {"kind": "map", "name": "x", "url": "u", "model": None, "config": {}, "skep_version": "0"}
    return swarm.begin(created_at=time.time() - age_days * DAY_S, tasks=tasks, **about)


def test_old_swarm_runs_are_counted_told_and_deleted(paths):
    """One that stopped halfway goes by its age, and not before; one that was resumed of late stays."""
    with open_store(paths.store) as store:
        swarm = SwarmStore(store)
        old, resumed, new = (begin_swarm(swarm, days) for days in (100, 99, 1))
        session = swarm.open_session(resumed, at=time.time(), agents=None, endpoint={}, simulated=False)
        swarm.close_session(resumed, session, at=time.time(), outcome="stopped")
    info = told("store", "info")
    assert (info["swarm_runs"], info["swarm_tasks"]) == (3, 6)
    assert told("gc", "--incomplete")["swarm_runs"] == []
    done = call(*OLD, check=0)
    assert "deleted 0 runs, 1 swarm runs, 0 gateway requests and 0 old logs" in done.err
    assert done.out.split() == [old]
    with open_store(paths.store, read_only=True) as store:
        assert [run.id for run in SwarmStore(store).runs()] == [new, resumed]


def begin_tuning(tunings, age_days):
    at, goal = time.time() - age_days * DAY_S, TuneGoal("effective_tok_s", 4)
    return tunings.begin(Tuning("", at, "smol", "vllm", "box", goal, 60.0, 0, True, BASELINE, (), {}, {}, "0"))


def test_old_tunings_are_counted_told_and_deleted(paths):
    """One that was broken off goes by its age, and not before; one that was resumed of late stays."""
    with open_store(paths.store) as store:
        tunings = TuningStore(store)
        old, resumed, new = (begin_tuning(tunings, days) for days in (100, 99, 1))
        session = tunings.begin_session(resumed, time.time())
        tunings.append_stages(resumed, [TuneStage(0, (), BASELINE, StageDecision.BASELINE, "2 starts")], time.time())
        tunings.end_session(resumed, session, at=time.time(), outcome="stopped")
    info = told("store", "info")
    assert (info["tunings"], info["tuning_stages"]) == (3, 1)
    assert "3 tunings, 1 stages" in call("store", "info").out
    assert told(*OLD, "--dry-run")["tunings"] == [old]
    done = call(*OLD, check=0)
    assert "deleted 0 runs, 1 tunings, 0 gateway requests and 0 old logs" in done.err
    assert done.out.split() == [old]
    with open_store(paths.store, read_only=True) as store:
        assert [kept.id for kept in TuningStore(store).tunings()] == [new, resumed]
