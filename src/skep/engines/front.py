"""The gateway as the supervisor sees it: a child that may crash or be replaced while the engines stay loaded.

The supervisor holds the listening socket; each gateway process gets a copy. Knows the gateway only by its command
line and its link messages.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skep.wire.link import Link, Message

RESTART_DELAYS_S = (0.05, 0.2, 1.0, 5.0)
STABLE_S = 30.0


class Front:
    """Keeps one gateway process running. `argv` gets `--listen-fd N --link-fd M` appended."""

    def __init__(
        self,
        argv: list[str],
        listener: socket.socket,
        *,
        setup: Message,
        log: Path,
        table: Callable[[], Message],
        changed: Callable[[], None],
    ) -> None:
        self._argv = argv
        self._listener = listener
        self._setup = setup
        self._log = log
        self._table = table
        self._changed = changed
        self._child: _Child | None = None
        self._stopping = asyncio.Event()
        self.restarts = -1
        self.why: str | None = None
        self.broken = False
        self._ever_listened = False

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    @property
    def listening(self) -> bool:
        return self._child is not None and self._child.listening

    async def run(self) -> None:
        """Start it, and again whenever it dies, until `stop`; given up (`broken`) if it never came to listen."""
        loop = asyncio.get_running_loop()
        failures = 0
        while not self._stopping.is_set():
            started = loop.time()
            child = self._child or await self._start()
            code = await child.ended
            if child is not self._child:
                continue  # it was replaced: follow its successor
            self._child = None
            if self._stopping.is_set():
                return
            self.why = f"the gateway ended with code {code}; its log is {self._log}"
            failures = 1 if loop.time() - started > STABLE_S else failures + 1
            self.broken = not self._ever_listened and failures >= len(RESTART_DELAYS_S)
            self._changed()
            if self.broken:
                return
            await asyncio.sleep(RESTART_DELAYS_S[min(failures, len(RESTART_DELAYS_S)) - 1])

    def publish(self) -> None:
        """Send the replica table as it stands."""
        if self._child is not None:
            self._child.link.send({"op": "replicas", **self._table()})

    async def status(self, timeout_s: float = 1.0) -> Message:
        """`queued`, `in_flight`, `busy` by replica; empty while there is no gateway to ask."""
        if self._child is None:
            return {}
        return await self._child.ask({"op": "status"}, timeout_s) or {}

    async def replace(self, drain_s: float) -> None:
        """A new process takes the connections; the old one finishes its answers and goes."""
        old = self._child
        if old is None:
            return
        await self._start()
        await old.ask({"op": "drain", "hand_over": True, "timeout_s": drain_s}, drain_s + 5)
        old.link.send({"op": "exit"})

    async def drain(self, timeout_s: float) -> int:
        """Nothing new is admitted; wait for what is under way. How many were left when the time was over."""
        if self._child is None or not self._child.listening:
            return 0
        answer = await self._child.ask({"op": "drain", "timeout_s": timeout_s}, timeout_s + 5)
        return int(answer["left"]) if answer else 0

    async def stop(self) -> None:
        self._stopping.set()
        if self._child is not None:
            self._child.link.send({"op": "exit"})
            try:
                async with asyncio.timeout(3.0):
                    await asyncio.shield(self._child.ended)
            except TimeoutError:
                self._child.process.kill()
                await self._child.ended

    def _listening(self) -> None:
        self._ever_listened = True
        self._changed()

    async def _start(self) -> _Child:
        self.restarts += 1
        child = await _Child.spawn(self._argv, self._listener, self._log)
        child.link.send(self._setup)
        child.on_listening = self._listening
        self._child = child
        self.publish()
        self._changed()
        return child


class _Child:
    def __init__(self, process: asyncio.subprocess.Process, link: Link) -> None:
        self.process = process
        self.link = link
        self.listening = False
        self.on_listening: Callable[[], None] = lambda: None
        self._ids = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Message | None]] = {}
        self.ended: asyncio.Task[int] = asyncio.create_task(self._follow())

    @property
    def pid(self) -> int:
        return self.process.pid

    @classmethod
    async def spawn(cls, argv: list[str], listener: socket.socket, log: Path) -> _Child:
        ours, theirs = socket.socketpair()
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output, theirs:
            process = await asyncio.create_subprocess_exec(
                *argv,
                *("--listen-fd", str(listener.fileno()), "--link-fd", str(theirs.fileno())),
                pass_fds=[listener.fileno(), theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return cls(process, await Link.over(ours))

    async def ask(self, message: dict[str, Any], timeout_s: float) -> Message | None:
        number = next(self._ids)
        answer: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self.link.send({"id": number, **message})
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            return None
        finally:
            self._asked.pop(number, None)

    async def _follow(self) -> int:
        while (message := await self.link.receive()) is not None:
            if message.get("event") == "listening":
                self.listening = True
                self.on_listening()
            asked = self._asked.get(message.get("id", 0))
            if asked is not None and not asked.done():
                asked.set_result(message)
        for asked in self._asked.values():
            if not asked.done():
                asked.set_result(None)
        self.listening = False
        await self.link.close()
        return await self.process.wait()
