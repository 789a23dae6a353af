"""The supervisor: owns the replicas, the gateway process and the control socket.

Small on purpose: no request passes through it, so nothing that a client sends can bring it down.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from skep.config.gateway_messages import GatewayStatus, LoadFailed, UnloadedModel
from skep.errors import EngineError, GatewayError, SkepError
from skep.supervisor import control_commands as control
from skep.supervisor.control import NO_ANSWER, STOP_S
from skep.supervisor.gateway_child import GatewayChild
from skep.supervisor.lifecycle import ReplicaState, RestartPolicy
from skep.supervisor.model_loader import ModelLoader
from skep.supervisor.monitor_child import MonitorChild
from skep.supervisor.reload import Reloader
from skep.supervisor.replica_protocol import Hive as Hive  # noqa: PLC0414 - who runs a supervisor has one
from skep.supervisor.replica_protocol import Rebuild as Rebuild  # noqa: PLC0414
from skep.supervisor.replica_protocol import RemoteReplicaFactory
from skep.supervisor.replica_set import ReplicaSet, ReplicaView
from skep.wire.json_pipe import Message, from_document, to_document

SERVICES_STOP_S = 75.0  # as STOP_S, where replicas run on other machines
PAUSED_RETRY_S = 5.0  # for clients that wait when a pause begins
NO_FIGURES: Message = {"pid": None, "url": None, "slots": None, "busy": None, "restarts": None, "why": None}


class BackgroundService(Protocol):
    """A task beside the replicas, such as the link to a cluster. A SkepError that it raises ends the hive."""

    async def run(self, avoided: Callable[[], frozenset[str]]) -> None:
        """Run until cancelled. `avoided` returns the drained nodes: nothing new is placed there."""

    async def stop(self) -> str | None:
        """Stop, after the replicas have ended. Return what could not be ended; None: nothing is left."""

    @property
    def settled(self) -> bool:
        """Whether the start need not wait for it."""

    def set_policy(self, policy: RestartPolicy) -> None:
        """Apply a restart policy to its replicas."""

    def row(self) -> Message | None:
        """Return its row in `skep ps` (name, kind, state, url, why); None: it has none."""


class Supervisor:
    """`run` serves until `stop`, by a caller or over the control socket; `notify` is called on changes.

    `rebuild` makes a hive from settings of the control socket, the present hive, and what runs.
    `elsewhere` makes a replica of a launch that has a place; `services` run beside the replicas.
    """

    def __init__(
        self,
        hive: Hive,
        listener: socket.socket,
        notify: Callable[[Supervisor], None],
        rebuild: Rebuild | None = None,
        *,
        elsewhere: RemoteReplicaFactory | None = None,
        services: Sequence[BackgroundService] = (),
    ) -> None:
        self._notify = notify
        self._services = services
        self._stop_asked = asyncio.Event()
        self._hurry = asyncio.Event()
        self._drain_s: float | None = None
        self._service_failed: SkepError | None = None
        self._paused_for: str | None = None  # what uses the machine, in words; None: not paused
        self._watched = False  # the monitor ran when the pause began
        self._resuming: asyncio.Task[SkepError | None] | None = None
        self._tasks = asyncio.TaskGroup()
        self.phase = "starting"
        self.left_behind: tuple[str, ...] = ()  # what could not be ended, in words
        self.last_rows: list[Message] = []  # of `skep ps`, as of the last change, without the figures of the gateway
        self._views: list[ReplicaView] = []
        self.replica_set = ReplicaSet(hive.log_dir, hive.policy, self._replicas_changed, self._busy, elsewhere)
        self._gateway_child = GatewayChild(
            list(hive.gateway_argv),
            listener,
            setup=hive.gateway_setup,
            log=hive.log_dir / "gateway.log",
            changed=self._changed,
            wanted=lambda model: self.loader.wanted(model),  # noqa: PLW0108 - it is made below
        )
        self.loader = ModelLoader(
            self.replica_set,
            self._tasks,
            status=self._gateway_child.status,
            say=self._gateway_child.say,
            changed=self._published,
        )
        self._monitor = MonitorChild(hive.monitor_argv, hive.log_dir / "monitor.log", begin=hive.monitor_due)
        self._reloader = Reloader(
            hive,
            rebuild,
            self._tasks,
            self.replica_set,
            gateway=self._gateway_child,
            loader=self.loader,
            monitor=self._monitor,
            phase=lambda: self.phase,
            set_policy=self._set_policy,
        )
        self._commands = control.ControlCommands(
            self.replica_set, self._gateway_child, self.loader, reloader=self._reloader
        )

    def __repr__(self) -> str:
        return f"<Supervisor {self.phase} {self.replica_set!r}>"

    @property
    def hive(self) -> Hive:
        return self._reloader.hive

    @property
    def _expected(self) -> list[ReplicaView]:
        """The replicas that should serve: not those on demand or dormant."""
        return [view for view in self._views if not view.member.launch.on_demand and not view.dormant]

    def stop(self, drain_s: float | None = None) -> None:
        """Drain for `drain_s` (default: as configured), then end everything. A second call ends it at once."""
        if self._stop_asked.is_set():
            self._hurry.set()
        elif drain_s is not None:
            self._drain_s = drain_s
        self._stop_asked.set()

    @property
    def drain_s(self) -> float:
        return self.hive.drain_s if self._drain_s is None else self._drain_s

    async def run(self) -> None:
        """Serve until stopped. Raise if a replica does not start, or if all are given up later."""
        async with control.control_socket(self.hive.socket_path, self._control, self._last_words, self._release):
            failure = await self._serve()
        if failure is not None:
            raise failure

    async def _serve(self) -> SkepError | None:
        """Serve until asked to stop. Return the error that ended it, if any."""
        async with self._tasks as tasks:
            gateway = tasks.create_task(self._gateway_child.run())
            services = [tasks.create_task(self._accompany(service)) for service in self._services]
            self.replica_set.add_replicas(self.hive.replicas, tasks)
            self.loader.configure(self.hive.replicas, self.hive.memory_budget, begin=True)
            loader = tasks.create_task(self.loader.run())
            monitor = tasks.create_task(self._monitor.run())
            await self._stop_asked.wait()
            failure = self._failure()
            self.phase = "stopping"
            self._tell()
            self._reloader.cancel()
            self._paused_for = None
            if self._resuming is not None:
                self._resuming.cancel()
            await self._monitor.stop()  # the drain need not wait for its probes
            monitor.cancel()
            await self._drain()
            self.loader.stop()
            loader.cancel()
            await self.replica_set.end_all()
            for service, task in zip(self._services, services, strict=True):
                left = await service.stop()
                self.left_behind += () if left is None else (left,)
                task.cancel()
            await self._gateway_child.stop()
            gateway.cancel()
        if self.left_behind:
            self._tell()
        return failure

    async def _accompany(self, service: BackgroundService) -> None:
        try:
            await service.run(lambda: self.replica_set.avoided)
        except SkepError as error:
            self._service_failed = error
            self._stop_asked.set()

    def rows(self, status: GatewayStatus | None) -> list[Message]:
        """Return the rows of `skep ps`: one a replica, and one for the gateway. `status` is the gateway's answer."""
        self._views = self.replica_set.views()
        return self._rows(status or GatewayStatus())

    def _rows(self, status: GatewayStatus) -> list[Message]:
        silent = {row.name for row in status.replicas if row.state in ("open", "half-open")}  # the circuit breaker
        rows: list[Message] = []
        for view in self._views:
            member = view.member
            name, node, state, why = member.launch.name, member.node, view.state, member.life.why
            if node is not None and state == "ready" and name in silent:  # ready on its node, but cannot be reached
                state, why = "backoff", NO_ANSWER
            rows.append(
                {
                    "name": name,
                    "kind": member.kind,
                    "pid": member.pid,
                    "url": member.life.url,
                    "slots": view.started.slots,
                    "busy": status.busy.get(name, 0),
                    "model": view.model or None,
                    "engine": view.engine,
                    "simulated": member.engine.simulated,
                    "restarts": member.life.restarts,
                    "room": dict(member.launch.room) or None,
                    "node": node,
                    "state": state,
                    "why": why,
                }
            )
        gateway = {
            **self._gateway_child.row(stopping=self.phase == "stopping"),
            "url": self.hive.url,
            "slots": sum(row["slots"] for row in rows if row["state"] == "ready"),
            "busy": status.in_flight,
            "queued": status.queued,
        }
        rows.append(gateway)
        return rows + [{**NO_FIGURES, **row} for service in self._services if (row := service.row()) is not None]

    def description(self) -> Message:
        """Return what `skep up --json` prints."""
        return {
            "url": self.hive.url,
            "openai_base_url": f"{self.hive.url}/v1",
            "models": list(self.replica_set.models),
            "pid": os.getpid(),
            "replicas": [row for row in self.last_rows if row["kind"] in ("replica", "upstream")],
        }

    # Inside

    def _set_policy(self, policy: RestartPolicy) -> None:
        self.replica_set.set_policy(policy)
        for service in self._services:
            service.set_policy(policy)

    async def _busy(self, name: str) -> int:
        """Return the busy slots of a replica. A gateway that does not answer may have streams: it counts as one."""
        status = await self._gateway_child.status()
        return status.busy.get(name, 0) if status is not None else int(self._gateway_child.listening)

    def _replicas_changed(self) -> None:
        self.loader.look()
        self._published()

    def _published(self) -> None:
        """Tell the gateway which replicas there are, then everybody what changed."""
        self._views = self.replica_set.views()
        self._gateway_child.publish(self.replica_set.table(self._views, self._dormant()))
        self._changed()

    def _changed(self) -> None:
        expected = self._expected
        if self.phase == "starting" and self._gateway_child.listening:
            settled = (*(view.settled for view in expected), *(service.settled for service in self._services))
            self.phase = "ready" if all(settled) else "starting"
        states = [view.member.life.state for view in expected]
        all_failed = bool(states) and all(state is ReplicaState.FAILED for state in states)
        may_stay = self._reloader.waits_for_change or self._paused_for is not None  # the end of the pause tries again
        hopeless = all_failed and len(states) == len(self._views) and not may_stay
        if hopeless or self._gateway_child.broken or (self.phase == "starting" and ReplicaState.FAILED in states):
            self._stop_asked.set()
        self._tell()

    def _tell(self) -> None:
        """Notify. A closed terminal or pipe is no reason to stop serving."""
        self.last_rows = self._rows(GatewayStatus())
        with contextlib.suppress(OSError):
            self._notify(self)

    def _failure(self) -> SkepError | None:
        """Return why this hive cannot serve. One failed replica beside others that serve is shown in `ps` only."""
        if self._gateway_child.broken:
            return GatewayError(
                f"the gateway does not start: {self._gateway_child.why}", hint="the end of its log says why"
            )
        if self._service_failed is not None:
            return self._service_failed
        failed = [view.member for view in self._expected if view.member.life.state is ReplicaState.FAILED]
        if not failed or (
            self.phase != "starting" and (len(failed) < len(self._views) or self._reloader.waits_for_change)
        ):
            return None
        name, why = failed[0].launch.name, failed[0].life.why
        verb = "did not start" if self.phase == "starting" else "was given up"
        node = failed[0].node
        where = f"its log is {self.hive.log_dir / name}.log" if node is None else f"its log is on node `{node}`"
        return EngineError(f"replica `{name}` {verb}: {why}", hint=where)

    async def _drain(self) -> None:
        waiting = asyncio.create_task(self._gateway_child.drain(self.drain_s))
        hurry = asyncio.create_task(self._hurry.wait())
        try:
            await asyncio.wait({waiting, hurry}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            hurry.cancel()

    # A pause lasts as long as the connection that asked for it

    async def _pause(self, pid: int | None) -> Message:
        """End all engines once their answers are finished. Gateway, port and settings stay."""
        if not self._reloader.possible or self.loader.is_moving:
            hint = "try again when `skep ps` shows every replica ready or unloaded"
            raise EngineError("skep cannot pause: it is starting, changing or loading a model", hint=hint)
        why = f"`skep tune --in-place` (pid {pid}) uses the machine; serving resumes afterwards"
        self._paused_for, self.phase = why, "paused"
        self.loader.pause()
        try:
            self._watched = self._monitor.pid is not None
            await self._monitor.become((), begin=False)
            await self.replica_set.pause(self.hive.drain_s)
        except BaseException:
            self._release()
            raise
        for model in self._dormant():  # refuse the requests that wait
            self._gateway_child.say(LoadFailed(model, why, PAUSED_RETRY_S))
        return {"ok": True, "holds": True}

    def _release(self) -> None:
        """Start the engines again."""
        if self._paused_for is not None and self._resuming is None:
            self._resuming = self._tasks.create_task(self._resume())

    async def _resume(self) -> SkepError | None:
        """Start the engines again. Return the error of one that does not start."""
        failure = await self.replica_set.resume(self._tasks)
        self._paused_for, self._resuming, self.phase = None, None, "ready"
        self.loader.pause(over=True)
        await self._monitor.become(self.hive.monitor_argv, begin=self._watched)
        self._published()
        return failure

    async def _resumed(self) -> Message:
        self._release()
        if (resuming := self._resuming) is not None:
            await asyncio.wait({resuming})
            if not resuming.cancelled() and (failure := resuming.result()) is not None:
                raise failure
        return {"ok": True}

    def _dormant(self) -> dict[str, UnloadedModel]:
        """Return, for the gateway, the models that no replica serves, with the reason."""
        if self._paused_for is None:
            return self.loader.unloaded
        silent = [model for model in self.replica_set.models if not self.replica_set.serves(model)]
        return {model: UnloadedModel("failed", self._paused_for) for model in silent}

    def _last_words(self) -> Message:
        return {"left_behind": self.left_behind}

    # The control socket

    async def _control(self, message: Message) -> Message:
        try:
            request: control.Request = from_document(message, control.Request)
        except msgspec.ValidationError as error:
            return {"error": f"unknown request {message.get('op')!r}: {error}"}
        match request:
            case control.Status():
                status = await self._gateway_child.status()
                here = {"phase": self.phase, "url": self.hive.url, "pid": os.getpid()}
                return {**here, "rows": self.rows(status), "gateway": to_document(status) if status is not None else {}}
            case control.OriginRequest():
                settings = self.hive.settings
                return {"overrides": to_document(settings.overrides), "on_cluster": settings.cluster is not None}
            case control.DownRequest(drain_s):
                self.stop(drain_s)
                stop_s = SERVICES_STOP_S if self._services else STOP_S
                return {"ok": True, "pid": os.getpid(), "drain_s": self.drain_s, "stop_s": stop_s, "more": True}
            case control.MonitorRequest():
                return {"ok": True, "running": self._monitor.wake(), "pid": self._monitor.pid}
            case control.Resume():
                return await self._resumed()
            case _ if self._paused_for is not None and not isinstance(request, control.Log):
                hint = "try again when that has ended, or `skep down`"
                raise EngineError(f"skep is paused: {self._paused_for}", hint=hint)
            case control.Pause(pid):
                return await self._pause(pid)
            case _:
                return await self._commands.answer(request)
