"""A client that does not read: what is taken from the engine for it must be bounded."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import urllib.request
from collections.abc import Iterator

from havoc.gateway_stage import (
    BAD_MODEL,
    HostileProcess,
    gateway_with,
    good_engine,
    watched_memory,
)
from havoc.line import Line
from havoc.scenario import (
    Scenario,
    ScenarioRow,
    Stage,
    chat_request,
    limit_check,
    post_request,
)

UNREAD_S = 6.0
MOST_TAKEN_MIB = 32.0  # the kernel's buffers of two connections hold up to ten
MOST_GROWN_MIB = 32.0
GIVE_UP_MIB = 1024.0
RECEIVE_BYTES = 4096


async def unread_row(
    name: str, action: str, *, port: int, pid: int, request: bytes, hostile: HostileProcess
) -> ScenarioRow:
    """Ask, read the head alone, and look at what the engine could send in the next seconds."""
    await hostile.start()
    async with watched_memory(pid, most_mib=GIVE_UP_MIB, feeder=hostile) as memory:
        connection = await Line.open(port, silence_s=20.0, receive_bytes=RECEIVE_BYTES)
        try:
            await connection.send(request)
            head = await connection.head()
            await asyncio.sleep(UNREAD_S)
            if memory.stopped:
                taken_mib = MOST_TAKEN_MIB * 1000
            else:
                taken_mib = await hostile.sent_mib()
        finally:
            connection.close()
    figures = {
        "status": head.status,
        "taken_mib": round(taken_mib, 1),
        "grown_mib": round(memory.grown_mib),
        "upstream_ended_early": memory.stopped,
    }
    checks = (
        limit_check("the client is answered at all", head.status, 200, "as status"),
        limit_check("bytes taken from the engine are bounded", taken_mib, MOST_TAKEN_MIB, "MiB"),
        limit_check("memory is bounded", memory.grown_mib, MOST_GROWN_MIB, "MiB"),
    )
    return ScenarioRow(name, action, figures, checks)


async def unread_stream(stage: Stage, name: str) -> ScenarioRow:
    action = (
        f"a client of the gateway does not read its stream for {UNREAD_S:g} s; the engine sends "
        "without end"
    )
    hostile = HostileProcess("events")
    try:
        with (
            good_engine() as engine,
            gateway_with(stage, engine=engine, hostile=hostile) as gateway,
        ):
            return await unread_row(
                name,
                action,
                port=gateway.port,
                pid=gateway.process.pid,
                request=chat_request(BAD_MODEL, 5),
                hostile=hostile,
            )
    finally:
        hostile.close()


async def unread_chat(stage: Stage, name: str) -> ScenarioRow:
    action = (
        f"a browser does not read the dashboard's chat for {UNREAD_S:g} s; the engine sends "
        "without end"
    )
    hostile = HostileProcess("events")
    fields = {"model": BAD_MODEL, "messages": [{"role": "user", "content": "hi"}]}
    try:
        with (
            good_engine() as engine,
            gateway_with(stage, engine=engine, hostile=hostile) as gateway,
            dashboard(stage, gateway.url) as (port, pid),
        ):
            own_page = f"origin: http://localhost:{port}"
            request = post_request("/api/chat", fields, f"localhost:{port}", own_page)
            return await unread_row(
                name, action, port=port, pid=pid, request=request, hostile=hostile
            )
    finally:
        hostile.close()


@contextlib.contextmanager
def dashboard(stage: Stage, gateway_url: str) -> Iterator[tuple[int, int]]:
    """`skep web` with folders of its own; its port and process id."""
    argv = [stage.python, "-m", "skep", "web", "--port", "0"]
    env = own_folders(stage) | {"SKEP_URL": gateway_url}
    with (stage.folder / "web.log").open("wb") as log:
        process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().decode().strip()
        # The first picture loads the renderer, and a child writes the script of live charts: some
        # 200 MiB that no client has to answer for.
        for path in ("plan?model=qwen3-8b&card=rtx-4090&whole=1", "static/vega.js"):
            urllib.request.urlopen(f"{url.rstrip('/')}/{path}", timeout=60).read()
        yield int(url.rpartition(":")[2]), process.pid
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def own_folders(stage: Stage) -> dict[str, str]:
    """Return this environment with an installation of skep in the stage's folder, and without a
    key.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("SKEP_")}
    env.pop("XDG_RUNTIME_DIR", None)
    for kind in ("CONFIG", "DATA", "CACHE", "STATE"):
        env[f"XDG_{kind}_HOME"] = str(stage.folder / kind.lower())
    return env


SCENARIOS: dict[str, Scenario] = {"unread-stream": unread_stream, "unread-chat": unread_chat}
