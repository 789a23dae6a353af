"""Real Ray clusters on this machine, and installations of skep: each a set of folders with
commands of its own.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from asking import MODEL

from api_clients import openai

STORE_BYTES = 80_000_000  # of Ray's shared memory, a node
PATIENCE_S = 150.0
UP = ("up", "--embedded", "--slots", "2", "--context", "512", "--threads", "1")
OWN_FOLDERS = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")


class Nodes:
    """A cluster whose head takes no replica, and its nodes by name."""

    def __init__(self, env):
        from ray.cluster_utils import Cluster

        self.env = env
        self._nodes = {}
        args = {
            "num_cpus": 0,
            "num_gpus": 0,
            "object_store_memory": STORE_BYTES,
            "node_name": "head",
        }
        self._cluster = Cluster(
            initialize_head=True, head_node_args={**args, "include_dashboard": False}
        )
        self.address = self._cluster.address

    def add(self, *names, **args):
        options = {"num_cpus": 2, "num_gpus": 0, "object_store_memory": STORE_BYTES, **args}
        for name in names:
            self._nodes[name] = self._cluster.add_node(node_name=name, **options)

    def kill(self, name):
        """Every process of it at once, as when its power is gone."""
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def kill_gcs(self):
        """What makes the head the head."""
        self._cluster.head_node.kill_gcs_server()

    @contextlib.contextmanager
    def head_stopped(self):
        """It is there and does not answer."""
        (gcs,) = self._cluster.head_node.all_processes["gcs_server"]
        gcs.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            gcs.process.send_signal(signal.SIGCONT)

    def kill_raylet(self):
        """The head goes on as a head, but its machine is no node any more."""
        self._cluster.head_node.kill_raylet()

    def close(self):
        with contextlib.suppress(Exception):
            self._cluster.shutdown()


class Installation:
    """One `skep` installation on this machine: its folders, its commands."""

    def __init__(self, home, env):
        self.home = Path(home)
        self.env = {**env, **{name: str(self.home / name.lower()) for name in OWN_FOLDERS}}
        self.env["XDG_RUNTIME_DIR"] = str(self.home)
        self.url = None

    def run(self, *args, timeout=PATIENCE_S, check=True):
        argv = [sys.executable, "-m", "skep", *args]
        done = subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=timeout)
        if check:
            assert done.returncode == 0, (
                f"skep {' '.join(args)}: {done.stdout[-1000:]}{done.stderr[-3000:]}"
            )
        return done

    def up(self, *args):
        document = json.loads(self.run(*args, "--port", "0", "-d", "--json").stdout)
        self.url = document["url"]
        return document

    def rows(self):
        return {row["name"]: row for row in json.loads(self.run("ps", "--json").stdout)}

    def down(self):
        return self.run("down", "--wait", "5s", check=False)


def until(condition, timeout_s=PATIENCE_S, every_s=0.2):
    """Wait until a condition holds: what another process does has no event here.

    Return its last value, true or not.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(every_s)
    return value


def processes(words, folder):
    """Return the processes whose command line has these words and whose environment names that
    folder.
    """
    pids = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line = (path / "cmdline").read_bytes().replace(b"\0", b" ")
            if words.encode() in line and str(folder).encode() in (path / "environ").read_bytes():
                pids.append(int(path.name))
        except OSError:
            continue
    return pids


def worker_of(engine_pid):
    """Return the process of Ray that keeps this engine: its guard's parent."""
    return _parent(_parent(engine_pid))


def _parent(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1])


def ready(installation, count):
    rows = [row for row in installation.rows().values() if row["kind"] == "replica"]
    if len(rows) == count and all(row["state"] == "ready" for row in rows):
        return rows
    return []


def chat(url, **fields):
    request = {
        "model": MODEL,
        "max_tokens": 8,
        "messages": [{"role": "user", "content": "Say hello."}],
        **fields,
    }
    with openai.OpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60.0
    ) as client:
        return client.chat.completions.create(**request)


def engines_left():
    """Return the engines that an actor of ours started, by what their guards wrote into their
    environment.
    """
    mark = f"{os.environ['XDG_STATE_HOME']}/skep/logs/posts/"
    pids = []
    for pid in (path.name for path in Path("/proc").glob("[0-9]*")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                words = file.read()
        except OSError:
            continue
        if b"SKEP_REPLICA=" in words and mark.encode() in words.partition(b"SKEP_REPLICA=")[2]:
            pids.append(int(pid))
    return pids
