"""The supervisor: owns the replicas' keepers, the gateway process and the control socket.

Small on purpose: no request passes through it, so nothing that a client sends can bring it down.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from skep.engines.base import Engine, Launch
from skep.engines.front import Front
from skep.engines.lifecycle import RestartPolicy, State
from skep.engines.replica import Replica
from skep.errors import EngineError, GatewayError, SkepError
from skep.wire.link import Link, Message


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
        self._listener = listener
        self._started_at = time.time()
        self._stop_asked = asyncio.Event()
        self._hurry = asyncio.Event()
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

    def stop(self) -> None:
        """Drain, then end everything. Asked a second time: do not wait for the drain."""
        if self._stop_asked.is_set():
            self._hurry.set()
        self._stop_asked.set()

    async def run(self) -> None:
        """Raises EngineError if a replica does not come up at the start, or when all have been given up later."""
        control = await asyncio.start_unix_server(self._serve_control, self.hive.socket_path)
        os.chmod(self.hive.socket_path, 0o600)  # noqa: PTH101
        try:
            async with asyncio.TaskGroup() as tasks:
                front = tasks.create_task(self._front.run())
                lives = [tasks.create_task(replica.run()) for replica in self._replicas]
                await self._stop_asked.wait()
                self.phase = "stopping"
                self._notify(self)
                await self._drain()
                for replica in self._replicas:
                    replica.stop()
                await asyncio.gather(*lives)
                await self._front.stop()
                front.cancel()
        finally:
            control.close()
            self.hive.socket_path.unlink(missing_ok=True)
        failure = self._failure()
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
                "state": "ready" if self._front.listening else "starting",
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

    def _table(self) -> Message:
        ready = [replica for replica in self._replicas if replica.life.state is State.READY]
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
        self._front.publish()
        self._changed()

    def _changed(self) -> None:
        if self.ready and self.phase == "starting":
            self.phase = "ready"
        states = [replica.life.state for replica in self._replicas]
        hopeless = all(state is State.FAILED for state in states) or self._front.broken
        if hopeless or (self.phase == "starting" and State.FAILED in states):
            self._stop_asked.set()
        self._notify(self)

    def _failure(self) -> SkepError | None:
        if self._front.broken:
            return GatewayError(f"the gateway does not start: {self._front.why}", hint="the end of its log says why")
        for replica in self._replicas:
            if replica.life.state is State.FAILED:
                log = self.hive.log_dir / f"{replica.launch.name}.log"
                what = f"replica `{replica.launch.name}` did not start: {replica.life.why}"
                return EngineError(what, hint=f"its log is {log}")
        return None

    async def _drain(self) -> None:
        waiting = asyncio.create_task(self._front.drain(self.hive.drain_s))
        hurry = asyncio.create_task(self._hurry.wait())
        try:
            await asyncio.wait({waiting, hurry}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            hurry.cancel()

    async def _serve_control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(reader, writer)
        with contextlib.suppress(ConnectionError):
            while (message := await link.receive()) is not None:
                link.send(await self._control(message))
        await link.close()

    async def _control(self, message: Message) -> Message:
        match message.get("op"):
            case "status":
                rows = self.rows(await self._front.status())
                return {"phase": self.phase, "url": self.hive.url, "pid": os.getpid(), "rows": rows}
            case "down":
                self.stop()
                return {"ok": True, "pid": os.getpid()}
            case "restart":
                return await self._restart(str(message.get("name")))
            case other:
                return {"error": f"unknown request {other!r}"}

    async def _restart(self, name: str) -> Message:
        if name == "gateway":
            await self._front.replace(self.hive.drain_s)
            return {"ok": True}
        for replica in self._replicas:
            if replica.launch.name == name:
                replica.restart()
                return {"ok": True}
        known = ", ".join(["gateway", *(replica.launch.name for replica in self._replicas)])
        return {"error": f"there is no `{name}` here", "hint": f"known: {known}"}
