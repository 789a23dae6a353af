"""One replica: starts its guard process, probes, warms up, and carries out what its `Lifecycle` decides."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path, PurePosixPath
from typing import Any

from skep.engines.base import EXIT_FINAL, Diagnosis, Engine, Launch, key_headers
from skep.errors import EngineError
from skep.host.processes import kill_marked
from skep.supervisor.lifecycle import Lifecycle, LifecycleAction, ReplicaState, RestartPolicy
from skep.supervisor.process_guard import EngineAddress, Exited, FromGuard, Spawned, Terminate
from skep.supervisor.start_order import StartOrder
from skep.wire.client import WireFailure
from skep.wire.fetch import fetch_once
from skep.wire.heads import Origin, parse_url
from skep.wire.json_pipe import JsonPipe
from skep.wire.listen import cannot_listen, is_final, refusal_of

_V2, _V1, _MACHINE = "memory.events", "memory.oom_control", "vmstat"


def read_oom_kills(*, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the kernel's count for this control group, else for the whole machine; None: it counts nowhere."""
    for path in _counters(proc, cgroup):
        for line in _text(path).splitlines():
            match line.split():
                case ["oom_kill", count] if count.isdecimal():
                    return int(count)
    return None


def _counters(proc: Path, cgroup: Path) -> list[Path]:
    """Return the files to read, the group's own first; a container may mount its group as the root."""
    found: list[Path] = []
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, kinds, path = (*line.split(":", 2), "", "")[:3]
        own = PurePosixPath(path.lstrip("/"))
        if ".." in own.parts:
            own = PurePosixPath()
        if not kinds:
            found += [cgroup / own / _V2, cgroup / _V2]
        elif "memory" in kinds.split(","):
            found += [cgroup / "memory" / own / _V1, cgroup / "memory" / _V1]
    return [*found, proc / _MACHINE]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


ENDED_BY_US = (0, -signal.SIGTERM, -signal.SIGKILL, 128 + signal.SIGTERM)  # exit codes of a process that skep ended
PROBE_EVERY_S = 0.1
WARM_UP_TOKENS = 8
EXPLAIN_S = 10.0

Event = Callable[[float], list[LifecycleAction] | Awaitable[list[LifecycleAction]]]  # handed the time


