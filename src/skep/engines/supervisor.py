"""The supervisor: owns the replicas' keepers, the gateway process and the control socket.

Small on purpose: no request passes through it, so nothing that a client sends can bring it down.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from skep.engines.base import Engine, Launch
from skep.engines.front import Front
from skep.engines.lifecycle import RestartPolicy, State
from skep.engines.replica import Replica
from skep.errors import EngineError, GatewayError, SkepError
from skep.wire.link import Link, Message

REST_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Hive:
    """What is to run: replicas behind one gateway."""

    replicas: tuple[tuple[Launch, Engine], ...]
    gateway_argv: tuple[str, ...]
    gateway_setup: Message
    url: str
    socket_path: Path
    log_dir: Path
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    drain_s: float = 30.0

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(sorted({launch.model for launch, _ in self.replicas}))


class Supervisor:
    """`run` serves until `stop` is asked for, by a caller or over the control socket; `notify` hears of changes."""

    def __init__(self, hive: Hive, listener: socket.socket, notify: Callable[[Supervisor], None]) -> None:
        self.hive = hive
        self._notify = notify
        self._stop_asked = asyncio.Event()
        self._hurry = asyncio.Event()
        self._drain_s = hive.drain_s
        self._controls: set[asyncio.Task[None]] = set()  # connections to the control socket
        self._resting: set[str] = set()  # replicas on their way to a restart: they get nothing new
        self.phase = "starting"
        log = hive.log_dir
        self._replicas = [
            Replica(launch, engine, log / f"{launch.name}.log", self._replica_changed, hive.policy)
            for launch, engine in hive.replicas
        ]
        self._front = Front(
            list(hive.gateway_argv),
            listener,
            setup=hive.gateway_setup,
            log=log / "gateway.log",
            table=self._table,
            changed=self._changed,
        )

    def __repr__(self) -> str:
        return f"<Supervisor {self.phase} {self._replicas!r}>"

    @property
    def ready(self) -> bool:
        return self._front.listening and all(r.life.state is State.READY for r in self._replicas)

    def stop(self, drain_s: float | None = None) -> None:
        """Drain for so long (default: the hive's own time), then end everything. Asked again: end it now."""
        if self._stop_asked.is_set():
            self._hurry.set()
        elif drain_s is not None:
            self._drain_s = drain_s
        self._stop_asked.set()

    async def run(self) -> None:
        """Raises if a replica does not come up at the start, or when all have been given up later."""
        control = await asyncio.start_unix_server(self._serve_control, self.hive.socket_path)
        os.chmod(self.hive.socket_path, 0o600)  # noqa: PTH101
        try:
            async with asyncio.TaskGroup() as tasks:
                front = tasks.create_task(self._front.run())
                lives = [tasks.create_task(replica.run()) for replica in self._replicas]
                await self._stop_asked.wait()
                failure = self._failure()
                self.phase = "stopping"
                self._tell()
                await self._drain()
                for replica in self._replicas:
                    replica.stop()
                await asyncio.gather(*lives)
                await self._front.stop()
                front.cancel()
        finally:
            control.close()
            self.hive.socket_path.unlink(missing_ok=True)
            await self._close_controls()
        if failure is not None:
            raise failure

    def rows(self, status: Message) -> list[Message]:
        """What `skep ps` shows: one row a replica, and one for the gateway. `status` is the gateway's answer."""
        busy = status.get("busy", {})
        rows: list[Message] = [
            {
                "name": replica.launch.name,
                "kind": "replica",
                "state": replica.life.state.value,
                "pid": replica.pid,
                "url": replica.life.url,
                "slots": replica.launch.slots,
                "busy": busy.get(replica.launch.name, 0),
                "model": replica.launch.model,
                "engine": replica.engine.version() or replica.launch.engine,
                "restarts": replica.life.restarts,
                "why": replica.life.why,
            }
            for replica in self._replicas
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
            "models": list(self.hive.models),
            "pid": os.getpid(),
            "replicas": [row for row in self.rows({}) if row["kind"] == "replica"],
        }

    # Inside

    async def _rest(self, name: str) -> None:
        """Send the replica nothing new and wait for its answers under way, as long as a drain may take."""
        self._resting.add(name)
        self._front.publish()
        try:
            async with asyncio.timeout(self.hive.drain_s):
                while (await self._front.status()).get("busy", {}).get(name):
                    await asyncio.sleep(REST_POLL_S)
        except TimeoutError:
            pass

    def _table(self) -> Message:
        ready = [
            replica for replica in self._replicas if replica.life.serving and replica.launch.name not in self._resting
        ]
        specs = [
            {
                "name": replica.launch.name,
                "model": replica.launch.model,
                "url": replica.life.url,
                "slots": replica.launch.slots,
                "confirms": replica.engine.confirms_slots,
                "engine": replica.engine.version() or replica.launch.engine,
                "simulated": replica.engine.simulated,
            }
            for replica in ready
        ]
        return {"replicas": specs, "models": list(self.hive.models)}

    def _replica_changed(self) -> None:
        self._resting &= {replica.launch.name for replica in self._replicas if replica.life.serving}
        self._front.publish()
        self._changed()

    def _changed(self) -> None:
        if self.ready and self.phase == "starting":
            self.phase = "ready"
        states = [replica.life.state for replica in self._replicas]
        hopeless = all(state is State.FAILED for state in states) or self._front.broken
        if hopeless or (self.phase == "starting" and State.FAILED in states):
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
        failed = [replica for replica in self._replicas if replica.life.state is State.FAILED]
        if not failed or (self.phase != "starting" and len(failed) < len(self._replicas)):
            return None
        name, why = failed[0].launch.name, failed[0].life.why
        verb = "did not start" if self.phase == "starting" else "was given up"
        return EngineError(f"replica `{name}` {verb}: {why}", hint=f"its log is {self.hive.log_dir / name}.log")

    async def _drain(self) -> None:
        waiting = asyncio.create_task(self._front.drain(self._drain_s))
        hurry = asyncio.create_task(self._hurry.wait())
        try:
            await asyncio.wait({waiting, hurry}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            hurry.cancel()

    async def _serve_control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(reader, writer)
        task = asyncio.current_task()
        assert task is not None
        self._controls.add(task)
        try:
            while (message := await link.receive()) is not None:
                link.send(await self._control(message))
        except asyncio.CancelledError:
            pass  # the hive is down; the end of the connection says so
        finally:
            await link.close()
            self._controls.discard(task)

    async def _close_controls(self) -> None:
        for task in list(self._controls):
            task.cancel()
        while self._controls:
            await asyncio.sleep(0)

    async def _control(self, message: Message) -> Message:
        match message.get("op"):
            case "status":
                rows = self.rows(await self._front.status())
                return {"phase": self.phase, "url": self.hive.url, "pid": os.getpid(), "rows": rows}
            case "down":
                self.stop(message.get("drain_s"))
                return {"ok": True, "pid": os.getpid(), "drain_s": self._drain_s}
            case "restart":
                return await self._restart(str(message.get("name")))
            case other:
                return {"error": f"unknown request {other!r}"}

    async def _restart(self, name: str) -> Message:
        if name == "gateway":
            try:
                await self._front.replace(self.hive.drain_s)
            except (SkepError, OSError) as error:
                return {"error": str(error), "hint": getattr(error, "hint", None)}
            return {"ok": True}
        for replica in self._replicas:
            if replica.launch.name == name:
                await self._rest(name)
                replica.restart()
                return {"ok": True}
        known = ", ".join(["gateway", *(replica.launch.name for replica in self._replicas)])
        return {"error": f"there is no `{name}` here", "hint": f"known: {known}"}
