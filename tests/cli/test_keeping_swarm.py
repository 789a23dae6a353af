"""`skep store info` and `skep gc` on what the swarm left in the store."""

import json
import time

import pytest
from typer.testing import CliRunner

from skep.cli.main import app
from skep.store.database import open_store
from skep.swarm.records import Task
from skep.swarm.store import SwarmStore

DAY_S = 86400


@pytest.fixture
def store_path(tmp_path, monkeypatch):
    for name in ("CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    return tmp_path / "data" / "skep" / "skep.sqlite3"


def skep(*words):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return done


def begin(swarm, age_days):
    tasks = [Task(name, ({"role": "user", "content": name},)) for name in ("a", "b")]
    at = time.time() - age_days * DAY_S
    return swarm.begin(
        kind="map", created_at=at, name="x", url="u", model=None, config={}, skep_version="0", tasks=tasks
    )


def test_old_swarm_runs_are_counted_told_and_deleted(store_path):
    """One that stopped halfway goes by its age, and not before; one that was resumed of late stays."""
    with open_store(store_path) as store:
        swarm = SwarmStore(store)
        old, resumed, new = begin(swarm, 100), begin(swarm, 99), begin(swarm, 1)
        session = swarm.open_session(resumed, at=time.time(), agents=None, endpoint={}, simulated=False)
        swarm.close_session(resumed, session, at=time.time(), outcome="stopped")
    told = json.loads(skep("store", "info", "--json").stdout)
    assert (told["swarm_runs"], told["swarm_tasks"]) == (3, 6)
    assert json.loads(skep("gc", "--incomplete", "--json").stdout)["swarm_runs"] == []
    done = skep("gc", "--older-than", "90d")
    assert "deleted 0 runs, 1 swarm runs, 0 gateway requests and 0 old logs" in done.stderr
    assert done.stdout.split() == [old]
    with open_store(store_path, read_only=True) as store:
        assert [run.id for run in SwarmStore(store).runs()] == [new, resumed]
