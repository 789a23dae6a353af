"""`skep swarm run` and what follows, against an engine that is a real process."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from called import own_folders, swarm

from skep.paths import user_paths
from skep.store.database import open_store
from skep.swarm.store import SwarmStore
from skep.testing.process import FakeEngine

MODEL = ("--model", "fake-model", "--max-tokens", "4")


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(slots=4, token_ms=1) as one:
        yield one


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    own_folders(monkeypatch, tmp_path)
    lines = [json.dumps({"id": f"t{number}", "prompt": f"count to {number}"}) for number in range(12)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(lines) + "\n")
    return sorted(f"t{number}" for number in range(12))


def ids(text):
    return [json.loads(line)["id"] for line in text.splitlines()]


def test_every_task_has_one_line_and_the_end_says_what_came_of_it(engine, tasks, tmp_path):
    done = swarm("run", "tasks.jsonl", "--url", engine.url, *MODEL, check=0)
    output = tmp_path / "tasks.results.jsonl"
    assert sorted(ids(output.read_text())) == tasks
    assert done.out == ""
    for words in ("12 of 12 tasks done", str(output), "skep swarm show"):
        assert words in done.err
    assert "there already" in swarm("run", "tasks.jsonl", "--url", engine.url, check=2).error.message
    again = ("--overwrite", "--report", "r.html", "--json")
    again = swarm("run", "tasks.jsonl", *again, "--url", engine.url, *MODEL, check=0)
    told = json.loads(again.out)
    assert (told["done"], told["output"]) == (12, str(output))
    assert told["run"] in (tmp_path / "r.html").read_text()
    assert sorted(ids(output.read_text())) == tasks

    output.write_text("".join(output.read_text().splitlines(keepends=True)[:3]) + '{"id": "t')  # somebody cut it
    finished = swarm("resume", told["run"], check=0)
    assert "finished already" in finished.err
    assert sorted(ids(output.read_text())) == tasks


def test_results_can_be_printed_as_they_come(engine, tasks):
    done = swarm("run", "tasks.jsonl", "-o", "-", "--url", engine.url, *MODEL, check=0)
    assert sorted(ids(done.out)) == tasks


def test_a_dry_run_asks_for_nothing_and_keeps_nothing(engine, tasks, tmp_path):
    before = engine.state()["requests"]
    done = swarm("run", "tasks.jsonl", "--dry-run", "--url", engine.url, check=0)
    assert "12 tasks would go to" in done.err
    assert "4 slots" in done.err
    assert json.loads(done.out)["id"] == "t0"
    down = json.loads(swarm("run", "tasks.jsonl", "--dry-run", "--json", "--url", "http://127.0.0.1:1").out)
    assert (down["tasks"], down["endpoint"]) == (12, None)
    assert engine.state()["requests"] == before
    assert not (tmp_path / "tasks.results.jsonl").exists()
    assert json.loads(swarm("ls", "--json").out) == []


def test_what_was_set_aside_ends_with_one_and_can_be_tried_again(engine, tasks, tmp_path):
    never = {"kind": "contains", "all": ["a word that no fake engine says"]}
    lines = [json.dumps({"id": "good", "prompt": "x"}), json.dumps({"id": "bad", "prompt": "x", "checker": never})]
    (tmp_path / "tasks.jsonl").write_text("\n".join(lines))
    done = swarm("run", "tasks.jsonl", "--tries", "2", "--url", engine.url, *MODEL, check=1)
    assert "1 set aside" in done.err
    (run,) = json.loads(swarm("ls", "--json").out)
    assert f"--failed-of {run['id']}" in done.err
    again = swarm("run", "--failed-of", "last", "--tries", "1", "--url", engine.url, *MODEL, check=1)
    assert ids(again.out) == ["bad"]
    assert "rejected" in swarm("trace", "last", "bad", check=0).out


@contextmanager
def under_way(tmp_path, engine):
    """A run of another process, of which some tasks have their result and others are being answered."""
    command = [sys.executable, "-m", "skep", "swarm", "run", "tasks.jsonl", "--url", engine.url, "--max-tokens", "30"]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    child = subprocess.Popen(command, cwd=tmp_path, **pipes)
    try:
        engine.wait_for(requests=4, running=2)
        yield child
    finally:
        child.kill()
        child.communicate()


def ended(child):
    _, said = child.communicate(timeout=10)
    assert child.returncode == 130, said
    assert "Traceback" not in said
    return said


@pytest.fixture
def slow():
    with FakeEngine(slots=2, token_ms=8) as engine:
        yield engine


def test_a_run_of_another_process_is_cancelled_and_resume_does_the_rest(slow, tasks, tmp_path):
    with under_way(tmp_path, slow) as child:
        assert "is cancelled" in swarm("cancel", "last", check=0).err
        said = ended(child)
    (run,) = json.loads(swarm("ls", "--json").out)
    assert run["state"] == "cancelled"
    assert f"cancelled: {run['done']} of 12" in said
    output = tmp_path / "tasks.results.jsonl"
    kept = output.read_text().splitlines()
    assert len(kept) == run["done"] < 12
    told = swarm("resume", "--last", check=0).err.splitlines()[0]
    for words in (run["id"], "tasks.jsonl", f"{run['left']} of 12 tasks left", f"results in {output}"):
        assert words in told
    assert output.read_text().splitlines()[: len(kept)] == kept
    assert sorted(ids(output.read_text())) == tasks


def test_a_run_that_was_cancelled_before_the_clock_was_set_back_is_resumed(engine, tasks):
    swarm("run", "tasks.jsonl", "--url", "http://127.0.0.1:1", "--deadline", "100ms", check=1)
    with open_store(user_paths(os.environ).store) as store:
        journal = SwarmStore(store)
        journal.set_cancelled(journal.run("last").id, 4e9)
    assert "12 of 12 tasks done" in swarm("resume", "--last", "--url", engine.url, check=0).err


def test_a_file_that_another_run_has_overwritten_is_left_and_the_first_run_goes_to_another(
    engine, slow, tasks, tmp_path
):
    with under_way(tmp_path, slow) as child:
        swarm("cancel", "last", check=0)
        ended(child)
    (first,) = json.loads(swarm("ls", "--json").out)
    swarm("run", "tasks.jsonl", "--overwrite", "--url", engine.url, *MODEL, check=0)
    output = tmp_path / "tasks.results.jsonl"
    theirs = output.read_text()
    refused = swarm("resume", first["id"], check=2).error
    assert str(output) in refused.message
    assert f"skep swarm resume {first['id']} -o" in refused.hint
    done = swarm("resume", first["id"], "-o", "other.jsonl", "--json", check=0)
    assert json.loads(done.out)["output"] == str(tmp_path / "other.jsonl")
    assert sorted(ids((tmp_path / "other.jsonl").read_text())) == tasks
    assert output.read_text() == theirs
    assert "finished already" in swarm("resume", first["id"], "-o", "third.jsonl", check=0).err
    assert sorted(ids((tmp_path / "third.jsonl").read_text())) == tasks


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_wish_to_end_keeps_what_is_done_and_says_how_to_go_on(slow, tasks, tmp_path, number):
    with under_way(tmp_path, slow) as child:
        child.send_signal(number)
        said = ended(child)
    (run,) = json.loads(swarm("ls", "--json").out)
    assert f"resume with `skep swarm resume {run['id']}`" in said
    assert run["state"] == "stopped"
    assert run["done"] == len((tmp_path / "tasks.results.jsonl").read_text().splitlines())
