"""Engines as real processes that can be killed, stopped and made to fail: the fake one and the
embedded llama.cpp.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from skep.paths import user_paths
from skep.testing.process import FakeEngine
from skep.weights.pull import installed, pull

SLOTS = 2
START_S = 60.0


class Engine(Protocol):
    """Calls block.

    `inside` is the most requests that were ever in it at once, `now` how many are; waiting
    ones too.
    """

    url: str
    pid: int
    faulty: bool  # takes faults on command

    def kill(self) -> None: ...
    def fault(self, **fault: Any) -> None: ...
    def inside(self) -> int: ...
    def now(self) -> int: ...
    def close(self) -> None: ...


class Fake:
    faulty = True

    def __init__(self, answers: Path, *, deaf_ms: float, idle_close_s: float) -> None:
        self._engine = FakeEngine(
            slots=SLOTS,
            token_ms=5,
            ttft_ms=8,
            prefill_tok_s=20_000,
            deaf_ms=deaf_ms,
            ctx=65_536,
            idle_close_s=idle_close_s,
            answers=answers,
        ).start()
        self.url = self._engine.url
        self.pid = self._engine.pid

    def kill(self) -> None:
        self._engine.kill()

    def fault(self, **fault: Any) -> None:
        self._engine.fault(**fault)

    def inside(self) -> int:
        return int(self._engine.state()["max_inside"])

    def now(self) -> int:
        state = self._engine.state()
        return int(state["running"] + state["waiting"])

    def close(self) -> None:
        self._engine.close()


class Embedded:
    """llama.cpp with SmolLM2-135M.

    Counts what is inside by asking: what it had between two questions is not seen.
    """

    faulty = False

    def __init__(self, weights: Path) -> None:
        report, write = os.pipe()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        options = {
            "--model": weights,
            "--alias": "smollm2-135m",
            "--slots": SLOTS,
            "--context": 512,
            "--threads": 1,
        }
        flat = [str(part) for option in options.items() for part in option]
        argv = [
            sys.executable,
            "-m",
            "skep.engines.embedded_server",
            *flat,
            "--report-fd",
            str(write),
        ]
        self._process = subprocess.Popen(
            argv, pass_fds=(write,), stdout=self._stderr, stderr=self._stderr
        )
        os.close(write)
        self.pid = self._process.pid
        with os.fdopen(report, "rb") as lines:
            if select.select([lines], [], [], START_S)[0]:
                line = lines.readline()
            else:
                line = b""
        if not line:
            self.close()
            raise RuntimeError("the embedded engine did not start")
        self.url = json.loads(line)["url"]
        self._most = 0
        self._wait_ready()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def fault(self, **fault: Any) -> None:  # noqa: ARG002
        raise AssertionError("a real engine fails when it wants to")

    def inside(self) -> int:
        self._most = max(self._most, self.now())
        return self._most

    def now(self) -> int:
        text = self._get("/metrics").decode()
        figures = dict(
            line.split(" ")[:2]
            for line in text.splitlines()
            if line.startswith("llamacpp:requests_")
        )
        return sum(int(float(figure)) for figure in figures.values())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._stderr.close()

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, http.client.HTTPException):
                self._get("/health")
                return
            time.sleep(0.05)
        raise RuntimeError("the embedded engine is not ready")

    def _get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise http.client.HTTPException(f"{answer.status} of {path}")
        return body


def weights_file() -> Path:
    cache = user_paths(os.environ).cache
    return installed("smollm2-135m", cache) or pull("smollm2-135m", cache_dir=cache).path


def stop(engine: Engine) -> None:
    os.kill(engine.pid, signal.SIGSTOP)


def go_on(engine: Engine) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(engine.pid, signal.SIGCONT)
