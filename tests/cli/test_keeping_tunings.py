"""`skep store info` and `skep gc` on what the tuner left in the store."""

import json
import time

import pytest
from typer.testing import CliRunner

from skep.cli.main import app
from skep.store.database import open_store
from skep.tuner.records import KnobConfig, StageDecision, TuneGoal, TuneStage, Tuning
from skep.tuner.store import TuningStore

DAY_S = 86400
BASELINE = KnobConfig.of({"slots": 1})


@pytest.fixture
def store_path(tmp_path, monkeypatch):
    for name in ("CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    return tmp_path / "data" / "skep" / "skep.sqlite3"


def skep(*words):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return done


def begin(tunings, age_days):
    at, aim = time.time() - age_days * DAY_S, TuneGoal("effective_tok_s", 4)
    return tunings.begin(Tuning("", at, "smol", "vllm", "box", aim, 60.0, 0, True, BASELINE, (), {}, {}, "0"))


def test_old_tunings_are_counted_told_and_deleted(store_path):
    """One that was broken off goes by its age, and not before; one that was resumed of late stays."""
    with open_store(store_path) as store:
        tunings = TuningStore(store)
        old, resumed, new = begin(tunings, 100), begin(tunings, 99), begin(tunings, 1)
        session = tunings.begin_session(resumed, time.time())
        tunings.append_stages(resumed, [TuneStage(0, (), BASELINE, StageDecision.BASELINE, "2 starts")], time.time())
        tunings.end_session(resumed, session, at=time.time(), outcome="stopped")
    told = json.loads(skep("store", "info", "--json").stdout)
    assert (told["tunings"], told["tuning_stages"]) == (3, 1)
    assert "3 tunings, 1 stages" in skep("store", "info").stdout
    assert json.loads(skep("gc", "--older-than", "90d", "--dry-run", "--json").stdout)["tunings"] == [old]
    done = skep("gc", "--older-than", "90d")
    assert "deleted 0 runs, 1 tunings, 0 gateway requests and 0 old logs" in done.stderr
    assert done.stdout.split() == [old]
    with open_store(store_path, read_only=True) as store:
        assert [kept.id for kept in TuningStore(store).tunings()] == [new, resumed]
