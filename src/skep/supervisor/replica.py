"""One replica of this machine: starts its guard process, probes, warms up, and carries out what
its `Lifecycle` decides. Knows no other replica but by the order in which they start.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.engines.agent_checks import AgentCheck, CheckedEndpoint, check_for_agents
from skep.engines.base import EXIT_FINAL, GATEWAY_KEY, Diagnosis, Engine, Launch, key_headers
from skep.errors import EngineError
from skep.host.facts import read_oom_kills
from skep.host.processes import ENGINE_KEY, kill_marked
from skep.supervisor.lifecycle import (
    Life,
    Lifecycle,
    LifecycleAction,
    ReplicaState,
    RestartPolicy,
    ToDo,
)
from skep.supervisor.process_guard import EngineAddress, Exited, FromGuard, Spawned, Terminate
from skep.wire.client import HttpResponse, WireFailure, fetch_once
from skep.wire.heads import Origin, parse_url
from skep.wire.json_pipe import JsonPipe, start_linked
from skep.wire.listen import cannot_listen, claim_port, free_port, is_final, refusal_of

# Exit codes of a process that skep ended.
ENDED_BY_US = (0, -signal.SIGTERM, -signal.SIGKILL, 128 + signal.SIGTERM)
PROBE_EVERY_S = 0.1
WARM_UP_TOKENS = 8

Event = Callable[[float], ToDo | Awaitable[ToDo]]  # is called with the time


class UpstreamInfo(msgspec.Struct, frozen=True):
    """What is known of an engine elsewhere.

    Where busy slots cannot be asked, the release bound is short.
    """

    model: str = ""
    name: str = "remote"
    confirms: str = ""
    release_bound_s: float = 5.0
    health_path: str = "/health"
    simulated: bool = False
    note: str | None = None

    def version(self) -> str:
        return self.name


class ReplicaMember:
    """One replica of a hive, wherever it runs and whoever started it."""

    kind = "replica"
    launch: Launch
    engine: Engine | UpstreamInfo
    life: Life
    changed: Callable[[], None]
    pid: int | None = None
    node: str | None = None  # as far as known; None: this machine
    checks: tuple[AgentCheck, ...] = ()  # of what agents need; empty: not checked

    @property
    def model(self) -> str:
        return self.launch.model

    @property
    def started(self) -> Launch:
        """The launch it is started with: `launch`, or the one it has fallen back to."""
        return self.launch

    @property
    def about(self) -> str:
        """The name and version of its engine."""
        return self.launch.about or self.engine.version() or self.launch.engine

    @property
    def settled(self) -> bool:
        """Whether the start need not wait for it: it is ready, or skep does not start it."""
        return self.life.state is ReplicaState.READY

    async def run(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    async def restart(self) -> None:
        """Raise EngineError where its machine cannot be reached."""
        raise NotImplementedError

    async def log_since(self, offset: int | None, lines: int) -> object:  # noqa: ARG002
        """Return the last lines of a log elsewhere, or what follows the `offset`; None: the log is
        a file here.
        """
        return None

    def become(self, state: ReplicaState, why: str | None) -> None:
        """Set the state of a replica that somebody else starts."""
        self.life.state = state
        self.life.why = why
        self.changed()


class StartOrder:
    """The order in which replicas of one machine start, their ports and their environment.

    Replicas that share a card start one after the other, because an engine measures the free
    memory of its cards while it starts. `ports` is the range that engines may use, shared with
    other programs on this machine; None: any port."""

    def __init__(self, ports: range | None = None) -> None:
        self._ports = ports
        # By replica: its port, and the socket that claims it.
        self._claims: dict[str, tuple[int, socket.socket]] = {}
        # Replicas that start or wait to, in order, with their cards.
        self._queue: dict[str, frozenset[int]] = {}
        self._moved = asyncio.Event()
        self._secrets = {GATEWAY_KEY, ENGINE_KEY}

    # The queue of starts

    def may_start(self, launch: Launch) -> bool:
        """Return whether no replica earlier in the queue uses its cards.

        It gets a place in the queue, which it keeps until it is `done`.
        """
        cards = self._queue.setdefault(launch.name, frozenset(launch.gpus))
        for name, earlier_cards in self._queue.items():
            if name == launch.name:
                return True
            if not cards.isdisjoint(earlier_cards):
                return False
        return True

    def holds(self, name: str) -> bool:
        """Return whether it starts or waits to."""
        return name in self._queue

    async def await_turn(self, launch: Launch) -> None:
        while not self.may_start(launch):
            self._moved.clear()
            await self._moved.wait()

    def done(self, names: Iterable[str]) -> None:
        """Remove replicas from the queue: they are ready, dead or given up."""
        for name in names:
            if self._queue.pop(name, None) is not None:
                self._moved.set()

    # Environment and ports

    def hide(self, launches: Iterable[Launch]) -> None:
        """Keep the keys of upstream servers from the engines: an engine may run a checkpoint's own
        code.
        """
        self._secrets |= {launch.key_env for launch in launches if launch.key_env}

    def hide_variables(self, names: Iterable[str]) -> None:
        """Keep these variables from the engines too."""
        self._secrets |= set(names)

    def environment(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if name not in self._secrets}

    def port_for(self, launch: Launch, *, reports_address: bool) -> int:
        """Return a port; 0 where the engine chooses one and reports it.

        Raise EngineError where all are taken.
        """
        if launch.port:
            return launch.port
        if self._ports is not None:
            return self._claimed(launch.name, launch.host, self._ports)
        if reports_address:
            return 0
        return free_port(launch.host)

    def close(self) -> None:
        """Give up all claimed ports."""
        for _, claim in self._claims.values():
            claim.close()
        self._claims.clear()

    def _claimed(self, name: str, host: str, ports: range) -> int:
        """Claim the first free port after the replica's last one, which may still be in use."""
        begin = 0
        if name in self._claims:
            last_port, last_claim = self._claims.pop(name)
            last_claim.close()
            begin = ports.index(last_port) + 1
        for port in chain(ports[begin:], ports[:begin]):
            if (claim := claim_port(host, port)) is not None:
                self._claims[name] = (port, claim)
                return port
        hint = "stop what listens there, or start the node with another --port"
        raise EngineError(
            f"all ports for engines are taken on {host}, {ports[0]} to {ports[-1]}", hint=hint
        )


