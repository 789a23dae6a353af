"""The truth server as a process: compiled on first use, started, asked what it really sent, ended.

with TruthServer(ttft_ms=50, gap_ms=10) as server:
    ...  # point a client at server.url, model `truth` or `truth-` with a form
    rows = server.rows(tokens=128)
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HERE = Path(__file__).parent
SOURCES = (
    HERE / "truth.c",
    HERE / "scripts.h",
    HERE.parent / "peers" / "bytes.h",
    HERE.parent / "peers" / "due.h",
)
MODEL = "truth"
FORMS = ("role", "reasoning", "coalesced", "multitoken", "comments", "split", "lateusage")


class NoCompiler(Exception):
    """There is no `cc`; the message is all the user needs."""


def cache_folder() -> Path:
    folder = Path(os.environ.get("SKEP_BENCH_CACHE") or Path.home() / ".cache" / "skep-bench")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def compiled() -> Path:
    """truth.c as a program, built again when its text has changed."""
    mark = hashlib.sha256(b"".join(file.read_bytes() for file in SOURCES)).hexdigest()[:12]
    program = cache_folder() / f"truth-{mark}"
    if not program.exists():
        compiler = shutil.which(os.environ.get("CC") or "cc")
        if compiler is None:
            raise NoCompiler(
                "the truth server is written in C and there is no `cc` here: install gcc or clang"
            )
        unfinished = program.with_suffix(f".{os.getpid()}")
        subprocess.run(
            [compiler, "-O2", "-Wall", "-Wextra", "-o", str(unfinished), str(SOURCES[0])],
            check=True,
        )
        unfinished.rename(program)
    return program


@dataclass(frozen=True, slots=True)
class Sent:
    """One answer as it was really sent; seconds of the monotonic clock."""

    t0_s: float  # the kernel had the whole request
    first_s: float
    last_s: float
    late_first_s: float  # the server's own lateness
    late_max_s: float
    tokens: int
    model: str

    @property
    def ttft_ms(self) -> float:
        return (self.first_s - self.t0_s) * 1000

    @property
    def tpot_ms(self) -> float | None:
        if self.tokens > 1:
            return (self.last_s - self.first_s) * 1000 / (self.tokens - 1)
        return None


class TruthServer:
    """Runs from `__enter__` to `__exit__`, before other work on the machine where the kernel
    allows it.
    """

    def __init__(
        self,
        *,
        ttft_ms: float = 50,
        gap_ms: float = 10,
        model: str = MODEL,
        options: Sequence[str] = (),
    ):
        self._argv = [str(compiled()), "--model", model, *options]
        self._argv += ["--ttft-us", f"{ttft_ms * 1000:.0f}", "--gap-us", f"{gap_ms * 1000:.0f}"]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # Ctrl-C is for the benchmark
        )
        with contextlib.suppress(PermissionError):  # set from here: a client must not inherit it
            os.sched_setscheduler(self._process.pid, os.SCHED_RR, os.sched_param(1))
        assert self._process.stdout
        self.port = int(self._process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def scheduling(self) -> str:
        if os.sched_getscheduler(self._process.pid) == os.SCHED_RR:
            return "SCHED_RR"
        return "as everybody"

    def get(self, path: str, method: str = "GET") -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def reset(self) -> None:
        self.get("/reset", "POST")

    def truth(self, query: str = "") -> dict[str, Any]:
        """The server's own summary, e.g. `tokens=128&last=64`."""
        summary: dict[str, Any] = self.get(f"/truth?{query}")
        return summary

    def rows(self, *, tokens: int | None = None, last: int | None = None) -> list[Sent]:
        """Whole streamed answers in the order they were asked for; `tokens`: only those that
        wanted so many.
        """
        log = self.get("/log")
        found = [dict(zip(log["columns"], row, strict=True)) for row in log["rows"]]
        sent = [
            Sent(
                t0_s=row["t0"] / 1e9,
                first_s=row["first"] / 1e9,
                last_s=row["last"] / 1e9,
                late_first_s=row["late_first"] / 1e9,
                late_max_s=row["late_max"] / 1e9,
                tokens=row["sent"],
                model=row["model"],
            )
            for row in found
            if row["stream"] and row["whole"] and tokens in (None, row["wanted"])
        ]
        sent.sort(key=lambda row: row.t0_s)
        return sent[-last:] if last else sent
