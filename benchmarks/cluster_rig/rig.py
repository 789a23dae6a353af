"""A Ray cluster of several nodes on this machine, hives on it, and doors to them: each an
installation of its own.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skep.cluster.ray_processes import LOOPBACK, NodeRecord, Ports, environment
from skep.errors import SkepError
from skep.paths import user_paths
from skep.supervisor.control import ask, socket_of

OWN_FOLDERS = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
OBJECT_STORE_BYTES = 80_000_000
PATIENCE_S = 120.0
POLL_S = 0.02
KEY_ENV = "ENGINE_KEY_OF_THE_HIVE"
HIVE = "skep"  # what `skep up --cluster` calls one that was given no name
_KEPT = ("RAY_health_check", "RAY_USAGE_STATS")


@dataclass(frozen=True)
class Kind:
    """What a hive serves. `tokens` out for each request; `words` in."""

    title: str
    model: str
    replicas: int
    slots: int
    tokens: int
    words: int
    table: str  # more of its [[serve]]
    simulated: bool = False

    @property
    def all_slots(self) -> int:
        return self.replicas * self.slots

    def config(self, replicas: int | None = None) -> str:
        size = f"replicas = {replicas or self.replicas}\nslots = {self.slots}\n"
        return f'[[serve]]\nmodel = "{self.model}"\n{size}{self.table}'


TOKEN_MS = 10
READ_TOK_S = 2000
PACED = Kind(
    f"SIMULATED: fake engines, {TOKEN_MS} ms a token whatever their load",
    "paced",
    2,
    8,
    32,
    20,
    f'engine = "fake"\nextra = ["--token-ms", "{TOKEN_MS}", "--prefill-tok-s", "{READ_TOK_S}"]\n',
    simulated=True,
)
EMBEDDED = Kind(
    "embedded engines (llama.cpp, SmolLM2-135M), one thread each",
    "smollm2-135m",
    2,
    2,
    16,
    8,
    "context = 512\nthreads = 1\n",
)


class Nodes:
    """A cluster whose head takes no replica.

    Nodes are named b, c, d ... in the order in which they come.
    """

    def __init__(self, gpus: int = 0) -> None:
        from ray.cluster_utils import Cluster

        self._gpus = gpus

        self._names = (chr(code) for code in range(ord("b"), ord("z")))
        self._nodes: dict[str, Any] = {}
        head = {
            "num_cpus": 0,
            "num_gpus": 0,
            "object_store_memory": OBJECT_STORE_BYTES,
            "node_name": "head",
        }
        self._cluster = Cluster(
            initialize_head=True, head_node_args={**head, "include_dashboard": False}
        )
        self.address: str = self._cluster.address

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self) -> str:
        name = next(self._names)
        size = {"num_cpus": 2, "num_gpus": self._gpus, "object_store_memory": OBJECT_STORE_BYTES}
        self._nodes[name] = self._cluster.add_node(node_name=name, **size)
        # Ray has put a handler of its own there, which ends the node and forgets the hives
        end_in_order()
        return name

    def kill(self, name: str) -> None:
        """Every process of it at once, as when its power is gone."""
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._cluster.shutdown()


class Door:
    """One `skep` on this machine: its folders, its commands, its supervisor's answers."""

    def __init__(self, home: Path, **env: str) -> None:
        self.env = {
            **os.environ,
            **{name: str(home / name.lower()) for name in OWN_FOLDERS},
            **env,
        }
        self.env.pop("XDG_RUNTIME_DIR", None)
        self.home = home
        self.url = ""
        self._paths = user_paths(self.env)

    def run(self, *args: object) -> str:
        words = " ".join(map(str, args))
        argv = [sys.executable, "-m", "skep", *map(str, args)]
        how: dict[str, Any] = {"env": self.env, "cwd": self.home, "timeout": PATIENCE_S}
        try:
            done = subprocess.run(argv, **how, capture_output=True, text=True, check=False)
        except subprocess.TimeoutExpired:
            sys.exit(f"skep {words} did not end within {PATIENCE_S:g} s")
        if done.returncode:
            sys.exit(f"skep {words} failed:\n{done.stderr[-3000:]}")
        return done.stdout

    def start(self, *args: object) -> float:
        """Seconds until everything it serves is ready."""
        began = time.monotonic()
        self.url = json.loads(self.run(*args, "--port", 0, "-d", "--json"))["url"]
        return time.monotonic() - began

    def down(self) -> float:
        began = time.monotonic()
        self.run("down", "--wait", "0s")
        return time.monotonic() - began

    def rows(self) -> list[dict[str, Any]]:
        """As `skep ps --json` prints them, without starting a process."""
        path = socket_of(self._paths.lock, self._paths.socket)
        found: list[dict[str, Any]] = ask(path, {"op": "status"})["rows"]
        return found

    def replicas(self) -> list[dict[str, Any]]:
        return [row for row in self.rows() if row["kind"] == "replica"]


