"""A store in a fresh folder, and the least it takes to begin a run."""

import sqlite3
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from skep.monitor.store import SeriesStore
from skep.store.database import Store, open_store
from skep.store.records import GatewayRequest, Request

VERSIONS = Path(__file__).with_name("versions")
RUN = {
    "kind": "sweep",
    "created_at": 1_794_752_553.25,  # 2026-11-15 14:22:33 UTC
    "model": "smol",
    "url": "http://127.0.0.1:8000/v1",
    "fingerprint": "f00d",
    "config": {"concurrency": [1, 2]},
    "host": {"cpu_cores": 2},
    "engine": {"version": "b1"},
    "simulated": False,
    "skep_version": "0.1.0",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "skep.sqlite3"


@pytest.fixture
def store(path: Path):
    with open_store(path) as opened:
        yield opened


@pytest.fixture
def series(store):
    return SeriesStore(store)


@pytest.fixture
def child():
    """child("writer_process.py", ...): that program at work; ended by force if it still runs."""

    @contextmanager
    def start(script: str, *arguments: object):
        command = [sys.executable, str(Path(__file__).with_name(script)), *map(str, arguments)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    return start


@pytest.fixture
def old_file(tmp_path):
    """old_file("7"): a file as skep made it with that schema, from its dump."""

    def make(version: str) -> Path:
        connection = sqlite3.connect(tmp_path / "old.sqlite3")
        connection.executescript((VERSIONS / f"{version}.sql").read_text(encoding="utf-8"))
        connection.close()
        return tmp_path / "old.sqlite3"

    return make


@pytest.fixture
def begin():
    """begin(store, model="x") begins a run that differs from the usual one in its model."""

    def begin_run(store: Store, **changes) -> str:
        return store.begin_run(**(RUN | changes))

    return begin_run


@pytest.fixture
def a_request():
    def make(index: int = 0, **changes) -> Request:
        values = {
            "level": 1,
            "repeat": 0,
            "kind": "fix",
            "started_s": 0.5,
            "ended_s": 2.5,
        } | changes
        return Request(index=index, **values)

    return make


@pytest.fixture
def a_gateway_request():
    def make(name: str = "a-1", **changes) -> GatewayRequest:
        values = {
            "arrived_at": 1_794_752_553.25, "path": "/v1/chat/completions", "model": "smol",
            "priority": "normal", "flow": "agent-7", "replica": "r0", "attempts": 1,
            "outcome": "answered", "status": 200, "code": None, "streamed": True,
            "queued_s": 0.25, "first_byte_s": 0.5, "ended_s": 2.5, "prompt_tokens": 20,
            "cached_tokens": 16, "output_tokens": 100, "request_bytes": 512,
            "response_bytes": 4096,
        }  # fmt: skip
        return GatewayRequest(id=name, **values | changes)

    return make