class Replica:
    """One launch, kept running. `changed` is called after every change of state.

    `launch` is as configured, `started` is what was started: they differ after a fallback.
    """

    kind = "replica"
    node = None

    def __init__(
        self,
        launch: Launch,
        engine: Engine,
        log: Path,
        changed: Callable[[], None],
        policy: RestartPolicy | None = None,
        start_order: StartOrder | None = None,
    ) -> None:
        self.launch = launch
        self.engine = engine
        self.life = Lifecycle(policy)
        self.pid: int | None = None
        self.diagnosis: Diagnosis | None = None  # of its last exit; None: skep ended it, and `life.why` says why
        self.mark = f"{log.parent}:{launch.name};"  # the `;` keeps one name from being the beginning of another
        self._log = log
        self._changed = changed
        self._start_order = start_order or StartOrder()
        self._link: JsonPipe[FromGuard] | None = None  # to the guard of the present process
        self._turn: asyncio.Task[None] | None = None  # waits for other replicas that start on its cards
        self._watching: asyncio.Task[None] | None = None
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._killed_before = read_oom_kills()  # processes that the kernel killed for lack of memory
        self._fell_back: list[str] = []  # changes taken since the start, in order
        self._fallback: dict[str, Any] = {}  # fields of the launch that they changed
        self._loop = asyncio.get_running_loop()

    def __repr__(self) -> str:
        return f"<Replica {self.launch.name} {self.life.state.value} pid={self.pid} url={self.life.url}>"

    @property
    def model(self) -> str:
        return self.launch.model

    @property
    def started(self) -> Launch:
        return replace(self.launch, **self._fallback) if self._fallback else self.launch

    @property
    def settled(self) -> bool:
        return self.life.state is ReplicaState.READY

    def follow(self, before: Replica) -> None:
        """Take over the fallbacks of the replica that this one replaces after an unload."""
        self._fell_back, self._fallback = before._fell_back, before._fallback
        self.life.note = self.life.why = before.life.note

    def stop(self) -> None:
        self._events.put_nowait(self._on_stop)

    def restart(self) -> None:
        self._events.put_nowait(self.life.restart)

    async def run(self) -> None:
        """Run until stopped. A replica that was given up waits here for `restart` or `stop`."""
        async with asyncio.TaskGroup() as tasks:
            await self._carry_out(self.life.start(self._loop.time()), tasks)
            while not (self.life.state is ReplicaState.STOPPED and self.pid is None):
                due = self.life.due_at
                try:
                    async with asyncio.timeout_at(due):
                        event = await self._events.get()
                except TimeoutError:
                    actions = self.life.tick(self._loop.time())
                else:
                    found = event(self._loop.time())
                    actions = found if isinstance(found, list) else await found
                await self._carry_out(actions, tasks)
                self._changed()

    def _of(self, link: JsonPipe[FromGuard] | None, event: Event) -> Event:
        """Return the event of the process behind this link: it is nothing once another process has replaced that."""
        return lambda now: event(now) if link is self._link else []

    def _on_stop(self, _now: float) -> list[LifecycleAction]:
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        return self.life.stop()

    def _addressed(self, url: str) -> None:
        self._events.put_nowait(lambda _now: self.life.addressed(url))

    def _exited(self, code: int, tail: list[str]) -> None:
        self._events.put_nowait(lambda _now: self._on_exit(code, tail))

    async def _on_exit(self, code: int, tail: list[str]) -> list[LifecycleAction]:
        self._stop_watching()
        self.pid = None
        self._link = None
        self.life.vanished()
        self._changed()
        found = await self._explain(code, tail, oom_kills=self._oom_kills())
        now, by_itself = self._loop.time(), code not in ENDED_BY_US
        if by_itself or not self.life.being_ended:
            self.diagnosis = found
        if not self.life.being_ended and self._fall_back(found):
            return self.life.restart_changed(f"{found.cause}; again with {found.changed}", now)
        return self.life.exited(str(found), now, final=found.final, by_itself=by_itself)

    async def _explain(self, code: int | None, tail: Sequence[str], *, oom_kills: int | None = None) -> Diagnosis:
        """Return the cause of an exit. A rule that fails or takes too long costs the explanation and nothing else."""
        try:
            async with asyncio.timeout(EXPLAIN_S):
                return await asyncio.to_thread(self.engine.explain, self.started, code, tail, oom_kills=oom_kills)
        except Exception as error:
            last = next((line.strip() for line in reversed(tail) if line.strip()), None)
            how = "refused" if code is None else f"exit code {code}"
            return Diagnosis(f"{how}, not explained: {type(error).__name__}", evidence=last and last[:200])

    async def _carry_out(self, actions: list[LifecycleAction], tasks: asyncio.TaskGroup) -> None:
        for action in actions:
            match action:
                case LifecycleAction.SPAWN if not self._start_order.may_start(self.launch):
                    self.life.must_wait()
                    self._turn = tasks.create_task(self._await_turn())
                case LifecycleAction.SPAWN:
                    await self._spawn(tasks)
                case LifecycleAction.PROBE:
                    tasks.create_task(self._probe(self.life.url, self._link))
                case LifecycleAction.WARM_UP:
                    tasks.create_task(self._warm_up(self._link))
                case LifecycleAction.TERMINATE:
                    if self._link is not None:
                        self._link.send(Terminate(self.life.policy.grace_s))
                case LifecycleAction.PUBLISH:
                    self._watching = tasks.create_task(self._watch(self.life.url))
                case LifecycleAction.RETRACT:
                    pass  # `changed` tells the supervisor, which reads the state

    async def _await_turn(self) -> None:
        await self._start_order.await_turn(self.launch)
        self._events.put_nowait(self.life.granted)

    def _oom_kills(self) -> int | None:
        """Return the count since the last call."""
        before, self._killed_before = self._killed_before, read_oom_kills()
        return None if before is None or self._killed_before is None else self._killed_before - before

    def _fall_back(self, found: Diagnosis) -> bool:
        """Take the change that the diagnosis offers, where fallbacks are allowed. Return whether it was taken."""
        if found.change is None or found.changed is None or len(self._fell_back) >= self.life.policy.fallbacks:
            return False
        self._fell_back.append(found.changed)
        names = (field.name for field in fields(Launch))
        pairs = {name: (getattr(self.launch, name), getattr(found.change, name)) for name in names}
        self._fallback = {name: new for name, (old, new) in pairs.items() if old != new}
        self.life.note = f"fell back: {'; '.join(self._fell_back)}"
        return True

    async def _spawn(self, tasks: asyncio.TaskGroup) -> None:
        launch = self.started
        if (refused := _refused(launch)) is not None:
            self._exited(*refused)
            return
        try:
            port = self._start_order.port_for(launch, finds_one=self.engine.reports_address)
        except EngineError as error:
            self._exited(1, [f"error: {error.message}; {error.hint}"])
            return
        launch = replace(launch, port=port)
        ours, theirs = socket.socketpair()
        argv = [sys.executable, "-m", "skep.supervisor.process_guard", "--link-fd", str(theirs.fileno())]
        argv += ["--log", str(self._log), "--mark", self.mark]
        try:
            guard = await asyncio.create_subprocess_exec(
                *argv,
                "--",
                *self.engine.argv(launch),
                pass_fds=[theirs.fileno()],
                env={**self._start_order.environment(), **self.engine.environment(launch)},
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # no process could be started, or an argument cannot be passed
            ours.close()
            why = getattr(error, "strerror", None) or str(error)
            self._exited(1, [f"error: the guard process cannot be started: {why}"])
            return
        finally:
            theirs.close()
        self._link = await JsonPipe.over(ours, FromGuard)
        tasks.create_task(self._follow(guard, self._link))
        if not self.engine.reports_address:
            self._addressed(str(Origin(launch.host, launch.port)))

    async def _follow(self, guard: asyncio.subprocess.Process, link: JsonPipe[FromGuard]) -> None:
        """Turn the guard's messages into events. If the guard itself is killed, end its engine from here."""
        engine_pid: int | None = None
        ended: tuple[int, list[str]] = (-signal.SIGKILL, ["the guard process was killed"])
        try:
            while (message := await link.receive()) is not None:
                match message:
                    case Spawned(pid):
                        self.pid = engine_pid = pid
                        self._changed()
                    case EngineAddress(url):
                        self._addressed(url)
                    case Exited(code, tail):
                        ended = (code, tail)
                        engine_pid = None
        finally:
            if engine_pid is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(engine_pid, signal.SIGKILL)
                await asyncio.to_thread(kill_marked, self.mark)
            await link.close()
            await guard.wait()
            self._exited(*ended)

    async def _probe(self, url: str | None, link: JsonPipe[FromGuard] | None) -> None:
        """Ask the health endpoint until it answers 200 or the process is replaced."""
        assert url is not None
        origin, _ = parse_url(url)
        while self.life.state is ReplicaState.STARTING and self._link is link:
            with contextlib.suppress(WireFailure):
                answer = await fetch_once(
                    origin, "GET", self.engine.health_path, headers=key_headers(self.launch), timeout_s=5.0
                )
                if answer.status == 200 and self.pid is not None:
                    self._events.put_nowait(self._of(link, self.life.healthy))
                    return
            await asyncio.sleep(PROBE_EVERY_S)

    def _stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    async def _watch(self, url: str | None) -> None:
        """Check the health for as long as this process is ready."""
        policy, failures, headers = self.life.policy, 0, key_headers(self.launch)
        origin, _ = parse_url(url or "")
        while True:
            await asyncio.sleep(policy.watch_every_s)
            if self.life.state is not ReplicaState.READY or self.life.url != url:
                return
            try:
                await fetch_once(
                    origin, "GET", self.engine.health_path, headers=headers, timeout_s=policy.watch_timeout_s
                )
                failures = 0
            except WireFailure:
                failures += 1
            if failures >= policy.watch_failures:
                self._events.put_nowait(lambda _now: self.life.unresponsive())
                return

    async def _warm_up(self, link: JsonPipe[FromGuard] | None) -> None:
        """Generate once before traffic is let in: the first generation is slow (graphs, caches, page faults)."""
        origin, _ = parse_url(self.life.url or "")
        body = {
            "model": self.launch.model,
            "messages": [{"role": "user", "content": "Say hello."}],
            "max_tokens": WARM_UP_TOKENS,
        }
        headers, timeout_s = key_headers(self.launch), self.life.policy.warm_deadline_s
        try:
            answer = await fetch_once(
                origin, "POST", "/v1/chat/completions", body=body, headers=headers, timeout_s=timeout_s
            )
        except WireFailure as failure:
            why = str(failure)
            self._events.put_nowait(self._of(link, lambda _now: self.life.warm_up_failed(why)))
            return
        if answer.status == 200:
            self._events.put_nowait(self._of(link, self.life.warmed))
        else:
            said = answer.body[:2000].decode(errors="replace")
            self.diagnosis = found = await self._explain(None, said.splitlines())
            why = f"HTTP {answer.status} {said[:200]}" if found.remedy is None else str(found)
            self._events.put_nowait(self._of(link, lambda _now: self.life.warm_up_failed(why)))


def _refused(launch: Launch) -> tuple[int, list[str]] | None:
    """Return the exit of an engine whose address is taken: another server there would be mistaken for it.

    The engine itself reports other reasons.
    """
    error = refusal_of(launch.host, launch.port)
    if error is not None and is_final(error):
        return EXIT_FINAL, [f"error: {cannot_listen(launch.host, launch.port, error)}"]
    if error is not None and error.errno == errno.EADDRINUSE:
        where = f"('{launch.host}', {launch.port})"
        return 1, [f"error while attempting to bind on address {where}: address already in use"]
    return None
