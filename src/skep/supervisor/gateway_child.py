"""The gateway as the supervisor sees it: a child that may crash while the engines stay loaded.

The supervisor holds the listening socket; the gateway process gets a copy, and connections wait
while there is none. Knows the gateway only by its command line and its link messages."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from skep.config import gateway_messages as messages
from skep.errors import GatewayError
from skep.files import open_log
from skep.host.processes import ProcessorWait
from skep.wire.json_pipe import JsonPipe, Message, start_linked
from skep.wire.silence import Liveness, SilenceWatch

RESTART_DELAYS_S = (0.05, 0.2, 1.0, 5.0)
STABLE_S = 30.0
LISTEN_DEADLINE_S = 20.0
EXIT_S = 3.0
ASK_ALIVE_S = 0.25
ORPHANS_END_S = 5.0  # relay workers of a dead gateway end their streams and themselves before


@dataclass(eq=False, repr=False)
class GatewayChild:
    """Keeps a gateway process running (`argv --listen-fd N --link-fd M`).

    `changed` is called at each change of its state; `load_requested` with each model that must be
    loaded.
    """

    argv: list[str]
    listener: socket.socket
    setup: messages.GatewaySetup
    log: Path
    changed: Callable[[], None]
    load_requested: Callable[[str], None] = lambda _model: None
    # None: the environment of this process.
    environment: Callable[[], Mapping[str, str] | None] = lambda: None
    restarts: int = -1
    why: str | None = None  # it does not serve, or does not answer
    broken: bool = False  # given up

    def __post_init__(self) -> None:
        self._table = messages.ReplicaTable()  # as last published
        self._process: asyncio.subprocess.Process | None = None
        self._link: JsonPipe[messages.FromGateway] | None = None
        self._ended = asyncio.Event()
        self._stopping = False
        self._one_restart = asyncio.Lock()  # of restarts by the user, one at a time
        self._restarting = False
        self._listened = asyncio.Event()
        self.listening = False
        self._liveness = Liveness.ANSWERS

    @property
    def pid(self) -> int | None:
        if self._process:
            return self._process.pid
        return None

    def row(self, *, stopping: bool) -> Message:
        """Return what `skep ps` shows of the process itself."""
        return {
            "name": "gateway",
            "kind": "gateway",
            "state": self._state(stopping=stopping),
            "pid": self.pid,
            "restarts": max(0, self.restarts),
            "why": self.why,
        }

    def _state(self, *, stopping: bool) -> str:
        if stopping:
            return "stopping"
        if not self.listening:
            return "starting"
        if self._liveness is Liveness.ANSWERS:
            return "ready"
        return "silent"

    async def run(self) -> None:
        """Start it, and again whenever it dies, until `stop`. Give up (`broken`) where it has
        never listened.
        """
        loop = asyncio.get_running_loop()
        failures = 0
        ever_listened = False
        while True:
            started = loop.time()
            try:
                code = await self._run_once()
                if self._stopping:
                    return
                self.why = self._why_ended(code)
            except OSError as error:  # no process or descriptor is free: a failed start
                self.why = f"the gateway cannot be started: {error.strerror}"
            if self._restarting:
                self._restarting = False
                self.why = None
                failures = 0
                continue
            ever_listened |= self._listened.is_set()
            if loop.time() - started > STABLE_S:
                failures = 0
            failures += 1
            self.broken = not ever_listened and failures >= len(RESTART_DELAYS_S)
            self.changed()
            if self.broken:
                return
            await asyncio.sleep(RESTART_DELAYS_S[min(failures, len(RESTART_DELAYS_S)) - 1])

    def _why_ended(self, code: int) -> str:
        if self._liveness is Liveness.HANGS:
            hangs_s = self.setup.silence.hangs_s
            return (
                f"the gateway did not answer for {hangs_s:g} s and was killed; its log is "
                f"{self.log}"
            )
        return f"the gateway ended with code {code}; its log is {self.log}"

    def publish(self, table: messages.ReplicaTable) -> None:
        if table != self._table:
            self._table = table
            self.say(table)

    def say(self, message: messages.ToGateway) -> None:
        """Send a message; there is no answer."""
        if self._link is not None:
            self._link.send(message)

    def set_up(self, setup: messages.GatewaySetup) -> None:
        """Apply new settings: what a running process can change, at once; the rest with its
        successor.
        """
        self.setup = setup
        self.say(setup)

    async def status(self, timeout_s: float = 1.0) -> messages.GatewayStatus | None:
        """Return its status; None while it does not answer."""
        if self._link is None:
            return None
        answer = await self._link.ask(messages.AskStatus(), timeout_s)
        if isinstance(answer, messages.StatusAnswer):
            return answer.status
        return None

    async def sessions(self, timeout_s: float = 2.0) -> list[messages.SessionFigures]:
        """Return the sessions that it knows; none while it does not answer."""
        if self._link is None:
            return []
        answer = await self._link.ask(messages.AskSessions(), timeout_s)
        if isinstance(answer, messages.SessionsAnswer):
            return answer.sessions
        return []

    async def restart(self, drain_s: float) -> None:
        """Let the process finish its answers while new connections wait, and start another one."""
        async with self._one_restart:
            self._listened.clear()
            if self._link is not None:
                await self._link.ask(messages.AskDrain(drain_s, hand_over=True), drain_s + 5)
                self._restarting = True
                await self._end()
            try:
                await asyncio.wait_for(self._listened.wait(), LISTEN_DEADLINE_S)
            except TimeoutError:
                raise GatewayError(
                    "the new gateway did not start", hint=f"the end of {self.log} says why"
                ) from None

    async def drain(self, timeout_s: float) -> None:
        """Have it admit nothing new, and wait for running requests, at most until the timeout."""
        if self._link is not None:
            await self._link.ask(messages.AskDrain(timeout_s), timeout_s + 5)

    async def stop(self) -> None:
        self._stopping = True
        await self._end()

    async def _end(self) -> None:
        if self._process is None:
            return
        self.say(messages.Exit())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), EXIT_S)
        with contextlib.suppress(ProcessLookupError):
            if not self._ended.is_set():
                self._process.kill()
                _kill_group(self._process.pid)  # relay workers that hang too
        await self._ended.wait()

    async def _run_once(self) -> int:
        """Run a process to its end, and return its exit code."""
        fd = self.listener.fileno()
        with open_log(self.log) as output:
            process, link = await start_linked(
                self.argv,
                messages.FromGateway,
                "--listen-fd",
                str(fd),
                output=output,
                fds=[fd],
                env=self.environment(),
            )
        self._process = process
        self._link = link
        self._ended.clear()
        self.restarts += 1
        self.say(self.setup)
        self.say(self._table)
        self._liveness = Liveness.ANSWERS
        watch = SilenceWatch(self.setup.silence)
        watching = asyncio.create_task(self._watch(watch, process))
        try:
            await self._follow(link, watch)
        finally:
            watching.cancel()
        self.listening = False
        await link.close()
        code = await process.wait()
        if code:
            asyncio.get_running_loop().call_later(ORPHANS_END_S, _kill_group, process.pid)
        self._process = None
        self._link = None
        self._ended.set()
        return code

    async def _follow(self, link: JsonPipe[messages.FromGateway], watch: SilenceWatch) -> None:
        """Carry out its messages until it is gone."""
        while (message := await link.receive()) is not None:
            match message:
                case messages.Listening(answers_alive):
                    watch.started(gives_signs=answers_alive)
                    self._listened.set()
                    self.listening = True
                    self.why = None
                    self.changed()
                case messages.Alive():
                    watch.heard()
                case messages.ModelWanted(model):
                    self.load_requested(model)

    async def _watch(self, watch: SilenceWatch, process: asyncio.subprocess.Process) -> None:
        """Ask it whether it is alive, and kill it when it hangs, so that it is started again."""
        processor_wait = ProcessorWait(process.pid)
        loop = asyncio.get_running_loop()
        while self._liveness is not Liveness.HANGS:
            self.say(messages.AskAlive())
            await asyncio.sleep(ASK_ALIVE_S)
            now = loop.time()
            self._become(watch.look(now, waited_s=processor_wait.since_last(now)))
        with contextlib.suppress(ProcessLookupError):
            process.kill()

    def _become(self, liveness: Liveness) -> None:
        if liveness is self._liveness:
            return
        self._liveness = liveness
        if liveness is Liveness.ANSWERS:
            self.why = None
        else:
            silence = self.setup.silence
            self.why = (
                f"it has not answered for {silence.silent_s:g} s; it is killed and started again "
                f"after {silence.hangs_s:g} s"
            )
        self.changed()


def _kill_group(leader: int) -> None:
    """Kill the rest of a gateway's process group: relay workers that hung when it ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
