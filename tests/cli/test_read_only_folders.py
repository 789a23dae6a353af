"""Folders that cannot be written, for root too: one clear line, and what need not be written goes
on.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hive_client import ask, write_hive

from commands import environment, eventually
from skep.paths import user_paths
from skep.testing.process import FakeEngine

MOUNT = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
TASKS = "tasks.jsonl"


def in_own_mounts(folder):
    """The beginning of a command line for which the folder is read-only: a mount that nobody else
    sees.
    """
    return [shutil.which("unshare") or "unshare", "-m", "sh", "-c", MOUNT, str(folder)]


def read_only_way(folder):
    """As root by a mount, else by the modes of all that is in it; skipped where neither holds."""
    if os.geteuid() != 0:
        change_modes(folder, without=0o222)
        return []
    way = in_own_mounts(folder)
    probe = [*way, "touch", str(folder / "probe")]
    if (
        shutil.which("unshare") is None
        or b"Read-only" not in subprocess.run(probe, capture_output=True).stderr
    ):
        pytest.skip("no read-only folder can be made here")
    return way


def change_modes(folder, *, without=0, with_=0):
    for path in (*folder.rglob("*"), folder):
        path.chmod(path.stat().st_mode & ~without | with_)


class Installation:
    """Folders with a target, a run of a swarm and a task file; one folder is made read-only for
    each command.
    """

    def __init__(self, folder, engine):
        self.folder = folder
        self.engine = engine
        self.env = environment(folder)
        self.paths = user_paths(self.env)
        write_hive(folder)
        (folder / TASKS).write_text('{"id": "a", "prompt": "hello", "max_tokens": 2}\n')
        self.run([], "monitor", "add", "box", "--url", engine.url)
        for path in (self.paths.config, self.paths.state):
            path.mkdir(parents=True, exist_ok=True)

    def run(self, way, *words):
        argv = [
            *way,
            sys.executable,
            "-m",
            "skep",
            *(str(word).replace("URL", self.engine.url) for word in words),
        ]
        return subprocess.run(
            argv, env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=60
        )

    def run_read_only(self, kind, *words):
        folder = getattr(self.paths, kind)
        try:
            return self.run(read_only_way(folder), *words)
        finally:
            change_modes(folder, with_=0o200)


@pytest.fixture(scope="module")
def installation(tmp_path_factory):
    with FakeEngine(slots=2) as engine:
        yield Installation(tmp_path_factory.mktemp("read-only"), engine)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("data", ("bench", "sweep", "--url", "URL", "--concurrency", "1")),
        ("data", ("monitor", "add", "other", "--url", "URL")),
        ("data", ("monitor", "remove", "box")),
        ("data", ("monitor", "run", "--once")),
        ("data", ("swarm", "run", TASKS, "-o", "results.jsonl", "--url", "URL")),
        ("data", ("store", "gc", "--older-than", "1d")),
        ("state", ("up", "-d")),
        ("state", ("monitor", "run", "--once")),
        ("state", ("swarm", "run", TASKS, "-o", "other.jsonl", "--url", "URL")),
        ("config", ("key", "add", "laptop")),
    ],
)
def test_a_command_that_writes_says_what_cannot_be_written(installation, kind, words):
    done = installation.run_read_only(kind, *words)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert (done.returncode, len(errors)) == (1, 1), done.stderr
    assert str(getattr(installation.paths, kind)) in errors[0]
    assert "hint: check " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words", [("runs", "list"), ("monitor", "status"), ("swarm", "list"), ("store", "info")]
)
def test_a_command_that_reads_works_where_nothing_can_be_written(installation, words):
    done = installation.run_read_only("data", *words)
    assert done.returncode == 0, done.stderr


def test_the_gateway_serves_while_the_store_cannot_be_written(installation):
    way = read_only_way(installation.paths.data)
    try:
        ready = json.loads(installation.run(way, "up", "-d", "--json").stdout)
        assert [ask(ready["url"])[0] for _ in range(3)] == [200, 200, 200]
        log = Path(installation.paths.logs / "gateway.log")
        eventually(lambda: "journal.failed why=" in log.read_text())
        assert "check that you may write to the folder" in log.read_text()
        assert "Traceback" not in log.read_text()
    finally:
        installation.run([], "down", "--wait", "0s")
        installation.paths.data.chmod(0o700)


def test_a_file_where_the_data_folder_should_be_is_named(env, tmp_path):
    data = user_paths(env).data
    data.parent.mkdir(parents=True)
    data.write_text("not a folder")
    argv = [
        sys.executable,
        "-m",
        "skep",
        "monitor",
        "add",
        "box",
        "--url",
        "http://127.0.0.1:9",
        "--no-check",
    ]
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: `{data}/skep.sqlite3` cannot be opened: ")
    assert f"hint: check that `{data}` is a folder you may write to" in done.stderr