def explain_exit(
    launch: Launch, code: int | None, tail: Sequence[str], *, oom_kills: int | None = None
) -> Diagnosis:
    from skep.engines.diagnosis import diagnose  # reads the rules

    return diagnose(launch, code, tail, oom_kills=oom_kills)


@dataclass(eq=False, repr=False)
class Replica(ReplicaMember):
    """One launch, kept running.

    `launch` is as configured; `started`, which the engine was started with, differs from it after
    a fallback.
    """

    launch: Launch
    engine: Engine
    log: Path
    changed: Callable[[], None]
    policy: InitVar[RestartPolicy | None] = None
    start_order: StartOrder = field(default_factory=StartOrder)
    explain: Callable[..., Diagnosis] = explain_exit

    def __post_init__(self, policy: RestartPolicy | None) -> None:
        self.life: Lifecycle = Lifecycle(policy)
        # Of its last exit; None: skep ended it, and `life.why` says why.
        self.diagnosis: Diagnosis | None = None
        # The `;` keeps the mark of one name from being the beginning of another's.
        self.mark = f"{self.log.parent}:{self.launch.name};"
        self._link: JsonPipe[FromGuard] | None = None  # to the guard of the present process
        # Waits for other replicas that start on its cards.
        self._turn: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._checking: asyncio.Task[None] | None = None
        # The launch and the engine that `checks` are of.
        self._checked: tuple[Launch, str] | None = None
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        # Processes that the kernel has killed for lack of memory.
        self._oom_kills = read_oom_kills()
        self._fell_back: list[str] = []  # changes taken since the start, in order
        self._fallback: dict[str, Any] = {}  # fields of the launch that they changed
        self._loop = asyncio.get_running_loop()

    @property
    def started(self) -> Launch:
        if self._fallback:
            return replace(self.launch, **self._fallback)
        return self.launch

    def follow(self, before: Replica) -> None:
        """Take over the fallbacks of the replica that this one replaces after an unload."""
        self._fell_back = before._fell_back
        self._fallback = before._fallback
        self.checks = before.checks
        self._checked = before._checked
        self.life.note = self.life.why = before.life.note

    def stop(self) -> None:
        self._events.put_nowait(self._on_stop)

    async def restart(self) -> None:
        self._events.put_nowait(self.life.restart)

    async def run(self) -> None:
        """Run until stopped. A replica that was given up waits here for `restart` or `stop`."""
        async with asyncio.TaskGroup() as tasks:
            await self._carry_out(self.life.start(self._loop.time()), tasks)
            while not (self.life.state is ReplicaState.STOPPED and self.pid is None):
                event: Event
                try:
                    async with asyncio.timeout_at(self.life.due_at):
                        event = await self._events.get()
                except TimeoutError:
                    event = self.life.tick
                action = event(self._loop.time())
                if isinstance(action, Awaitable):
                    action = await action
                await self._carry_out(action, tasks)
                self.changed()

    def _of(self, link: JsonPipe[FromGuard] | None, event: Event) -> Event:
        """Return the event for the process behind this link: once another process has replaced
        that, nothing follows from it.
        """
        return lambda now: event(now) if link is self._link else None

    def _on_stop(self, _now: float) -> ToDo:
        if self._turn is not None:
            self._turn.cancel()
        return self.life.stop()

    def _addressed(self, url: str) -> None:
        self._events.put_nowait(lambda _now: self.life.addressed(url))

    def _exited(self, code: int, tail: list[str]) -> None:
        self._events.put_nowait(lambda _now: self._on_exit(code, tail))

    async def _on_exit(self, code: int, tail: list[str]) -> ToDo:
        for task in (self._watching, self._checking):
            if task is not None:
                task.cancel()
        self._watching = self._checking = None
        self.pid = self._link = None
        self.life.vanished()
        self.changed()
        oom_kills = self._new_oom_kills()
        by_itself = code not in ENDED_BY_US
        if self.life.being_ended and not by_itself:  # nothing has to be explained
            return self.life.exited("ended by skep", self._loop.time())
        diagnosis = await self._explain(code, tail, oom_kills=oom_kills)
        self.diagnosis = diagnosis
        now = self._loop.time()
        if not self.life.being_ended and self._fall_back(diagnosis):
            why = f"{diagnosis.cause}; again with {diagnosis.changed}"
            return self.life.restart_changed(why, now)
        return self.life.exited(str(diagnosis), now, final=diagnosis.final, by_itself=by_itself)

    def _new_oom_kills(self) -> int | None:
        """Return how many processes the kernel killed since the last call; None: it does not
        count.
        """
        before = self._oom_kills
        self._oom_kills = read_oom_kills()
        if before is None or self._oom_kills is None:
            return None
        return self._oom_kills - before

    async def _explain(
        self, code: int | None, tail: Sequence[str], *, oom_kills: int | None = None
    ) -> Diagnosis:
        """Return the cause of an exit. A rule that raises costs only the explanation."""
        try:
            return await asyncio.to_thread(
                self.explain, self.started, code, tail, oom_kills=oom_kills
            )
        except Exception as error:
            last_line = tail[-1].strip() if tail else ""
            return Diagnosis(
                f"exit code {code}, not explained: {type(error).__name__}",
                evidence=last_line[:200] or None,
            )

    async def _carry_out(self, action: ToDo, tasks: asyncio.TaskGroup) -> None:
        match action:
            case LifecycleAction.SPAWN if not self.start_order.may_start(self.launch):
                self.life.must_wait()

                async def await_turn() -> None:
                    await self.start_order.await_turn(self.launch)
                    self._events.put_nowait(self.life.granted)

                self._turn = tasks.create_task(await_turn())
            case LifecycleAction.SPAWN:
                await self._spawn(tasks)
            case LifecycleAction.PROBE:
                tasks.create_task(self._probe(self.life.url or "", self._link))
            case LifecycleAction.WARM_UP:
                tasks.create_task(self._warm_up(self._link, tasks))
            case LifecycleAction.TERMINATE if self._link is not None:
                self._link.send(Terminate(self.life.policy.grace_s))
            case LifecycleAction.WATCH:
                self._watching = tasks.create_task(self._watch(self.life.url or ""))

    def _fall_back(self, diagnosis: Diagnosis) -> bool:
        """Take the change that the diagnosis offers, where fallbacks are allowed.

        Return whether it was taken.
        """
        if diagnosis.change is None or diagnosis.changed is None:
            return False
        if len(self._fell_back) >= self.life.policy.fallbacks:
            return False
        self._fell_back.append(diagnosis.changed)
        new = msgspec.structs.asdict(diagnosis.change)
        self._fallback = {
            name: value for name, value in new.items() if value != getattr(self.launch, name)
        }
        self.life.note = f"fell back: {'; '.join(self._fell_back)}"
        return True

    async def _spawn(self, tasks: asyncio.TaskGroup) -> None:
        launch = self.started
        if (refused := _refused(launch)) is not None:
            self._exited(*refused)
            return
        try:
            port = self.start_order.port_for(launch, reports_address=self.engine.reports_address)
        except EngineError as error:
            self._exited(1, [f"error: {error.message}; {error.hint}"])
            return
        launch = replace(launch, port=port)
        program = [sys.executable, "-m", "skep.supervisor.process_guard"]
        try:
            args = ["--log", str(self.log), "--mark", self.mark, "--", *self.engine.argv(launch)]
            env = {**self.start_order.environment(), **self.engine.environment(launch)}
            guard, self._link = await start_linked(program, FromGuard, *args, env=env)
        except (OSError, ValueError) as error:
            # No process could be started, or an argument cannot be passed.
            why = getattr(error, "strerror", None) or str(error)
            self._exited(1, [f"error: the guard process cannot be started: {why}"])
            return
        tasks.create_task(self._follow(guard, self._link))
        if not self.engine.reports_address:
            self._addressed(str(Origin(launch.host, launch.port)))

    async def _follow(self, guard: asyncio.subprocess.Process, link: JsonPipe[FromGuard]) -> None:
        """Turn the guard's messages into events.

        If the guard itself is killed, end its engine from here.
        """
        engine_pid: int | None = None
        ended: tuple[int, list[str]] = (-signal.SIGKILL, ["the guard process was killed"])
        try:
            while (message := await link.receive()) is not None:
                match message:
                    case Spawned(pid):
                        self.pid = engine_pid = pid
                        self.changed()
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

    async def _ask(
        self, url: str, timeout_s: float, body: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Ask for its health; with a `body`, for a chat completion."""
        return await fetch_once(
            parse_url(url)[0],
            "GET" if body is None else "POST",
            self.engine.health_path if body is None else "/v1/chat/completions",
            body=body,
            headers=key_headers(self.launch),
            timeout_s=timeout_s,
        )

    async def _probe(self, url: str, link: JsonPipe[FromGuard] | None) -> None:
        """Ask the health endpoint until it answers 200 or the process is replaced."""
        while self.life.state is ReplicaState.STARTING and self._link is link:
            with contextlib.suppress(WireFailure):
                if (await self._ask(url, 5.0)).status == 200 and self.pid is not None:
                    self._events.put_nowait(self._of(link, self.life.healthy))
                    return
            await asyncio.sleep(PROBE_EVERY_S)

    async def _watch(self, url: str) -> None:
        """Check the health for as long as this process is ready."""
        policy = self.life.policy
        failures = 0
        while True:
            await asyncio.sleep(policy.watch_every_s)
            if self.life.state is not ReplicaState.READY or self.life.url != url:
                return
            try:
                await self._ask(url, policy.watch_timeout_s)
                failures = 0
            except WireFailure:
                failures += 1
            if failures >= policy.watch_failures:
                self._events.put_nowait(lambda _now: self.life.unresponsive())
                return

    async def _warm_up(self, link: JsonPipe[FromGuard] | None, tasks: asyncio.TaskGroup) -> None:
        """Generate once before traffic is let in: the first generation is slow (graphs, caches,
        page faults).
        """
        messages = [{"role": "user", "content": "Say hello."}]
        body = {"model": self.launch.model, "messages": messages, "max_tokens": WARM_UP_TOKENS}
        try:
            answer = await self._ask(self.life.url or "", self.life.policy.warm_deadline_s, body)
        except WireFailure as failure:
            why = str(failure)
        else:
            if answer.status == 200:
                await self._check(link, tasks)
                self._events.put_nowait(self._of(link, self.life.warmed))
                return
            text = answer.body[:2000].decode(errors="replace")
            self.diagnosis = await self._explain(None, text.splitlines())
            if self.diagnosis.remedy is None:
                why = f"HTTP {answer.status} {text[:200]}"
            else:
                why = str(self.diagnosis)
        self._events.put_nowait(self._of(link, lambda _now: self.life.warm_up_failed(why)))

    async def _check(self, link: JsonPipe[FromGuard] | None, tasks: asyncio.TaskGroup) -> None:
        """Check what agents need of this process, once. Return when that is done, or when the
        replica should serve.

        The same launch of the same engine is not checked again, so that a restart after a crash
        loses no time."""
        checked = (self.started, self.about)
        limit_s = self.life.policy.checked_before_ready_s
        if self.engine.simulated or limit_s is None or self._checked == checked:
            return

        def add(check: AgentCheck) -> None:
            if self._link is link:
                self.checks = (*self.checks, check)
                self.changed()

        async def check(url: str) -> None:
            self.checks = ()
            checks = await check_for_agents(CheckedEndpoint.of(self.started, url), tell=add)
            if self._link is link and all(check.answered for check in checks):
                self._checked = checked

        self._checking = tasks.create_task(check(self.life.url or ""))
        wait_s = 0.0
        if not self.launch.on_demand:
            now = self._loop.time()
            until_deadline_s = (self.life.due_at or now) - now
            wait_s = min(limit_s, until_deadline_s / 2)
        await asyncio.wait({self._checking}, timeout=wait_s)


def _refused(launch: Launch) -> tuple[int, list[str]] | None:
    """Return the exit of an engine whose address is taken; None: it is free.

    The engine is not started then: the other server there would be mistaken for it.
    """
    error = refusal_of(launch.host, launch.port)
    if error is not None and is_final(error):
        return EXIT_FINAL, [f"error: {cannot_listen(launch.host, launch.port, error)}"]
    if error is not None and error.errno == errno.EADDRINUSE:
        where = f"('{launch.host}', {launch.port})"
        return 1, [f"error while attempting to bind on address {where}: address already in use"]
    return None
