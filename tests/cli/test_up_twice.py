"""Two starts at the same moment, starts that are given up, and a skep that answers nobody."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread

import pytest
from hive_client import eventually, family

from forked_processes import alive
from skep.cli.hive import HIVE_PROGRAM
from skep.config.load import load_settings
from skep.errors import EngineError
from skep.files import lock_holder
from skep.supervisor.hive_process import start_detached
from skep.supervisor.silent_hive import end_silent_hive

HOLDER = """
import os, signal, subprocess, sys, time
from skep.files import hold_lock
from skep.paths import user_paths
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
paths = user_paths(os.environ)
with hold_lock(paths.lock, "skep", "", str(paths.socket)):
    subprocess.Popen(["sleep", "600"])
    print("holds", flush=True)
    time.sleep(600)
"""

STILLBORN = """
import os
from skep.config.load import load_settings
from skep.errors import EngineError
from skep.paths import user_paths
from skep.cli.hive import HIVE_PROGRAM
from skep.supervisor.hive_process import start_detached
paths = user_paths(os.environ)
settings = load_settings(None, paths, {})  # more than a pipe holds
open_before = len(os.listdir("/proc/self/fd"))
try:
    start_detached(HIVE_PROGRAM, settings, paths, {**os.environ, "PYTHONHOME": "/nowhere"}, print)
except EngineError as error:
    print(error)
print(len(os.listdir("/proc/self/fd")) - open_before, "more files open")
"""


@pytest.fixture
def hold(env, tmp_path):
    """Starts a process that holds skep's lock, has a child, and has no control socket; it ends
    with the test.
    """
    started = []

    def start(*words):
        command = [sys.executable, "-c", HOLDER, *words]
        process = subprocess.Popen(command, env=env, cwd=tmp_path, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout.readline() == b"holds\n"
        return process

    yield start
    for process in started:
        for pid in family(process.pid):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def starter(configure, env, tmp_path):
    """`skep up -d` in a process of its own, while its engine loads."""
    configure({"extra": ["--load-s=60"]})
    command = [sys.executable, "-m", "skep", "up", "-d"]
    with subprocess.Popen(command, env=env, cwd=tmp_path, stderr=subprocess.PIPE) as process:
        assert any(b"fake-model-0: starting" in line for line in process.stderr)
        yield process


def start_two(paths, env):
    """What two starts at the same moment got: descriptions of a deployment, or errors."""
    settings = load_settings(None, paths, {})
    outcomes = []

    def start():
        try:
            outcomes.append(start_detached(HIVE_PROGRAM, settings, paths, env, lambda _: None))
        except EngineError as error:
            outcomes.append(error)

    starters = [Thread(target=start) for _ in range(2)]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join(60)
    return outcomes


@pytest.mark.parametrize("rounds", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_of_two_starts_at_once_one_wins_and_the_other_says_that_it_runs(
    skep, configure, paths, env, rounds
):
    configure()
    for _ in range(rounds):
        outcomes = start_two(paths, env)
        won = [outcome for outcome in outcomes if isinstance(outcome, dict)]
        lost = [str(outcome) for outcome in outcomes if isinstance(outcome, EngineError)]
        assert (len(won), len(lost)) == (1, 1), outcomes
        assert "skep is already running (pid " in lost[0]
        pids = family(won[0]["pid"])
        assert "fake-model-0" in skep("ps", check=0).stdout
        skep("down", check=0)
        eventually(lambda pids=pids: not any(alive(pid) for pid in pids))
        assert lock_holder(paths.lock) is None


def test_of_two_commands_at_once_one_ends_with_the_line_that_skep_already_runs(
    skep, configure, env, tmp_path
):
    configure()
    command = [sys.executable, "-m", "skep", "up", "-d", "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    starters = [subprocess.Popen(command, env=env, cwd=tmp_path, **pipes) for _ in range(2)]
    outputs = [starter.communicate(timeout=60) for starter in starters]
    assert sorted(starter.returncode for starter in starters) == [0, 1]
    loser = 0 if starters[0].returncode else 1
    assert outputs[loser][1].startswith(b"error: skep is already running (pid ")
    pids = family(json.loads(outputs[1 - loser][0])["pid"])
    skep("down", check=0)
    assert not any(alive(pid) for pid in pids)


def test_a_start_whose_runtime_folder_vanishes_is_an_error_and_leaves_nothing(
    skep, configure, paths
):
    """With something to watch: the monitor once began before the control socket, and its start
    ignored its end.
    """
    configure()
    skep("monitor", "add", "box", "--url", "http://127.0.0.1:9", "--no-check", check=0)
    over = Event()

    def remove():
        while not over.is_set():
            try:
                paths.runtime.rmdir()
            except OSError:
                continue

    remover = Thread(target=remove)
    remover.start()
    try:
        done = skep("up", "-d", check=1)
    finally:
        over.set()
        remover.join()
    assert done.stderr.startswith("error: ")
    assert lock_holder(paths.lock) is None
    assert "error: " in skep("logs", "skep", check=0).stdout


def test_a_start_that_ends_before_reading_its_settings_says_so(configure, env, tmp_path):
    configure({"extra": [f"--{'long' * 50_000}=1"]})
    done = subprocess.run(
        [sys.executable, "-c", STILLBORN],
        env=env,
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "skep ended with code 1 before it was ready\n0 more files open\n"


def test_a_failed_start_in_the_foreground_keeps_no_file_open(skep, configure):
    configure({"extra": ["--exit-on-start=3"]})
    skep("up", check=1)
    open_before = len([*Path("/proc/self/fd").iterdir()])
    skep("up", check=1)
    assert len([*Path("/proc/self/fd").iterdir()]) == open_before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_start_in_the_background_ends_by_a_signal_with_what_it_started(starter, paths, number):
    pids = family(lock_holder(paths.lock))
    starter.send_signal(number)
    starter.communicate(timeout=30)
    assert starter.returncode != 0
    assert not any(alive(pid) for pid in pids)


def test_a_second_signal_to_a_start_kills_what_does_not_end(starter, paths):
    pids = family(lock_holder(paths.lock))
    os.kill(pids[0], signal.SIGSTOP)

    def has_ended():
        starter.send_signal(signal.SIGTERM)
        return starter.poll() is not None

    eventually(has_ended)
    starter.communicate()
    eventually(lambda: not any(alive(pid) for pid in pids))


def test_ps_tells_of_a_process_that_holds_the_lock_and_does_not_answer(skep, hold):
    holder = hold()
    for words in (("ps",), ("ps", "--json")):
        done = skep(*words, check=1)
        assert done.stderr.startswith(
            f"error: skep holds its lock (pid {holder.pid}) but does not answer\nhint: "
        )
        assert "`skep down` ends it" in done.stderr


def test_down_ends_a_process_that_holds_the_lock_and_does_not_answer(skep, hold):
    holder = hold()
    pids = family(holder.pid)
    done = skep("down", check=0)
    assert f"skep (pid {holder.pid}) does not answer: sending SIGTERM" in done.stderr
    assert done.stderr.endswith("skep is down\n")
    assert not any(alive(pid) for pid in pids)


def test_what_ignores_sigterm_is_killed_after_the_wait_with_its_children(hold, paths):
    holder = hold("deaf")
    pids = family(holder.pid)
    lines = []
    assert end_silent_hive(paths, 0.2, lines.append)
    assert lines[-1] == f"skep (pid {holder.pid}) was killed with all it had started"
    assert not any(alive(pid) for pid in pids)


def test_nothing_is_ended_where_nobody_holds_the_lock(paths):
    assert not end_silent_hive(paths, 0.2, print)
