"""What `skep swarm` refuses, and that nothing has been sent, written or recorded when it does."""

import fcntl
import json
import os

import pytest
from called import own_folders, swarm

from skep.errors import EndpointError, EngineError, UserError
from skep.files import lock_holder
from skep.paths import user_paths
from skep.store.database import open_store
from skep.swarm.journal import create_run
from skep.swarm.records import Task
from skep.swarm.run_options import SwarmRunOptions
from skep.swarm.runner import lock_path

NOBODY = ("--url", "http://127.0.0.1:1")


@pytest.fixture
def paths(tmp_path, monkeypatch):
    own_folders(monkeypatch, tmp_path)
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "prompt": "do a"}\n{"id": "b", "prompt": "do b"}\n')
    return user_paths(os.environ)


def refused(*words):
    error = swarm(*words).error
    assert isinstance(error, UserError), error
    return f"{error.message} | {error.hint}"


def runs():
    return json.loads(swarm("ls", "--json", check=0).out)


@pytest.fixture
def run_id(paths, tmp_path):
    with open_store(paths.store) as store:
        task = Task("alpha", ({"role": "user", "content": "x"},))
        return create_run(store, [task], SwarmRunOptions(output=str(tmp_path / "old.jsonl")), url=NOBODY[1], model=None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"id": "a", "prompt": "x"}\n{"id": \n', "line 2"),
        ('{"id": "a", "prompt": "x"}\n\n{"id": "a", "prompt": "y"}\n', "line 3"),
        ('{"id": "a", "promt": "x"}\n', "`prompt`"),
        ('{"prompt": "x", "schema": {"type": "no such type"}}\n', "line 1"),
        ("", "no task"),
    ],
    ids=["broken", "twice", "misspelt", "no-schema", "empty"],
)
def test_a_faulty_file_is_told_by_its_lines_before_anything_runs(paths, tmp_path, text, said):
    (tmp_path / "bad.jsonl").write_text(text)
    assert said in refused("run", "bad.jsonl", *NOBODY)
    assert not paths.store.exists()
    assert not (tmp_path / "bad.results.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nosuch.jsonl",), "nosuch.jsonl"),
        ((), "no tasks"),
        (("tasks.jsonl", "-o", "nosuch/out.jsonl"), "folder that does not exist"),
        (("tasks.jsonl", "-o", "data"), "is a folder"),
        (("tasks.jsonl", "-o", "tasks.jsonl"), "the file with the tasks"),
        (("tasks.jsonl", "-o", "/dev/null"), "no plain file"),
        (("tasks.jsonl", "-o", "-", "--json"), "both go to stdout"),
        (("tasks.jsonl", "--timeout", "soon"), "not a duration"),
        (("tasks.jsonl", "--deadline", "0s"), "leaves no time"),
        (("tasks.jsonl", "--form", "xml"), "xml"),
        (("tasks.jsonl", "--schema", "tasks.jsonl"), "tasks.jsonl"),
        (("tasks.jsonl", "--priority", "high"), "high"),
        (("tasks.jsonl", "--key-env", "NO_SUCH_KEY"), "NO_SUCH_KEY"),
        (("tasks.jsonl", "--report", "report.pdf"), ".html"),
        (("tasks.jsonl", "--url", "ftp://nowhere"), "ftp"),
        (("tasks.jsonl", "--failed-of", "last"), "does not go with"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_is_refused_before_anything_runs(paths, tmp_path, words, said):
    (tmp_path / "data").mkdir(exist_ok=True)
    assert said in refused("run", *NOBODY, *words)
    assert not paths.store.exists()


@pytest.mark.parametrize("words", [("--agents", "0"), ("--tries", "0"), ("--temperature", "9"), ("--max-tokens", "-1")])
def test_numbers_out_of_range_are_usage_errors(paths, words):
    called = swarm("run", "tasks.jsonl", *NOBODY, *words)
    assert (called.error, called.code) == (None, 2)


def test_results_that_are_there_are_not_written_over(paths, tmp_path, run_id):
    (tmp_path / "old.jsonl").write_text("precious\n")
    told = refused("run", "tasks.jsonl", "-o", "old.jsonl", *NOBODY)
    assert f"skep swarm resume {run_id}" in told
    assert "--overwrite" in told
    assert (tmp_path / "old.jsonl").read_text() == "precious\n"
    assert [run["id"] for run in runs()] == [run_id]


@pytest.mark.parametrize("command", ["show", "cancel", "resume", "results", "report"])
def test_a_run_that_is_not_there_is_told_with_those_that_are(run_id, command):
    assert run_id in refused(command, "19990101")


@pytest.mark.parametrize("command", ["show", "cancel", "results", "report", "trace"])
def test_without_any_run_the_command_that_makes_one_is_named(paths, command):
    words = ("last", "x") if command == "trace" else ("last",)
    assert "skep swarm run" in refused(command, *words)
    assert not paths.store.exists()


def test_a_task_that_is_not_there_is_told_with_the_nearest(run_id):
    assert "`alpha`" in refused("trace", run_id, "alhpa")


def test_resume_wants_to_know_which(run_id):
    assert run_id in refused("resume")
    assert "two runs" in refused("resume", run_id, "--last")
    assert "folder that does not exist" in refused("resume", run_id, "-o", "nosuch/out.jsonl")
    assert f"skep swarm results {run_id}" in refused("resume", run_id, "-o", "-")


def test_of_a_run_without_failures_nothing_is_tried_again(run_id):
    assert "was set aside" in refused("run", "--failed-of", run_id, *NOBODY)


def test_an_endpoint_that_stays_down_ends_the_run_and_not_the_journal(paths, tmp_path):
    error = swarm("run", "tasks.jsonl", *NOBODY, "--deadline", "200ms").error
    assert isinstance(error, EndpointError)
    (run,) = runs()
    assert f"skep swarm resume {run['id']}" in error.hint
    assert (run["state"], run["left"]) == ("stopped", 2)


def test_a_run_that_another_process_works_on_is_left_to_it(paths, run_id):
    lock = lock_path(paths, run_id)
    lock.parent.mkdir(parents=True, exist_ok=True)
    assert lock_holder(lock) is None
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(f"{os.getpid()}\n")
        file.flush()
        assert lock_holder(lock) == os.getpid()
        assert [(run["state"], run["error"]) for run in runs()] == [("running", "waits for its endpoint")]
        error = swarm("resume", run_id).error
        assert isinstance(error, EngineError)
        assert str(os.getpid()) in error.message
        error = swarm("cancel", run_id, "--wait", "0s").error
        assert isinstance(error, EngineError)
        assert str(os.getpid()) in error.message
    assert lock_holder(lock) is None