def until(what: Callable[[], Any], timeout_s: float = PATIENCE_S) -> float:
    """When it was so: another process's doing has no event here."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with contextlib.suppress(SkepError, OSError):
            if what():
                return time.monotonic()
        time.sleep(POLL_S)
    sys.exit(f"it did not come to pass within {timeout_s:g} s")


@contextlib.contextmanager
def cluster(workers: int = 2, gpus: int = 0) -> Iterator[Nodes]:
    """What nodes write goes to folders of their own; the weights are those that are pulled
    already.

    `gpus`: the cards that each node counts as its own, all of them the first ones of this machine.
    """
    with tempfile.TemporaryDirectory(prefix="n-") as home:
        own = {name: f"{home}/{name.lower()}" for name in OWN_FOLDERS}
        # Another cluster here stays `auto`
        os.environ.update(own, RAY_TMPDIR=home, **_watchfulness())
        os.environ.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))
        nodes = Nodes(gpus)
        try:
            for _ in range(workers):
                nodes.add()
            yield nodes
        finally:
            nodes.close()


def _watchfulness() -> dict[str, str]:
    """How soon Ray misses a node, as `skep cluster start` has it; Ray's own times are longer."""
    node = NodeRecord("", LOOPBACK, True, "", "", "")
    told = environment(node, Ports(), Path(), {"RAY_USAGE_STATS_ENABLED": "0"})
    return {name: value for name, value in told.items() if name.startswith(_KEPT)}


@contextlib.contextmanager
def installation(**env: str) -> Iterator[Door]:
    """Goes down at the end, unless it is down already."""
    with tempfile.TemporaryDirectory(prefix="door-") as home:
        door = Door(Path(home), **env)
        try:
            yield door
        finally:
            with contextlib.suppress(SkepError, OSError):
                door.rows()
                door.down()


@contextlib.contextmanager
def hive(kind: Kind, address: str | None, replicas: int | None = None) -> Iterator[Door]:
    """Ready when entered. `address`: of the cluster; None: on this machine alone."""
    with installation() as door:
        door.start("up", *wishes(door, kind, address, replicas))
        yield door


def wishes(
    door: Door, kind: Kind, address: str | None, replicas: int | None = None
) -> tuple[object, ...]:
    config = door.home / "skep.toml"
    config.write_text(kind.config(replicas))
    return ("--config", config, *(("--cluster", address) if address is not None else ()))


@contextlib.contextmanager
def local_path(kind: Kind, owner: Door, key: str) -> Iterator[Door]:
    """A gateway of one box before the very engines of that hive, with the same slots."""
    urls = [word for row in owner.replicas() for word in ("--upstream", row["url"])]
    with installation(**{KEY_ENV: key}) as door:
        door.start(
            "gateway", *urls, "--slots", kind.slots, "--model", kind.model, "--key-env", KEY_ENV
        )
        yield door


def key_of(address: str) -> str:
    """What the engines of the hive want to see.

    In a process of its own: this one is to have no part of Ray in it.
    """
    with ProcessPoolExecutor(
        1, mp_context=multiprocessing.get_context("spawn")
    ) as process_pool_executor:
        return process_pool_executor.submit(_told_key, address).result()


def _told_key(address: str) -> str:
    """As a replica actor of the hive reports it."""
    import ray

    from skep.cluster.connect import actor_name, actor_names, find_actor, join

    join(address)
    actor = find_actor(actor_name(HIVE, actor_names(HIVE)[0]))
    told = ray.get(actor.describe.remote(), timeout=10.0)
    ray.shutdown()
    return str(told["row"]["launch"]["api_key"])


def end_in_order() -> None:
    """What was started is stopped on the way out."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
