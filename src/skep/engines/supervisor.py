"""The supervisor: owns the replicas' keepers, the gateway process and the control socket.

Small on purpose: no request passes through it, so nothing that a client sends can bring it down.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skep.engines.base import Launch
from skep.engines.changes import changes
from skep.engines.control_socket import control_socket
from skep.engines.crew import Crew, Member
from skep.engines.front import Front
from skep.engines.housing import Housing
from skep.engines.lifecycle import RestartPolicy, State
from skep.engines.rooms import House
from skep.engines.sidecar import Sidecar
from skep.errors import EngineError, GatewayError, SkepError
from skep.wire.link import Message


@dataclass(frozen=True, slots=True)
class Hive:
    """What is to run: replicas behind one gateway."""

    replicas: tuple[Launch, ...]
    gateway_argv: tuple[str, ...]
    gateway_setup: Message
    url: str
    socket_path: Path | None  # where it is controlled; None: only by who runs it
    log_dir: Path
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    drain_s: float = 30.0
    wishes: Message = field(default_factory=dict)  # what the command line asked for; told to those who want to reload
    left_out: tuple[str, ...] = ()  # settings that only a new start would bring about
    warnings: tuple[str, ...] = ()  # for who asked for it
    room: tuple[tuple[str, int], ...] = ()  # what the machine has of "ram", "gpu0", ...
    max_loaded: int | None = None  # models at once, where some are loaded on demand
    turn_s: float = 30.0  # a busy model that others wait for stays loaded at least so long
    monitor_argv: tuple[str, ...] = ()  # the monitor's loop; empty: none beside this hive
    monitor_setup: Mapping[str, Any] = field(default_factory=dict)  # what it reads by itself; another: a new start
    monitor_due: bool = False  # there is something to watch from the start

    @property
    def house(self) -> House:
        return House(dict(self.room), self.max_loaded, self.turn_s)


Rebuild = Callable[[Message, Hive, Sequence[Launch]], Hive]


class Supervisor:
    """`run` serves until `stop` is asked for, by a caller or over the control socket; `notify` hears of changes.

    `rebuild` makes a hive of settings that came over the control socket, of the hive as it is, and of what runs.
    """

    def __init__(
        self,
        hive: Hive,
        listener: socket.socket,
        notify: Callable[[Supervisor], None],
        rebuild: Rebuild | None = None,
    ) -> None:
        self.hive = hive
        self._notify = notify
        self._rebuild = rebuild
        self._stop_asked = asyncio.Event()
        self._hurry = asyncio.Event()
        self._drain_s: float | None = None
        self._reloading: asyncio.Task[SkepError | None] | None = None
        self._reload_begun = False
        self._stay = False  # a reload did not bring replicas up: wait for the next one instead of giving up
        self._tasks = asyncio.TaskGroup()
        self.phase = "starting"
        self.crew = Crew(hive.log_dir, hive.policy, self._crew_changed, self._busy)
        self._front = Front(
            list(hive.gateway_argv),
            listener,
            setup=hive.gateway_setup,
            log=hive.log_dir / "gateway.log",
            table=lambda: {**self.crew.table(), "dormant": self.housing.dormant()},
            changed=self._changed,
            wanted=self._wanted,
        )
        self.housing = Housing(
            self.crew, self._tasks, status=self._front.status, say=self._front.say, changed=self._published
        )
        self._monitor = Sidecar(hive.monitor_argv, hive.log_dir / "monitor.log", begin=hive.monitor_due)

    def __repr__(self) -> str:
        return f"<Supervisor {self.phase} {self.crew!r}>"

    @property
    def ready(self) -> bool:
        return self._front.listening and all(member.settled for member in self._expected)

    @property
    def _expected(self) -> list[Member]:
        """Those that should serve. Others come when somebody wants them; that one cannot is told to who asks."""
        return [
            member for member in self.crew.members if not member.launch.on_demand and not self.crew.is_dormant(member)
        ]

    def stop(self, drain_s: float | None = None) -> None:
        """Drain for so long (default: the hive's own time), then end everything. Asked again: end it now."""
        if self._stop_asked.is_set():
            self._hurry.set()
        elif drain_s is not None:
            self._drain_s = drain_s
        self._stop_asked.set()

    @property
    def drain_s(self) -> float:
        return self.hive.drain_s if self._drain_s is None else self._drain_s

    async def run(self) -> None:
        """Raises if a replica does not come up at the start, or when all have been given up later."""
        async with control_socket(self.hive.socket_path, self._control):
            failure = await self._serve()
        if failure is not None:
            raise failure

    async def _serve(self) -> SkepError | None:
        """Until it is asked to stop; why it had to."""
        async with self._tasks as tasks:
            front = tasks.create_task(self._front.run())
            self.crew.enlist(self.hive.replicas, tasks)
            self.housing.settle_in(self.hive.replicas, self.hive.house, begin=True)
            housing = tasks.create_task(self.housing.run())
            monitor = tasks.create_task(self._monitor.run())
            await self._stop_asked.wait()
            failure = self._failure()
            self.phase = "stopping"
            self._tell()
            if self._reloading is not None:
                self._reloading.cancel()
            await self._monitor.stop()  # a probe of ours is no answer to wait for
            monitor.cancel()
            await self._drain()
            self.housing.stop()
            housing.cancel()
            await self.crew.dismiss_all()
            await self._front.stop()
            front.cancel()
        return failure

    def rows(self, status: Message) -> list[Message]:
        """What `skep ps` shows: one row a replica, and one for the gateway. `status` is the gateway's answer."""
        busy = status.get("busy", {})
        rows: list[Message] = [
            {
                "name": member.launch.name,
                "kind": member.kind,
                "state": self.crew.state(member),
                "pid": member.pid,
                "url": member.life.url,
                "slots": member.started.slots,
                "busy": busy.get(member.launch.name, 0),
                "model": member.model or None,
                "engine": member.launch.about or member.engine.version() or member.launch.engine,
                "simulated": member.engine.simulated,
                "restarts": member.life.restarts,
                "why": member.life.why,
                "room": dict(member.launch.room) or None,
            }
            for member in self.crew.members
        ]
        rows.append(
            {
                "name": "gateway",
                "kind": "gateway",
                "state": self._front_state(),
                "pid": self._front.pid,
                "url": self.hive.url,
                "slots": sum(row["slots"] for row in rows if row["state"] == "ready"),
                "busy": status.get("in_flight", 0),
                "queued": status.get("queued", 0),
                "restarts": max(0, self._front.restarts),
                "why": self._front.why,
            }
        )
        return rows

    def _front_state(self) -> str:
        if self.phase == "stopping":
            return "stopping"
        return "ready" if self._front.listening else "starting"

    def description(self) -> Message:
        """What `skep up --json` prints."""
        return {
            "url": self.hive.url,
            "openai_base_url": f"{self.hive.url}/v1",
            "models": list(self.crew.models),
            "pid": os.getpid(),
            "replicas": [row for row in self.rows({}) if row["kind"] != "gateway"],
        }

    # Inside

    async def _busy(self, name: str) -> int:
        """Slots of the replica that are taken. A gateway that does not answer may have streams."""
        status = await self._front.status()
        return int(status["busy"].get(name, 0)) if status else int(self._front.listening)

    def _wanted(self, model: str) -> None:
        self.housing.wanted(model)

    def _crew_changed(self) -> None:
        self.housing.look()
        self._published()

    def _published(self) -> None:
        self._front.publish()
        self._changed()

    def _changed(self) -> None:
        if self.ready and self.phase == "starting":
            self.phase = "ready"
        states = [member.life.state for member in self._expected]
        all_failed = bool(states) and all(state is State.FAILED for state in states)
        hopeless = all_failed and len(states) == len(self.crew.members) and not self._stay
        if hopeless or self._front.broken or (self.phase == "starting" and State.FAILED in states):
            self._stop_asked.set()
        self._tell()

    def _tell(self) -> None:
        """A listener that has gone (a closed terminal or pipe) is no reason to stop serving."""
        with contextlib.suppress(OSError):
            self._notify(self)

    def _failure(self) -> SkepError | None:
        """Why this hive cannot serve. A replica given up beside others that serve is a note in `ps`, no failure."""
        if self._front.broken:
            return GatewayError(f"the gateway does not start: {self._front.why}", hint="the end of its log says why")
        failed = [member for member in self._expected if member.life.state is State.FAILED]
        if not failed or (self.phase != "starting" and (len(failed) < len(self.crew.members) or self._stay)):
            return None
        name, why = failed[0].launch.name, failed[0].life.why
        verb = "did not start" if self.phase == "starting" else "was given up"
        return EngineError(f"replica `{name}` {verb}: {why}", hint=f"its log is {self.hive.log_dir / name}.log")

    async def _drain(self) -> None:
        waiting = asyncio.create_task(self._front.drain(self.drain_s))
        hurry = asyncio.create_task(self._hurry.wait())
        try:
            await asyncio.wait({waiting, hurry}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            hurry.cancel()

    # What is asked over the control socket

    async def _control(self, message: Message) -> Message:
        match message.get("op"):
            case "status":
                status = await self._front.status()
                here = {"phase": self.phase, "url": self.hive.url, "pid": os.getpid()}
                return {**here, "rows": self.rows(status), "gateway": status}
            case "origin":
                return {"wishes": self.hive.wishes}
            case "down":
                self.stop(message.get("drain_s"))
                return {"ok": True, "pid": os.getpid(), "drain_s": self.drain_s}
            case "restart":
                return await self._restart(str(message.get("name")))
            case "drain":
                return await self._drain_one(str(message.get("name")), wait=bool(message.get("wait")))
            case "undrain":
                self.crew.undrain(self._known(str(message.get("name"))))
                return {"ok": True}
            case "load":
                return await self.housing.load(str(message.get("model")), wait=bool(message.get("wait")))
            case "unload":
                model, wait = str(message.get("model")), bool(message.get("wait"))
                return await self.housing.unload(model, wait=wait, drain_s=message.get("drain_s"))
            case "swap":
                out, come, wait = str(message.get("out")), str(message.get("in")), bool(message.get("wait"))
                return await self.housing.swap(out, come, wait=wait, drain_s=message.get("drain_s"))
            case "reload":
                return await self._reload(message)
            case "monitor":
                return {"ok": True, "running": self._monitor.wake(), "pid": self._monitor.pid}
            case other:
                return {"error": f"unknown request {other!r}"}

    def _known(self, name: str, *, besides: Sequence[str] = ()) -> str:
        if self.crew.find(name) is None:
            known = ", ".join([*besides, *self.crew.names])
            raise EngineError(f"there is no `{name}` here", hint=f"known: {known}")
        return name

    async def _restart(self, name: str) -> Message:
        if name == "gateway":
            await self._front.replace(self.hive.drain_s)
            return {"ok": True}
        self._known(name, besides=["gateway"])
        member = self.crew.find(name)
        if member is not None and self.crew.is_dormant(member):
            raise EngineError(f"`{name}` is not loaded", hint=f"`skep load {member.model}` loads it")
        await self.crew.rest(name, self.hive.drain_s)
        member = self.crew.find(name)
        if member is not None:
            member.restart()
        return {"ok": True}

    async def _drain_one(self, name: str, *, wait: bool) -> Message:
        self.crew.drain(self._known(name))
        if wait and not await self.crew.until_idle(name):
            raise EngineError(f"`{name}` was let in again before it was empty")
        return {"ok": True, "busy": await self._busy(name)}

    async def _reload(self, message: Message) -> Message:
        """Settings take effect before the answer; replicas come and go after it, or before it with `wait`."""
        if self._rebuild is None or self.phase != "ready" or self._reload_begun:
            why = "another reload is under way" if self._reload_begun else f"skep is {self.phase}"
            raise EngineError(f"nothing is reloaded now: {why}", hint="try again later; `skep ps` shows the state")
        self._reload_begun = True
        try:
            running = [member.launch for member in self.crew.members]
            hive = await asyncio.to_thread(self._rebuild, message["settings"], self.hive, running)
            await self._front.set_up(hive.gateway_setup)
            plan = changes(running, hive.replicas)
            before, self.hive = self.hive, hive
            self.crew.set_policy(hive.policy)
            if (before.monitor_argv, before.monitor_setup) != (hive.monitor_argv, hive.monitor_setup):
                await self._monitor.become(hive.monitor_argv, begin=hive.monitor_due)
            self._reloading = self._tasks.create_task(self._carry_out(hive, running))
        except BaseException:
            self._reload_begun = False
            raise
        if message.get("wait"):
            await asyncio.wait({self._reloading})
            failure = None if self._reloading.cancelled() else self._reloading.result()
            if failure is not None:
                raise failure
        return {"ok": True, **plan.document(), "left_out": list(hive.left_out), "warnings": list(hive.warnings)}

    async def _carry_out(self, hive: Hive, running: Sequence[Launch]) -> SkepError | None:
        def settle() -> None:
            self.housing.settle_in([member.launch for member in self.crew.members], hive.house)

        self._stay = True
        try:
            plan = changes(running, hive.replicas)
            await self.crew.become(plan, hive.replicas, hive.drain_s, self._tasks, known=settle)
            self._stay = False
        except SkepError as error:
            return error
        finally:
            settle()
            self._reload_begun = False
        return None
