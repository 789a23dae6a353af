"""The gateway as the supervisor sees it: a child that may crash or be replaced while the engines stay loaded.

The supervisor holds the listening socket; each gateway process gets a copy. Knows the gateway only by its command
line and its link messages. One process is *current* and takes new connections; replaced ones finish their answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from skep.config import gateway_messages as messages
from skep.errors import GatewayError
from skep.files import open_log
from skep.wire.json_pipe import JsonPipe, Message

RESTART_DELAYS_S = (0.05, 0.2, 1.0, 5.0)
STABLE_S = 30.0
LISTEN_DEADLINE_S = 20.0

Number = TypeVar("Number", int, int | float)


class GatewayChild:
    """Keeps one gateway process running. `argv` gets `--listen-fd N --link-fd M` appended."""

    def __init__(
        self,
        argv: list[str],
        listener: socket.socket,
        *,
        setup: messages.GatewaySetup,
        log: Path,
        changed: Callable[[], None],
        wanted: Callable[[str], None] = lambda _model: None,
    ) -> None:
        """`wanted` is called with each model that requests wait for and that is not loaded."""
        self._argv = argv
        self._listener = listener
        self._setup = setup
        self._log = log
        self._table = messages.ReplicaTable()  # as last published
        self._changed = changed
        self._wanted = wanted
        self._current: _Child | None = None
        self._retired: set[_Child] = set()
        self._retiring: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._new_current = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()  # at most one process is being made current
        self._ever_listened = False
        self.restarts = -1
        self.why: str | None = None
        self.broken = False

    @property
    def pid(self) -> int | None:
        return self._current.pid if self._current else None

    @property
    def listening(self) -> bool:
        return self._current is not None and self._current.listening.is_set()

    def row(self, *, stopping: bool) -> Message:
        """Return what `skep ps` shows of the process itself."""
        state = "stopping" if stopping else "ready" if self.listening else "starting"
        restarts = max(0, self.restarts)
        return {
            "name": "gateway",
            "kind": "gateway",
            "state": state,
            "pid": self.pid,
            "restarts": restarts,
            "why": self.why,
        }

    async def run(self) -> None:
        """Start it, and again whenever it dies, until `stop`; give up (`broken`) if it never listened."""
        loop = asyncio.get_running_loop()
        failures = 0
        while not self._stopping.is_set():
            started = loop.time()
            try:
                async with self._one_at_a_time:
                    self._current = await self._start()
                await self._until_nobody_serves()
            except OSError as error:  # no process or descriptor is free: a failed start
                self.why = f"the gateway cannot be started: {error.strerror}"
            if self._stopping.is_set():
                return
            failures = 1 if loop.time() - started > STABLE_S else failures + 1
            self.broken = not self._ever_listened and failures >= len(RESTART_DELAYS_S)
            self._changed()
            if self.broken:
                return
            await asyncio.sleep(RESTART_DELAYS_S[min(failures, len(RESTART_DELAYS_S)) - 1])

    def publish(self, table: messages.ReplicaTable) -> None:
        """Send the replica table to all processes, including those that only finish their answers."""
        self._table = table
        self.say(table)

    def say(self, message: messages.ToGateway) -> None:
        """Send a message to all processes; there is no answer."""
        for child in self._children():
            child.link.send(message)

    async def set_up(self, setup: messages.GatewaySetup) -> None:
        """Apply new settings: what a running process can change, at once; the rest with its successor."""
        async with self._one_at_a_time:
            self._setup = setup
            self.say(setup)

    async def status(self, timeout_s: float = 1.0) -> messages.GatewayStatus | None:
        """Return the merged status of all processes; None while none answers."""
        answers = await asyncio.gather(*(child.ask(messages.AskStatus(), timeout_s) for child in self._children()))
        told = [answer.status for answer in answers if isinstance(answer, messages.StatusAnswer)]
        return merge_status(told, complete=len(told) == len(answers)) if told else None

    async def replace(self, drain_s: float) -> None:
        """Start a new process for new connections; the old one finishes its answers, then ends.

        The old one goes on until the new one listens: an upgrade that does not start changes nothing.
        """
        async with self._one_at_a_time:
            new = await self._start()
            if not await new.came_to_listen(LISTEN_DEADLINE_S):
                with contextlib.suppress(ProcessLookupError):
                    new.process.kill()
                hint = f"the old one goes on serving; the end of {self._log} says why"
                raise GatewayError("the new gateway did not start", hint=hint)
            old, self._current = self._current, new
            self._new_current.set()
            new.link.send(self._table)  # it may have changed since the start of this one
        if old is not None:
            self._retire(old, drain_s)
        self._changed()

    async def drain(self, timeout_s: float) -> int:
        """Admit nothing new and wait for what is under way. Return how many requests were left after the timeout."""
        ask = messages.AskDrain(timeout_s)
        answers = await asyncio.gather(*(child.ask(ask, timeout_s + 5) for child in self._children()))
        return sum(answer.left for answer in answers if isinstance(answer, messages.Drained))

    async def stop(self) -> None:
        self._stopping.set()
        for task in self._retiring:
            task.cancel()
        for child in self._children():
            await child.end()

    def _children(self) -> list[_Child]:
        """Return the current process and those that finish their answers."""
        return [child for child in (self._current, *self._retired) if child is not None]

    async def _start(self) -> _Child:
        child = await _Child.spawn(self._argv, self._listener, self._log)
        self.restarts += 1
        child.on_listening = self._came_to_listen
        child.on_wanted = self._wanted
        child.link.send(self._setup)
        child.link.send(self._table)
        return child

    def _came_to_listen(self) -> None:
        self._ever_listened = True
        self.why = None
        self._changed()

    async def _until_nobody_serves(self) -> None:
        """Wait until the current process has ended, which another may have replaced meanwhile."""
        while (child := self._current) is not None:
            self._new_current.clear()
            replaced = asyncio.get_running_loop().create_task(self._new_current.wait())
            ends: set[asyncio.Future[Any]] = {child.ended, replaced}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            replaced.cancel()
            if child is self._current and child.ended.done():
                self._current = None
                self.why = f"the gateway ended with code {child.ended.result()}; its log is {self._log}"

    def _retire(self, child: _Child, drain_s: float) -> None:
        async def finish() -> None:
            try:
                await child.ask(messages.AskDrain(drain_s, hand_over=True), drain_s + 5)
            finally:
                await child.end()
                self._retired.discard(child)

        self._retired.add(child)
        task = asyncio.get_running_loop().create_task(finish())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)


def merge_status(told: Sequence[messages.GatewayStatus], *, complete: bool = True) -> messages.GatewayStatus:
    """Merge the status of several gateway processes. States are those of the first, which takes the connections."""
    replicas: dict[str, messages.ReplicaFigures] = {}
    for row in (row for one in told for row in one.replicas):
        known = replicas.get(row.name)
        more = (0, 0) if known is None else (known.active, known.releasing)
        replicas[row.name] = replace(known or row, active=row.active + more[0], releasing=row.releasing + more[1])
    models = dict.fromkeys(model for one in told for model in one.models)
    queues = dict.fromkeys(model for one in told for model in one.queues)
    return messages.GatewayStatus(
        queued=sum(one.queued for one in told),
        in_flight=sum(one.in_flight for one in told),
        busy=added([one.busy for one in told]),
        tokens=added([one.tokens for one in told]),
        ended=added([one.ended for one in told]),
        queues={model: added([one.queues.get(model, {}) for one in told]) for model in queues},
        replicas=list(replicas.values()),
        models={
            model: merge_model_usage([one.models.get(model, messages.ModelUsage()) for one in told]) for model in models
        },
        complete=complete,
    )


def merge_model_usage(told: Sequence[messages.ModelUsage]) -> messages.ModelUsage:
    """Merge the figures of one model from several gateway processes."""
    idle = [one.idle_s for one in told if one.idle_s is not None]
    return messages.ModelUsage(sum(one.busy for one in told), sum(one.queued for one in told), min(idle, default=None))


def added(counts: Sequence[Mapping[str, Number]]) -> dict[str, Number]:
    return {key: sum(one.get(key, 0) for one in counts) for key in dict.fromkeys(key for one in counts for key in one)}


class _Child:
    """One gateway process and the link to it."""

    def __init__(self, process: asyncio.subprocess.Process, link: JsonPipe[messages.FromGateway]) -> None:
        self.process = process
        self.link = link
        self.listening = asyncio.Event()
        self.on_listening: Callable[[], None] = lambda: None
        self.on_wanted: Callable[[str], None] = lambda _model: None
        self._ids = itertools.count(1)
        self._asked: dict[int, asyncio.Future[messages.StatusAnswer | messages.Drained]] = {}
        self.ended: asyncio.Task[int] = asyncio.get_running_loop().create_task(self._follow())

    @property
    def pid(self) -> int:
        return self.process.pid

    @classmethod
    async def spawn(cls, argv: list[str], listener: socket.socket, log: Path) -> _Child:
        ours, theirs = socket.socketpair()
        try:
            with open_log(log) as output, theirs:
                process = await asyncio.create_subprocess_exec(
                    *argv,
                    *("--listen-fd", str(listener.fileno()), "--link-fd", str(theirs.fileno())),
                    pass_fds=[listener.fileno(), theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        except OSError:
            ours.close()
            theirs.close()
            raise
        return cls(process, await JsonPipe.over(ours, messages.FromGateway))

    async def came_to_listen(self, timeout_s: float) -> bool:
        waiting = asyncio.get_running_loop().create_task(self.listening.wait())
        await asyncio.wait({waiting, self.ended}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        return self.listening.is_set() and not self.ended.done()

    async def end(self) -> None:
        self.link.send(messages.Exit())
        await asyncio.wait({self.ended}, timeout=3.0)
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await asyncio.wait({self.ended})

    async def ask(
        self, message: messages.AskStatus | messages.AskDrain, timeout_s: float
    ) -> messages.StatusAnswer | messages.Drained | None:
        """Return its answer; None if it ends or does not answer in time."""
        number = next(self._ids)
        answer: asyncio.Future[messages.StatusAnswer | messages.Drained] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self.link.send(replace(message, id=number))
        try:
            ends: set[asyncio.Future[Any]] = {answer, self.ended}
            await asyncio.wait(ends, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            return answer.result() if answer.done() else None
        finally:
            self._asked.pop(number, None)

    async def _follow(self) -> int:
        while (message := await self.link.receive()) is not None:
            match message:
                case messages.Listening():
                    self.listening.set()
                    self.on_listening()
                case messages.ModelWanted(model):
                    self.on_wanted(model)
                case messages.StatusAnswer() | messages.Drained():
                    asked = self._asked.get(message.id)
                    if asked is not None and not asked.done():
                        asked.set_result(message)
        self.listening.clear()
        await self.link.close()
        return await self.process.wait()
