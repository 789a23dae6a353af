"""The process guard on real processes: whatever an engine starts ends with it, and with us."""

import json
import os
import socket
import stat
import subprocess
import sys

import pytest

from commands import eventually
from forked_processes import alive
from skep.files import HIDDEN_KEY, RotatingLog
from skep.host.processes import descendants, kill_marked

KEY = "a-key-of-this-hive"


class GuardedEngine:
    def __init__(self, log, *argv):
        self.link, theirs = socket.socketpair()
        options = [
            "--link-fd",
            str(theirs.fileno()),
            "--log",
            str(log),
            "--mark",
            str(log),
            "--",
            *argv,
        ]
        with theirs:
            self.guard = subprocess.Popen(
                [sys.executable, "-m", "skep.supervisor.process_guard", *options],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._lines = self.link.makefile("r")

    def read(self):
        line = self._lines.readline()
        return json.loads(line) if line else None

    def close(self):
        self._lines.close()
        self.link.close()
        self.guard.wait(10)


@pytest.fixture
def guarded(tmp_path):
    engines = []

    def make(*argv):
        engines.append(GuardedEngine(tmp_path / "engine.log", *argv))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def wait_dead(*pids):
    eventually(lambda: not any(alive(pid) for pid in pids))


# An engine whose grandchild leaves the process group, ignores TERM, and holds no pipe.
FAMILY = """
import os, signal, subprocess, sys
child = '''
import os, signal, time
os.setsid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
time.sleep(600)
'''
grandchild = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE)
pid = int(grandchild.stdout.readline())
os.write(int(sys.argv[1]), b'{"url": "%d"}\\n' % pid)
signal.pause()
"""

STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(int(sys.argv[1]), b'{"url": "x"}\\n')
time.sleep(600)
"""


def start_family(guarded):
    engine = guarded(sys.executable, "-c", FAMILY, "{report_fd}")
    pid = engine.read()["pid"]
    return engine, pid, int(engine.read()["url"])


def test_when_skep_dies_the_engine_and_its_grandchildren_die_too(guarded):
    """A parent-death signal would not reach a grandchild that left the group."""
    engine, pid, grandchild = start_family(guarded)
    assert {pid, grandchild} <= descendants(engine.guard.pid).keys()
    engine.link.shutdown(socket.SHUT_RDWR)
    engine.guard.wait(10)
    wait_dead(pid, grandchild)


def test_a_killed_engine_leaves_no_grandchildren(guarded):
    engine, pid, grandchild = start_family(guarded)
    os.kill(pid, 9)
    assert engine.read()["code"] == -9
    wait_dead(pid, grandchild)


def test_a_killed_guard_takes_the_engine_with_it(guarded):
    engine = guarded(sys.executable, "-c", "import time; time.sleep(600)")
    pid = engine.read()["pid"]
    engine.guard.kill()
    wait_dead(pid)


def test_an_engine_that_ignores_term_is_killed_after_the_grace(guarded):
    engine = guarded(sys.executable, "-c", STUBBORN, "{report_fd}")
    engine.read()
    assert engine.read()["url"] == "x"
    engine.link.sendall(b'{"op":"term","grace_s":0.2}\n')
    assert engine.read()["code"] == -9


def test_the_last_words_of_a_dying_engine_come_with_its_exit_code(guarded, tmp_path):
    engine = guarded(
        sys.executable,
        "-c",
        "import sys; print('loading'); print('CUDA out of memory', file=sys.stderr); sys.exit(3)",
    )
    engine.read()
    end = engine.read()
    assert (end["event"], end["code"]) == ("exit", 3)
    assert "CUDA out of memory" in end["tail"]
    assert "loading" in (tmp_path / "engine.log").read_text()


def test_an_engine_that_floods_its_output_is_still_ended_with_skep(guarded):
    engine = guarded("yes")
    pid = engine.read()["pid"]
    engine.link.shutdown(socket.SHUT_RDWR)
    engine.guard.wait(10)
    wait_dead(pid)


def test_long_last_words_do_not_lose_the_exit_code(guarded):
    engine = guarded(
        sys.executable, "-c", "import sys; [print('x' * 20000) for _ in range(40)]; sys.exit(78)"
    )
    engine.read()
    assert engine.read()["code"] == 78


def test_what_a_killed_guard_leaves_behind_is_found_by_its_mark(guarded, tmp_path):
    engine, pid, grandchild = start_family(guarded)
    engine.guard.kill()
    wait_dead(pid)
    assert alive(grandchild)
    assert kill_marked(str(tmp_path / "engine.log")) == 1
    wait_dead(grandchild)


def test_an_engine_that_cannot_be_started_is_reported_like_one_that_died(guarded):
    end = guarded("/no/such/engine").read()
    assert (end["event"], end["code"]) == ("exit", 127)
    assert "/no/such/engine" in end["tail"][0]


# Its log


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
def test_a_key_that_the_engine_says_is_not_in_its_log_however_it_is_cut(step, tmp_path):
    """SGLang logs all its arguments."""
    log = RotatingLog(tmp_path / "e.log", hidden=KEY)
    output = (
        f"a-key\nserver_args=(api_key='{KEY}', a-key-of-this-house)\n{KEY}{KEY}\nthe end a-k"
    ).encode()
    for start in range(0, len(output), step):
        log.write(output[start : start + step])
    hidden = HIDDEN_KEY.decode()
    lines = [
        "a-key",
        f"server_args=(api_key='{hidden}', a-key-of-this-house)",
        hidden * 2,
        "the end a-k",
    ]
    assert log.tail == lines
    assert (tmp_path / "e.log").read_text().splitlines()[:3] == lines[:3]
    log.close()


def test_a_log_that_somebody_deleted_is_begun_anew(tmp_path):
    log = RotatingLog(tmp_path / "e.log", max_bytes=100)
    (tmp_path / "e.log").unlink()
    log.write(b"some words of an engine\n" * 20)
    log.close()
    assert (tmp_path / "e.log").exists()


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_log_is_rotated_and_keeps_its_last_lines_for_its_user_alone(tmp_path):
    """So are the folders made for it.

    Engines print prompts; whoever else works on this machine must not read them.
    """
    folder = tmp_path / "state" / "logs"
    log = RotatingLog(folder / "e.log", max_bytes=1000, keep=2, tail_lines=3)
    for n in range(200):
        log.write(b"line %d of the engine\n" % n)
    log.write(b"unfinished")
    log.close()
    assert sorted(path.name for path in folder.iterdir()) == ["e.log", "e.log.1", "e.log.2"]
    assert all(path.stat().st_size <= 1100 for path in folder.iterdir())
    assert log.tail == [f"line {n} of the engine" for n in (197, 198, 199)] + ["unfinished"]
    assert {mode_of(path) for path in folder.iterdir()} == {0o600}
    assert {mode_of(path) for path in (folder.parent, folder)} == {0o700}


def test_logs_that_others_could_read_are_closed_to_them_when_they_are_opened(tmp_path):
    """Those of an older version; the folder, which the user may have opened on purpose, is left as
    it is.
    """
    names = ("e.log", "e.log.1", "e.log.3")
    for name in names:
        (tmp_path / name).write_text("before\n")
        (tmp_path / name).chmod(0o644)
    tmp_path.chmod(0o755)
    RotatingLog(tmp_path / "e.log").close()
    assert {mode_of(tmp_path / name) for name in names} == {0o600}
    assert (tmp_path / "e.log").read_text() == "before\n"
    assert mode_of(tmp_path) == 0o755
