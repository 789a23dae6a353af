"""An endpoint in trouble while the tasks are under way. A fake engine (a real process) is the
endpoint: what goes wrong goes wrong at the same places for everybody."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from random import Random

from fanout.batches import Batch, Load
from fanout.rigs import Rig

from skep.swarm.records import Task
from skep.testing.process import FakeEngine, GatewayProcess

Way = Callable[[str, str, Sequence[Task]], Awaitable[Batch]]

SPEED = {"slots": 8, "token_ms": 20, "ttft_ms": 100}
MODEL = "fake-model"
LOAD = (
    40,
    50,
)  # words of a prompt, tokens of an answer: 1.1 s a task, 7 s for fifty with eight slots
DROPS = 12
DROP_EVERY_S = 0.4
KILL_AFTER_S = 2.5
AWAY_S = 3.0


@contextlib.asynccontextmanager
async def refusing() -> AsyncIterator[str]:
    """Four slots, two may wait, all others are told 429 with Retry-After."""
    place = Path(tempfile.mkdtemp(prefix="swarm-429-"))
    with (
        FakeEngine(**{**SPEED, "slots": 4}) as engine,
        GatewayProcess(place / "g.log", limits={"max_queue": 2}) as door,
    ):
        replica = {
            "name": "r0",
            "model": MODEL,
            "url": engine.url,
            "slots": 4,
            "confirms": "slots",
        }
        door.serve([{**replica, "simulated": True}])
        yield door.url


@contextlib.asynccontextmanager
async def dropping() -> AsyncIterator[str]:
    """Every 0.4 s one connection whose answer is under way is reset, twelve times."""
    with FakeEngine(**SPEED) as engine:
        wire = Wire(engine.port)

        async def strike() -> None:
            for _ in range(DROPS):
                await asyncio.sleep(DROP_EVERY_S)
                wire.strike()

        async with (
            await asyncio.start_server(wire.carry, "127.0.0.1", 0) as server,
            _meanwhile(strike()),
        ):
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@contextlib.asynccontextmanager
async def restarting() -> AsyncIterator[str]:
    """The engine is killed after 2.5 s, and another one listens at the same port 3 s later."""
    port = _free_port()
    engines = [await asyncio.to_thread(FakeEngine(port=port, **SPEED).start)]

    async def restart() -> None:
        await asyncio.sleep(KILL_AFTER_S)
        await asyncio.to_thread(engines[0].kill)
        await asyncio.sleep(AWAY_S)
        engines.append(await asyncio.to_thread(FakeEngine(port=port, **SPEED).start))

    try:
        async with _meanwhile(restart()):
            yield f"http://127.0.0.1:{port}"
    finally:
        for engine in engines:
            engine.close()


@contextlib.asynccontextmanager
async def killed(rig: Rig) -> AsyncIterator[str]:
    """Real engines behind skep's gateway: the first one's process is killed after 2.5 s, and skep
    starts it anew.
    """

    async def kill() -> None:
        await asyncio.sleep(KILL_AFTER_S)
        with contextlib.suppress(ProcessLookupError):
            os.kill(rig.pids[0], signal.SIGKILL)

    async with _meanwhile(kill()):
        yield rig.url


class Wire:
    """Between client and engine, byte for byte; now and then it breaks."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._busy: dict[
            asyncio.StreamWriter, None
        ] = {}  # an answer is under way on it; the oldest first
        self._rng = Random(5)

    def strike(self) -> None:
        if self._busy:
            writer = self._rng.choice(list(self._busy))
            self._busy.pop(writer)
            reset_at_once = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, reset_at_once
            )
            writer.transport.abort()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, back = await asyncio.open_connection("127.0.0.1", self._port)

        async def there() -> None:
            while data := await reader.read(65536):
                self._busy[writer] = None
                back.write(data)
            back.close()

        async def here() -> None:
            while data := await theirs.read(65536):
                if data.endswith(b"0\r\n\r\n") or b"content-length:" in data.lower():
                    self._busy.pop(writer, None)
                writer.write(data)
            writer.close()

        await asyncio.gather(there(), here(), return_exceptions=True)
        self._busy.pop(writer, None)
        back.close()
        writer.close()


TROUBLES = {
    "429 above its slots": refusing,
    "connections reset": dropping,
    "engine restarts": restarting,
}


def troubled_tasks(tasks: int, seed: str) -> list[Task]:
    return Load(tasks, *LOAD).make(seed)


@contextlib.asynccontextmanager
async def _meanwhile(work) -> AsyncIterator[None]:
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
