"""The requests of the control socket, each with what the supervisor does for it, and the socket
itself. Knows the supervisor's methods; decides nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from inspect import signature
from pathlib import Path

from skep.errors import EngineError, SkepError
from skep.supervisor.control import STOP_S
from skep.supervisor.model_loader import ModelLoader
from skep.supervisor.replica import ReplicaMember
from skep.supervisor.supervisor import Supervisor
from skep.units import MIB
from skep.wire.json_pipe import JsonPipe, Message, to_document

LAST_WORDS_S = 2.0  # for a client to read them
REMOTE_STOP_S = 75.0  # as STOP_S, where replicas run on other machines


async def tell_status(supervisor: Supervisor) -> Message:
    status = await supervisor.gateway.status()
    return {
        "phase": supervisor.phase,
        "url": supervisor.hive.url,
        "pid": os.getpid(),
        "rows": supervisor.rows(status),
        "gateway": to_document(status) if status is not None else {},
    }


async def tell_sessions(supervisor: Supervisor) -> Message:
    return {"sessions": to_document(await supervisor.gateway.sessions())}


async def tell_origin(supervisor: Supervisor) -> Message:
    """Tell what the command line asked for when skep was started."""
    settings = supervisor.hive.settings
    return {
        "overrides": to_document(settings.overrides),
        "on_cluster": settings.cluster is not None,
    }


async def stop_hive(supervisor: Supervisor, drain_s: float | None = None) -> Message:
    supervisor.stop(drain_s)
    limit_s = stop_limit_s(supervisor)
    return {
        "ok": True,
        "pid": os.getpid(),
        "drain_s": supervisor.hive.drain_s,
        "stop_s": limit_s,
        "more": True,
    }


def stop_limit_s(supervisor: Supervisor) -> float:
    """Return how long engines and gateway may take to end once the drain is over."""
    if supervisor.remote is not None:
        return REMOTE_STOP_S
    return STOP_S


async def wake_monitor(supervisor: Supervisor) -> Message:
    """Let the monitor run: there is something to watch."""
    return {"ok": True, "running": supervisor.monitor.wake(), "pid": supervisor.monitor.pid}


def member(supervisor: Supervisor, name: str) -> ReplicaMember:
    replicas = supervisor.replica_set
    replica = replicas.find(name)
    if replica is None:
        raise EngineError(
            f"there is no replica `{name}`", hint=f"known: {', '.join(replicas.names)}"
        )
    return replica


async def restart(supervisor: Supervisor, name: str) -> Message:
    replicas = supervisor.replica_set
    drain_s = supervisor.hive.drain_s
    if name == "gateway":
        await supervisor.gateway.restart(drain_s)
        return {"ok": True}
    replica = member(supervisor, name)
    if replicas.is_dormant(replica):
        raise EngineError(
            f"`{name}` is not loaded", hint=f"`skep model load {replica.model}` loads it"
        )
    await replicas.restart(name, drain_s)
    return {"ok": True}


async def drain(supervisor: Supervisor, name: str, wait: bool = False) -> Message:
    member(supervisor, name)
    supervisor.replica_set.drain(name)
    if wait:
        await supervisor.replica_set.until_idle(name)
    return {"ok": True, "busy": await supervisor.busy(name)}


async def undrain(supervisor: Supervisor, name: str) -> Message:
    member(supervisor, name)
    supervisor.replica_set.drain(name, over=True)
    return {"ok": True}


async def tell_log(
    supervisor: Supervisor, name: str, lines: int = 100, offset: int | None = None
) -> Message:
    """Return a part of a log elsewhere; where it is a file here, the client reads it."""
    replica = supervisor.replica_set.find(name)
    if replica is None:
        return {"ok": True}
    part = await replica.log_since(offset, lines)
    if part is None:
        return {"ok": True}
    return {"ok": True, **to_document(part)}


ControlCommand = Callable[..., Awaitable[Message]]
COMMANDS: dict[str, ControlCommand] = {
    "load": ModelLoader.load, "unload": ModelLoader.unload, "status": tell_status,
    "origin": tell_origin, "down": stop_hive, "monitor": wake_monitor, "log": tell_log,
    "pause": Supervisor.pause, "resume": Supervisor.resume, "reload": Supervisor.reload,
    "restart": restart, "drain": drain, "undrain": undrain, "scale": Supervisor.scale,
    "sessions": tell_sessions,
}  # fmt: skip
OF_LOADER = {"load", "unload"}
# Answered during a pause too.
WHILE_PAUSED = {"status", "sessions", "origin", "down", "monitor", "resume", "log"}


async def answer(supervisor: Supervisor, message: Message) -> Message:
    op = message.get("op", "")
    if op not in COMMANDS:
        return {"error": f"unknown request {op!r}"}
    if supervisor.paused_for is not None and op not in WHILE_PAUSED:
        hint = "try again when that has ended, or `skep down`"
        raise EngineError(f"skep is paused: {supervisor.paused_for}", hint=hint)
    _, *names = signature(COMMANDS[op]).parameters
    arguments = {name: message[name] for name in names if name in message}
    return await COMMANDS[op](supervisor.loader if op in OF_LOADER else supervisor, **arguments)


async def run_with_control(supervisor: Supervisor, path: Path) -> None:
    """Run the supervisor with its control socket at this path."""

    def last_words() -> Message:
        return {"left_behind": supervisor.left_behind}

    handle = partial(answer, supervisor)
    async with control_socket(path, handle, last_words, supervisor.release):
        await supervisor.run()


CommandHandler = Callable[[Message], Awaitable[Message]]


@asynccontextmanager
async def control_socket(
    path: Path,
    answer: CommandHandler,
    last_words: Callable[[], Message] = dict,
    released: Callable[[], object] = dict,
) -> AsyncIterator[None]:
    """Serve a control socket that only this user can open, while the block runs.

    A client that got an answer with `more` is sent the `last_words` when the block ends. When the
    connection of one that got an answer with `holds` ends, `released` is called."""
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        task.add_done_callback(connections.discard)
        link: JsonPipe[Message] = JsonPipe(reader, writer, Message)
        response: Message = {}
        holds = False
        try:
            while (message := await link.receive()) is not None:
                response = {}  # a client whose answer is cut short sees the end of the connection
                response = await _answer_or_error(answer, message)
                holds = holds or "holds" in response
                link.send(response)
        except asyncio.CancelledError:  # the hive is down; the end of the connection says so
            if response.get("more"):
                link.send(last_words())
        finally:
            if holds:
                released()
            await link.close()

    try:
        server = await asyncio.start_unix_server(serve, path, limit=4 * MIB)
    except OSError as error:
        raise EngineError(
            f"the control socket `{path}` cannot be made: {error.strerror}",
            hint="something removes its folder; set XDG_RUNTIME_DIR to another one",
        ) from None
    os.chmod(path, 0o600)  # noqa: PTH101
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)  # noqa: ASYNC240 - one name, at the very end
        await _end_connections(connections)


async def _answer_or_error(answer: CommandHandler, message: Message) -> Message:
    try:
        return await answer(message)
    except (SkepError, OSError) as error:
        return {
            "error": str(error),
            "hint": getattr(error, "hint", None),
            "exit_code": getattr(error, "exit_code", 1),
        }
    except Exception as error:  # a bug is reported to the client and does not end the hive
        return {
            "error": f"unexpected {type(error).__name__}: {error}",
            "hint": "please report it",
        }


async def _end_connections(connections: set[asyncio.Task[None]]) -> None:
    """Let each send its last words; a connection whose client reads no more is given up."""
    for limit_s in (LAST_WORDS_S, None):
        for task in connections:
            task.cancel()
        if connections:
            await asyncio.wait(list(connections), timeout=limit_s)
