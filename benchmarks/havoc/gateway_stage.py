"""What the scenarios put up: a gateway in front of a good engine and a bad upstream, and a watch
of its memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from havoc.hive import memory_mib
from havoc.line import Ended, Line, Nonsense, Silent
from havoc.scenario import MODEL, Stage

from skep.host.processes import descendants
from skep.testing.process import FakeEngine, GatewayProcess

BAD_MODEL = "bad-model"
BAD_SLOTS = 8
SCRIPT = Path(__file__).with_name("hostile_upstream.py")
MEMORY_LOOK_S = 0.05


class HostileProcess:
    """The hostile upstream, started and ended here."""

    def __init__(self, mode: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), mode], stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    async def start(self) -> None:
        """From now on it means harm."""
        await get_page(self.port, "/hostile/start")

    async def sent_mib(self) -> float:
        """Return how much its pages have sent, all connections together."""
        return int(await get_page(self.port, "/hostile/sent")) / (1 << 20)


@contextlib.contextmanager
def gateway_with(
    stage: Stage,
    *,
    engine: FakeEngine,
    hostile: HostileProcess | None,
    confirms: str = "slots",
    workers: int = 1,
) -> Iterator[GatewayProcess]:
    """A gateway that serves `MODEL` from the engine and `BAD_MODEL` from the hostile upstream."""
    setup: dict[str, Any] = {"workers": workers, "limits": {"max_wait_s": 60.0}}
    with GatewayProcess(stage.folder / "gateway.log", python=stage.python, **setup) as gateway:
        good = {
            "name": "good",
            "model": MODEL,
            "url": engine.url,
            "slots": 32,
            "confirms": "slots",
        }
        replicas = [good]
        if hostile is not None:
            replicas.append(
                {
                    "name": "bad",
                    "model": BAD_MODEL,
                    "url": hostile.url,
                    "slots": BAD_SLOTS,
                    "confirms": confirms,
                }
            )
        gateway.serve(replicas, models=[str(replica["model"]) for replica in replicas])
        try:
            yield gateway
        finally:
            gateway.process.kill()  # it may be busy for minutes with what the scenario did to it


def good_engine() -> FakeEngine:
    return FakeEngine(slots=32, token_ms=50, ctx=65_536)


class MemoryWatch:
    """The most memory that a process and all below it ever had; ends what feeds it when that is
    too much.
    """

    def __init__(self, pid: int, *, most_mib: float, feeder: HostileProcess) -> None:
        self._pid = pid
        self._feeder = feeder
        self._most_mib = most_mib
        self._began_mib = family_memory_mib(pid)
        self.grown_mib = 0.0
        self.stopped = False  # the feeder was ended, as the memory of this machine is others' too

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(MEMORY_LOOK_S)
            self.grown_mib = max(self.grown_mib, family_memory_mib(self._pid) - self._began_mib)
            if self.grown_mib > self._most_mib and not self.stopped:
                self.stopped = True
                self._feeder.close()


@contextlib.asynccontextmanager
async def watched_memory(
    pid: int, *, most_mib: float, feeder: HostileProcess
) -> AsyncIterator[MemoryWatch]:
    watch = MemoryWatch(pid, most_mib=most_mib, feeder=feeder)
    task = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        task.cancel()


def family_memory_mib(pid: int) -> float:
    total = 0.0
    for member in (pid, *descendants(pid)):
        with contextlib.suppress(OSError, StopIteration):  # it has ended meanwhile
            total += memory_mib(member)
    return total


async def get_page(port: int, path: str, silence_s: float = 60.0) -> bytes:
    connection = await Line.open(port, silence_s=silence_s)
    try:
        await connection.send(
            f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode()
        )
        head = await connection.head()
        return b"".join([piece async for piece in connection.pieces(head)])
    finally:
        connection.close()


async def ask_once(port: int, request: bytes, patience_s: float) -> tuple[str, float]:
    """Return how one request on a connection of its own ended, and after how many seconds."""
    began = time.monotonic()
    try:
        connection = await Line.open(port, silence_s=patience_s)
    except (TimeoutError, OSError) as error:
        return f"not connected: {error!r}", time.monotonic() - began
    try:
        async with asyncio.timeout(patience_s):
            ending = await ended_with(connection, request)
    except TimeoutError:
        ending = HANGS
    finally:
        connection.close()
    return ending, time.monotonic() - began


ANSWERED = "answered"
CUT = "cut"
HANGS = "hangs"


async def ended_with(connection: Line, request: bytes) -> str:
    """Ask, read all, and return `ANSWERED`, `CUT`, `HANGS`, or the status of a refusal."""
    try:
        await connection.send(request)
        head = await connection.head()
        tail = b""
        async for piece in connection.pieces(head):
            tail = (tail + piece)[-300:]
    except Silent:
        return HANGS
    except (Ended, Nonsense):
        return CUT
    if head.status != 200:
        return f"refused with {head.status}"
    return ANSWERED if b"[DONE]" in tail else CUT
