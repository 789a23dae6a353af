"""The commands of the control socket: which part of the hive carries out each, and which replicas a name means."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from skep.errors import EngineError, SkepError, UserError
from skep.supervisor.gateway_child import GatewayChild
from skep.supervisor.model_loader import ModelLoader
from skep.supervisor.reload import Reloader
from skep.supervisor.replica_protocol import RemoteLog
from skep.supervisor.replica_set import ReplicaSet
from skep.units import MIB
from skep.wire.json_pipe import JsonPipe, Message, to_document


class ControlRequest(Struct, frozen=True, tag_field="op", tag=str.lower):
    """What a client of the control socket asks. The tag is the name of the class in small letters."""


class Status(ControlRequest, frozen=True):
    pass


class OriginRequest(ControlRequest, frozen=True, tag="origin"):
    """What the command line asked for when skep was started."""


class DownRequest(ControlRequest, frozen=True, tag="down"):
    drain_s: float | None = None  # None: as configured


class MonitorRequest(ControlRequest, frozen=True, tag="monitor"):
    """There is something to watch: the monitor is to run."""


class Pause(ControlRequest, frozen=True):
    """End the engines as long as this connection lasts."""

    pid: int | None = None  # of who asks


class Resume(ControlRequest, frozen=True):
    pass


class Restart(ControlRequest, frozen=True):
    name: str


class Drain(ControlRequest, frozen=True):
    name: str
    wait: bool = False


class Undrain(ControlRequest, frozen=True):
    name: str


class Log(ControlRequest, frozen=True):
    name: str
    lines: int = 100
    offset: int | None = None


class Scale(ControlRequest, frozen=True):
    model: str | None = None
    replicas: int | None = None
    wait: bool = False


class Load(ControlRequest, frozen=True):
    model: str
    wait: bool = False


class Unload(ControlRequest, frozen=True):
    model: str
    wait: bool = False
    drain_s: float | None = None


class Swap(ControlRequest, frozen=True):
    out: str
    come: str = field(name="in")
    wait: bool = False
    drain_s: float | None = None


class Reload(ControlRequest, frozen=True):
    settings: dict[str, Any]  # a document of the settings, which another version of skep may have made
    wait: bool = False


Request = (
    Status | OriginRequest | DownRequest | MonitorRequest | Pause | Resume | Restart | Drain | Undrain | Log | Scale
    | Load | Unload | Swap | Reload
)  # fmt: skip


class ControlCommands:
    """Answers to the commands that concern replicas, models and reloads."""

    def __init__(
        self, replica_set: ReplicaSet, gateway: GatewayChild, loader: ModelLoader, *, reloader: Reloader
    ) -> None:
        self._replica_set = replica_set
        self._gateway_child = gateway
        self._loader = loader
        self._reloader = reloader

    async def answer(self, request: Request) -> Message:
        match request:
            case Restart(name):
                return await self._restart(name)
            case Drain(name, wait):
                return await self._drain_some(name, wait=wait)
            case Undrain(name):
                return self._undrain(name)
            case Log(name, lines, offset):
                member = self._replica_set.find(name)  # where it is a file here, the client reads it
                told = await member.log_since(offset, lines) if isinstance(member, RemoteLog) else None
                return {"ok": True, **({} if told is None else to_document(told))}
            case Scale(model, replicas, wait):
                return await self._scale(model, replicas, wait=wait)
            case Load(model, wait):
                return await self._loader.load(model, wait=wait)
            case Unload(model, wait, drain_s):
                return await self._loader.unload(model, wait=wait, drain_s=drain_s)
            case Swap(out, come, wait, drain_s):
                return await self._loader.swap(out, come, wait=wait, drain_s=drain_s)
            case Reload(settings, wait):
                return await self._reloader.reload(settings, wait=wait)
            case _:
                raise AssertionError(request)

    # Inside

    def _meant(self, name: str) -> list[str]:
        """Return the names of a replica, or of all replicas on a node."""
        meant = [name] if self._replica_set.find(name) else self._replica_set.at(name)
        if not meant:
            nodes = f"; nodes: {', '.join(self._replica_set.nodes)}" if self._replica_set.nodes else ""
            raise EngineError(f"there is no `{name}` here", hint=f"known: {', '.join(self._replica_set.names)}{nodes}")
        return meant

    async def _restart(self, name: str) -> Message:
        if name == "gateway":
            await self._gateway_child.replace(self._reloader.hive.drain_s)
            return {"ok": True}
        member = self._replica_set.find(name)
        if member is None:
            known = ", ".join(("gateway", *self._replica_set.names))
            raise EngineError(f"there is no `{name}` here", hint=f"known: {known}")
        if self._replica_set.is_dormant(member):
            raise EngineError(f"`{name}` is not loaded", hint=f"`skep model load {member.model}` loads it")
        await self._replica_set.rest(name, self._reloader.hive.drain_s)
        self._replica_set.restart(name)
        return {"ok": True}

    async def _drain_some(self, name: str, *, wait: bool) -> Message:
        meant = self._meant(name)
        self._replica_set.drain(name)
        if wait and not all(await asyncio.gather(*(self._replica_set.until_idle(one) for one in meant))):
            raise EngineError(f"`{name}` was undrained before its requests had ended")
        busy = await asyncio.gather(*(self._replica_set.busy(one) for one in meant))
        return {"ok": True, "busy": sum(busy), "replicas": meant}

    def _undrain(self, name: str) -> Message:
        meant = self._replica_set.at(name) if name in self._replica_set.drained else self._meant(name)
        if node := self._replica_set.drained_node(name):
            raise EngineError(f"`{name}` is on node `{node}`, which is drained", hint=f"`skep replica undrain {node}`")
        self._replica_set.undrain(name)
        return {"ok": True, "replicas": meant or [name]}

    async def _scale(self, model: str | None, replicas: int | None, *, wait: bool) -> Message:
        """Change the number of replicas. Without a number, return the counts; without a model, those of all."""
        known = self._reloader.models
        if model is not None and replicas is not None:
            return await self._reloader.scale(model, replicas, wait=wait)
        if model is not None and model not in known:
            hint = f"known: {', '.join(known) or 'none'}"
            raise UserError(f"there is no model `{model}` that skep starts here", hint=hint)
        return {"ok": True, "models": [self._count(one) for one in known if model in (None, one)]}

    def _count(self, model: str) -> Message:
        members = [one for one in self._replica_set.members if one.model == model and one.kind != "upstream"]
        return {"model": model, "replicas": len(members), "ready": sum(one.life.serving for one in members)}


CommandHandler = Callable[[Message], Awaitable[Message]]


@asynccontextmanager
async def control_socket(
    path: Path | None,
    answer: CommandHandler,
    last_words: Callable[[], Message] = dict,
    released: Callable[[], None] = lambda: None,
) -> AsyncIterator[None]:
    """Serve a control socket that only this user can open, while the block runs. Serve none where `path` is None.

    A connection whose last answer had `more` is sent the `last_words` when the block has ended.
    `released` is called when a connection ends that had an answer with `holds`.
    """
    if path is None:
        yield
        return
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            await _serve(JsonPipe(reader, writer, Message), answer, last_words, released)
        finally:
            connections.discard(task)

    server = await asyncio.start_unix_server(serve, path, limit=4 * MIB)
    os.chmod(path, 0o600)  # noqa: PTH101
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)  # noqa: ASYNC240 - one name, at the very end
        for task in list(connections):
            task.cancel()
        while connections:
            await asyncio.sleep(0)


async def _serve(
    link: JsonPipe[Message], answer: CommandHandler, last_words: Callable[[], Message], released: Callable[[], None]
) -> None:
    told: Message = {}
    holds = False
    try:
        while (message := await link.receive()) is not None:
            told = {}  # a client whose answer is cut short sees the end of the connection
            told = await _answered(message, answer)
            holds = holds or "holds" in told
            link.send(told)
    except asyncio.CancelledError:  # the hive is down; the end of the connection says so
        if told.get("more"):
            link.send(last_words())
    finally:
        if holds:
            released()
        await link.close()


async def _answered(message: Message, answer: CommandHandler) -> Message:
    try:
        return await answer(message)
    except (SkepError, OSError) as error:
        code = getattr(error, "exit_code", 1)
        return {"error": str(error), "hint": getattr(error, "hint", None), "exit_code": code}
    except Exception as error:  # a bug is reported to the client and does not end the hive
        return {"error": f"unexpected {type(error).__name__}: {error}", "hint": "please report it"}
